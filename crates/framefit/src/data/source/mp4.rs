//! H.264 in MP4 or MOV.
//!
//! One sample of the file is one picture, so a picture's frame number comes from the file's index and never from the
//! decoder's output order: a damaged sample is an error at its own frame, not a shift of all later ones.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rust_h264::decoder::{ChromaFormat, Decoder, Frame};
use rust_h264::nal::{NalUnitType, SpsInfo, parse_avcc, parse_avcc_config, parse_sps_info};

use super::colour::{Converter, Planes, Subsampling};
use super::headers::Orientation;
use super::table::Track;
use super::{Pixels, Sink, SourceError, VideoInfo, guarded};

pub(super) struct Mp4 {
    path: PathBuf,
    file: File,
    track: Track,
    /// Sample → the first frame number that shows it, or [`NOT_SHOWN`].
    place: Vec<u32>,
    /// Bytes of the length that precedes each NAL unit.
    length_size: usize,
    stream: Stream,
    decoder: Decoder,
    /// The sample that the decoder expects, if it is in the middle of the stream.
    next: Option<usize>,
    /// Frames before this one, decoded later than the picture that decoding began at, may lack their references.
    leading: u32,
    /// Frames decoded early that follow the last range read, by sample; at most `track.reorder`.
    held: Vec<(usize, Frame)>,
    /// (sample, frame number) of the range being read, in decoding order.
    wanted: Vec<(usize, usize)>,
    sample: Vec<u8>,
    converter: Converter,
    pixels: Vec<u8>,
    turned: Vec<u8>,
}

const NOT_SHOWN: u32 = u32::MAX;

/// What the sequence parameter set says.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Before rotation.
    height: usize,
    width: usize,
    coded_pixels: u64,
    reference_frames: u64,
    /// Tenths of a byte of all planes per pixel.
    planes: u64,
    /// More than 8 bits per sample.
    deep: bool,
    interlaced: bool,
}

/// Most macroblocks of a frame at the highest level of the standard (6.2).
const MAX_MACROBLOCKS: u64 = 139_264;

/// What the decoder holds for the whole process once it has been used: its code tables.
const DECODER_TABLES: u64 = 200 << 10;
/// Parameter sets, the state of the entropy decoder, rows for prediction.
const DECODER_STATE: u64 = 24 << 10;

impl Stream {
    /// Upper bound of the bytes of pictures while decoding. In tenths of a byte per coded pixel: each reference picture
    /// and its motion; frames held for reordering; the picture at work with its macroblock data, once more as the
    /// decoder copies it before a further slice, and as it is handed out; the other field; the converted frame, and
    /// once more where it is turned or first brought to 8 bits.
    const fn picture_bytes(&self, reorder: u64, turned: bool) -> u64 {
        const MOTION: u64 = 12;
        const MACROBLOCKS: u64 = 33;
        const CONVERTED: u64 = 30;
        let Self { coded_pixels, reference_frames, planes, .. } = *self;
        let at_work = 2 * (planes + MACROBLOCKS) + planes + if self.interlaced { planes } else { 0 };
        let converted = CONVERTED * if turned { 2 } else { 1 } + if self.deep { planes / 2 } else { 0 };
        (reference_frames * (planes + MOTION) + reorder * planes + at_work + converted) * coded_pixels / 10
    }
}

/// What decoding a video of 8-bit H.264 takes whose file is not at hand: four reference frames and two for
/// reordering, as encoders use where nothing else is asked for.
pub const fn assumed_decoder_bytes(height: usize, width: usize) -> u64 {
    const SAMPLES: u64 = 256 << 10;
    let coded_pixels = (height.next_multiple_of(16) * width.next_multiple_of(16)) as u64;
    let stream =
        Stream { height, width, coded_pixels, reference_frames: 4, planes: 15, deep: false, interlaced: false };
    stream.picture_bytes(2, false) + DECODER_TABLES + DECODER_STATE + SAMPLES
}

