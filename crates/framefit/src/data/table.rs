//! The rows of a manifest as they are written: CSV, columns found by name, fields checked one by one.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{ManifestError, RowOrigin, Split};

/// What the rows of a manifest label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each row a clip or a whole video.
    Clips,
    /// Each row a frame, or every frame of a range. A label may be empty.
    Frames,
}

/// A manifest file in memory.
pub(super) struct Table {
    pub(super) path: Arc<Path>,
    text: String,
    /// The split that the file itself stands for, when two are given.
    of_file: Option<Split>,
}

/// Frames that a row names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    /// The video, however many frames it has.
    Whole,
    /// A range, never empty.
    Range(Range<usize>),
    /// One frame, less than `usize::MAX`.
    Frame(usize),
}

/// One row.
pub(super) struct Record<'a> {
    pub(super) video: &'a str,
    /// Empty only in [`Kind::Frames`].
    pub(super) label: &'a str,
    pub(super) frames: Named,
    pub(super) split: Split,
    pub(super) line: u64,
}

/// One file, or two: training and validation.
pub(super) fn open_all(paths: &[PathBuf]) -> Result<Vec<Table>, ManifestError> {
    match paths {
        [one] => Ok(vec![Table::open(one, None)?]),
        [training, validation] => {
            Ok(vec![Table::open(training, Some(Split::Training))?, Table::open(validation, Some(Split::Validation))?])
        }
        _ => Err(ManifestError::FileCount { count: paths.len() }),
    }
}

impl Table {
    fn open(path: &Path, of_file: Option<Split>) -> Result<Self, ManifestError> {
        let bytes = std::fs::read(path).map_err(|cause| ManifestError::Read { file: path.into(), cause })?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let utf16 = [[0xFF, 0xFE], [0xFE, 0xFF]].iter().any(|mark| error.as_bytes().starts_with(mark));
            ManifestError::Encoding {
                file: path.into(),
                line: 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64,
                hint: if utf16 { " (it looks like UTF-16)" } else { "" },
            }
        })?;
        Ok(Self { path: Arc::from(path), text, of_file })
    }

    pub(super) fn origin(&self, line: u64) -> RowOrigin {
        RowOrigin { file: self.path.clone(), line }
    }

    fn text(&self) -> &str {
        self.text.strip_prefix('\u{FEFF}').unwrap_or(&self.text)
    }

    fn reader(&self) -> Result<(csv::Reader<&[u8]>, Vec<String>), ManifestError> {
        let mut reader =
            csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(self.text().as_bytes());
        let header = reader.headers().map_err(|cause| ManifestError::Csv { origin: self.origin(1), cause })?;
        let names = header.iter().map(|name| name.trim().to_lowercase()).collect();
        if header.iter().all(str::is_empty) {
            return Err(ManifestError::Empty { file: self.path.to_path_buf(), header: false });
        }
        Ok((reader, names))
    }

    /// Whether the columns are those of labels per frame.
    pub(super) fn labels_frames(&self) -> Result<bool, ManifestError> {
        let (_, names) = self.reader()?;
        Ok(per_frame(&names))
    }

    /// Calls `visit` for every row.
    pub(super) fn rows(
        &self,
        kind: Kind,
        visit: &mut dyn FnMut(Record<'_>) -> Result<(), ManifestError>,
    ) -> Result<(), ManifestError> {
        let (mut reader, names) = self.reader()?;
        let columns = Columns::find(&self.path, &names, kind)?;
        let mut record = csv::StringRecord::new();
        let mut empty = true;
        loop {
            let more = reader.read_record(&mut record).map_err(|cause| {
                let line = cause.position().map_or(1, csv::Position::line);
                ManifestError::Csv { origin: self.origin(line), cause }
            })?;
            if !more {
                break;
            }
            let line = line_of(self.text(), &record);
            if record.len() == 1 && record.iter().all(str::is_empty) {
                continue;
            }
            visit(self.row(&record, &columns, line)?)?;
            empty = false;
        }
        if empty { Err(ManifestError::Empty { file: self.path.to_path_buf(), header: true }) } else { Ok(()) }
    }

    fn row<'a>(
        &self,
        record: &'a csv::StringRecord,
        columns: &Columns,
        line: u64,
    ) -> Result<Record<'a>, ManifestError> {
        let origin = || self.origin(line);
        if record.len() != columns.count {
            return Err(ManifestError::FieldCount { origin: origin(), found: record.len(), expected: columns.count });
        }
        let field = |at: usize| record.get(at).unwrap_or_default();
        let filled = |at: usize, column, remedy| match field(at) {
            "" => Err(ManifestError::EmptyField { origin: origin(), column, remedy }),
            text => Ok(text),
        };
        let video = filled(columns.video, "video", "Name the video file, image folder or .npy file")?;
        let label = match columns.kind {
            Kind::Clips => filled(columns.label, "label", "Give every row a label, or remove the row")?,
            Kind::Frames => field(columns.label),
        };
        let label = class_name(label);
        if let Ok(number) = label.parse::<f64>() {
            let value = label.to_owned();
            if !number.is_finite() {
                let remedy = match columns.kind {
                    Kind::Clips => "Give the row the name of its class, or remove it",
                    Kind::Frames => "Leave it empty where a frame has none",
                };
                return Err(ManifestError::NoClass { origin: origin(), value, remedy });
            }
            if number.fract() != 0.0 {
                return Err(ManifestError::Amount { origin: origin(), value });
            }
        }
        let number = |at: usize, column| {
            let text = field(at);
            let value = || text.to_owned();
            frame_number(text).ok_or_else(|| ManifestError::FrameNumber { origin: origin(), column, value: value() })
        };
        let frames = match columns.frames {
            FrameColumns::None => Named::Whole,
            FrameColumns::Frame(at) => {
                filled(at, "frame", "Give the number of the frame that is labelled, or remove the row")?;
                Named::Frame(number(at, "frame")?)
            }
            FrameColumns::Range(start, end) if field(start).is_empty() && field(end).is_empty() => Named::Whole,
            FrameColumns::Range(start, end) => {
                let remedy = "Fill in both start_frame and end_frame, or neither for the whole video";
                filled(start, "start_frame", remedy)?;
                filled(end, "end_frame", remedy)?;
                let (start, end) = (number(start, "start_frame")?, number(end, "end_frame")?);
                if start >= end {
                    return Err(ManifestError::FrameRange { origin: origin(), start, end });
                }
                Named::Range(start..end)
            }
        };
        let written = match columns.split {
            None => None,
            Some(at) => {
                let value = field(at);
                Some(
                    Split::parse(value)
                        .ok_or_else(|| ManifestError::Split { origin: origin(), value: value.into() })?,
                )
            }
        };
        let split = match (written, self.of_file) {
            (Some(found), Some(expected)) if found != expected => {
                return Err(ManifestError::SplitOfFile { origin: origin(), found, expected });
            }
            (Some(split), _) | (None, Some(split)) => split,
            (None, None) => Split::Training,
        };
        Ok(Record { video, label, frames, split, line })
    }
}

