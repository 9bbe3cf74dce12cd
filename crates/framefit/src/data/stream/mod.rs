//! Frames of a video or of a pipe, one after the other, in memory that does not grow with their number.
//!
//! Each is converted and resized exactly as clips are loaded, so that what is computed from a stream equals what is
//! computed from the whole clip.

mod error;
mod pipe;
mod y4m;

use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub use error::StreamError;
use pipe::Pipe;

use super::augment::check;
use super::clip::{FrameSize, MAX_EXTENT};
use super::error::DataError;
use super::manifest::RowOrigin;
use super::resize::Resizer;
use super::source::{Pixels, Source, SourceError, VideoInfo};

/// What frames are to be: what the model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSpec {
    /// Height and width.
    pub size: FrameSize,
    /// 3 for RGB, 1 for grey.
    pub channels: usize,
    /// Whether frames of another size are resized. If not, they are an error.
    pub resize: bool,
}

impl StreamSpec {
    /// Bytes of one frame, `[H][W][C]`.
    pub const fn frame_bytes(&self) -> usize {
        self.size.height * self.size.width * self.channels
    }
}

/// What comes through a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipeFormat {
    /// YUV4MPEG2, which says its own size.
    Y4m {
        /// How its colours turn into RGB, which no header says.
        matrix: YuvMatrix,
    },
    /// Frames without any header.
    Raw(RawFormat),
}

/// Frames of 8 bits per sample, `[H][W][C]`, one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFormat {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// 3 for RGB (FFmpeg's `rgb24`), 1 for grey (`gray`).
    pub channels: usize,
}

/// Luma and chroma to RGB. Videos say theirs; where nothing says one, it is BT.601, as FFmpeg has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum YuvMatrix {
    /// ITU-R BT.601.
    #[default]
    Bt601,
    /// ITU-R BT.709, of most HD video.
    Bt709,
    /// ITU-R BT.2020, non-constant luminance.
    Bt2020,
}

impl YuvMatrix {
    /// matrix_coefficients of ITU-T H.273.
    const fn code(self) -> u8 {
        match self {
            Self::Bt601 => 6,
            Self::Bt709 => 1,
            Self::Bt2020 => 9,
        }
    }
}

/// How messages name a pipe.
const PIPE: &str = "standard input";

/// Frames one after the other.
pub struct FrameStream {
    frames: Frames,
    spec: StreamSpec,
    pixels: Pixels,
    resizer: Option<Resizer>,
    /// Frames handed out.
    next: usize,
    /// Whether the last frame, or an error, has been seen.
    over: bool,
}

enum Frames {
    Video { path: PathBuf, source: Source, info: VideoInfo },
    Pipe(Pipe),
}

impl FrameStream {
    /// Opens a video, a folder of images or a `.npy` array, as [`Source::open`] does. Reads its index, decodes nothing.
    ///
    /// # Errors
    /// When it cannot be read, and when its frames have another size and are not to be resized.
    pub fn open(path: &Path, spec: &StreamSpec) -> Result<Self, DataError> {
        let pixels = pixels(spec)?;
        let source = Source::open(path).and_then(|source| source.verify().map(|()| source));
        let source = source.map_err(|cause| video_error(path, cause))?;
        let info = source.info();
        Self::new(Frames::Video { path: path.to_owned(), source, info }, spec, pixels)
    }

    /// Takes frames from a pipe. Reads the header, no frame.
    ///
    /// # Errors
    /// When the header cannot be used, and when frames have another size and are not to be resized.
    pub fn pipe(reader: impl Read + Send + 'static, format: PipeFormat, spec: &StreamSpec) -> Result<Self, DataError> {
        let pixels = pixels(spec)?;
        Self::new(Frames::Pipe(Pipe::open(Box::new(reader), format)?), spec, pixels)
    }

    fn new(frames: Frames, spec: &StreamSpec, pixels: Pixels) -> Result<Self, DataError> {
        let mut opened = Self { frames, spec: *spec, pixels, resizer: None, next: 0, over: false };
        let (got, want) = (opened.source_size(), spec.size);
        if got != want && !spec.resize {
            return Err(StreamError::Size { video: opened.name().to_owned(), got, want }.into());
        }
        opened.resizer = Resizer::new(got, want, spec.channels);
        Ok(opened)
    }

