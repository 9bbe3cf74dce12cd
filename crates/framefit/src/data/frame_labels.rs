//! Labels per frame: a manifest that says what every frame of a video shows.
//!
//! Columns by name, in any order, case ignored: `video`, `label`, optionally `split`, and the frames that a row
//! labels: `frame`, or `start_frame` and `end_frame`, or neither for the whole video. An empty label leaves its frames
//! unlabelled, as are those that no row names. But rows that name frame after frame must reach the last one: where they
//! name three of four frames up to their last and the video goes on, it may not be the one that was labelled.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::clip::ClipError;
use super::manifest::{Manifest, ManifestError, Row, RowOrigin, Split, TwoLabels, VideoId};
use super::natural;
use super::table::{Kind, Named, Record, Table, class_name, open_all};

/// The label of a frame that has none. It takes no part in losses, scores and counts.
pub const IGNORE: u32 = u32::MAX;

/// Videos with labels per frame, each video in one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameManifest {
    /// One row per video, of the whole video, at the first row that names it.
    manifest: Manifest,
    /// Per video, by their first frame. Runs that overlap have one label.
    runs: Vec<Vec<Run>>,
}

/// Consecutive frames that one row, or consecutive rows, give one label.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    /// Up to `usize::MAX`: to the end of the video.
    frames: Range<usize>,
    /// A class, or [`IGNORE`].
    label: u32,
    /// The row of the first frame.
    origin: RowOrigin,
    /// Whether each frame has a line of its own, one after the other.
    line_each: bool,
}

impl Run {
    fn origin_of(&self, frame: usize) -> RowOrigin {
        let lines = if self.line_each { frame.saturating_sub(self.frames.start) as u64 } else { 0 };
        RowOrigin { line: self.origin.line + lines, ..self.origin.clone() }
    }

    /// Whether `next`, the next row of the file, only makes this run longer.
    fn extend(&mut self, next: &Self) -> bool {
        let follows = self.line_each
            && next.line_each
            && self.label == next.label
            && self.frames.end == next.frames.start
            && self.origin.file == next.origin.file
            && self.origin.line + self.frames.len() as u64 == next.origin.line;
        if follows {
            self.frames.end = next.frames.end;
        }
        follows
    }
}

impl FrameManifest {
    /// Reads one manifest (with a `split` column; without it every video is for training), or two: training,
    /// validation. Rows of clips or whole videos label each of their frames.
    ///
    /// Checks every row, that every video exists and is in one split, and that no frame has two labels. Each label
    /// needs a training row. Frame numbers are compared with the videos by [`FrameManifest::frame_labels`].
    pub fn read(paths: &[PathBuf]) -> Result<Self, ManifestError> {
        Self::of_tables(&open_all(paths)?)
    }

    /// Reads manifests for a model that already has its classes: labels must be among them, and keep their numbers.
    /// No training row is needed.
    pub fn read_with_classes(paths: &[PathBuf], classes: &[String]) -> Result<Self, ManifestError> {
        Self::of_tables_with_classes(&open_all(paths)?, classes)
    }

    /// Videos of which no frame is labelled, to predict their labels.
    pub fn unlabelled(videos: Vec<PathBuf>, classes: Vec<String>, split: Split) -> Self {
        let row = |(number, path): (usize, &PathBuf)| Row {
            video: VideoId(number),
            label: IGNORE as usize,
            frames: None,
            split,
            origin: RowOrigin { file: path.as_path().into(), line: 0 },
        };
        let rows = videos.iter().enumerate().map(row).collect();
        let runs = vec![Vec::new(); videos.len()];
        Self { manifest: Manifest { classes, rows, videos }, runs }
    }

