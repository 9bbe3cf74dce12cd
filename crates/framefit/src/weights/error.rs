use framefit_core::Bytes;
use std::fmt;
use std::path::PathBuf;

/// Why a file of tensors cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The system refuses.
    #[error("{}: cannot read: {cause}. Check the path, and that you may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The system refuses.
    #[error(
        "{}: cannot write: {cause}. It takes {bytes} beside what is there now, which is unchanged: make room for it, \
         or choose another folder",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Its length, which must be free: the older file goes only when the new one is whole.
        bytes: Bytes,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// A folder without the file that is looked for.
    #[error(
        "{}: there is no {file} in it. A run has one when its first epoch is over; name the folder of a run that got \
         so far, or a file of weights",
        folder.display()
    )]
    NoRun {
        /// Where it should be.
        folder: PathBuf,
        /// Its name.
        file: &'static str,
    },
    /// Something else.
    #[error(
        "{}: not a safetensors file. Name the folder of a run of `framefit train`, or a file of weights in it",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// Not a whole safetensors file.
    #[error(
        "{}: not a whole safetensors file: {why}. If it was copied, copy it again; else use another of the run's files",
        path.display()
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Tensors that are not the model's.
    #[error(
        "{}: {first}; {} of {of} tensors differ. It is of another model: use the file that was written for this one",
        path.display(),
        differing
    )]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The first tensor that is not as the model has it, in the model's order.
        first: Difference,
        /// Tensors that are not as the model has them.
        differing: usize,
        /// Tensors that the model or the file has.
        of: usize,
    },
    /// A tensor of another type.
    #[error("{}: '{name}' is stored as {got}: convert it to F32", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        got: String,
    },
    /// A value that is infinite or NaN.
    #[error(
        "{}: '{name}'{} is {value}: the training that wrote it diverged. Use weights of an earlier epoch, or train \
         anew with a lower learning rate (--lr)",
        path.display(),
        Place(index)
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Where, in the user's axes.
        index: Vec<usize>,
        /// The value.
        value: f32,
    },
    /// A file without framefit's record of how it was made.
    #[error(
        "{}: it does not say which model it belongs to: it was not written by framefit. Name a file or the folder of \
         a run of `framefit train`",
        path.display()
    )]
    NoRecord {
        /// The file.
        path: PathBuf,
    },
    /// A record that cannot be written.
    #[error(
        "{}: cannot write how it was made: {cause}. Rename manifests whose paths are no UTF-8 text",
        path.display()
    )]
    Unrecorded {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: serde_json::Error,
    },
    /// A record that cannot be read.
    #[error(
        "{}: its record of the run, by framefit {version}, cannot be read by framefit {}: {cause}. Use the framefit \
         that wrote it, or train anew",
        path.display(),
        env!("CARGO_PKG_VERSION")
    )]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// Of the program that wrote it, if it says so.
        version: String,
        /// Why.
        cause: serde_json::Error,
    },
    /// A record that no run can have written.
    #[error(
        "{}: its record of the run was changed: it does not have {rule}. Use another of the run's files, or train anew",
        path.display()
    )]
    BadSettings {
        /// The file.
        path: PathBuf,
        /// What every record has.
        rule: String,
    },
}

/// How a file's tensor is not as the model has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The model has it and the file has not.
    Missing {
        /// The tensor.
        name: String,
        /// The model's extents.
        want: Vec<usize>,
    },
    /// The file has it and the model has not.
    Extra {
        /// The tensor.
        name: String,
        /// The file's extents.
        got: Vec<usize>,
    },
    /// Of other extents.
    Shape {
        /// The tensor.
        name: String,
        /// The model's extents.
        want: Vec<usize>,
        /// The file's extents.
        got: Vec<usize>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing { name, want } => {
                write!(f, "the model has '{name}' of {}, the file has none", Extents(want))
            }
            Difference::Extra { name, got } => {
                write!(f, "the file has '{name}' of {}, the model has none", Extents(got))
            }
            Difference::Shape { name, want, got } => {
                write!(f, "'{name}' is {} in the file and {} in the model", Extents(got), Extents(want))
            }
        }
    }
}

/// 512x64
struct Extents<'a>(&'a [usize]);

impl fmt::Display for Extents<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("one value"),
            dims => f.write_str(&dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x")),
        }
    }
}

/// `[3, 0, 1]`, as a Python user would write it behind the name.
pub(crate) struct Place<'a>(pub(crate) &'a [usize]);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            index => write!(f, "{index:?}"),
        }
    }
}
