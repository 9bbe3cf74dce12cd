//! Where the samples of an MP4's video track lie, and in which order they are shown.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::boxes::{Boxes, Fields, Header, child};
use super::headers::{
    ContainerColour, Defaults, Edit, IDENTITY, Matrix, Orientation, damaged, describe, edit_list, fragment_header,
    fragment_time, media_header, movie_header, orientation, track_extends, track_header,
};
use super::runs::{Places, Runs, Sizes, entries};
use super::{MAX_FRAMES, SourceError};

/// One coded picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) offset: u64,
    pub(super) size: u32,
    /// Marked as decodable by itself.
    pub(super) sync: bool,
}

/// The first video track of a file.
pub(super) struct Track {
    /// In decoding order.
    pub(super) samples: Vec<Sample>,
    /// Frame number → index into `samples`.
    pub(super) shown: Vec<u32>,
    /// Content of the `avcC` box.
    pub(super) config: Vec<u8>,
    pub(super) orientation: Orientation,
    pub(super) colour: ContainerColour,
    /// Most samples that precede a frame in decoding order and follow it in presentation order.
    pub(super) reorder: usize,
    pub(super) largest_sample: u32,
    /// Bytes of the largest part of the index.
    pub(super) index_bytes: u64,
}

/// Largest index (`moov`, `moof`) that is read.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Most boxes at the top level of a file: one in three is a fragment's.
const MAX_BOXES: u64 = 3 * MAX_FRAMES;

impl Track {
    /// Reads the index of a file, seeking over its media data.
    pub(super) fn read(path: &Path, file: &mut File) -> Result<Self, SourceError> {
        let io = |cause| SourceError::Io { path: path.into(), cause };
        let length = file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut building: Option<Building> = None;
        let mut at = 0u64;
        let mut cut = None;
        let mut index_bytes = 0;
        for _ in 0..MAX_BOXES {
            if at >= length {
                break;
            }
            let start = content(file, at, 16.min(length - at)).map_err(io)?;
            let Some(header) = Header::parse(&start) else {
                cut = Some(at);
                break;
            };
            let end = if header.size == 0 { length } else { at.saturating_add(header.size) };
            let size = end.saturating_sub(at + header.header);
            if matches!(&header.kind, b"moov" | b"moof") {
                if end > length {
                    let missing = format!("its index needs {} bytes more", end - length);
                    return Err(SourceError::Truncated { path: path.into(), missing, playable: false });
                }
                if size > MAX_INDEX_BYTES {
                    let (what, limit) = ("the size of the index in bytes", MAX_INDEX_BYTES);
                    return Err(SourceError::Limit { path: path.into(), what, got: size, limit });
                }
                index_bytes = size.max(index_bytes);
                let content = content(file, at + header.header, size).map_err(io)?;
                match (&mut building, &header.kind) {
                    (None, b"moov") => building = Some(Building::from_movie(path, &content, length)?),
                    (Some(building), b"moof") => building.add_fragment(path, &content, at, length)?,
                    (None | Some(_), _) => {}
                }
            } else if end > length {
                cut = Some(at);
                break;
            }
            at = end;
        }
        match building {
            Some(building) => building.finish(path, length, cut.is_some()).map(|track| Track { index_bytes, ..track }),
            None => Err(SourceError::Truncated {
                path: path.into(),
                missing: format!(
                    "no index (moov box) in its {length} bytes; it is written last, so the file was cut off or its recording was not closed"
                ),
                playable: false,
            }),
        }
    }
}

fn content(file: &mut File, at: u64, size: u64) -> std::io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A track while its samples are collected.
struct Building {
    id: u32,
    /// Units per second of the movie and of the track.
    movie_scale: u32,
    scale: u32,
    edits: Vec<Edit>,
    config: Vec<u8>,
    orientation: Orientation,
    colour: ContainerColour,
    samples: Vec<Sample>,
    /// Presentation time of each sample, in units of the track.
    times: Vec<i64>,
    next_time: i64,
    defaults: Defaults,
}