    /// The videos and classes, with one row per video: row `i` is of video `i`, all of it, and its label is
    /// [`IGNORE`].
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The labels of a video of `frames` frames.
    ///
    /// # Errors
    /// When a row names a frame that the video does not have, and when rows for frame after frame end before the video.
    pub fn frame_labels(&self, video: VideoId, frames: usize) -> Result<FrameLabels, ClipError> {
        let runs = self.runs.get(video.0).map_or(&[][..], Vec::as_slice);
        let path = || self.manifest.path(video).to_owned();
        let mut labels = vec![IGNORE; frames].into_boxed_slice();
        let mut gaps = None;
        let (mut named, mut covered) = (0, 0);
        let mut before = None;
        for run in runs {
            let Range { start, mut end } = run.frames;
            if end == usize::MAX {
                end = frames;
            }
            if end > frames || start >= frames {
                let origin = run.origin_of(start.max(frames));
                if !run.line_each {
                    return Err(ClipError::PastEnd { origin, video: path(), end, frames });
                }
                let last = runs.iter().map(|run| run.frames.end).max().unwrap_or(0);
                let from_one = last == frames + 1 && runs.first().is_some_and(|run| run.frames.start == 1);
                return Err(ClipError::NoSuchFrame {
                    origin,
                    video: path(),
                    frame: start.max(frames),
                    frames,
                    named: named_by(runs),
                    from_one,
                });
            }
            if start > covered && gaps.is_none() {
                gaps = Some((covered, before));
            }
            if let Some(labels) = labels.get_mut(start..end) {
                labels.fill(run.label);
            }
            if end > covered {
                named += end - start.max(covered);
                covered = end;
                before = Some((run, end - 1));
            }
        }
        if covered < frames {
            let each = runs.iter().all(|run| run.line_each);
            if let Some((run, last)) = before.filter(|_| each && 4 * named >= 3 * covered) {
                return Err(ClipError::RowsEnd { origin: run.origin_of(last), video: path(), last, frames, named });
            }
            gaps = gaps.or(Some((covered, before)));
        }
        let gaps = gaps.map(|(first, before)| {
            let after = before.map(|(run, frame): (&Run, usize)| run.origin_of(frame));
            Box::new(Gaps { video: path(), frames, named, first, after })
        });
        Ok(FrameLabels { labels, gaps })
    }

    pub(super) fn into_manifest(self) -> Manifest {
        self.manifest
    }

    pub(super) fn of_tables(tables: &[Table]) -> Result<Self, ManifestError> {
        let reading = Reading::of(tables)?;
        if let (0, Some(table)) = (reading.training_rows, tables.first()) {
            return Err(ManifestError::NoTraining { file: table.path.to_path_buf(), rows: reading.rows });
        }
        let trained = reading.labels.iter().filter(|label| label.trained);
        let mut classes: Vec<String> = trained.map(|label| label.name.clone()).collect();
        classes.sort_by(|a, b| natural::compare(a, b));
        if let (true, Some(table)) = (classes.is_empty(), tables.first()) {
            let rows = reading.training_rows;
            return Err(ManifestError::NoTrainingLabel { file: table.path.to_path_buf(), rows });
        }
        reading.finish(classes, |origin, label, known| ManifestError::UntrainedLabel { origin, label, known })
    }

    pub(super) fn of_tables_with_classes(tables: &[Table], classes: &[String]) -> Result<Self, ManifestError> {
        let unknown = |origin, label, classes| ManifestError::UnknownLabel { origin, label, classes };
        Reading::of(tables)?.finish(classes.to_vec(), unknown)
    }
}

/// A label, as it first appears.
struct Written {
    name: String,
    origin: RowOrigin,
    trained: bool,
}

/// What the files say, labels numbered by their first appearance.
#[derive(Default)]
struct Reading {
    /// Rows of the videos, numbered as they are.
    videos: Vec<(PathBuf, Split, RowOrigin)>,
    runs: Vec<Vec<Run>>,
    labels: Vec<Written>,
    numbers: HashMap<String, usize>,
    ids: HashMap<PathBuf, usize>,
    rows: usize,
    training_rows: usize,
}

