//! Decoded frames that are kept in memory, up to a number of bytes.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The frames of one video that clips need: sorted ranges that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Needed(Vec<Range<usize>>);

impl Needed {
    pub(crate) fn new(mut ranges: Vec<Range<usize>>) -> Self {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged.shrink_to_fit();
        Self(merged)
    }

    pub(crate) fn frames(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Place of a frame among the needed ones.
    pub(crate) fn place(&self, frame: usize) -> Option<usize> {
        let mut before = 0;
        for range in &self.0 {
            if range.contains(&frame) {
                return Some(before + frame - range.start);
            }
            before += range.len();
        }
        None
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<Range<usize>>()) as u64
    }
}

/// Kept frames of one video, `[needed frames][H][W][C]`.
pub(crate) struct Kept {
    pub(crate) needed: Needed,
    content: Mutex<Content>,
}

pub(crate) struct Content {
    pub(crate) frames: Box<[u8]>,
    /// Whether `frames` has been decoded.
    pub(crate) filled: bool,
}

impl Kept {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Content> {
        // A thread that died while filling leaves `filled` unset.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which videos are kept. Room for them is taken at once and lasts as long as the store.
pub(crate) struct FrameStore {
    videos: Vec<Option<Kept>>,
    bytes: u64,
    needed_bytes: u64,
}

impl FrameStore {
    /// `needed`: per video. Keeps all if they fit into `limit` bytes, else the first ones that do.
    pub(crate) fn new(needed: Vec<Needed>, frame_bytes: usize, limit: u64) -> Self {
        let mut store = Self { videos: Vec::with_capacity(needed.len()), bytes: 0, needed_bytes: 0 };
        for needed in needed {
            let bytes = (needed.frames() as u64).saturating_mul(frame_bytes as u64);
            store.needed_bytes = store.needed_bytes.saturating_add(bytes);
            let fits = store.bytes.saturating_add(bytes) <= limit && bytes > 0;
            store.videos.push(fits.then(|| {
                store.bytes += bytes;
                let frames = vec![0; bytes as usize].into_boxed_slice();
                Kept { needed, content: Mutex::new(Content { frames, filled: false }) }
            }));
        }
        store
    }

    pub(crate) fn get(&self, video: usize) -> Option<&Kept> {
        self.videos.get(video)?.as_ref()
    }

    /// Bytes of the kept frames.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that keeping every needed frame would take.
    pub(crate) const fn needed_bytes(&self) -> u64 {
        self.needed_bytes
    }

    /// Bytes of the tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        let ranges: u64 = self.videos.iter().flatten().map(|kept| kept.needed.bytes()).sum();
        ranges + (self.videos.capacity() * size_of::<Option<Kept>>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_are_kept_once() {
        let needed = Needed::new(vec![8..24, 0..16, 40..50, 24..26]);
        assert_eq!(needed.ranges(), [0..26, 40..50]);
        assert_eq!(needed.frames(), 36);
        assert_eq!(
            [0, 25, 26, 39, 40, 49, 50].map(|frame| needed.place(frame)),
            [Some(0), Some(25), None, None, Some(26), Some(35), None]
        );
    }

    #[test]
    fn the_limit_is_kept() {
        let needed = || [10, 20, 10].map(|frames| Needed::new(std::iter::once(0..frames).collect())).to_vec();
        for (limit, kept) in [(0, 0), (99, 0), (100, 100), (299, 200), (300, 300), (400, 400), (u64::MAX, 400)] {
            let store = FrameStore::new(needed(), 10, limit);
            assert_eq!(store.bytes(), kept, "{limit}");
            assert_eq!(store.needed_bytes(), 400);
            let held: usize = (0..3).filter_map(|i| store.get(i)).map(|kept| kept.lock().frames.len()).sum();
            assert_eq!(held as u64, kept);
        }
    }
}