impl Mp4 {
    pub(super) fn open(path: &Path, mut file: File) -> Result<Self, SourceError> {
        let track = Track::read(path, &mut file)?;
        let damaged = |what: String| SourceError::Index { path: path.into(), what };
        let config = guarded(|| parse_avcc_config(&track.config).map(|config| config.length_size))
            .and_then(|length_size| length_size.map_err(str::to_owned))
            .map_err(|what| damaged(format!("the decoder configuration cannot be read ({what})")));
        let length_size = config?;
        let mut opened = Self {
            path: path.into(),
            file,
            place: places(&track),
            track,
            length_size,
            stream: Stream::default(),
            decoder: Decoder::new(),
            next: None,
            leading: 0,
            held: Vec::new(),
            wanted: Vec::new(),
            sample: Vec::new(),
            converter: Converter::new(2, false),
            pixels: Vec::new(),
            turned: Vec::new(),
        };
        let info = opened.sequence()?;
        opened.stream = stream(path, &info)?;
        let (matrix, full_range) = match info.matrix {
            2 => (opened.track.colour.matrix, info.full_range || opened.track.colour.full_range),
            matrix => (matrix, info.full_range),
        };
        opened.converter = Converter::new(matrix, full_range);
        // A coded picture is about as large as its samples stored plainly at most; twice that, and some headers.
        let limit = opened.stream.coded_pixels * opened.stream.planes / 5 + (1 << 20);
        let got = u64::from(opened.track.largest_sample);
        if got > limit {
            return Err(SourceError::Limit {
                path: path.into(),
                what: "the size of a coded frame in bytes",
                got,
                limit,
            });
        }
        Ok(opened)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn info(&self) -> VideoInfo {
        let (height, width) = match self.track.orientation.transpose {
            false => (self.stream.height, self.stream.width),
            true => (self.stream.width, self.stream.height),
        };
        VideoInfo { frames: self.track.shown.len(), height, width, decoder_bytes: self.decoder_bytes() }
    }

    /// Upper bound of the bytes held: while decoding, or while the index is read.
    fn decoder_bytes(&self) -> u64 {
        let turned = self.track.orientation != Orientation::default();
        let pictures = self.stream.picture_bytes(self.track.reorder as u64, turned);
        let entries = self.track.samples.len() as u64 + self.track.shown.len() as u64;
        // A sample is held as read, without its escape bytes, and as the decoder copies it.
        let decoding = pictures + 3 * u64::from(self.track.largest_sample) + 20 * entries;
        let opening = self.track.index_bytes + 40 * entries;
        decoding.max(opening) + DECODER_TABLES + DECODER_STATE
    }

    /// The sequence parameter set: of the configuration, else of the first sample.
    fn sequence(&mut self) -> Result<SpsInfo, SourceError> {
        let in_config = guarded(|| {
            let config = parse_avcc_config(&self.track.config).ok()?;
            config.sps_nals.first().map(parse_sps_info)
        });
        let found = match in_config {
            Ok(None) => {
                self.load(0)?;
                guarded(|| {
                    let nals = parse_avcc(&self.sample, self.length_size);
                    nals.iter().find(|nal| nal.nal_unit_type == NalUnitType::Sps).map(parse_sps_info)
                })
            }
            found => found,
        };
        let what = match found {
            Ok(Some(Ok(info))) => return Ok(info),
            Ok(Some(Err(error))) => error.to_string(),
            Ok(None) => "there is none".into(),
            Err(panic) => panic,
        };
        let what = format!("its sequence parameter set cannot be read ({what})");
        Err(SourceError::Index { path: self.path.clone(), what })
    }

    pub(super) fn read(
        &mut self,
        frames: Range<usize>,
        pixels: Pixels,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let result = self.read_range(frames.clone(), pixels, sink);
        if result.is_err() {
            self.next = None;
            self.held.clear();
        }
        let (end, place) = (frames.end, &self.place);
        self.held.retain(|(sample, _)| place.get(*sample).is_some_and(|place| *place as usize >= end));
        result
    }

    fn read_range(&mut self, frames: Range<usize>, pixels: Pixels, sink: &mut Sink<'_>) -> Result<(), SourceError> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        wanted.extend(frames.clone().filter_map(|n| self.track.shown.get(n).map(|sample| (*sample as usize, n))));
        wanted.sort_unstable();
        let result = self.read_wanted(&wanted, frames.end, pixels, sink);
        self.wanted = wanted;
        result
    }

    fn read_wanted(
        &mut self,
        mut wanted: &[(usize, usize)],
        end: usize,
        pixels: Pixels,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        // Held samples precede in decoding order all that is left to decode.
        while let Some((&(sample, number), rest)) = wanted.split_first() {
            let Some(at) = self.held.iter().position(|(held, _)| *held == sample) else { break };
            let (_, frame) = self.held.swap_remove(at);
            let shown = self.show(&frame, number, pixels, sink);
            self.held.push((sample, frame));
            if shown?.is_break() {
                return Ok(());
            }
            wanted = rest;
        }
        let (Some(&(first, _)), Some(&(last, _))) = (wanted.first(), wanted.last()) else { return Ok(()) };
        let earliest = wanted.iter().map(|(_, number)| *number).min().unwrap_or(0);
        let start = self.start(first, earliest)?;
        for i in start..=last {
            let hold = self.place.get(i).is_some_and(|place| {
                *place != NOT_SHOWN && *place as usize >= end && self.held.len() < self.track.reorder
            });
            let here = wanted.partition_point(|(sample, _)| *sample <= i);
            let (now, later) = wanted.split_at_checked(here).unwrap_or_default();
            wanted = later;
            let frame = match self.decode(i, !hold && now.is_empty()) {
                Ok(Some(frame)) => frame,
                Ok(None) => continue,
                Err(SourceError::Decode { .. })
                    if now.is_empty() && self.place.get(i).is_some_and(|place| *place < self.leading) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.next = Some(i + 1);
            for (_, number) in now {
                if self.show(&frame, *number, pixels, sink)?.is_break() {
                    return Ok(());
                }
            }
            if hold {
                self.held.push((i, frame));
            }
        }
        self.next = Some(last + 1);
        Ok(())
    }

    /// The sample to go on with, or to begin with, so that `first` and frames from `earliest` on decode as they would
    /// from the start of the file. Resets the decoder unless it goes on.
    fn start(&mut self, first: usize, earliest: usize) -> Result<usize, SourceError> {
        let mut start = first;
        loop {
            if let Some(next) = self.next
                && next == start
            {
                return Ok(next);
            }
            let sync = self.track.samples.get(start).is_some_and(|sample| sample.sync);
            // Pictures that precede a sync sample in presentation order but follow it in decoding order may read
            // pictures before it.
            let shown_first =
                self.place.get(start).is_none_or(|place| *place == NOT_SHOWN || *place as usize <= earliest);
            if start == 0 || (sync && shown_first && self.is_clean_start(start)?) {
                break;
            }
            start -= 1;
        }
        self.reset()?;
        let place = self.place.get(start).copied().unwrap_or(NOT_SHOWN);
        self.leading = place.min(u32::try_from(earliest).unwrap_or(NOT_SHOWN));
        Ok(start)
    }

    /// A decoder that knows the parameter sets and nothing else.
    fn reset(&mut self) -> Result<(), SourceError> {
        self.held.clear();
        self.next = None;
        let config = &self.track.config;
        let fresh = guarded(|| {
            let mut decoder = Decoder::new();
            let config = parse_avcc_config(config).map_err(str::to_owned)?;
            for nal in config.sps_nals.iter().chain(&config.pps_nals) {
                decoder.decode_nal(nal).map_err(|error| error.to_string())?;
            }
            Ok(decoder)
        });
        self.decoder = fresh.and_then(|fresh: Result<_, String>| fresh).map_err(|what| SourceError::Index {
            path: self.path.clone(),
            what: format!("the decoder configuration cannot be used ({what})"),
        })?;
        Ok(())
    }

    /// Reads the bytes of a sample.
    fn load(&mut self, i: usize) -> Result<(), SourceError> {
        let (offset, size) = self.track.samples.get(i).map_or((0, 0), |sample| (sample.offset, sample.size));
        let io = |cause| SourceError::Io { path: self.path.clone(), cause };
        self.sample.resize(size as usize, 0);
        self.file.seek(SeekFrom::Start(offset)).map_err(io)?;
        self.file.read_exact(&mut self.sample).map_err(io)
    }

    /// Whether decoding can begin at a sample: an IDR picture, or a recovery point that is exact at once.
    fn is_clean_start(&mut self, i: usize) -> Result<bool, SourceError> {
        self.load(i)?;
        Ok(Nals::new(&self.sample, self.length_size).any(|nal| match nal.first().map(|header| header & 0x1F) {
            Some(5) => true,
            Some(6) => recovers_at_once(nal.get(1..).unwrap_or_default()),
            _ => false,
        }))
    }

    /// The picture of a sample; `None` for an empty sample, and for one that nothing needs if it may be `skipped`.
    fn decode(&mut self, i: usize, skip: bool) -> Result<Option<Frame>, SourceError> {
        self.load(i)?;
        if self.sample.is_empty() {
            return Ok(None);
        }
        let (path, number, frames) = (self.path.clone(), self.frame_of(i), self.track.shown.len());
        let failed = |what: String| SourceError::Decode { path, frame: number, frames, what };
        let mut nals = Nals::new(&self.sample, self.length_size);
        let mut disposable = true;
        for nal in &mut nals {
            let header = nal.first().copied().unwrap_or(0);
            // Slices that no other picture reads have nal_ref_idc 0; parameter sets have it above 0.
            disposable &= !matches!(header & 0x1F, 1..=5 | 7 | 8) || header & 0x60 == 0;
        }
        if nals.cut {
            return Err(failed("its data are inconsistent (a unit is longer than its frame)".into()));
        }
        if skip && disposable {
            return Ok(None);
        }
        let (decoder, sample, length_size) = (&mut self.decoder, &self.sample, self.length_size);
        let decoded = guarded(|| {
            let mut extra = false;
            for nal in parse_avcc(sample, length_size) {
                extra |= decoder.decode_nal(&nal).map_err(|error| error.to_string())?.is_some();
            }
            match (decoder.flush(), extra) {
                (Some(frame), false) => Ok(frame),
                (Some(_), true) => Err("its data hold more than one picture".to_owned()),
                (None, _) => Err("its data hold no picture".to_owned()),
            }
        });
        let frame = decoded.and_then(|frame| frame).map_err(failed)?;
        let (got, want) = ((frame.height as usize, frame.width as usize), (self.stream.height, self.stream.width));
        if got == want {
            return Ok(Some(frame));
        }
        let path = self.path.clone();
        Err(if (2 * got.0, got.1) == want {
            SourceError::Feature { path, feature: "each field in a sample of its own".into() }
        } else {
            SourceError::SizeChanged { path, frame: number, got, want }
        })
    }

    /// The frame number to name in a message about a sample.
    fn frame_of(&self, sample: usize) -> usize {
        match self.place.get(sample) {
            Some(&place) if place != NOT_SHOWN => place as usize,
            _ => sample,
        }
    }

    /// Converts, turns and hands out a picture.
    fn show(
        &mut self,
        frame: &Frame,
        number: usize,
        pixels: Pixels,
        sink: &mut Sink<'_>,
    ) -> Result<std::ops::ControlFlow<()>, SourceError> {
        let Stream { height, width, .. } = self.stream;
        let channels = pixels.channels();
        self.pixels.resize(height * width * channels, 0);
        let narrow;
        let (y, u, v) = if frame.bit_depth > 8 {
            narrow = [&frame.y, &frame.u, &frame.v].map(|plane| to_8_bits(plane, frame.bit_depth));
            let [y, u, v] = &narrow;
            (y, u, v)
        } else {
            (&frame.y, &frame.u, &frame.v)
        };
        let rows = match frame.chroma_format {
            ChromaFormat::Yuv420 => 2,
            ChromaFormat::Yuv422 => 1,
        };
        let planes = Planes { width, y, u, v, subsampling: Subsampling { columns: 2, rows } };
        match pixels {
            Pixels::Grey => self.converter.grey(planes, &mut self.pixels),
            Pixels::Rgb => self.converter.rgb(planes, &mut self.pixels),
        }
        if self.track.orientation == Orientation::default() {
            return Ok(sink(number, &self.pixels));
        }
        self.turned.resize(self.pixels.len(), 0);
        turn(&self.pixels, (height, width, channels), self.track.orientation, &mut self.turned);
        Ok(sink(number, &self.turned))
    }
}

fn places(track: &Track) -> Vec<u32> {
    let mut place = vec![NOT_SHOWN; track.samples.len()];
    for (number, sample) in track.shown.iter().enumerate().rev() {
        if let Some(place) = place.get_mut(*sample as usize) {
            *place = number as u32;
        }
    }
    place
}

fn stream(path: &Path, info: &SpsInfo) -> Result<Stream, SourceError> {
    let unsupported = |feature: String| Err(SourceError::Feature { path: path.into(), feature });
    if info.chroma_format == 3 {
        return unsupported("4:4:4 chroma".into());
    }
    let depth = info.bit_depth_luma;
    if !matches!(depth, 8 | 10) || (info.chroma_format != 0 && info.bit_depth_chroma != depth) {
        return unsupported(format!("{depth} bits of luma and {} of chroma", info.bit_depth_chroma));
    }
    let macroblocks = u64::from(info.coded_width / 16) * u64::from(info.coded_height / 16);
    if macroblocks > MAX_MACROBLOCKS {
        let (what, got, limit) = ("the size of a frame in macroblocks", macroblocks, MAX_MACROBLOCKS);
        return Err(SourceError::Limit { path: path.into(), what, got, limit });
    }
    if info.width == 0 || info.height == 0 || info.width > info.coded_width || info.height > info.coded_height {
        let what = format!("its frames would be {}×{}", info.width, info.height);
        return Err(SourceError::Index { path: path.into(), what });
    }
    Ok(Stream {
        height: info.height as usize,
        width: info.width as usize,
        coded_pixels: macroblocks * 256,
        reference_frames: info.reference_frames.min(16).into(),
        planes: (if info.chroma_format == 2 { 20 } else { 15 }) * (if depth > 8 { 2 } else { 1 }),
        deep: depth > 8,
        interlaced: !info.progressive,
    })
}

/// The NAL units of a sample; `cut` is set when one claims more bytes than there are.
struct Nals<'a> {
    rest: &'a [u8],
    length_size: usize,
    cut: bool,
}

impl<'a> Nals<'a> {
    fn new(sample: &'a [u8], length_size: usize) -> Self {
        Self { rest: sample, length_size, cut: false }
    }
}

impl<'a> Iterator for Nals<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_at_checked(self.length_size)?;
        let length = length.iter().fold(0usize, |length, byte| (length << 8) | usize::from(*byte));
        let Some((nal, rest)) = rest.split_at_checked(length) else {
            self.cut = true;
            return None;
        };
        self.rest = rest;
        Some(nal)
    }
}

