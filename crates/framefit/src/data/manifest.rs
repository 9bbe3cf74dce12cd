//! The manifest: a CSV file that says which videos there are and what they show.
//!
//! Columns by name, in any order, case ignored: `video`, `label`, optionally `start_frame` and `end_frame` (the end
//! is the first frame that no longer belongs to the row) and `split`. Other columns are ignored. Paths are relative
//! to the folder of the manifest. A label is a word or a whole number (`1.0` is `1`). Labels per frame are
//! [`FrameManifest`](super::FrameManifest)'s.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::natural;
use super::table::{Kind, Named, Table, class_name, open_all};

/// Number of a video in [`Manifest::videos`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VideoId(pub usize);

/// What a row is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// `train`, `training`
    Training,
    /// `val`, `valid`, `validation`
    Validation,
    /// `test`
    Test,
}

impl Split {
    /// All splits, in the order in which they are reported.
    pub const ALL: [Self; 3] = [Self::Training, Self::Validation, Self::Test];

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "train" | "training" => Some(Self::Training),
            "val" | "valid" | "validation" => Some(Self::Validation),
            "test" => Some(Self::Test),
            _ => None,
        }
    }

    pub(crate) const fn number(self) -> usize {
        match self {
            Self::Training => 0,
            Self::Validation => 1,
            Self::Test => 2,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Test => "test",
        })
    }
}

/// Where a row was written; shown as `clips.csv:12`, and as the file alone where the line is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOrigin {
    /// The manifest file.
    pub file: Arc<Path>,
    /// Line in that file; the header is line 1. 0 stands for the file as a whole.
    pub line: u64,
}

impl fmt::Display for RowOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

/// One labelled video, or one labelled range of a video's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The video, an index into [`Manifest::videos`].
    pub video: VideoId,
    /// The class, an index into [`Manifest::classes`]; [`IGNORE`](super::IGNORE) in the one row of a video whose
    /// frames have labels of their own.
    pub label: usize,
    /// Frames in presentation order; `None` is the whole video.
    pub frames: Option<Range<usize>>,
    /// What the row is used for.
    pub split: Split,
    /// Where it was written.
    pub origin: RowOrigin,
}

/// Labelled videos.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Names of the classes; a label is an index into them. In natural order, or as the checkpoint has them.
    pub classes: Vec<String>,
    /// Rows in the order of the files.
    pub rows: Vec<Row>,
    /// Paths of the videos, each once, by first appearance.
    pub videos: Vec<PathBuf>,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields hold")]
