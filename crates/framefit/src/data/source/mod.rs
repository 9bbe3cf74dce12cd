//! Videos as frames that are addressed by number: H.264 in MP4 or MOV, `.npy` arrays, folders of images.
//!
//! A source streams: it holds the decoder's reference frames and one converted frame, never the video. Which frame a
//! number means follows what `ffmpeg` shows by default: presentation order, edit lists and rotation applied, nothing
//! repeated or dropped to keep a frame rate.

mod boxes;
pub(crate) mod colour;
mod headers;
mod images;
mod mp4;
mod npy;
mod runs;
mod table;

use std::fs::File;
use std::io::Read;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub use mp4::assumed_decoder_bytes;

/// What is known about a video without decoding it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VideoInfo {
    /// Frames shown.
    pub frames: usize,
    /// Rows of a frame, after rotation.
    pub height: usize,
    /// Columns of a frame, after rotation.
    pub width: usize,
    /// Upper bound of the bytes that one open source of this video holds while it decodes.
    pub decoder_bytes: u64,
}

/// Why a video cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields hold")]
pub enum SourceError {
    #[error("{}: cannot read: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("{}: the file is empty (0 bytes). Copy or download it again", path.display())]
    EmptyFile { path: PathBuf },
    #[error("{}: {found}, but MP4 or MOV with H.264, a .npy array or a folder of PNG or JPEG images is needed. {REENCODE}", path.display())]
    Container { path: PathBuf, found: &'static str },
    #[error("{}: the video is {codec}, but only H.264 is decoded. {REENCODE}", path.display())]
    Codec { path: PathBuf, codec: String },
    #[error("{}: no video track; {found}. Name a file with pictures, or remove the row", path.display())]
    NoVideo { path: PathBuf, found: &'static str },
    #[error("{}: H.264 with {feature} cannot be decoded. {REENCODE}", path.display())]
    Feature { path: PathBuf, feature: String },
    #[error("{}: the file ends before its video does: {missing}. Copy or download it again{}", path.display(), if *playable { ", or keep its good part with `ffmpeg -i in.mp4 -c:v libx264 out.mp4`" } else { "" })]
    Truncated { path: PathBuf, missing: String, playable: bool },
    #[error("{}: the file's index is damaged: {what}. Copy or download it again, or re-encode it with `ffmpeg -i in.mp4 -c:v libx264 out.mp4`", path.display())]
    Index { path: PathBuf, what: String },
    #[error("{}: {what} is {got}, more than the {limit} that is accepted", path.display())]
    Limit { path: PathBuf, what: &'static str, got: u64, limit: u64 },
    #[error("{}: frame {frame} of {frames} cannot be decoded: {what}. The file is damaged there: copy it again, re-encode it with `ffmpeg -i in.mp4 -c:v libx264 out.mp4`, or use rows that end before that frame", path.display())]
    Decode { path: PathBuf, frame: usize, frames: usize, what: String },
    #[error("{}: frame {frame} is {}, but the video began as {}. Re-encode it to one size", path.display(), size(*got), size(*want))]
    SizeChanged { path: PathBuf, frame: usize, got: (usize, usize), want: (usize, usize) },
    #[error("{}: frames {}..{} were asked for, but there are {have}", path.display(), wanted.start, wanted.end)]
    Range { path: PathBuf, wanted: Range<usize>, have: usize },
    #[error("{}: {what}. A video as .npy has type uint8 and shape [T,H,W], [T,H,W,1] or [T,H,W,3], in C order (`np.ascontiguousarray`)", path.display())]
    Npy { path: PathBuf, what: String },
    #[error("{}: no .png, .jpg or .jpeg file in this folder", path.display())]
    NoImages { path: PathBuf },
    #[error("{}: cannot decode the image: {what}", path.display())]
    Image { path: PathBuf, what: String },
    #[error("images of one video must have one size, but {} is {} and {} is {}", first.display(), size(*first_size), other.display(), size(*other_size))]
    ImageSize { first: PathBuf, first_size: (usize, usize), other: PathBuf, other_size: (usize, usize) },
    #[error("{channels} channels were asked for; frames have 1 (grey) or 3 (RGB)")]
    Channels { channels: usize },
}

const REENCODE: &str = "Convert it: `ffmpeg -i in -c:v libx264 -pix_fmt yuv420p out.mp4`";

/// Height and width as users write them.
fn size((height, width): (usize, usize)) -> String {
    format!("{width}×{height} (width×height)")
}

/// Most frames of one video: 155 hours at 30 frames a second.
pub(crate) const MAX_FRAMES: u64 = 1 << 24;
/// Most rows or columns of a frame.
pub(crate) const MAX_SIDE: u64 = 1 << 14;

/// What a frame is handed to: its number, and its pixels `[H][W][C]`. `Break` ends the reading without an error.
pub type Sink<'a> = dyn FnMut(usize, &[u8]) -> ControlFlow<()> + 'a;

/// Grey or RGB: what a frame is converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pixels {
    Grey,
    Rgb,
}

impl Pixels {
    pub(crate) fn new(channels: usize) -> Result<Self, SourceError> {
        match channels {
            1 => Ok(Self::Grey),
            3 => Ok(Self::Rgb),
            _ => Err(SourceError::Channels { channels }),
        }
    }

    pub(crate) const fn channels(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }
}

/// Runs foreign code on data from a file: a panic in it becomes a message.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| "the decoder failed on it".to_owned())
}

/// An open video.
pub struct Source(Kind);

enum Kind {
    Mp4(Box<mp4::Mp4>),
    Npy(npy::Npy),
    Images(images::Images),
}

impl Source {
    /// Opens a video by what it contains, not by its name. Reads the file's index, decodes nothing.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let io = |cause| SourceError::Io { path: path.into(), cause };
        if std::fs::metadata(path).map_err(io)?.is_dir() {
            return Ok(Self(Kind::Images(images::Images::open(path)?)));
        }
        let mut file = File::open(path).map_err(io)?;
        let mut start = Vec::with_capacity(START);
        (&mut file).take(START as u64).read_to_end(&mut start).map_err(io)?;
        match container(&start) {
            Container::Empty => Err(SourceError::EmptyFile { path: path.into() }),
            Container::Npy => Ok(Self(Kind::Npy(npy::Npy::open(path, file)?))),
            Container::Mp4 => Ok(Self(Kind::Mp4(Box::new(mp4::Mp4::open(path, file)?)))),
            Container::Other(found) => Err(SourceError::Container { path: path.into(), found }),
        }
    }