    /// Writes the next frame to `into`, `[H][W][C]` as the model takes it; false after the last one, and after an error.
    ///
    /// # Errors
    /// When the frame cannot be read or decoded, or is cut off; when there is none at all.
    pub fn next_frame(&mut self, into: &mut [u8]) -> Result<bool, DataError> {
        check("the frame", into.len(), self.spec.frame_bytes())?;
        if self.over {
            return Ok(false);
        }
        let read = self.read(into);
        match read {
            Ok(true) => self.next += 1,
            Ok(false) | Err(_) => self.over = true,
        }
        read
    }

    fn read(&mut self, into: &mut [u8]) -> Result<bool, DataError> {
        let resizer = self.resizer.as_mut();
        match &mut self.frames {
            Frames::Video { info, .. } if self.next >= info.frames => Ok(false),
            Frames::Video { path, source, .. } => {
                let mut resizer = resizer;
                let mut shown = |_: usize, frame: &[u8]| {
                    Resizer::fit(resizer.as_deref_mut(), frame, into);
                    ControlFlow::Continue(())
                };
                source
                    .read(self.next..self.next + 1, self.spec.channels, &mut shown)
                    .map_err(|cause| video_error(path, cause))?;
                Ok(true)
            }
            Frames::Pipe(pipe) => match pipe.next(self.next, self.pixels)? {
                Some(frame) => {
                    Resizer::fit(resizer, frame, into);
                    Ok(true)
                }
                None => Ok(false),
            },
        }
    }

    /// Frames handed out so far, which is the number of the next one.
    pub const fn handed_out(&self) -> usize {
        self.next
    }

    /// Frames of the video; of a pipe, once it has ended without an error.
    pub fn frames(&self) -> Option<usize> {
        match &self.frames {
            Frames::Video { info, .. } => Some(info.frames),
            Frames::Pipe(pipe) => pipe.ended().then_some(self.next),
        }
    }

    /// Whether there are the frames that a model needs for one output, as far as that is known: of a pipe, only when it
    /// has ended.
    ///
    /// # Errors
    /// [`DataError::TooShort`] if there are fewer.
    pub fn check_frames(&self, need: usize) -> Result<(), DataError> {
        match self.frames() {
            Some(of) if of < need => Err(DataError::TooShort {
                origin: nowhere(self.name()),
                video: self.name().to_owned(),
                frames: 0..of,
                of,
                need,
                piece: false,
            }),
            _ => Ok(()),
        }
    }

    /// Height and width before frames are resized.
    pub fn source_size(&self) -> FrameSize {
        match &self.frames {
            Frames::Video { info, .. } => FrameSize { height: info.height, width: info.width },
            Frames::Pipe(pipe) => pipe.size(),
        }
    }

    /// Whether a YUV4MPEG2 header says that each frame is made of two fields. They are taken as one picture, as those
    /// of interlaced videos are.
    pub fn interlaced(&self) -> bool {
        match &self.frames {
            Frames::Video { .. } => false,
            Frames::Pipe(pipe) => pipe.interlaced(),
        }
    }

    /// What messages call it: the path of the video, or "standard input".
    pub fn name(&self) -> &Path {
        match &self.frames {
            Frames::Video { path, .. } => path,
            Frames::Pipe(_) => Path::new(PIPE),
        }
    }

    /// Upper bound of the bytes held, whatever the number of frames.
    pub fn memory_bytes(&self) -> u64 {
        let held = match &self.frames {
            Frames::Video { info, .. } => info.decoder_bytes,
            Frames::Pipe(pipe) => pipe.memory_bytes(),
        };
        held + Resizer::bytes(self.source_size(), self.spec.size, self.spec.channels)
    }
}

fn pixels(spec: &StreamSpec) -> Result<Pixels, StreamError> {
    let in_bounds = |extent| (1..=MAX_EXTENT).contains(&extent);
    match Pixels::new(spec.channels) {
        Ok(pixels) if in_bounds(spec.size.height) && in_bounds(spec.size.width) => Ok(pixels),
        _ => Err(StreamError::Spec { spec: *spec }),
    }
}

/// As loading a clip of a video that no row of a manifest names.
fn video_error(path: &Path, cause: SourceError) -> DataError {
    DataError::Video { origin: nowhere(path), cause }
}

/// No row names it.
fn nowhere(path: &Path) -> RowOrigin {
    RowOrigin { file: path.into(), line: 0 }
}