pub enum ManifestError {
    #[error("a manifest is one CSV file, or two (training, validation), but {count} were given")]
    FileCount { count: usize },
    #[error("{}: cannot read the manifest: {cause}. Check the path", file.display())]
    Read { file: PathBuf, cause: std::io::Error },
    #[error("{}:{line}: not UTF-8 text{hint}. Save the manifest as CSV in UTF-8", file.display())]
    Encoding { file: PathBuf, line: u64, hint: &'static str },
    #[error("{}:1: no column `{missing}`; found: {}. Expected columns: {expected}{hint}", file.display(), list(found))]
    MissingColumn {
        file: PathBuf,
        missing: &'static str,
        found: Vec<String>,
        expected: &'static str,
        hint: &'static str,
    },
    #[error("{}:1: the column `{column}` appears more than once. Keep one of them", file.display())]
    RepeatedColumn { file: PathBuf, column: String },
    #[error("{}:1: a column `frame` but no start_frame and end_frame: these are labels per frame, where labels per clip are asked for. Give a manifest with the columns video, start_frame, end_frame, label", file.display())]
    PerFrameLabels { file: PathBuf },
    #[error("{}: no rows{}. Add one row per labelled video or clip: video,label", file.display(), if *header { " below the header" } else { ": the file is empty" })]
    Empty { file: PathBuf, header: bool },
    #[error("{}: none of the {rows} rows is for training. Set `split` to train in some of them", file.display())]
    NoTraining { file: PathBuf, rows: usize },
    #[error("{origin}: {found} fields, but the header has {expected}. {}", if found < expected { "Fill in the missing fields (empty ones still need their comma)" } else { "Put fields that contain a comma in double quotes" })]
    FieldCount { origin: RowOrigin, found: usize, expected: usize },
    #[error("{origin}: malformed CSV: {cause}")]
    Csv { origin: RowOrigin, cause: csv::Error },
    #[error("{origin}: the field `{column}` is empty. {remedy}")]
    EmptyField { origin: RowOrigin, column: &'static str, remedy: &'static str },
    #[error("{origin}: label is \"{value}\", which names no class. {remedy}")]
    NoClass { origin: RowOrigin, value: String, remedy: &'static str },
    #[error(
        "{origin}: label is \"{value}\": labels name classes, with words or whole numbers; amounts are not learned. If it is a class, write it with a word, such as \"x{value}\""
    )]
    Amount { origin: RowOrigin, value: String },
    #[error("{origin}: {column} is \"{value}\", expected a frame number (0, 1, 2, …)")]
    FrameNumber { origin: RowOrigin, column: &'static str, value: String },
    #[error(
        "{origin}: start_frame {start} and end_frame {end} hold no frame: end_frame is the first frame after the clip, so it must be larger than start_frame"
    )]
    FrameRange { origin: RowOrigin, start: usize, end: usize },
    #[error("{origin}: unknown split \"{value}\"; expected train, val or test")]
    Split { origin: RowOrigin, value: String },
    #[error(
        "{origin}: split is {found}, but with two manifests this file is the {expected} one. Give one file with a split column, or remove the column"
    )]
    SplitOfFile { origin: RowOrigin, found: Split, expected: Split },
    #[error("{origin}: no video {}{}. Paths are relative to the manifest's folder", video.display(), others_missing(*others))]
    MissingVideo { origin: RowOrigin, video: PathBuf, others: usize },
    #[error(
        "{origin}: label \"{label}\" has no training row, so it cannot be learned. Labels with training rows: {}. Add training rows, or correct the label",
        list(known)
    )]
    UntrainedLabel { origin: RowOrigin, label: String, known: Vec<String> },
    #[error("{}: none of the {rows} rows for training has a label. Fill in `label` in some of them", file.display())]
    NoTrainingLabel { file: PathBuf, rows: usize },
    #[error("{origin}: {} is for {found}, but {first_origin} says {first}. With labels per frame a video belongs to one split: correct `split` in one of the rows", video.display())]
    VideoInTwoSplits { origin: RowOrigin, video: PathBuf, found: Split, first: Split, first_origin: RowOrigin },
    #[error(transparent)]
    FrameInTwoClasses(Box<TwoLabels>),
    #[error("{origin}: label \"{label}\" is not a class of the checkpoint. Its classes: {}", list(classes))]
    UnknownLabel { origin: RowOrigin, label: String, classes: Vec<String> },
}

/// One frame that two rows label differently.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: frame {frame} of {} is {}, but at {first_origin} it is {}. Keep one of the two rows", video.display(), quoted(found), quoted(first))]
pub struct TwoLabels {
    /// The later row.
    pub origin: RowOrigin,
    /// The video.
    pub video: PathBuf,
    /// The frame.
    pub frame: usize,
    /// The label that the later row gives it; empty for none.
    pub found: String,
    /// The label that the earlier row gives it; empty for none.
    pub first: String,
    /// The earlier row.
    pub first_origin: RowOrigin,
}

/// Names for a message; long lists are cut.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 12;
    if names.is_empty() {
        return "none".into();
    }
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

/// A label for a message; an empty one is said to be none.
fn quoted(label: &str) -> String {
    if label.is_empty() { "without a label".into() } else { format!("\"{label}\"") }
}

fn others_missing(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 other is missing)".into(),
        n => format!(" (and {n} others are missing)"),
    }
}