impl Reading {
    fn of(tables: &[Table]) -> Result<Self, ManifestError> {
        let mut reading = Self::default();
        for table in tables {
            let folder = table.path.parent().unwrap_or(Path::new(""));
            // Videos as this file writes them; a path is only put together where a new one appears.
            let mut spelled = HashMap::new();
            table.rows(Kind::Frames, &mut |record| {
                let origin = table.origin(record.line);
                let video = match spelled.get(record.video) {
                    Some(video) => *video,
                    None => {
                        let video = reading.video(folder.join(record.video), record.split, &origin);
                        spelled.insert(record.video.to_owned(), video);
                        video
                    }
                };
                reading.add(video, &record, origin)
            })?;
        }
        Ok(reading)
    }

    fn video(&mut self, path: PathBuf, split: Split, origin: &RowOrigin) -> usize {
        let next = self.videos.len();
        let number = *self.ids.entry(path.clone()).or_insert(next);
        if number == next {
            self.videos.push((path, split, origin.clone()));
            self.runs.push(Vec::new());
        }
        number
    }

    fn add(&mut self, video: usize, record: &Record<'_>, origin: RowOrigin) -> Result<(), ManifestError> {
        self.rows += 1;
        let training = record.split == Split::Training;
        self.training_rows += usize::from(training);
        if let Some((path, first, first_origin)) = self.videos.get(video)
            && *first != record.split
        {
            let (found, first) = (record.split, *first);
            let (video, first_origin) = (path.clone(), first_origin.clone());
            return Err(ManifestError::VideoInTwoSplits { origin, video, found, first, first_origin });
        }
        let label = if record.label.is_empty() { IGNORE } else { self.label(record.label, training, &origin) };
        let (frames, line_each) = match &record.frames {
            Named::Whole => (0..usize::MAX, false),
            Named::Range(range) => (range.clone(), false),
            Named::Frame(frame) => (*frame..frame + 1, true),
        };
        let run = Run { frames, label, origin, line_each };
        if let Some(runs) = self.runs.get_mut(video)
            && !runs.last_mut().is_some_and(|last| last.extend(&run))
        {
            runs.push(run);
        }
        Ok(())
    }

    fn label(&mut self, name: &str, training: bool, origin: &RowOrigin) -> u32 {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => {
                let number = self.labels.len();
                self.numbers.insert(name.to_owned(), number);
                self.labels.push(Written { name: name.to_owned(), origin: origin.clone(), trained: false });
                number
            }
        };
        if let Some(label) = self.labels.get_mut(number) {
            label.trained |= training;
        }
        number as u32
    }

    fn finish(
        self,
        classes: Vec<String>,
        unknown: impl Fn(RowOrigin, String, Vec<String>) -> ManifestError,
    ) -> Result<FrameManifest, ManifestError> {
        let class_of: HashMap<&str, u32> = (0u32..).zip(&classes).map(|(i, name)| (class_name(name), i)).collect();
        let mut labels = Vec::with_capacity(self.labels.len());
        for written in &self.labels {
            match class_of.get(written.name.as_str()) {
                Some(class) => labels.push(*class),
                None => return Err(unknown(written.origin.clone(), written.name.clone(), classes.clone())),
            }
        }
        let mut absent = self.videos.iter().filter(|(path, ..)| !path.exists());
        if let Some((video, _, origin)) = absent.next() {
            let others = absent.count();
            return Err(ManifestError::MissingVideo { origin: origin.clone(), video: video.clone(), others });
        }
        let mut runs = self.runs;
        for (runs, (path, ..)) in runs.iter_mut().zip(&self.videos) {
            for run in runs.iter_mut() {
                run.label = labels.get(run.label as usize).copied().unwrap_or(IGNORE);
            }
            runs.sort_by_key(|run| run.frames.start);
            runs.shrink_to_fit();
            one_label_each(runs, path, &classes)?;
        }
        drop(class_of);
        let row = |(number, (_, split, origin)): (usize, &(PathBuf, Split, RowOrigin))| Row {
            video: VideoId(number),
            label: IGNORE as usize,
            frames: None,
            split: *split,
            origin: origin.clone(),
        };
        let rows = self.videos.iter().enumerate().map(row).collect();
        let videos = self.videos.into_iter().map(|(path, ..)| path).collect();
        Ok(FrameManifest { manifest: Manifest { classes, rows, videos }, runs })
    }
}

