//! YUV4MPEG2: frames behind lines of text, as `ffmpeg -f yuv4mpegpipe` and mjpegtools (yuv4mpeg(5)) write them.
//!
//! Read here because the crate `y4m` takes a stream that ends inside a frame for one that ends after it, multiplies a
//! header's sizes unchecked, and does not tell which colour space it refuses.

use std::io::{BufRead, Read};

use super::error::StreamError;
use crate::data::clip::FrameSize;
use crate::data::source::colour::Subsampling;
use crate::data::source::kind_of;

/// Longest line that is read, its end included. Comments make them long; FFmpeg's stay below 128.
pub(super) const MAX_LINE: usize = 4096;

const MAGIC: &[u8] = b"YUV4MPEG2";
const FRAME: &[u8] = b"FRAME";

/// How the samples of a frame lie: luma, then, unless it is grey, both planes of chroma.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Mono,
    Colour(Subsampling),
}

impl Layout {
    /// By the name of the colour space; siting does not matter where chroma is not interpolated.
    fn of(name: &[u8]) -> Option<Self> {
        let colour = |columns, rows| Some(Self::Colour(Subsampling { columns, rows }));
        match name {
            b"420" | b"420jpeg" | b"420mpeg2" | b"420paldv" => colour(2, 2),
            b"422" => colour(2, 1),
            b"444" => colour(1, 1),
            b"mono" => Some(Self::Mono),
            _ => None,
        }
    }

    /// Bytes of a frame.
    pub(super) const fn bytes(self, FrameSize { height, width }: FrameSize) -> usize {
        match self {
            Self::Mono => height * width,
            Self::Colour(Subsampling { columns, rows }) => {
                height * width + 2 * height.div_ceil(rows) * width.div_ceil(columns)
            }
        }
    }
}

/// The first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) size: FrameSize,
    pub(super) layout: Layout,
    pub(super) full_range: bool,
    pub(super) interlaced: bool,
}

impl Header {
    pub(super) fn read(reader: &mut impl BufRead, line: &mut Vec<u8>) -> Result<Self, StreamError> {
        let end = read_line(reader, line).map_err(|cause| StreamError::Io { frame: 0, cause })?;
        let unusable = |what: &str| StreamError::Header { what: what.to_owned() };
        match line.strip_prefix(MAGIC) {
            None if line.is_empty() && end == LineEnd::Input => return Err(StreamError::NoFrames { header: false }),
            Some([] | [b' ', ..]) => {}
            _ => {
                let kind = kind_of(line).filter(|_| !line.starts_with(b"YUV4"));
                let found = kind.map_or_else(|| format!("it begins with {}", excerpt(line)), str::to_owned);
                return Err(StreamError::NotY4m { found, file: kind.is_some() });
            }
        }
        match end {
            LineEnd::Newline if line.ends_with(b"\r") => Err(unusable("its line ends as lines of text do on Windows")),
            LineEnd::Newline => Self::parse(line),
            LineEnd::Input => Err(unusable("it is cut off")),
            LineEnd::TooLong => Err(unusable("its line does not end")),
        }
    }

    /// Unknown parameters are passed over, as the format asks.
    fn parse(line: &[u8]) -> Result<Self, StreamError> {
        let unusable = |what: String| StreamError::Header { what };
        let (mut height, mut width) = (None, None);
        let (mut colour, mut old_colour): (Option<&[u8]>, Option<Vec<u8>>) = (None, None);
        let (mut full_range, mut interlaced) = (false, false);
        for field in line.split(|byte| *byte == b' ').skip(1) {
            let Some((tag, value)) = field.split_first() else { continue };
            match tag {
                b'W' => width = Some(extent("width", value)?),
                b'H' => height = Some(extent("height", value)?),
                b'C' => colour = Some(value),
                b'I' => interlaced = matches!(value, b"t" | b"b" | b"m"),
                b'X' => match value.split_at_checked(b"YSCSS=".len()) {
                    Some((b"YSCSS=", name)) => old_colour = Some(name.to_ascii_lowercase()),
                    _ => full_range |= value == b"COLORRANGE=FULL",
                },
                _ => {}
            }
        }
        let (Some(height), Some(width)) = (height, width) else {
            return Err(unusable("it gives no width (W) or no height (H)".to_owned()));
        };
        // The format's own default. mjpegtools once wrote the colour space as an extension alone.
        let name = colour.or(old_colour.as_deref()).unwrap_or(b"420jpeg");
        let layout = Layout::of(name).ok_or_else(|| StreamError::ColourSpace { found: excerpt(name) })?;
        Ok(Self { size: FrameSize { height, width }, layout, full_range, interlaced })
    }
}

fn extent(what: &str, value: &[u8]) -> Result<usize, StreamError> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(extent) if extent > 0 => Ok(extent),
        _ => Err(StreamError::Header { what: format!("its {what} is {}", excerpt(value)) }),
    }
}

/// Reads the line before frame `number`, of `of` bytes; false if the stream ends there.
pub(super) fn frame_begins(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
    number: usize,
    of: usize,
) -> Result<bool, StreamError> {
    let end = read_line(reader, line).map_err(|cause| StreamError::Io { frame: number, cause })?;
    let cut = end == LineEnd::Input;
    if cut && line.is_empty() {
        return Ok(false);
    }
    match line.strip_prefix(FRAME) {
        Some([] | [b' ', ..]) if cut => Err(StreamError::Cut { frame: number, missing: of, of, raw: false }),
        None if cut && FRAME.starts_with(line) => Err(StreamError::Cut { frame: number, missing: of, of, raw: false }),
        Some([] | [b' ', ..]) if end == LineEnd::Newline => Ok(true),
        _ => Err(StreamError::FrameStart { frame: number, found: excerpt(line) }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Newline,
    Input,
    TooLong,
}

/// Reads up to and without the end of the line, [`MAX_LINE`] bytes at most.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<LineEnd> {
    line.clear();
    reader.take(MAX_LINE as u64).read_until(b'\n', line)?;
    Ok(match line.pop_if(|last| *last == b'\n') {
        Some(_) => LineEnd::Newline,
        None if line.len() < MAX_LINE => LineEnd::Input,
        None => LineEnd::TooLong,
    })
}

/// The first bytes, as text for a message.
fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 16;
    match bytes.get(..SHOWN) {
        Some(start) if bytes.len() > SHOWN => format!("\"{}…\"", start.escape_ascii()),
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}
