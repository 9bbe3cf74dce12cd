use serde::Serialize;
use std::fmt;

/// Where a layer was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Origin {
    /// In framefit.
    BuiltIn,
    /// In a file of the user's.
    File {
        /// The file's path as the user gave it.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built-in model"),
            Origin::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
        }
    }
}
