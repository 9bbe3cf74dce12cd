//! Train video models on whole clips inside the memory you have.
//!
//! The way data takes: [`data`] turns a manifest and its videos into clips of `u8` frames; [`models`] makes
//! the graph; `framefit_core` plans it; [`engine`] runs the plan in one arena; [`train`] goes through the
//! clips epoch by epoch; [`weights`] keeps what was learnt.
#![forbid(unsafe_code)]

pub mod data;
pub mod engine;
pub mod models;
mod random;
pub mod train;
pub mod weights;

pub use framefit_core as core;
pub use framefit_kernels as kernels;