impl Building {
    fn from_movie(path: &Path, movie: &[u8], length: u64) -> Result<Self, SourceError> {
        let (movie_scale, movie_matrix) = child(movie, b"mvhd").and_then(movie_header).unwrap_or((0, IDENTITY));
        let mut handlers = Vec::new();
        for (kind, track) in Boxes(movie) {
            if &kind != b"trak" {
                continue;
            }
            let handler = child(track, b"mdia")
                .and_then(|media| child(media, b"hdlr"))
                .and_then(|handler| handler.get(8..12))
                .unwrap_or_default();
            if handler == b"vide" {
                let extends = child(movie, b"mvex");
                return Self::from_track(path, track, movie_scale, movie_matrix, extends, length);
            }
            handlers.push(handler);
        }
        let found = match handlers.as_slice() {
            [] => "the file has no tracks at all",
            [one] if *one == b"soun" => "its one track is sound",
            all if all.iter().all(|handler| *handler == b"soun") => "its tracks are sound",
            _ => "its tracks are sound, text or data",
        };
        Err(SourceError::NoVideo { path: path.into(), found })
    }

    fn from_track(
        path: &Path,
        track: &[u8],
        movie_scale: u32,
        movie_matrix: Matrix,
        extends: Option<&[u8]>,
        length: u64,
    ) -> Result<Self, SourceError> {
        let lacks = |what: &str| damaged(path, format!("the video track lacks its `{what}` box"));
        let (id, matrix) = child(track, b"tkhd").and_then(track_header).ok_or_else(|| lacks("tkhd"))?;
        let media = child(track, b"mdia").ok_or_else(|| lacks("mdia"))?;
        let scale = child(media, b"mdhd").and_then(media_header).ok_or_else(|| lacks("mdhd"))?;
        let tables = child(media, b"minf").and_then(|minf| child(minf, b"stbl")).ok_or_else(|| lacks("minf/stbl"))?;
        let description = child(tables, b"stsd").ok_or_else(|| lacks("stsd"))?;
        let (config, colour) = describe(path, description)?;
        let edits = child(track, b"edts").and_then(|edits| child(edits, b"elst")).and_then(edit_list);
        let orientation = orientation(matrix, movie_matrix).ok_or_else(|| SourceError::Feature {
            path: path.into(),
            feature: "a rotation that is not a multiple of 90 degrees".into(),
        })?;
        let mut building = Self {
            id,
            movie_scale,
            scale,
            edits: edits.unwrap_or_default(),
            config,
            orientation,
            colour,
            samples: Vec::new(),
            times: Vec::new(),
            next_time: 0,
            defaults: extends.and_then(|extends| track_extends(extends, id)).unwrap_or_default(),
        };
        building.add_tables(path, tables, length)?;
        Ok(building)
    }

    /// Samples of the sample table (`stbl`).
    fn add_tables(&mut self, path: &Path, tables: &[u8], length: u64) -> Result<(), SourceError> {
        let sizes = match (child(tables, b"stsz"), child(tables, b"stz2")) {
            (Some(table), _) => Sizes::full(table),
            (None, Some(table)) => Sizes::compact(table),
            (None, None) => None,
        }
        .ok_or_else(|| damaged(path, "its table of frame sizes (stsz) is missing or too short"))?;
        let count = sizes.count();
        check_count(path, count)?;
        if count == 0 {
            return Ok(());
        }
        if let Sizes::Same { size, count } = sizes
            && u64::from(size) * u64::from(count) > length
        {
            let missing = format!("{count} frames of {size} bytes do not fit into {length} bytes");
            return Err(SourceError::Truncated { path: path.into(), missing, playable: false });
        }
        let mut places = Places::new(tables)
            .ok_or_else(|| damaged(path, "its tables of places (stsc, stco) are missing or too short"))?;
        let mut durations = Runs::new(child(tables, b"stts"));
        let mut shifts = Runs::new(child(tables, b"ctts"));
        let mut syncs = child(tables, b"stss").and_then(entries::<4>).map(|entries| entries.iter().peekable());
        let count = count as usize;
        self.samples.reserve_exact(count);
        self.times.reserve_exact(count);
        for i in 0..count {
            let size = sizes.get(i).unwrap_or(0);
            let offset = places.next(size).ok_or_else(|| {
                damaged(path, format!("it lists {count} frames, but says only where {i} of them are"))
            })?;
            let number = i as u32 + 1;
            let sync = match &mut syncs {
                None => true,
                Some(entries) => {
                    while entries.next_if(|entry| u32::from_be_bytes(**entry) < number).is_some() {}
                    entries.next_if(|entry| u32::from_be_bytes(**entry) == number).is_some()
                }
            };
            self.samples.push(Sample { offset, size, sync });
            // Version 0 of the table of shifts is unsigned by the standard, signed in practice.
            let shift = shifts.next().unwrap_or(0) as i32;
            self.times.push(self.next_time.saturating_add(shift.into()));
            self.next_time = self.next_time.saturating_add(durations.next().unwrap_or(1).into());
        }
        Ok(())
    }

