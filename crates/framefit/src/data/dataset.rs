//! A manifest, its videos, and the clips they give; and the memory that all this can hold.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use super::augment::check;
use super::clip::{ClipForm, ClipIndex, ClipRef, ClipShape, FrameSize};
use super::error::DataError;
use super::frame_labels::{FrameLabels, Gaps};
use super::labels::Labels;
use super::manifest::{Manifest, RowOrigin, Split, VideoId};
use super::resize::Resizer;
use super::source::{Source, SourceError, VideoInfo};
use super::store::{FrameStore, Kept, Needed};

/// Upper bounds of the bytes that the data side holds, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataMemory {
    /// Decoded frames kept between epochs.
    pub kept: u64,
    /// Clips decoded ahead, and the one being used.
    pub ring: u64,
    /// The open video: reference frames, sample table, one converted frame; and the tables of the resizer.
    pub decoder: u64,
    /// Manifest, labels per frame, clip index, the order of an epoch, and what is known about the videos.
    pub tables: u64,
}

impl DataMemory {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.kept + self.ring + self.decoder + self.tables
    }
}

/// Labelled clips, ready to be loaded.
pub struct Dataset {
    manifest: Manifest,
    infos: Vec<VideoInfo>,
    /// Per video, if frames have labels of their own.
    frame_labels: Option<Vec<FrameLabels>>,
    /// Of the longest clip.
    shape: ClipShape,
    index: ClipIndex,
    store: FrameStore,
}

/// Opens every video of a manifest once: frame counts and sizes from the files' indexes, nothing decoded.
pub fn probe(manifest: &Manifest) -> Result<Vec<VideoInfo>, DataError> {
    let opened = |(number, path): (usize, &PathBuf)| {
        let source = Source::open(path).and_then(|source| source.verify().map(|()| source));
        source.map(|source| source.info()).map_err(|cause| video_error(manifest, VideoId(number), cause))
    };
    manifest.videos.iter().enumerate().map(opened).collect()
}

/// An error of a video, at the first row that names it.
fn video_error(manifest: &Manifest, video: VideoId, cause: SourceError) -> DataError {
    match manifest.rows.iter().find(|row| row.video == video) {
        Some(row) => DataError::Video { origin: row.origin.clone(), cause },
        None => DataError::UnknownClip { number: video.0, clips: manifest.videos.len() },
    }
}

impl Dataset {
    /// Probes the videos and cuts them into clips. Up to `keep_bytes` of decoded frames stay in memory: if all that
    /// the clips need fits, each video is decoded once, when one of its clips is first loaded; videos that do not fit
    /// are decoded again for every clip.
    pub fn open(labels: impl Into<Labels>, form: impl Into<ClipForm>, keep_bytes: u64) -> Result<Self, DataError> {
        let labels = labels.into();
        let infos = probe(labels.manifest())?;
        Self::with_infos(labels, infos, form, keep_bytes)
    }

    /// As [`Dataset::open`], for videos that have been probed already.
    pub fn with_infos(
        labels: impl Into<Labels>,
        infos: Vec<VideoInfo>,
        form: impl Into<ClipForm>,
        keep_bytes: u64,
    ) -> Result<Self, DataError> {
        let (labels, form) = (labels.into(), form.into());
        let shape = form.shape(&labels, &infos)?;
        let (manifest, frame_labels) = match labels {
            Labels::PerClip(manifest) => (manifest, None),
            Labels::PerFrame(frames) => {
                let of_video = |(video, info): (usize, &VideoInfo)| frames.frame_labels(VideoId(video), info.frames);
                let labels = infos.iter().enumerate().map(of_video).collect::<Result<Vec<_>, _>>()?;
                (frames.into_manifest(), Some(labels))
            }
        };
        let index = ClipIndex::cut(&manifest, &infos, form.length, frame_labels.as_deref())?;
        let mut ranges: Vec<Vec<Range<usize>>> = vec![Vec::new(); infos.len()];
        for clip in index.iter() {
            if let Some(ranges) = ranges.get_mut(clip.video.0) {
                ranges.push(clip.range());
            }
        }
        let needed = ranges.into_iter().map(Needed::new).collect();
        let store = FrameStore::new(needed, shape.frame_bytes(), keep_bytes);
        Ok(Self { manifest, infos, frame_labels, shape, index, store })
    }

    /// The manifest; with labels per frame, with one row per video.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Names of the classes; a clip's label is an index into them.
    pub fn classes(&self) -> &[String] {
        &self.manifest.classes
    }

    /// What is known about each video of the manifest.
    pub fn infos(&self) -> &[VideoInfo] {
        &self.infos
    }