/// Frames that `runs`, sorted by their first frames, name.
fn named_by(runs: &[Run]) -> usize {
    let (mut named, mut covered) = (0, 0);
    for run in runs {
        named += run.frames.end.saturating_sub(run.frames.start.max(covered));
        covered = covered.max(run.frames.end);
    }
    named
}

/// No frame of `runs`, sorted by their first frames, has two labels.
fn one_label_each(runs: &[Run], video: &Path, classes: &[String]) -> Result<(), ManifestError> {
    // Of the runs so far, one that reaches furthest: whatever overlaps any of them where `run` starts overlaps it.
    let mut furthest: Option<&Run> = None;
    for run in runs {
        let frame = run.frames.start;
        if let Some(other) = furthest.filter(|other| other.frames.end > frame && other.label != run.label) {
            let (mut first, mut second) = (other, run);
            if first.origin.file == second.origin.file && first.origin_of(frame).line > second.origin_of(frame).line {
                (first, second) = (second, first);
            }
            let name = |label: u32| classes.get(label as usize).cloned().unwrap_or_default();
            let error = TwoLabels {
                origin: second.origin_of(frame),
                video: video.to_owned(),
                frame,
                found: name(second.label),
                first: name(first.label),
                first_origin: first.origin_of(frame),
            };
            return Err(ManifestError::FrameInTwoClasses(Box::new(error)));
        }
        if furthest.is_none_or(|other| other.frames.end < run.frames.end) {
            furthest = Some(run);
        }
    }
    Ok(())
}

/// The labels of a video, one per frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameLabels {
    labels: Box<[u32]>,
    gaps: Option<Box<Gaps>>,
}

impl FrameLabels {
    /// One class per frame of the video, [`IGNORE`] where a frame has none.
    pub const fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Frames that have a label.
    pub fn labelled(&self) -> usize {
        self.labels.iter().filter(|label| **label != IGNORE).count()
    }

    /// Frames by class; those without a label are not counted.
    pub fn class_counts(&self, classes: usize) -> Vec<usize> {
        let mut counts = vec![0; classes];
        for label in &self.labels {
            if let Some(count) = counts.get_mut(*label as usize) {
                *count += 1;
            }
        }
        counts
    }

    /// Where rows are missing, for manifests that are meant to name every frame; `None` if they do. A frame that a row
    /// names without giving it a label is not missing.
    pub fn gaps(&self) -> Option<&Gaps> {
        self.gaps.as_deref()
    }

    /// Bytes held beside the struct itself.
    pub(super) fn bytes(&self) -> u64 {
        let gaps = self.gaps.as_ref().map_or(0, |gaps| size_of::<Gaps>() + gaps.video.capacity());
        (size_of_val(&*self.labels) + gaps) as u64
    }
}

/// A video of which not every frame is named by a row. Shown as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gaps {
    /// The video.
    pub video: PathBuf,
    /// Its frames.
    pub frames: usize,
    /// Frames that rows name.
    pub named: usize,
    /// The first frame that no row names.
    pub first: usize,
    /// The row of the frame before it; `None` if it is frame 0.
    pub after: Option<RowOrigin>,
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { video, frames, named, first, after } = self;
        write!(f, "{} has {frames} frames, but rows name {named} of them: none names frame {first}", video.display())?;
        match after {
            Some(row) => write!(f, " (frame {} is at {row})", first.saturating_sub(1)),
            None => Ok(()),
        }
    }
}