    /// Samples of one movie fragment (`moof`) that begins at byte `at`.
    fn add_fragment(&mut self, path: &Path, fragment: &[u8], at: u64, length: u64) -> Result<(), SourceError> {
        let short = || damaged(path, "a fragment of it is too short");
        let mut data_end = at;
        for (kind, track) in Boxes(fragment) {
            if &kind != b"traf" {
                continue;
            }
            let header = child(track, b"tfhd").ok_or_else(short)?;
            let (id, base, defaults) = fragment_header(header, self.defaults).ok_or_else(short)?;
            let based_on_fragment = header.get(1).is_some_and(|flags| flags & 0x02 != 0);
            let base = base.unwrap_or(if based_on_fragment { at } else { data_end });
            if let Some(time) = child(track, b"tfdt").and_then(fragment_time)
                && id == self.id
            {
                self.next_time = time;
            }
            let mut next = base;
            for (_, run) in Boxes(track).filter(|(kind, _)| kind == b"trun") {
                next = self.add_run(path, run, (id, base, next), defaults, length)?;
            }
            data_end = next;
        }
        Ok(())
    }

    /// Samples of one run (`trun`); those of other tracks are only passed over. Returns where its data ends.
    fn add_run(
        &mut self,
        path: &Path,
        run: &[u8],
        (id, base, next): (u32, u64, u64),
        defaults: Defaults,
        length: u64,
    ) -> Result<u64, SourceError> {
        let short = || damaged(path, "a run of frames in a fragment is too short");
        let mut fields = Fields(run);
        let (_, flags) = fields.version().ok_or_else(short)?;
        let count = fields.u32().ok_or_else(short)?;
        let mut at = match flags & 0x1 {
            0 => next,
            _ => base.saturating_add_signed(fields.i32().ok_or_else(short)?.into()),
        };
        let first_flags = if flags & 0x4 != 0 { Some(fields.u32().ok_or_else(short)?) } else { None };
        let entry = 4 * (flags & 0xF00).count_ones() as u64;
        let implied = if flags & 0x200 == 0 { u64::from(defaults.size) } else { 0 };
        if u64::from(count) * entry > fields.0.len() as u64 || u64::from(count) * implied > length {
            return Err(short());
        }
        if entry == 0 && implied == 0 {
            return Ok(at);
        }
        check_count(path, self.samples.len() as u64 + u64::from(count))?;
        for i in 0..count {
            let mut field = |bit: u32, default: u32| if flags & bit == 0 { Some(default) } else { fields.u32() };
            let duration = field(0x100, defaults.duration).ok_or_else(short)?;
            let size = field(0x200, defaults.size).ok_or_else(short)?;
            let implied = first_flags.filter(|_| i == 0).unwrap_or(defaults.flags);
            let sample_flags = field(0x400, implied).ok_or_else(short)?;
            let shift = field(0x800, 0).ok_or_else(short)? as i32;
            if id == self.id {
                self.samples.push(Sample { offset: at, size, sync: sample_flags & 0x1_0000 == 0 });
                self.times.push(self.next_time.saturating_add(shift.into()));
                self.next_time = self.next_time.saturating_add(duration.into());
            }
            at = at.saturating_add(size.into());
        }
        Ok(at)
    }