    /// All clips.
    pub const fn index(&self) -> &ClipIndex {
        &self.index
    }

    /// Clips of one split, in the order of the rows.
    pub fn clips(&self, split: Split) -> &[ClipRef] {
        self.index.clips(split)
    }

    /// The shape of the longest clip, which is that of every clip if all have the same number of frames.
    pub const fn shape(&self) -> ClipShape {
        self.shape
    }

    /// The shape of one clip.
    pub const fn shape_of(&self, clip: &ClipRef) -> ClipShape {
        ClipShape { frames: clip.frames, ..self.shape }
    }

    /// Frames of the longest clip of all splits.
    pub fn longest(&self) -> usize {
        self.index.longest()
    }

    /// The first of the clips of fewest frames, over all splits.
    pub fn shortest(&self) -> Option<&ClipRef> {
        self.index.iter().min_by_key(|clip| (clip.frames, clip.number))
    }

    /// Whether every clip has the frames that a model needs for one output. A layer only knows that its input is too
    /// short; this names the video.
    ///
    /// # Errors
    /// [`DataError::TooShort`] with the first of the shortest clips.
    pub fn check_frames(&self, need: usize) -> Result<(), DataError> {
        let Some(clip) = self.shortest().filter(|clip| clip.frames < need) else { return Ok(()) };
        let video = self.manifest.path(clip.video).to_owned();
        let origin = self.manifest.rows.get(clip.row).map(|row| row.origin.clone());
        let of = self.infos.get(clip.video.0).map_or(0, |info| info.frames);
        Err(DataError::TooShort {
            origin: origin.unwrap_or_else(|| RowOrigin { file: video.as_path().into(), line: 0 }),
            video,
            frames: clip.range(),
            of,
            need,
            piece: self.per_frame() && clip.frames < of,
        })
    }

    /// The numbers of frames that clips of one split have, each once, ascending.
    pub fn lengths(&self, split: Split) -> &[usize] {
        self.index.lengths(split)
    }

    /// Whether frames have labels of their own.
    pub const fn per_frame(&self) -> bool {
        self.frame_labels.is_some()
    }

    /// The labels of a video's frames, if they have their own.
    pub fn frame_labels(&self, video: VideoId) -> Option<&FrameLabels> {
        self.frame_labels.as_ref()?.get(video.0)
    }

    /// The labels of a clip's frames, `[T]`, if they have their own; [`IGNORE`](super::IGNORE) where one has none.
    pub fn labels_of(&self, clip: &ClipRef) -> Option<&[u32]> {
        self.frame_labels(clip.video)?.labels().get(clip.range())
    }

    /// Videos of which not every frame is named by a row of labels per frame. None if clips have one label.
    pub fn gaps(&self) -> impl Iterator<Item = &Gaps> {
        self.frame_labels.iter().flatten().filter_map(FrameLabels::gaps)
    }

    /// Whether every frame that clips need is kept, so that later epochs decode nothing.
    pub const fn keeps_everything(&self) -> bool {
        self.store.bytes() == self.store.needed_bytes()
    }

    /// Bytes that keeping every frame that clips need takes.
    pub const fn bytes_to_keep_everything(&self) -> u64 {
        self.store.needed_bytes()
    }

    /// Upper bounds of the bytes held with one [`Loader`](super::Loader) that decodes `ahead` clips ahead.
    pub fn memory_bytes(&self, ahead: usize) -> DataMemory {
        let to = self.frame_size();
        let open = |info: &VideoInfo| {
            let from = FrameSize { height: info.height, width: info.width };
            info.decoder_bytes + Resizer::bytes(from, to, self.shape.channels)
        };
        let names: usize = self.manifest.classes.iter().map(|name| name.capacity() + size_of::<String>()).sum();
        let paths: usize = self.manifest.videos.iter().map(|path| path.capacity() + size_of::<PathBuf>()).sum();
        let rows = self.manifest.rows.capacity() * size_of::<super::Row>();
        let infos = self.infos.capacity() * size_of::<VideoInfo>();
        let order = self.index.len() * size_of::<ClipRef>();
        let of_video = |labels: &FrameLabels| size_of::<FrameLabels>() as u64 + labels.bytes();
        let frame_labels: u64 = self.frame_labels.iter().flatten().map(of_video).sum();
        let names_and_rows = (names + paths + rows + infos + order) as u64;
        DataMemory {
            kept: self.store.bytes(),
            ring: super::loader::buffers(ahead, self.index.len()) as u64 * self.shape.bytes() as u64,
            decoder: self.infos.iter().map(open).max().unwrap_or(0),
            tables: names_and_rows + frame_labels + self.index.bytes() + self.store.table_bytes(),
        }
    }

