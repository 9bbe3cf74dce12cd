//! From rows to clips of a fixed number of frames.

use std::path::PathBuf;

use super::manifest::{Manifest, RowOrigin, Split, VideoId};
use super::source::{MAX_SIDE, VideoInfo};

/// Height and width of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameSize {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// What every clip is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClipSpec {
    /// Frames (T).
    pub frames: usize,
    /// Size to resize to; `None` keeps the size of the videos, which must then have one.
    pub size: Option<FrameSize>,
    /// 3 for RGB, 1 for grey.
    pub channels: usize,
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

/// One clip: consecutive frames of a video, with one label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClipRef {
    /// Number of the clip in the data set, over all splits. Augmentation is drawn from it.
    pub number: usize,
    /// The video.
    pub video: VideoId,
    /// First frame.
    pub start: usize,
    /// The class.
    pub label: usize,
    /// The row, an index into [`Manifest::rows`].
    pub row: usize,
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
    left_out: Vec<LeftOut>,
    clips: usize,
}

/// Why rows and videos do not give clips of the wanted form.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields hold")]
pub enum ClipError {
    #[error("a clip of {frames} frames, {}, {channels} channels cannot be made: frames, height and width must be 1 or more (height and width at most {MAX_EXTENT}), channels 1 or 3", size.map_or("at the videos' size".to_owned(), |size| written(&size)))]
    Spec { frames: usize, size: Option<FrameSize>, channels: usize },
    #[error("{origin}: the row ends at frame {end}, but {} has {frames} frames (0 to {}). Set end_frame to {frames} at most", video.display(), frames.saturating_sub(1))]
    PastEnd { origin: RowOrigin, video: PathBuf, end: usize, frames: usize },
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
        let Self { frames, size, channels } = *self;
        let in_bounds =
            |size: FrameSize| (1..=MAX_EXTENT).contains(&size.height) && (1..=MAX_EXTENT).contains(&size.width);
        if frames == 0 || !matches!(channels, 1 | 3) || !size.is_none_or(in_bounds) {
            return Err(ClipError::Spec { frames, size, channels });
        }
        let of = |info: &VideoInfo| FrameSize { height: info.height, width: info.width };
        let size = match (size, infos.first().map(of)) {
            (Some(size), _) => size,
            (None, None) => return Err(ClipError::Spec { frames, size, channels }),
            (None, Some(first_size)) => {
                if let Some(other) = infos.iter().position(|info| of(info) != first_size) {
                    return Err(ClipError::Sizes {
                        first: manifest.path(VideoId(0)).into(),
                        first_size,
                        other: manifest.path(VideoId(other)).into(),
                        other_size: infos.get(other).map_or(first_size, of),
                    });
                }
                first_size
            }
        };
        Ok(ClipShape { frames, height: size.height, width: size.width, channels })
    }
}

impl ClipIndex {
    /// Cuts every row into consecutive clips of `frames` frames that do not overlap.
    pub fn new(manifest: &Manifest, infos: &[VideoInfo], frames: usize) -> Result<Self, ClipError> {
        let mut index = Self { splits: Default::default(), left_out: Vec::new(), clips: 0 };
        for (row, content) in manifest.rows.iter().enumerate() {
            let have = infos.get(content.video.0).map_or(0, |info| info.frames);
            let origin = || content.origin.clone();
            let video = || manifest.path(content.video).to_owned();
            let range = content.frames.clone().unwrap_or(0..have);
            if range.end > have {
                return Err(ClipError::PastEnd { origin: origin(), video: video(), end: range.end, frames: have });
            }
            if range.len() < frames || frames == 0 {
                return Err(ClipError::Short { origin: origin(), video: video(), have: range.len(), need: frames });
            }
            let count = range.len() / frames;
            if let Some(split) = index.splits.get_mut(content.split.number()) {
                split.extend((0..count).map(|i| ClipRef {
                    number: index.clips + i,
                    video: content.video,
                    start: range.start + i * frames,
                    label: content.label,
                    row,
                }));
            }
            index.clips += count;
            if range.len() % frames > 0 {
                index.left_out.push(LeftOut { row, frames: range.len() % frames });
            }
        }
        Ok(index)
    }

    /// Clips of one split, in the order of the rows.
    pub fn clips(&self, split: Split) -> &[ClipRef] {
        self.splits.get(split.number()).map_or(&[], Vec::as_slice)
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

    /// Clips of one split by class.
    pub fn class_counts(&self, split: Split, classes: usize) -> Vec<usize> {
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
        (clips * size_of::<ClipRef>() + self.left_out.capacity() * size_of::<LeftOut>()) as u64
    }
}
