//! What can go wrong between a manifest and a loaded clip.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::clip::ClipError;
use super::manifest::{ManifestError, RowOrigin};
use super::source::SourceError;
use super::stream::StreamError;

/// An error of the data side. Each says where the user wrote it and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A video cannot be opened or decoded.
    #[error("{}{cause}", at_row(origin))]
    Video {
        /// The first row that names the video, or the row of the clip; line 0 where no row does.
        origin: RowOrigin,
        /// What is wrong with the file.
        cause: SourceError,
    },
    /// Frames do not come one after the other as they should.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Rows and videos do not give clips of the wanted form.
    #[error(transparent)]
    Clip(#[from] ClipError),
    /// A clip has fewer frames than the model needs for one output.
    #[error("{}{}", at_row(origin), short(video, frames, *of, *need, *piece))]
    TooShort {
        /// The row of the clip; line 0 where there is none.
        origin: RowOrigin,
        /// The video.
        video: PathBuf,
        /// The clip's frames.
        frames: Range<usize>,
        /// Frames of the video.
        of: usize,
        /// Frames that the model needs.
        need: usize,
        /// Whether it is what was left when the video was cut into clips.
        piece: bool,
    },
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

fn short(video: &Path, frames: &Range<usize>, of: usize, need: usize, piece: bool) -> String {
    let (video, have) = (video.display(), frames.len());
    let found = match have == of {
        true => format!("{video} has {}", count(have)),
        false => {
            let last = frames.end.saturating_sub(1);
            format!("the clip of frames {} to {last} of {video} ({of} frames) has {}", frames.start, count(have))
        }
    };
    let remedy = match piece {
        true => "Cut the videos into clips of another length, so that the last one is longer",
        false => "Leave it out, or use a model that reaches over fewer frames",
    };
    format!("{found}, but the model needs {need} or more. {remedy}")
}

fn count(frames: usize) -> String {
    format!("{frames} frame{}", if frames == 1 { "" } else { "s" })
}

/// What precedes a message that names the video itself.
fn at_row(origin: &RowOrigin) -> String {
    match origin.line {
        0 => String::new(),
        _ => format!("{origin}: "),
    }
}
