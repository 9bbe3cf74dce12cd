//! The program `framefit`.
#![forbid(unsafe_code)]
fn main() {}
