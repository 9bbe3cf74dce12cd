//! PyTorch's out-of-memory messages, and what the bytes in them are.

mod explain;
mod message;

pub use explain::{Against, Reading, Report, explain};
pub use message::{Amount, Message, read};
