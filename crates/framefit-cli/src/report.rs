//! Errors in words, once, at the edge.

use crate::machine::free_memory;
use crate::words::{budget, enough};
use framefit::core::plan::NoFit;
use framefit::data::{DataError, ManifestError};
use framefit::models::UnknownFamily;
use framefit::train::TrainError;
use framefit::weights::WeightsError;
use miette::Diagnostic;
use std::path::PathBuf;
use std::process::ExitCode;

/// Why a command does not give what was asked for.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum Problem {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("{flag}: {message}")]
    Flag { flag: &'static str, message: String },
    #[error("{}: cannot read: {cause}", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{} holds a run already", path.display())]
    #[diagnostic(help("continue it with --resume {0}, or choose another folder with --out", path.display()))]
    Occupied { path: PathBuf },
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
    Output { cause: std::io::Error },
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
        Problem::Train(TrainError::NoFit(no_fit)) => {
            eprint!("{}", does_not_fit(no_fit));
            return ExitCode::from(1);
        }
        _ => {}
    }
    eprintln!("{:?}", miette::Report::new(problem));
    ExitCode::from(2)
}

fn does_not_fit(no: &NoFit) -> String {
    use crate::table::Align::{Left, Right};
    let rows: Vec<Vec<String>> =
        no.largest.iter().map(|r| vec![format!("  {}", r.purpose), r.name.clone(), r.bytes.to_string()]).collect();
    let more = match free_memory() {
        Some(free) if free < no.smallest => format!("a machine with more memory than the {free} that are free here"),
        _ => format!("--memory {} or more", enough(no.smallest)),
    };
    format!(
        "No: it does not fit in {}. The smallest plan, one clip at a time, takes {}.\n\
         What holds it up:\n{}\
         What would help:\n  {more}\n  fewer clips decoded ahead (--ahead 1)\n  \
         smaller or shorter clips (--size, --clip), a smaller model (--widths, --hidden)\n",
        budget(no.budget),
        no.smallest,
        crate::table::aligned(&[Left, Left, Right], &rows),
    )
}