impl Manifest {
    /// Reads one manifest (with a `split` column; without it every row is for training), or two: training, validation.
    ///
    /// Checks every row and that every video exists. Each label needs a training row.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ManifestError> {
        Self::of_tables(&open_all(paths)?)
    }

    pub(super) fn of_tables(tables: &[Table]) -> Result<Self, ManifestError> {
        let files = read_files(tables)?;
        let mut trained = HashSet::new();
        for row in files.iter().flat_map(|file| &file.rows) {
            if row.split == Split::Training {
                trained.insert(row.label.as_str());
            }
        }
        let mut classes: Vec<String> = trained.iter().map(|label| (*label).to_owned()).collect();
        classes.sort_by(|a, b| natural::compare(a, b));
        if let (true, Some(file)) = (classes.is_empty(), files.first()) {
            let rows = files.iter().map(|file| file.rows.len()).sum();
            return Err(ManifestError::NoTraining { file: file.path.to_path_buf(), rows });
        }
        assemble(&files, classes, |origin, label, known| ManifestError::UntrainedLabel { origin, label, known })
    }

    /// Reads manifests for a model that already has its classes: labels must be among them, and keep their numbers.
    /// No training row is needed.
    pub fn read_with_classes(paths: &[PathBuf], classes: &[String]) -> Result<Self, ManifestError> {
        Self::of_tables_with_classes(&open_all(paths)?, classes)
    }

    pub(super) fn of_tables_with_classes(tables: &[Table], classes: &[String]) -> Result<Self, ManifestError> {
        let files = read_files(tables)?;
        assemble(&files, classes.to_vec(), |origin, label, classes| ManifestError::UnknownLabel {
            origin,
            label,
            classes,
        })
    }

    /// Rows of one split.
    pub fn rows_of(&self, split: Split) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.split == split)
    }

    /// The path of a video.
    pub fn path(&self, video: VideoId) -> &Path {
        self.videos.get(video.0).map_or(Path::new(""), PathBuf::as_path)
    }
}

struct RawFile {
    path: Arc<Path>,
    rows: Vec<RawRow>,
}

struct RawRow {
    video: PathBuf,
    label: String,
    frames: Option<Range<usize>>,
    split: Split,
    line: u64,
}

fn read_files(tables: &[Table]) -> Result<Vec<RawFile>, ManifestError> {
    let read = |table: &Table| {
        let folder = table.path.parent().unwrap_or(Path::new(""));
        let mut rows = Vec::new();
        table.rows(Kind::Clips, &mut |record| {
            let frames = match record.frames {
                Named::Whole => None,
                Named::Range(range) => Some(range),
                Named::Frame(frame) => Some(frame..frame + 1),
            };
            let (video, label) = (folder.join(record.video), record.label.to_owned());
            rows.push(RawRow { video, label, frames, split: record.split, line: record.line });
            Ok(())
        })?;
        Ok(RawFile { path: table.path.clone(), rows })
    };
    tables.iter().map(read).collect()
}

fn assemble(
    files: &[RawFile],
    classes: Vec<String>,
    unknown: impl Fn(RowOrigin, String, Vec<String>) -> ManifestError,
) -> Result<Manifest, ManifestError> {
    let numbers: HashMap<&str, usize> = classes.iter().enumerate().map(|(i, name)| (class_name(name), i)).collect();
    let mut videos: Vec<PathBuf> = Vec::new();
    let mut ids: HashMap<&Path, VideoId> = HashMap::new();
    let mut rows = Vec::with_capacity(files.iter().map(|file| file.rows.len()).sum());
    let mut missing: Option<(RowOrigin, PathBuf)> = None;
    let mut missing_count = 0usize;
    for file in files {
        for raw in &file.rows {
            let origin = RowOrigin { file: file.path.clone(), line: raw.line };
            let Some(&label) = numbers.get(raw.label.as_str()) else {
                return Err(unknown(origin, raw.label.clone(), classes.clone()));
            };
            let video = match ids.get(raw.video.as_path()) {
                Some(id) => *id,
                None => {
                    if !raw.video.exists() {
                        missing_count += 1;
                        missing.get_or_insert((origin.clone(), raw.video.clone()));
                    }
                    let id = VideoId(videos.len());
                    videos.push(raw.video.clone());
                    ids.insert(raw.video.as_path(), id);
                    id
                }
            };
            rows.push(Row { video, label, frames: raw.frames.clone(), split: raw.split, origin });
        }
    }
    if let Some((origin, video)) = missing {
        return Err(ManifestError::MissingVideo { origin, video, others: missing_count.saturating_sub(1) });
    }
    drop(numbers);
    Ok(Manifest { classes, rows, videos })
}
