//! Errors in words, once, at the edge.

use crate::commands::say;
use crate::machine::free_memory;
use crate::resolve::model_flags;
use crate::words::{budget, enough};
use framefit::core::Bytes;
use framefit::core::plan::NoFit;
use framefit::data::{DataError, ManifestError, SourceError};
use framefit::models::{Family, UnknownFamily};
use framefit::train::{Checkpoint, Resources, TrainError};
use framefit::weights::WeightsError;
use miette::Diagnostic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why a command does not give what was asked for.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum Problem {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("{no}")]
    NoFit { no: Box<NoFit>, asked: Asked },
    #[error("{cause}")]
    Video { cause: SourceError },
    #[error("{flag}: {message}")]
    Flag { flag: &'static str, message: String },
    #[error("{}: cannot read: {cause}", path.display())]
    #[diagnostic(help("check the path; - reads standard input"))]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{}", labels_per(*family, *per_frame))]
    #[diagnostic(help("{}", with_labels(*per_frame, *choice)))]
    LabelsPer { family: Family, per_frame: bool, choice: bool },
    #[error("{} holds a run already", path.display())]
    #[diagnostic(help("{}", occupied(path)))]
    Occupied { path: PathBuf },
    #[error("another framefit trains into {}", path.display())]
    #[diagnostic(help("wait until it is done, or choose another folder with --out"))]
    Busy { path: PathBuf },
    #[error("{} has {frames} frames, but the model takes clips of {clip}", path.display())]
    #[diagnostic(help("leave it out, or train a model on shorter clips"))]
    ShortVideo { path: PathBuf, frames: usize, clip: usize },
    #[error("{}: the path of a manifest must be UTF-8 text: weights record what they were trained on", path.display())]
    #[diagnostic(help("rename the file or its folder"))]
    PathText { path: PathBuf },
    #[error("{}: cannot write: {cause}", path.display())]
    #[diagnostic(help("choose another folder with --out"))]
    Write { path: PathBuf, cause: std::io::Error },
    #[error("{cause}")]
    #[diagnostic(help(
        "it is the manifest that {} was trained with, as it was written then: go to that folder, or name the manifest: \
         {command} {0} MANIFEST",
        run.display()
    ))]
    ManifestOfRun { run: PathBuf, command: &'static str, cause: Box<ManifestError> },
    #[error("cannot write the results: {cause}")]
    #[diagnostic(help("make room, or send them elsewhere"))]
    Output { cause: std::io::Error },
}

/// What was to fit, and what of it can be changed.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The model that the arguments describe; none where it is that of a run.
    pub model: Option<Family>,
    /// Clips decoded ahead.
    pub ahead: usize,
    /// Whether the arguments say how clips are cut.
    pub cut: bool,
}

impl Asked {
    pub fn of(model: Option<Family>, resources: &Resources) -> Self {
        Self { model, ahead: resources.ahead, cut: resources.cut.is_some() }
    }

    /// An error of planning this.
    pub fn problem(self, error: TrainError) -> Problem {
        match error {
            TrainError::NoFit(no) => Problem::NoFit { no, asked: self },
            other => other.into(),
        }
    }
}

impl From<DataError> for Problem {
    fn from(error: DataError) -> Self {
        Problem::Train(error.into())
    }
}

impl From<WeightsError> for Problem {
    fn from(error: WeightsError) -> Self {
        Problem::Train(error.into())
    }
}

impl From<framefit::core::ShapeError> for Problem {
    fn from(error: framefit::core::ShapeError) -> Self {
        Problem::Train(error.into())
    }
}

impl From<framefit::engine::EngineError> for Problem {
    fn from(error: framefit::engine::EngineError) -> Self {
        Problem::Train(error.into())
    }
}

impl From<UnknownFamily> for Problem {
    fn from(error: UnknownFamily) -> Self {
        Problem::Flag { flag: "--model", message: error.to_string() }
    }
}

/// Says what is wrong on stderr: exit 1 when the answer is no, 2 for an error.
pub fn problem(problem: Problem) -> ExitCode {
    match &problem {
        // The reader of our output is gone; there is nobody to tell.
        Problem::Output { cause } if cause.kind() == std::io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Problem::NoFit { no, asked } => {
            say(&does_not_fit(no, asked));
            return ExitCode::from(1);
        }
        _ => {}
    }
    // A video that was named on the command line, and not in a manifest, is told by its own path alone.
    let problem = match problem {
        Problem::Train(TrainError::Data(DataError::Video { origin, cause })) if origin.line == 0 => {
            Problem::Video { cause }
        }
        other => other,
    };
    say(&format!("{:?}\n", miette::Report::new(problem)));
    ExitCode::from(2)
}

fn labels_per(family: Family, per_frame: bool) -> String {
    match per_frame {
        true => format!("{family} gives one label per clip, but the manifest has one per frame"),
        false => format!("{family} labels every frame, but the manifest has one label per clip"),
    }
}

fn with_labels(per_frame: bool, choice: bool) -> String {
    let (model, columns) = match per_frame {
        true => ("convlstm or cnn-lstm", "video,label"),
        false => ("cnn3d", "video,frame,label"),
    };
    let other = if choice { format!("use --model {model}, or ") } else { String::new() };
    format!("{other}name a manifest with the columns {columns}")
}

fn occupied(folder: &Path) -> String {
    if Checkpoint::can_be_resumed_from(folder) {
        format!("continue it with --resume {}, or choose another folder with --out", folder.display())
    } else {
        "its first epoch was not saved whole, so it cannot be continued: remove it, or choose another folder with --out"
            .to_owned()
    }
}

fn does_not_fit(no: &NoFit, asked: &Asked) -> String {
    use crate::table::Align::{Left, Right};
    let rows: Vec<Vec<String>> =
        no.largest.iter().map(|r| vec![format!("  {}", r.purpose), r.name.clone(), r.bytes.to_string()]).collect();
    let mut help = vec![match free_memory() {
        Some(free) if free < no.smallest => format!("a machine with more memory than the {free} that are free here"),
        _ => format!("--memory {} or more", enough(no.smallest)),
    }];
    if no.budget < Bytes(1 << 20) {
        help.push("a unit: a number alone is bytes (--memory 12GB)".to_owned());
    }
    if asked.cut {
        help.push("no --segment: clips are then cut so that they fit".to_owned());
    }
    if asked.ahead > 0 {
        help.push("no clips decoded ahead (--ahead 0)".to_owned());
    }
    if let Some(family) = asked.model {
        help.push("smaller or shorter clips (--size, --clip)".to_owned());
        let flags: Vec<&str> = model_flags(family).iter().copied().filter(|flag| *flag != "--pool").collect();
        help.push(format!("a smaller model ({})", flags.join(", ")));
    }
    format!(
        "No: it does not fit in {}. The smallest plan, one clip at a time, takes {}.\n\
         What holds it up:\n{}\
         What would help:\n{}",
        budget(no.budget),
        no.smallest,
        crate::table::aligned(&[Left, Left, Right], &rows),
        help.iter().map(|line| format!("  {line}\n")).collect::<String>(),
    )
}
