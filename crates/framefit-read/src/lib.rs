//! Text that users have, read: out-of-memory messages to findings.
//!
//! Nothing here opens a file or runs anything; what comes in is text, what goes out says where every figure
//! comes from.
#![forbid(unsafe_code)]

pub mod oom;
