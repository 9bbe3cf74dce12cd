//! One file per command.

pub mod eval;
pub mod explain;
pub mod plan;
pub mod predict;
pub mod summary;
pub mod train;

use crate::report::Problem;
use std::io::Write;

/// Says something on stderr. Whether anybody listens is no concern of the command.
pub fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Writes a result to stdout.
pub fn print(text: &str) -> Result<(), Problem> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|cause| Problem::Output { cause })
}

/// Writes a result to stdout as one line of JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Problem> {
    let text = serde_json::to_string(value).map_err(|e| Problem::Output { cause: e.into() })?;
    print(&format!("{text}\n"))
}