    fn frame_size(&self) -> FrameSize {
        FrameSize { height: self.shape.height, width: self.shape.width }
    }

    /// Errors name the row of the clip.
    fn at_row(&self, clip: &ClipRef) -> impl Fn(SourceError) -> DataError {
        let origin = self.manifest.rows.get(clip.row).map(|row| row.origin.clone());
        let (number, clips) = (clip.number, self.index.len());
        move |cause| match &origin {
            Some(origin) => DataError::Video { origin: origin.clone(), cause },
            None => DataError::UnknownClip { number, clips },
        }
    }
}

/// Reads clips of a data set, with at most one video open.
pub(crate) struct ClipReader<'a> {
    dataset: &'a Dataset,
    open: Option<(VideoId, Source)>,
    resizer: Option<Resizer>,
}

/// Whether something was read to its end.
pub(crate) enum Done {
    Whole,
    Stopped,
}

impl<'a> ClipReader<'a> {
    pub(crate) const fn new(dataset: &'a Dataset) -> Self {
        Self { dataset, open: None, resizer: None }
    }

    /// Writes a clip to `out`, `[T][H][W][C]` with the clip's own T. Asks `stop` before each frame.
    pub(crate) fn read(&mut self, clip: &ClipRef, out: &mut [u8], stop: &dyn Fn() -> bool) -> Result<Done, DataError> {
        let shape = self.dataset.shape_of(clip);
        check("the clip", out.len(), shape.bytes())?;
        let error = self.dataset.at_row(clip);
        let range = clip.range();
        let Some(kept) = self.dataset.store.get(clip.video.0) else {
            return self.decode(clip.video, range, out, stop).map_err(error);
        };
        let mut content = kept.lock();
        if !content.filled {
            if let Done::Stopped = self.fill(clip.video, kept, &mut content.frames, stop).map_err(&error)? {
                return Ok(Done::Stopped);
            }
            content.filled = true;
        }
        let frame = shape.frame_bytes();
        let at = kept.needed.place(clip.start).and_then(|place| content.frames.get(place * frame..)?.get(..out.len()));
        let Some(frames) = at else {
            return Err(DataError::UnknownClip { number: clip.number, clips: self.dataset.index.len() });
        };
        out.copy_from_slice(frames);
        Ok(Done::Whole)
    }

    /// Decodes all needed frames of a video.
    fn fill(
        &mut self,
        video: VideoId,
        kept: &Kept,
        mut frames: &mut [u8],
        stop: &dyn Fn() -> bool,
    ) -> Result<Done, SourceError> {
        for range in kept.needed.ranges() {
            let bytes = range.len() * self.dataset.shape.frame_bytes();
            let Some((now, later)) = frames.split_at_mut_checked(bytes) else { break };
            frames = later;
            if let Done::Stopped = self.decode(video, range.clone(), now, stop)? {
                return Ok(Done::Stopped);
            }
        }
        // The video is not read again.
        self.open = None;
        Ok(Done::Whole)
    }

    /// Decodes and resizes frames into `out`, `[range][H][W][C]`.
    fn decode(
        &mut self,
        video: VideoId,
        range: Range<usize>,
        out: &mut [u8],
        stop: &dyn Fn() -> bool,
    ) -> Result<Done, SourceError> {
        let to = self.dataset.frame_size();
        let ClipShape { channels, .. } = self.dataset.shape;
        if self.open.as_ref().is_none_or(|(open, _)| *open != video) {
            // The last video is closed before the next one is opened.
            self.open = None;
            self.open = Some((video, Source::open(self.dataset.manifest.path(video))?));
        }
        let Some((_, source)) = &mut self.open else { return Ok(Done::Stopped) };
        let info = source.info();
        let from = FrameSize { height: info.height, width: info.width };
        if !self.resizer.as_ref().is_some_and(|resizer| resizer.takes(from)) {
            self.resizer = None;
            self.resizer = Resizer::new(from, to, channels);
        }
        let resizer = &mut self.resizer;
        let frame_bytes = self.dataset.shape.frame_bytes();
        let mut stopped = false;
        source.read(range.clone(), channels, &mut |number, frame| {
            stopped = stop();
            if stopped {
                return ControlFlow::Break(());
            }
            let at = number.saturating_sub(range.start) * frame_bytes;
            if let Some(out) = out.get_mut(at..at + frame_bytes) {
                Resizer::fit(resizer.as_mut(), frame, out);
            }
            ControlFlow::Continue(())
        })?;
        Ok(if stopped { Done::Stopped } else { Done::Whole })
    }
}
