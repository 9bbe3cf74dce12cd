//! Videos and labels to clips: manifest, decoding, clips, prefetch.
//!
//! The way data takes: [`Labels`] (a [`Manifest`] or a [`FrameManifest`]: files, and labels per clip or per frame) → [`probe`] (sizes and frame counts, nothing decoded) →
//! [`Dataset`] (the clips, the frames kept in memory, and the bytes all this can hold) → [`Loader`] (decodes ahead,
//! hands out clips in order) → [`scatter`], [`scatter_labels`] (one clip into its place in a micro-batch of clips of
//! its length). Without labels and without clips: [`FrameStream`], frames of a video or a pipe one after the other.
//!
//! Invariants: this module imports nothing else of the crate. Frames are `u8`, `[T][H][W][C]`, C is 1 or 3, and are
//! addressed by their number in presentation order. Nothing is resized, dropped or padded unless the caller asks.
//! Sizes that a file claims are checked before memory is taken for them.
//! Deliberately absent: sound, and timing (a frame's number is all that counts).

mod augment;
mod clip;
mod dataset;
mod error;
mod feed;
mod frame_labels;
mod labels;
mod loader;
mod manifest;
mod natural;
mod resize;
pub mod source;
mod store;
pub mod stream;
mod table;

pub use augment::{Augment, Flip, Scatter, scatter, scatter_labels, shuffle};
pub use clip::{
    ClipError, ClipForm, ClipIndex, ClipRef, ClipShape, ClipSpec, FrameOrder, FrameRef, FrameSize, LeftOut, Length,
    MAX_EXTENT,
};
pub use dataset::{DataMemory, Dataset, probe};
pub use error::DataError;
pub use feed::Feed;
pub use frame_labels::{FrameLabels, FrameManifest, Gaps, IGNORE};
pub use labels::Labels;
pub use loader::{LoadedClip, Loader};
pub use manifest::{Manifest, ManifestError, Row, RowOrigin, Split, TwoLabels, VideoId};
pub use source::{Source, SourceError, VideoInfo};
pub use stream::{FrameStream, PipeFormat, RawFormat, StreamError, StreamSpec, YuvMatrix};