    fn finish(mut self, path: &Path, length: u64, cut: bool) -> Result<Track, SourceError> {
        let listed = self.samples.iter().filter(|sample| sample.size > 0).count();
        if listed == 0 {
            let path = path.into();
            return Err(if cut {
                SourceError::Truncated { path, missing: "its index lists no frame yet".into(), playable: false }
            } else {
                SourceError::NoVideo { path, found: "its video track has no frames" }
            });
        }
        let inside = |sample: &Sample| sample.offset.saturating_add(sample.size.into()) <= length;
        let present = self.samples.iter().filter(|sample| sample.size > 0 && inside(sample)).count();
        if present < listed {
            let missing = format!("the index lists {listed} frames, but only {present} lie inside its {length} bytes");
            return Err(SourceError::Truncated { path: path.into(), missing, playable: true });
        }
        let shown = self.presentation(path)?;
        self.samples.shrink_to_fit();
        Ok(Track {
            index_bytes: 0,
            reorder: reorder(&shown),
            largest_sample: self.samples.iter().map(|sample| sample.size).max().unwrap_or(0),
            samples: self.samples,
            shown,
            config: self.config,
            orientation: self.orientation,
            colour: self.colour,
        })
    }

    /// Samples in the order in which they are shown: by time, inside each edit. Empty samples are no frames.
    fn presentation(&self, path: &Path) -> Result<Vec<u32>, SourceError> {
        let mut by_time: Vec<u32> = (0..self.samples.len() as u32).collect();
        by_time.retain(|i| self.samples.get(*i as usize).is_some_and(|sample| sample.size > 0));
        let time = |i: u32| self.times.get(i as usize).copied().unwrap_or(i64::MAX);
        by_time.sort_by_key(|i| (time(*i), *i));
        if self.edits.is_empty() {
            return Ok(by_time);
        }
        let mut shown = Vec::new();
        for edit in &self.edits {
            let end = match (edit.duration, self.movie_scale) {
                (0, _) | (_, 0) => i64::MAX,
                (duration, movie) => {
                    let (movie, track) = (u128::from(movie), u128::from(self.scale));
                    let units = (u128::from(duration) * track + movie / 2) / movie;
                    edit.start.saturating_add(i64::try_from(units).unwrap_or(i64::MAX))
                }
            };
            let from = by_time.partition_point(|i| time(*i) < edit.start);
            let to = by_time.partition_point(|i| time(*i) < end);
            check_count(path, (shown.len() + to.saturating_sub(from)) as u64)?;
            shown.extend_from_slice(by_time.get(from..to).unwrap_or_default());
        }
        shown.shrink_to_fit();
        if shown.is_empty() {
            let listed = by_time.len();
            return Err(damaged(path, format!("its edit list shows none of its {listed} frames")));
        }
        Ok(shown)
    }
}

fn check_count(path: &Path, got: u64) -> Result<(), SourceError> {
    let what = "the number of frames";
    let limit = MAX_FRAMES;
    if got <= limit { Ok(()) } else { Err(SourceError::Limit { path: path.into(), what, got, limit }) }
}

/// Most samples decoded before a frame that are shown after it: what a reader in presentation order has to hold.
fn reorder(shown: &[u32]) -> usize {
    // Frames shown up to now occupy `shown` places; by the time the last of them is decoded, `highest + 1` samples
    // have been.
    let mut highest = 0u32;
    let mut most = 0usize;
    let first = shown.iter().min().copied().unwrap_or(0);
    for (place, sample) in shown.iter().enumerate() {
        highest = highest.max(*sample);
        most = most.max(((highest - first) as usize + 1).saturating_sub(place + 1));
    }
    most
}
