//! Text to graph.
#![forbid(unsafe_code)]
