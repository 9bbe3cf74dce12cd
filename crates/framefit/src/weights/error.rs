use std::path::PathBuf;

/// Why a file of tensors cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The system refuses.
    #[error("{}: cannot read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The system refuses.
    #[error("{}: cannot write: {cause}. The file that was there is unchanged", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// Not a whole safetensors file.
    #[error("{}: not a whole safetensors file: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A tensor that the model has and the file has not.
    #[error("{}: there is no tensor '{name}'; it holds {}. Was it made by another model?", path.display(), found.join(", "))]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What the file holds.
        found: Vec<String>,
    },
    /// A tensor of other extents.
    #[error("{}: '{name}' is {got:?}, but the model's is {want:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The model's extents.
        want: Vec<usize>,
        /// The file's extents.
        got: Vec<usize>,
    },
    /// A tensor of another type.
    #[error("{}: '{name}' is stored as {got}; convert it to F32", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        got: String,
    },
    /// A file without framefit's record of how it was made.
    #[error("{}: it does not say which model it belongs to: it was not written by framefit", path.display())]
    NoRecord {
        /// The file.
        path: PathBuf,
    },
    /// A record that cannot be read.
    #[error("{}: its record of the run cannot be read: {cause}", path.display())]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: serde_json::Error,
    },
}
