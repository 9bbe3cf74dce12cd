//! The manifest: a CSV file that says which videos there are and what they show.
//!
//! Columns by name, in any order, case ignored: `video`, `label`, optionally `start_frame` and `end_frame` (the end
//! is the first frame that no longer belongs to the row) and `split`. Other columns are ignored. Paths are relative
//! to the folder of the manifest.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::natural;

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

    fn parse(text: &str) -> Option<Self> {
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

/// Where a row was written; shown as `clips.csv:12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOrigin {
    /// The manifest file.
    pub file: Arc<Path>,
    /// Line in that file; the header is line 1.
    pub line: u64,
}

impl fmt::Display for RowOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// One labelled video, or one labelled range of a video's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The video, an index into [`Manifest::videos`].
    pub video: VideoId,
    /// The class, an index into [`Manifest::classes`].
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
    #[error("{}:1: no column `{missing}`; found: {}. Expected columns: video, label and, if wanted, start_frame, end_frame, split{hint}", file.display(), list(found))]
    MissingColumn { file: PathBuf, missing: &'static str, found: Vec<String>, hint: &'static str },
    #[error("{}:1: the column `{column}` appears more than once. Keep one of them", file.display())]
    RepeatedColumn { file: PathBuf, column: String },
    #[error("{}:1: a column `frame` but no start_frame and end_frame: these are labels per frame. Training takes labels per clip: give a manifest with the columns video, start_frame, end_frame, label", file.display())]
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
    #[error("{origin}: label \"{label}\" is not a class of the checkpoint. Its classes: {}", list(classes))]
    UnknownLabel { origin: RowOrigin, label: String, classes: Vec<String> },
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
        let files = read_files(paths)?;
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
        let files = read_files(paths)?;
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

fn read_files(paths: &[PathBuf]) -> Result<Vec<RawFile>, ManifestError> {
    match paths {
        [one] => Ok(vec![read_file(one, None)?]),
        [training, validation] => {
            Ok(vec![read_file(training, Some(Split::Training))?, read_file(validation, Some(Split::Validation))?])
        }
        _ => Err(ManifestError::FileCount { count: paths.len() }),
    }
}

/// Positions of the columns that are read.
struct Columns {
    video: usize,
    label: usize,
    frames: Option<(usize, usize)>,
    split: Option<usize>,
    count: usize,
}

impl Columns {
    fn find(file: &Path, header: &csv::StringRecord) -> Result<Self, ManifestError> {
        let names: Vec<String> = header.iter().map(|name| name.trim().to_lowercase()).collect();
        let find = |column: &str| names.iter().position(|name| name == column);
        for (i, name) in names.iter().enumerate() {
            let read = matches!(name.as_str(), "video" | "label" | "start_frame" | "end_frame" | "split");
            if read && names.iter().skip(i + 1).any(|other| other == name) {
                return Err(ManifestError::RepeatedColumn { file: file.into(), column: name.clone() });
            }
        }
        let separated_otherwise = names.len() == 1 && names.iter().any(|name| name.contains([';', '\t']));
        let hint = if separated_otherwise { ". Fields are separated by commas" } else { "" };
        let missing = |missing| ManifestError::MissingColumn { file: file.into(), missing, found: names.clone(), hint };
        let video = find("video").ok_or_else(|| missing("video"))?;
        let (start, end) = (find("start_frame"), find("end_frame"));
        if find("frame").is_some() && start.is_none() && end.is_none() {
            return Err(ManifestError::PerFrameLabels { file: file.into() });
        }
        let label = find("label").ok_or_else(|| missing("label"))?;
        let frames = match (start, end) {
            (Some(start), Some(end)) => Some((start, end)),
            (None, None) => None,
            (None, Some(_)) => return Err(missing("start_frame")),
            (Some(_), None) => return Err(missing("end_frame")),
        };
        Ok(Self { video, label, frames, split: find("split"), count: names.len() })
    }
}

