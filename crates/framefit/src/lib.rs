//! Train video models on whole clips inside the memory you have.
#![forbid(unsafe_code)]
pub mod data;
