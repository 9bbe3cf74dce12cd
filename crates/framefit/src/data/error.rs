//! What can go wrong between a manifest and a loaded clip.

use super::clip::ClipError;
use super::manifest::{ManifestError, RowOrigin};
use super::source::SourceError;

/// An error of the data side. Each says where the user wrote it and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A video cannot be opened or decoded.
    #[error("{origin}: {cause}")]
    Video {
        /// The first row that names the video, or the row of the clip.
        origin: RowOrigin,
        /// What is wrong with the file.
        cause: SourceError,
    },
    /// Rows and videos do not give clips of the wanted form.
    #[error(transparent)]
    Clip(#[from] ClipError),
    /// The decoding thread could not be started.
    #[error("cannot start the decoding thread: {cause}")]
    Thread {
        /// What the system says.
        cause: std::io::Error,
    },
    /// The decoding thread ended early.
    #[error("the decoding thread ended with {left} clips left to load; please report this")]
    Stopped {
        /// Clips that it still had to load.
        left: usize,
    },
    /// A buffer does not have the size that its shape asks for.
    #[error("{what} holds {got} bytes, but its shape asks for {want}")]
    Buffer {
        /// Which buffer.
        what: &'static str,
        /// Its bytes.
        got: usize,
        /// Bytes of its shape.
        want: usize,
    },
    /// There are not as many labels as frames.
    #[error("{what} has {got} labels, expected {want}: one per frame of each clip, or one per clip")]
    LabelCount {
        /// Whose labels.
        what: &'static str,
        /// Labels there are.
        got: usize,
        /// Labels that the shape asks for.
        want: usize,
    },
    /// A clip that does not belong to the data set.
    #[error("clip {number} is not a clip of this data set of {clips} clips")]
    UnknownClip {
        /// The number asked for.
        number: usize,
        /// Clips there are.
        clips: usize,
    },
}