/// `of_file`: the split that the file itself stands for, when two are given.
fn read_file(path: &Path, of_file: Option<Split>) -> Result<RawFile, ManifestError> {
    let bytes = std::fs::read(path).map_err(|cause| ManifestError::Read { file: path.into(), cause })?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let utf16 = bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]);
        ManifestError::Encoding {
            file: path.into(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64,
            hint: if utf16 { " (it looks like UTF-16)" } else { "" },
        }
    })?;
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let file: Arc<Path> = Arc::from(path);
    let origin = |line| RowOrigin { file: file.clone(), line };

    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|cause| ManifestError::Csv { origin: origin(1), cause })?.clone();
    if header.iter().all(str::is_empty) {
        return Err(ManifestError::Empty { file: path.into(), header: false });
    }
    let columns = Columns::find(path, &header)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut rows = Vec::new();
    let mut record = csv::StringRecord::new();
    loop {
        let more = reader.read_record(&mut record).map_err(|cause| {
            let line = cause.position().map_or(1, csv::Position::line);
            ManifestError::Csv { origin: origin(line), cause }
        })?;
        if !more {
            break;
        }
        let line = line_of(text, &record);
        if record.len() == 1 && record.iter().all(str::is_empty) {
            continue;
        }
        rows.push(read_row(&record, &columns, folder, of_file, || origin(line), line)?);
    }
    if rows.is_empty() {
        return Err(ManifestError::Empty { file: path.into(), header: true });
    }
    Ok(RawFile { path: file, rows })
}

/// The line on which a record starts. The reader reports where it began to look, which may be blank lines earlier.
fn line_of(text: &str, record: &csv::StringRecord) -> u64 {
    let Some(position) = record.position() else { return 1 };
    let rest = usize::try_from(position.byte()).ok().and_then(|at| text.as_bytes().get(at..)).unwrap_or_default();
    let blank = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).filter(|byte| **byte == b'\n').count();
    position.line() + blank as u64
}

fn read_row(
    record: &csv::StringRecord,
    columns: &Columns,
    folder: &Path,
    of_file: Option<Split>,
    origin: impl Fn() -> RowOrigin,
    line: u64,
) -> Result<RawRow, ManifestError> {
    if record.len() != columns.count {
        return Err(ManifestError::FieldCount { origin: origin(), found: record.len(), expected: columns.count });
    }
    let field = |at: usize| record.get(at).unwrap_or_default();
    let filled = |at: usize, column, remedy| match field(at) {
        "" => Err(ManifestError::EmptyField { origin: origin(), column, remedy }),
        text => Ok(text),
    };
    let video = filled(columns.video, "video", "Name the video file, image folder or .npy file")?;
    let label = filled(columns.label, "label", "Give every row a label, or remove the row")?;
    let number = |at: usize, column| {
        let text = field(at);
        frame_number(text).ok_or_else(|| ManifestError::FrameNumber {
            origin: origin(),
            column,
            value: text.to_owned(),
        })
    };
    let frames = match columns.frames {
        None => None,
        Some((start, end)) if field(start).is_empty() && field(end).is_empty() => None,
        Some((start, end)) => {
            let remedy = "Fill in both start_frame and end_frame, or neither for the whole video";
            filled(start, "start_frame", remedy)?;
            filled(end, "end_frame", remedy)?;
            let (start, end) = (number(start, "start_frame")?, number(end, "end_frame")?);
            if start >= end {
                return Err(ManifestError::FrameRange { origin: origin(), start, end });
            }
            Some(start..end)
        }
    };
    let written = match columns.split {
        None => None,
        Some(at) => {
            let value = field(at);
            Some(Split::parse(value).ok_or_else(|| ManifestError::Split { origin: origin(), value: value.into() })?)
        }
    };
    let split = match (written, of_file) {
        (Some(found), Some(expected)) if found != expected => {
            return Err(ManifestError::SplitOfFile { origin: origin(), found, expected });
        }
        (Some(split), _) | (None, Some(split)) => split,
        (None, None) => Split::Training,
    };
    Ok(RawRow { video: folder.join(video), label: label.to_owned(), frames, split, line })
}

/// A frame number; `12.0` is accepted because tables with gaps are often written with every number as a float.
fn frame_number(text: &str) -> Option<usize> {
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|digit| digit == b'0') => whole,
        Some(_) => return None,
        None => text,
    };
    whole.bytes().all(|digit| digit.is_ascii_digit()).then(|| whole.parse().ok()).flatten()
}

fn assemble(
    files: &[RawFile],
    classes: Vec<String>,
    unknown: impl Fn(RowOrigin, String, Vec<String>) -> ManifestError,
) -> Result<Manifest, ManifestError> {
    let numbers: HashMap<&str, usize> = classes.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
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