    /// Frame count and size.
    pub fn info(&self) -> VideoInfo {
        match &self.0 {
            Kind::Mp4(video) => video.info(),
            Kind::Npy(video) => video.info(),
            Kind::Images(video) => video.info(),
        }
    }

    /// Checks what [`Source::open`] leaves for later because it opens every file: that all images have one size.
    pub fn verify(&self) -> Result<(), SourceError> {
        match &self.0 {
            Kind::Mp4(_) | Kind::Npy(_) => Ok(()),
            Kind::Images(video) => video.verify(),
        }
    }

    /// Hands each frame of `frames` to `sink` once, as grey (`channels` 1) or RGB (3).
    ///
    /// Frames may come in decoding order: `sink` is told which one it gets. Reading ranges one after the other goes
    /// on where the last one ended; any other range starts at the nearest frame that can be decoded by itself.
    pub fn read(&mut self, frames: Range<usize>, channels: usize, sink: &mut Sink<'_>) -> Result<(), SourceError> {
        let pixels = Pixels::new(channels)?;
        let have = self.info().frames;
        if frames.start > frames.end || frames.end > have {
            return Err(SourceError::Range { path: self.path().into(), wanted: frames, have });
        }
        match &mut self.0 {
            Kind::Mp4(video) => video.read(frames, pixels, sink),
            Kind::Npy(video) => video.read(frames, pixels, sink),
            Kind::Images(video) => video.read(frames, pixels, sink),
        }
    }

    fn path(&self) -> &Path {
        match &self.0 {
            Kind::Mp4(video) => video.path(),
            Kind::Npy(video) => video.path(),
            Kind::Images(video) => video.path(),
        }
    }
}

/// Bytes that tell one container from another.
const START: usize = 64;

/// What bytes that begin like this are, in words; `None` if they tell nothing.
pub(crate) fn kind_of(start: &[u8]) -> Option<&'static str> {
    match container(start.get(..START).unwrap_or(start)) {
        Container::Npy => Some("a .npy array"),
        Container::Mp4 => Some("an MP4 or MOV file"),
        Container::Other(found) if found != NOT_A_VIDEO => Some(found),
        Container::Empty | Container::Other(_) => None,
    }
}

const NOT_A_VIDEO: &str = "not a video file";

enum Container {
    Empty,
    Npy,
    Mp4,
    Other(&'static str),
}

fn container(start: &[u8]) -> Container {
    let box_type = start.get(4..8).unwrap_or_default();
    const BOXES: [&[u8]; 9] = [b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"uuid"];
    if start.is_empty() {
        Container::Empty
    } else if start.starts_with(b"\x93NUMPY") {
        Container::Npy
    } else if BOXES.contains(&box_type) {
        Container::Mp4
    } else {
        Container::Other(match start {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', ..] => "an AVI file",
            [0x1A, 0x45, 0xDF, 0xA3, ..] => "a Matroska or WebM file",
            [b'O', b'g', b'g', b'S', ..] => "an Ogg file",
            [b'F', b'L', b'V', ..] => "a Flash video file",
            [b'G', b'I', b'F', b'8', ..] => "a GIF file",
            [0x30, 0x26, 0xB2, 0x75, ..] => "a Windows Media file",
            [0, 0, 1, 0xBA | 0xB3, ..] => "an MPEG program stream",
            [0x47, ..] if start.len() < 64 || start.get(4).is_some() => "perhaps an MPEG transport stream",
            [b'Y', b'U', b'V', b'4', ..] => "a YUV4MPEG2 file",
            [b'P', b'K', 3, 4, ..] => "a ZIP archive (such as .npz)",
            [0, 0, 0, 1, ..] | [0, 0, 1, ..] => "a raw video stream",
            [0x89, b'P', b'N', b'G', ..] | [0xFF, 0xD8, 0xFF, ..] => "a single image",
            _ => NOT_A_VIDEO,
        })
    }
}
