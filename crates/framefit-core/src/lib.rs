//! The fold over time.
#![forbid(unsafe_code)]
