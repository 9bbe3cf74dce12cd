//! From rows to clips: of a fixed number of frames, or of as many as there are.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use super::frame_labels::FrameLabels;
use super::labels::Labels;
use super::manifest::{Manifest, Row, RowOrigin, Split, VideoId};
use super::source::{MAX_SIDE, VideoInfo};

/// Height and width of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameSize {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// How many frames clips have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Length {
    /// This many. Rows with one label are cut into clips of exactly so many, and what is left over is left out and
    /// said ([`ClipIndex::left_out`]). Videos with labels per frame are cut into consecutive pieces, the last of which
    /// may be shorter: every frame is in one.
    Frames(usize),
    /// As many as the row has, or, with labels per frame, the video.
    Whole,
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frames(frames) => write!(f, "{frames} frames"),
            Self::Whole => f.write_str("all frames"),
        }
    }
}

/// What every clip is to be, with [`Length::Frames`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClipSpec {
    /// Frames (T).
    pub frames: usize,
    /// Size to resize to; `None` keeps the size of the videos, which must then have one.
    pub size: Option<FrameSize>,
    /// 3 for RGB, 1 for grey.
    pub channels: usize,
}

/// What clips are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClipForm {
    /// Frames (T).
    pub length: Length,
    /// Size to resize to; `None` keeps the size of the videos, which must then have one.
    pub size: Option<FrameSize>,
    /// 3 for RGB, 1 for grey.
    pub channels: usize,
}

impl From<ClipSpec> for ClipForm {
    fn from(spec: ClipSpec) -> Self {
        Self { length: Length::Frames(spec.frames), size: spec.size, channels: spec.channels }
    }
}

/// The shape of a loaded clip, `[T][H][W][C]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClipShape {
    /// T
    pub frames: usize,
    /// H
    pub height: usize,
    /// W
    pub width: usize,
    /// C
    pub channels: usize,
}

impl ClipShape {
    /// Bytes of one frame.
    pub const fn frame_bytes(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Bytes of the clip.
    pub const fn bytes(&self) -> usize {
        self.frames * self.frame_bytes()
    }
}

/// One clip: consecutive frames of a video, with one label, or with one label per frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClipRef {
    /// Number of the clip in the data set, over all splits. Augmentation is drawn from it.
    pub number: usize,
    /// The video.
    pub video: VideoId,
    /// First frame.
    pub start: usize,
    /// Frames (T).
    pub frames: usize,
    /// The class; [`IGNORE`](super::IGNORE) where frames have labels of their own.
    pub label: usize,
    /// The row, an index into [`Manifest::rows`].
    pub row: usize,
}

impl ClipRef {
    /// Its frames in the video.
    pub const fn range(&self) -> Range<usize> {
        self.start..self.start + self.frames
    }

    /// The frame of the video that frame `t` of the clip is; `None` from the clip's end on.
    pub fn frame(&self, t: usize) -> Option<FrameRef> {
        (t < self.frames).then(|| FrameRef { video: self.video, frame: self.start + t })
    }
}

/// One frame of a video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameRef {
    /// The video.
    pub video: VideoId,
    /// Its number in presentation order.
    pub frame: usize,
}

/// The frames of clips one after the other, by number: which frame of which video the i-th prediction is of.
///
/// Frames of one clip follow each other. (In a micro-batch, `[T][N]`, they do not: there, [`ClipRef::frame`] of clip n
/// at t.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameOrder {
    clips: Vec<ClipRef>,
    /// Frames before each clip.
    before: Vec<usize>,
    frames: usize,
}

impl FrameOrder {
    /// Of clips in the order in which they are loaded.
    pub fn new(clips: &[ClipRef]) -> Self {
        let mut frames = 0;
        let mut before = Vec::with_capacity(clips.len());
        for clip in clips {
            before.push(frames);
            frames += clip.frames;
        }
        Self { clips: clips.to_vec(), before, frames }
    }

    /// Frames of all clips.
    pub const fn len(&self) -> usize {
        self.frames
    }

    /// Whether there is no frame.
    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Frame `index`, `0..len`.
    pub fn get(&self, index: usize) -> Option<FrameRef> {
        let clip = self.before.partition_point(|before| *before <= index).checked_sub(1)?;
        self.clips.get(clip)?.frame(index - self.before.get(clip)?)
    }

    /// All frames, in order.
    pub fn iter(&self) -> impl Iterator<Item = FrameRef> {
        self.clips.iter().flat_map(|clip| clip.range().map(|frame| FrameRef { video: clip.video, frame }))
    }
}

/// Frames at the end of a row that do not fill a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// The row, an index into [`Manifest::rows`].
    pub row: usize,
    /// Frames left out, fewer than a clip has.
    pub frames: usize,
}

/// All clips of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipIndex {
    splits: [Vec<ClipRef>; 3],
    /// Per split, ascending.
    lengths: [Vec<usize>; 3],
    /// Per split, frames by class; empty where clips have one label.
    frame_counts: [Vec<usize>; 3],
    left_out: Vec<LeftOut>,
    clips: usize,
}

