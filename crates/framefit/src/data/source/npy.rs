//! `.npy` arrays of type uint8: `[T,H,W]`, `[T,H,W,1]` or `[T,H,W,3]`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{MAX_FRAMES, MAX_SIDE, Pixels, Sink, SourceError, VideoInfo, colour};

pub(super) struct Npy {
    path: PathBuf,
    file: File,
    data: u64,
    frames: usize,
    height: usize,
    width: usize,
    channels: usize,
    stored: Vec<u8>,
    converted: Vec<u8>,
}

/// Longest header that is read; NumPy's own limit is lower.
const MAX_HEADER: usize = 1 << 14;

impl Npy {
    pub(super) fn open(path: &Path, mut file: File) -> Result<Self, SourceError> {
        let io = |cause| SourceError::Io { path: path.into(), cause };
        let wrong = |what: String| SourceError::Npy { path: path.into(), what };
        let length = file.seek(SeekFrom::End(0)).map_err(io)?;
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut start = Vec::with_capacity(MAX_HEADER);
        (&mut file).take(MAX_HEADER as u64).read_to_end(&mut start).map_err(io)?;
        let (header, data) = header(&start).ok_or_else(|| wrong("the array's header is cut off".into()))?;
        let kind = text_after(header, "descr").unwrap_or("unknown");
        if !matches!(kind, "|u1" | "u1" | "<u1" | ">u1" | "=u1") {
            return Err(wrong(format!("the array's type is {kind}")));
        }
        if value_after(header, "fortran_order").is_none_or(|value| !value.starts_with("False")) {
            return Err(wrong("the array is in Fortran order".into()));
        }
        let shape = shape(header).ok_or_else(|| wrong("the array's shape cannot be read".into()))?;
        let (frames, height, width, channels) = match *shape.as_slice() {
            [t, h, w] => (t, h, w, 1),
            [t, h, w, c @ (1 | 3)] => (t, h, w, c),
            _ => return Err(wrong(format!("the array's shape is {shape:?}"))),
        };
        if frames == 0 || height == 0 || width == 0 {
            return Err(wrong(format!("the array's shape is {shape:?}, which holds no frame")));
        }
        for (what, got, limit) in [
            ("the number of frames", frames, MAX_FRAMES),
            ("the height", height, MAX_SIDE),
            ("the width", width, MAX_SIDE),
        ] {
            if got > limit {
                return Err(SourceError::Limit { path: path.into(), what, got, limit });
            }
        }
        let bytes = u128::from(frames) * u128::from(height * width * channels);
        if u128::from(data) + bytes > u128::from(length) {
            let missing =
                format!("shape {shape:?} needs {bytes} bytes, but only {} follow", length.saturating_sub(data));
            return Err(SourceError::Truncated { path: path.into(), missing, playable: false });
        }
        let [frames, height, width, channels] = [frames, height, width, channels].map(|n| n as usize);
        Ok(Self {
            path: path.into(),
            file,
            data,
            frames,
            height,
            width,
            channels,
            stored: Vec::new(),
            converted: Vec::new(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn info(&self) -> VideoInfo {
        // One frame as stored, one as handed out.
        let pixels = (self.height * self.width) as u64;
        let decoder_bytes = pixels * (self.channels as u64 + 3) + 2 * MAX_HEADER as u64;
        VideoInfo { frames: self.frames, height: self.height, width: self.width, decoder_bytes }
    }

    pub(super) fn read(
        &mut self,
        frames: Range<usize>,
        pixels: Pixels,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let bytes = self.height * self.width * self.channels;
        self.stored.resize(bytes, 0);
        let at = self.data + frames.start as u64 * bytes as u64;
        let io = |cause| SourceError::Io { path: self.path.clone(), cause };
        self.file.seek(SeekFrom::Start(at)).map_err(io)?;
        for number in frames {
            self.file.read_exact(&mut self.stored).map_err(io)?;
            let frame = colour::packed(&self.stored, self.channels, pixels, &mut self.converted);
            if sink(number, frame).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// The header's text and where the data begin.
fn header(start: &[u8]) -> Option<(&str, u64)> {
    let (fixed, length) = match *start.get(6)? {
        1 => (10, usize::from(u16::from_le_bytes(start.get(8..10)?.try_into().ok()?))),
        2 | 3 => (12, usize::try_from(u32::from_le_bytes(start.get(8..12)?.try_into().ok()?)).ok()?),
        _ => return None,
    };
    let end = length.checked_add(fixed)?;
    Some((std::str::from_utf8(start.get(fixed..end)?).ok()?, end as u64))
}

/// What follows `'key':` in the dictionary.
fn value_after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn text_after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let value = value_after(header, key)?;
    match value.strip_prefix('\'') {
        Some(text) => text.split('\'').next(),
        None => Some("a structure of several fields"),
    }
}

fn shape(header: &str) -> Option<Vec<u64>> {
    let inner = value_after(header, "shape")?.strip_prefix('(')?.split(')').next()?;
    inner.split(',').map(str::trim).filter(|text| !text.is_empty()).map(|text| text.parse().ok()).collect()
}
