//! What can go wrong with frames that come one after the other.

use std::path::PathBuf;

use super::{RawFormat, StreamSpec};
use crate::data::clip::{FrameSize, MAX_EXTENT};

/// Why frames cannot be streamed. Frames that came before the error have been handed out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields hold")]
pub enum StreamError {
    #[error("frames of {}x{} (height×width), {} channels cannot be made: height and width must be 1 to {MAX_EXTENT}, channels 1 or 3", spec.size.height, spec.size.width, spec.channels)]
    Spec { spec: StreamSpec },
    #[error("raw frames of {}x{} (height×width), {} channels cannot be read: height and width must be 1 or more, channels 1 (grey, `-pix_fmt gray`) or 3 (RGB, `-pix_fmt rgb24`)", format.height, format.width, format.channels)]
    Raw { format: RawFormat },
    #[error("{}: frames are {}x{}, but the model takes {}x{} (height×width). Resize them, or use a model that was trained on that size", video.display(), got.height, got.width, want.height, want.width)]
    Size { video: PathBuf, got: FrameSize, want: FrameSize },
    #[error("standard input: cannot read frame {frame}: {cause}")]
    Io { frame: usize, cause: std::io::Error },
    #[error("standard input: {}. Check that the program that writes to it finds its video: run it alone", if *header { "a YUV4MPEG2 header, but no frame follows" } else { "it ends before the first byte" })]
    NoFrames { header: bool },
    #[error("standard input: {found}, but YUV4MPEG2 is needed. {}", if *file { "Name the file instead of piping it, or decode it: `ffmpeg -i in -pix_fmt yuv420p -f yuv4mpegpipe - | …`" } else { "Pipe `ffmpeg -i in -pix_fmt yuv420p -f yuv4mpegpipe - | …`, or say the size of raw frames" })]
    NotY4m { found: String, file: bool },
    #[error("standard input: the YUV4MPEG2 header cannot be used: {what}. {REMEDY}")]
    Header { what: String },
    #[error(
        "standard input: the colour space is {found}, but 420jpeg, 420mpeg2, 420paldv (or 420), 422, 444 and mono, with 8 bits, are read. Convert it: `ffmpeg -i in -pix_fmt yuv420p -f yuv4mpegpipe -`"
    )]
    ColourSpace { found: String },
    #[error("standard input: {what} is {got}, more than the {limit} that is accepted")]
    Limit { what: &'static str, got: u64, limit: u64 },
    #[error("standard input: frame {frame} is cut off: {missing} of its {of} bytes are missing. {}", if *raw { "The program that writes to it stopped early, or its frames have another size or format" } else { "The program that writes to it stopped early: look at what it says" })]
    Cut { frame: usize, missing: usize, of: usize, raw: bool },
    #[error(
        "standard input: frame {frame} begins with {found}, not with FRAME: bytes were lost before it, or the header gives a wrong size. {REMEDY}"
    )]
    FrameStart { frame: usize, found: String },
}

const REMEDY: &str = "Write it with `ffmpeg -i in -pix_fmt yuv420p -f yuv4mpegpipe -`, and pipe bytes, not text";
