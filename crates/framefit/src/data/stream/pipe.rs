//! Frames from a pipe: raw, or behind the lines of YUV4MPEG2.

use std::io::{BufReader, ErrorKind, Read};

use super::error::StreamError;
use super::y4m::{Header, Layout};
use super::{PipeFormat, RawFormat, y4m};
use crate::data::clip::FrameSize;
use crate::data::source::colour::{Converter, Planes, packed};
use crate::data::source::{MAX_SIDE, Pixels};

/// Most pixels of a frame: as many as at H.264's highest level (6.2).
const MAX_PIXELS: u64 = 139_264 * 256;
/// Bytes asked of the pipe at once.
const BUFFER: usize = 64 << 10;

pub(super) struct Pipe {
    reader: BufReader<Box<dyn Read + Send>>,
    kind: Kind,
    size: FrameSize,
    /// The frame as it came; made when the first one comes.
    stored: Vec<u8>,
    converted: Vec<u8>,
    line: Vec<u8>,
    ended: bool,
}

enum Kind {
    Y4m { header: Header, converter: Converter },
    Raw { channels: usize },
}

impl Pipe {
    pub(super) fn open(reader: Box<dyn Read + Send>, format: PipeFormat) -> Result<Self, StreamError> {
        let mut reader = BufReader::with_capacity(BUFFER, reader);
        let mut line = Vec::with_capacity(y4m::MAX_LINE);
        let (kind, size) = match format {
            PipeFormat::Raw(RawFormat { width, height, channels }) => {
                if width == 0 || height == 0 || !matches!(channels, 1 | 3) {
                    return Err(StreamError::Raw { format: RawFormat { width, height, channels } });
                }
                (Kind::Raw { channels }, FrameSize { height, width })
            }
            PipeFormat::Y4m { matrix } => {
                let header = Header::read(&mut reader, &mut line)?;
                let converter = Converter::new(matrix.code(), header.full_range);
                let size = header.size;
                (Kind::Y4m { header, converter }, size)
            }
        };
        let FrameSize { height, width } = size;
        let pixels = (height as u64).saturating_mul(width as u64);
        for (what, got, limit) in [
            ("the height", height as u64, MAX_SIDE),
            ("the width", width as u64, MAX_SIDE),
            ("the number of pixels of a frame", pixels, MAX_PIXELS),
        ] {
            if got > limit {
                return Err(StreamError::Limit { what, got, limit });
            }
        }
        Ok(Self { reader, kind, size, stored: Vec::new(), converted: Vec::new(), line, ended: false })
    }

    pub(super) const fn size(&self) -> FrameSize {
        self.size
    }

    pub(super) const fn ended(&self) -> bool {
        self.ended
    }

    pub(super) const fn interlaced(&self) -> bool {
        match &self.kind {
            Kind::Y4m { header, .. } => header.interlaced,
            Kind::Raw { .. } => false,
        }
    }

    /// Bytes of a frame as it comes.
    fn frame_bytes(&self) -> usize {
        match &self.kind {
            Kind::Y4m { header, .. } => header.layout.bytes(self.size),
            Kind::Raw { channels } => self.size.height * self.size.width * channels,
        }
    }

    /// The buffer of the pipe, a line, a frame as it came and as it is handed out, and the table of grey levels.
    pub(super) fn memory_bytes(&self) -> u64 {
        let converted = self.size.height * self.size.width * 3;
        (BUFFER + y4m::MAX_LINE + self.frame_bytes() + converted + 1024) as u64
    }

    /// Frame `number`, `[H][W][C]`; `None` at the end.
    pub(super) fn next(&mut self, number: usize, pixels: Pixels) -> Result<Option<&[u8]>, StreamError> {
        let of = self.frame_bytes();
        let raw = matches!(self.kind, Kind::Raw { .. });
        if !raw && !y4m::frame_begins(&mut self.reader, &mut self.line, number, of)? {
            return self.end(number);
        }
        self.stored.resize(of, 0);
        match fill(&mut self.reader, &mut self.stored).map_err(|cause| StreamError::Io { frame: number, cause })? {
            0 if raw => return self.end(number),
            got if got < of => return Err(StreamError::Cut { frame: number, missing: of - got, of, raw }),
            _ => {}
        }
        let FrameSize { height, width } = self.size;
        Ok(Some(match &self.kind {
            Kind::Raw { channels } => packed(&self.stored, *channels, pixels, &mut self.converted),
            // FFmpeg writes grey at full range and reads it so, whatever the header says.
            Kind::Y4m { header: Header { layout: Layout::Mono, .. }, .. } => {
                packed(&self.stored, 1, pixels, &mut self.converted)
            }
            Kind::Y4m { header: Header { layout: Layout::Colour(subsampling), .. }, converter } => {
                let (y, chroma) = self.stored.split_at(height * width);
                let (u, v) = chroma.split_at(chroma.len() / 2);
                let planes = Planes { width, y, u, v, subsampling: *subsampling };
                self.converted.resize(height * width * pixels.channels(), 0);
                match pixels {
                    Pixels::Grey => converter.grey(planes, &mut self.converted),
                    Pixels::Rgb => converter.rgb(planes, &mut self.converted),
                }
                &self.converted
            }
        }))
    }

    fn end(&mut self, frames: usize) -> Result<Option<&[u8]>, StreamError> {
        if frames == 0 {
            return Err(StreamError::NoFrames { header: matches!(self.kind, Kind::Y4m { .. }) });
        }
        self.ended = true;
        Ok(None)
    }
}

/// Fills `into` as far as there are bytes.
fn fill(reader: &mut impl Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while let Some(rest) = into.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(got)
}