/// Why rows and videos do not give clips of the wanted form.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields hold")]
pub enum ClipError {
    #[error("a clip of {length}, {}, {channels} channels cannot be made: frames, height and width must be 1 or more (height and width at most {MAX_EXTENT}), channels 1 or 3", size.map_or("at the videos' size".to_owned(), |size| written(&size)))]
    Spec { length: Length, size: Option<FrameSize>, channels: usize },
    #[error("{origin}: the row ends at frame {end}, but {} has {frames} frames (0 to {}). Set end_frame to {frames} at most", video.display(), frames.saturating_sub(1))]
    PastEnd { origin: RowOrigin, video: PathBuf, end: usize, frames: usize },
    #[error("{origin}: the row labels frame {frame}, but {} has {frames} frames (0 to {}), and rows name {named}. {}", video.display(), frames.saturating_sub(1), if *from_one { "They number the frames from 1: number them from 0" } else { "Remove the rows from that frame on, or check that the video is the one that was labelled" })]
    NoSuchFrame { origin: RowOrigin, video: PathBuf, frame: usize, frames: usize, named: usize, from_one: bool },
    #[error("{origin}: rows name {named} frames of {}, this one as the last, frame {last}, but it has {frames} (0 to {}). Check that the video is the one that was labelled, or add rows for the frames from {} on, with an empty label where there is none: one for frame {} is enough", video.display(), frames.saturating_sub(1), last + 1, frames.saturating_sub(1))]
    RowsEnd { origin: RowOrigin, video: PathBuf, last: usize, frames: usize, named: usize },
    #[error("{origin}: the row has {have} frames of {}, but a clip needs {need}. Use shorter clips (--clip {have}), or remove the row", video.display())]
    Short { origin: RowOrigin, video: PathBuf, have: usize, need: usize },
    #[error("videos differ in size: {} is {} and {} is {} (height×width). Choose one size for all, for example --size {}", first.display(), written(first_size), other.display(), written(other_size), written(smaller(first_size, other_size)))]
    Sizes { first: PathBuf, first_size: FrameSize, other: PathBuf, other_size: FrameSize },
}

/// Most rows or columns of a frame.
pub const MAX_EXTENT: usize = MAX_SIDE as usize;

fn written(size: &FrameSize) -> String {
    format!("{}x{}", size.height, size.width)
}

fn smaller<'a>(a: &'a FrameSize, b: &'a FrameSize) -> &'a FrameSize {
    if a.height * a.width <= b.height * b.width { a } else { b }
}

impl ClipSpec {
    /// The shape of every clip of videos with these `infos` (one per video of the manifest).
    pub fn shape(&self, manifest: &Manifest, infos: &[VideoInfo]) -> Result<ClipShape, ClipError> {
        let FrameSize { height, width } = ClipForm::from(*self).frame_size(manifest, infos)?;
        Ok(ClipShape { frames: self.frames, height, width, channels: self.channels })
    }
}

impl ClipForm {
    /// The shape of the longest clip of videos with these `infos` (one per video of the manifest).
    pub fn shape(&self, labels: &Labels, infos: &[VideoInfo]) -> Result<ClipShape, ClipError> {
        let FrameSize { height, width } = self.frame_size(labels.manifest(), infos)?;
        let of_row = |row: &Row| {
            let have = infos.get(row.video.0).map_or(0, |info| info.frames);
            row.frames.as_ref().map_or(have, |frames| frames.len().min(have))
        };
        let longest = || labels.manifest().rows.iter().map(of_row).max().unwrap_or(0);
        let frames = match self.length {
            Length::Frames(frames) if labels.per_frame() => frames.min(longest()),
            Length::Frames(frames) => frames,
            Length::Whole => longest(),
        };
        Ok(ClipShape { frames, height, width, channels: self.channels })
    }

    fn frame_size(&self, manifest: &Manifest, infos: &[VideoInfo]) -> Result<FrameSize, ClipError> {
        let Self { length, size, channels } = *self;
        let in_bounds =
            |size: FrameSize| (1..=MAX_EXTENT).contains(&size.height) && (1..=MAX_EXTENT).contains(&size.width);
        if length == Length::Frames(0) || !matches!(channels, 1 | 3) || !size.is_none_or(in_bounds) {
            return Err(ClipError::Spec { length, size, channels });
        }
        let of = |info: &VideoInfo| FrameSize { height: info.height, width: info.width };
        match (size, infos.first().map(of)) {
            (Some(size), _) => Ok(size),
            (None, None) => Err(ClipError::Spec { length, size, channels }),
            (None, Some(first_size)) => match infos.iter().position(|info| of(info) != first_size) {
                None => Ok(first_size),
                Some(other) => Err(ClipError::Sizes {
                    first: manifest.path(VideoId(0)).into(),
                    first_size,
                    other: manifest.path(VideoId(other)).into(),
                    other_size: infos.get(other).map_or(first_size, of),
                }),
            },
        }
    }
}

