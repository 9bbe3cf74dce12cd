//! Videos and labels to clips: manifest, decoding, clips, prefetch.
//!
//! The way data takes: [`Manifest`] (labels and files) → [`probe`] (sizes and frame counts, nothing decoded) →
//! [`Dataset`] (the clips, the frames kept in memory, and the bytes all this can hold) → [`Loader`] (decodes ahead,
//! hands out clips in order) → [`scatter`] (one clip into its place in a micro-batch).
//!
//! Invariants: this module imports nothing else of the crate. Frames are `u8`, `[T][H][W][C]`, C is 1 or 3, and are
//! addressed by their number in presentation order. Nothing is resized, dropped or padded unless the caller asks.
//! Sizes that a file claims are checked before memory is taken for them.
//! Deliberately absent: per-frame labels, sound, and timing (a frame's number is all that counts).

mod augment;
mod clip;
mod dataset;
mod error;
mod loader;
mod manifest;
mod natural;
mod resize;
pub mod source;
mod store;

pub use augment::{Augment, Flip, Scatter, scatter, shuffle};
pub use clip::{ClipError, ClipIndex, ClipRef, ClipShape, ClipSpec, FrameSize, LeftOut, MAX_EXTENT};
pub use dataset::{DataMemory, Dataset, probe};
pub use error::DataError;
pub use loader::{LoadedClip, Loader};
pub use manifest::{Manifest, ManifestError, Row, RowOrigin, Split, VideoId};
pub use source::{Source, SourceError, VideoInfo};