/// Whether supplemental information holds a recovery point whose recovery_frame_cnt is 0.
fn recovers_at_once(mut messages: &[u8]) -> bool {
    let number = |messages: &mut &[u8]| {
        let mut value = 0usize;
        loop {
            let (byte, rest) = messages.split_first()?;
            *messages = rest;
            value += usize::from(*byte);
            if *byte != 0xFF {
                return Some(value);
            }
        }
    };
    while messages.len() > 2 {
        let (Some(kind), Some(length)) = (number(&mut messages), number(&mut messages)) else { return false };
        let Some((payload, rest)) = messages.split_at_checked(length) else { return false };
        // The count is the first field, and 0 is the one-bit code 1.
        if kind == 6 && payload.first().is_some_and(|byte| byte & 0x80 != 0) {
            return true;
        }
        messages = rest;
    }
    false
}

/// Two-byte little-endian samples to the nearest 8-bit level.
fn to_8_bits(plane: &[u8], depth: u8) -> Vec<u8> {
    let shift = depth.saturating_sub(8).min(8);
    let half = (1u32 << shift) >> 1;
    let (samples, _) = plane.as_chunks::<2>();
    samples.iter().map(|sample| ((u32::from(u16::from_le_bytes(*sample)) + half) >> shift).min(255) as u8).collect()
}