impl ClipIndex {
    /// Cuts every row into consecutive clips of `frames` frames that do not overlap.
    pub fn new(manifest: &Manifest, infos: &[VideoInfo], frames: usize) -> Result<Self, ClipError> {
        Self::cut(manifest, infos, Length::Frames(frames), None)
    }

    /// `frame_labels`: per video, if frames have labels of their own.
    pub(super) fn cut(
        manifest: &Manifest,
        infos: &[VideoInfo],
        length: Length,
        frame_labels: Option<&[FrameLabels]>,
    ) -> Result<Self, ClipError> {
        let mut index = Self {
            splits: Default::default(),
            lengths: Default::default(),
            frame_counts: Default::default(),
            left_out: Vec::new(),
            clips: 0,
        };
        for (number, row) in manifest.rows.iter().enumerate() {
            let have = infos.get(row.video.0).map_or(0, |info| info.frames);
            let origin = || row.origin.clone();
            let video = || manifest.path(row.video).to_owned();
            let range = row.frames.clone().unwrap_or(0..have);
            if range.end > have {
                return Err(ClipError::PastEnd { origin: origin(), video: video(), end: range.end, frames: have });
            }
            let frames = match length {
                Length::Frames(frames) if frame_labels.is_some() => frames.min(range.len()),
                Length::Frames(frames) => frames,
                Length::Whole => range.len(),
            };
            if range.len() < frames || frames == 0 {
                let need = frames.max(1);
                return Err(ClipError::Short { origin: origin(), video: video(), have: range.len(), need });
            }
            let rest = range.len() % frames;
            if rest > 0 && frame_labels.is_none() {
                index.left_out.push(LeftOut { row: number, frames: rest });
            }
            let end = if frame_labels.is_some() { range.end } else { range.end - rest };
            let split = row.split.number();
            for start in (range.start..end).step_by(frames) {
                let frames = frames.min(end - start);
                index.add(
                    split,
                    ClipRef { number: index.clips, video: row.video, start, frames, label: row.label, row: number },
                );
            }
            if let (Some(labels), Some(counts)) =
                (frame_labels.and_then(|labels| labels.get(row.video.0)), index.frame_counts.get_mut(split))
            {
                counts.resize(manifest.classes.len(), 0);
                let of_video = labels.class_counts(manifest.classes.len());
                counts.iter_mut().zip(of_video).for_each(|(count, more)| *count += more);
            }
        }
        Ok(index)
    }

    fn add(&mut self, split: usize, clip: ClipRef) {
        self.clips += 1;
        let (Some(clips), Some(lengths)) = (self.splits.get_mut(split), self.lengths.get_mut(split)) else { return };
        clips.push(clip);
        if let Err(place) = lengths.binary_search(&clip.frames) {
            lengths.insert(place, clip.frames);
        }
    }

    /// Clips of one split, in the order of the rows.
    pub fn clips(&self, split: Split) -> &[ClipRef] {
        self.splits.get(split.number()).map_or(&[], Vec::as_slice)
    }

    /// The numbers of frames that clips of one split have, each once, ascending.
    pub fn lengths(&self, split: Split) -> &[usize] {
        self.lengths.get(split.number()).map_or(&[], Vec::as_slice)
    }

    /// Frames of the longest clip of all splits; 0 if there are no clips.
    pub fn longest(&self) -> usize {
        self.lengths.iter().filter_map(|lengths| lengths.last()).copied().max().unwrap_or(0)
    }

    /// Clips of all splits.
    pub fn iter(&self) -> impl Iterator<Item = &ClipRef> {
        self.splits.iter().flatten()
    }

    /// Number of clips in all splits.
    pub const fn len(&self) -> usize {
        self.clips
    }

    /// Whether there are no clips.
    pub const fn is_empty(&self) -> bool {
        self.clips == 0
    }

    /// Rows whose last frames do not fill a clip. To be reported: nothing is left out in silence.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Clips of one split by class; with labels per frame, frames by class. Those without a label are not counted.
    pub fn class_counts(&self, split: Split, classes: usize) -> Vec<usize> {
        if let Some(counts) = self.frame_counts.get(split.number()).filter(|counts| !counts.is_empty()) {
            let mut counts = counts.clone();
            counts.resize(classes, 0);
            return counts;
        }
        let mut counts = vec![0; classes];
        for clip in self.clips(split) {
            if let Some(count) = counts.get_mut(clip.label) {
                *count += 1;
            }
        }
        counts
    }

    pub(crate) fn bytes(&self) -> u64 {
        let clips: usize = self.splits.iter().map(Vec::capacity).sum();
        let numbers: usize = self.lengths.iter().chain(&self.frame_counts).map(Vec::capacity).sum();
        let left_out = self.left_out.capacity() * size_of::<LeftOut>();
        (clips * size_of::<ClipRef>() + numbers * size_of::<usize>() + left_out) as u64
    }
}