fn per_frame(names: &[String]) -> bool {
    let has = |column: &str| names.iter().any(|name| name == column);
    has("frame") && !has("start_frame") && !has("end_frame")
}

/// Positions of the columns that are read.
struct Columns {
    kind: Kind,
    video: usize,
    label: usize,
    frames: FrameColumns,
    split: Option<usize>,
    count: usize,
}

enum FrameColumns {
    None,
    Frame(usize),
    Range(usize, usize),
}

impl Columns {
    fn find(file: &Path, names: &[String], kind: Kind) -> Result<Self, ManifestError> {
        let find = |column: &str| names.iter().position(|name| name == column);
        let per_frame = per_frame(names);
        for (i, name) in names.iter().enumerate() {
            let read = matches!(name.as_str(), "video" | "label" | "start_frame" | "end_frame" | "split")
                || (per_frame && name == "frame");
            if read && names.iter().skip(i + 1).any(|other| other == name) {
                return Err(ManifestError::RepeatedColumn { file: file.into(), column: name.clone() });
            }
        }
        let separated_otherwise = names.len() == 1 && names.iter().any(|name| name.contains([';', '\t']));
        let hint = if separated_otherwise { ". Fields are separated by commas" } else { "" };
        let missing = |missing| ManifestError::MissingColumn {
            file: file.into(),
            missing,
            found: names.to_vec(),
            expected: match kind {
                Kind::Clips => "video, label and, if wanted, start_frame, end_frame, split",
                Kind::Frames => "video, frame (or start_frame and end_frame), label and, if wanted, split",
            },
            hint,
        };
        let video = find("video").ok_or_else(|| missing("video"))?;
        if per_frame && kind == Kind::Clips {
            return Err(ManifestError::PerFrameLabels { file: file.into() });
        }
        let label = find("label").ok_or_else(|| missing("label"))?;
        let frames = match (find("start_frame"), find("end_frame"), find("frame")) {
            (Some(start), Some(end), _) => FrameColumns::Range(start, end),
            (None, None, Some(frame)) => FrameColumns::Frame(frame),
            (None, None, None) => FrameColumns::None,
            (None, Some(_), _) => return Err(missing("start_frame")),
            (Some(_), None, _) => return Err(missing("end_frame")),
        };
        Ok(Self { kind, video, label, frames, split: find("split"), count: names.len() })
    }
}

/// The line on which a record starts. The reader reports where it began to look, which may be blank lines earlier.
fn line_of(text: &str, record: &csv::StringRecord) -> u64 {
    let Some(position) = record.position() else { return 1 };
    let rest = usize::try_from(position.byte()).ok().and_then(|at| text.as_bytes().get(at..)).unwrap_or_default();
    let blank = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).filter(|byte| **byte == b'\n').count();
    position.line() + blank as u64
}

/// A number without the zeros behind its point. `12.0` is accepted because tables with gaps are often written with
/// every number as a float.
fn whole(text: &str) -> &str {
    match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|digit| digit == b'0') => whole,
        _ => text,
    }
}

/// A frame number, perhaps written as a float.
fn frame_number(text: &str) -> Option<usize> {
    let whole = whole(text);
    let digits = whole.bytes().all(|digit| digit.is_ascii_digit());
    digits.then(|| whole.parse().ok()).flatten().filter(|number| *number < usize::MAX)
}

/// The name of a class; a number perhaps written as a float.
pub(super) fn class_name(text: &str) -> &str {
    let whole = whole(text);
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()) { whole } else { text }
}