/// from: `[H][W][C]` → to: the same pixels, turned.
fn turn(from: &[u8], (height, width, channels): (usize, usize, usize), how: Orientation, to: &mut [u8]) {
    let (to_height, to_width) = if how.transpose { (width, height) } else { (height, width) };
    for (y, line) in to.chunks_exact_mut(to_width * channels).enumerate() {
        let y = if how.mirror_y { to_height - 1 - y } else { y };
        for (x, pixel) in line.chunks_exact_mut(channels).enumerate() {
            let x = if how.mirror_x { to_width - 1 - x } else { x };
            let at = if how.transpose { x * width + y } else { y * width + x };
            if let Some(from) = from.get(at * channels..(at + 1) * channels) {
                pixel.copy_from_slice(from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    #[test]
    fn frames_one_by_one_are_decoded_once() {
        let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
        for name in ["bframes.mp4", "opengop.mp4", "editlist.mp4", "fragmented.mp4", "slices.mp4", "interlaced.mp4"] {
            let path = videos.join(name);
            let mut video = Mp4::open(&path, File::open(&path).unwrap()).unwrap();
            // A decoder that starts anew sets it.
            const UNTOUCHED: u32 = 12_345;
            for number in 0..video.info().frames {
                video.read(number..number + 1, Pixels::Grey, &mut |_, _| ControlFlow::Continue(())).unwrap();
                if number == 0 {
                    video.leading = UNTOUCHED;
                }
                assert!(video.leading == UNTOUCHED, "{name} starts anew for frame {number}");
                assert!(video.held.len() <= video.track.reorder);
            }
        }
    }
}
