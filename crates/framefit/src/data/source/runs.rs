//! The tables of a track, walked sample by sample: values in runs, sizes, and places in chunks.

use super::boxes::{Fields, child};

/// The entries of a full box that holds a count and then entries of N bytes; a short table gives what is there.
pub(super) fn entries<const N: usize>(content: &[u8]) -> Option<&[[u8; N]]> {
    let mut fields = Fields(content);
    fields.version()?;
    let count = fields.u32()? as usize;
    let (entries, _) = fields.0.as_chunks::<N>();
    Some(entries.get(..count).unwrap_or(entries))
}

/// Two fields of an eight-byte entry.
fn pair(entry: &[u8; 8]) -> (u32, u32) {
    let word = u64::from_be_bytes(*entry);
    ((word >> 32) as u32, word as u32)
}

/// Values in runs: `count` times `value`.
pub(super) struct Runs<'a> {
    entries: std::slice::Iter<'a, [u8; 8]>,
    left: u32,
    value: u32,
}

impl<'a> Runs<'a> {
    pub(super) fn new(content: Option<&'a [u8]>) -> Self {
        Self { entries: content.and_then(entries::<8>).unwrap_or_default().iter(), left: 0, value: 0 }
    }
}

impl Iterator for Runs<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.left == 0 {
            (self.left, self.value) = pair(self.entries.next()?);
        }
        self.left -= 1;
        Some(self.value)
    }
}

pub(super) enum Sizes<'a> {
    Same {
        size: u32,
        count: u32,
    },
    Each(&'a [[u8; 4]]),
    /// Entries of `bits` bits.
    Packed {
        bits: u8,
        count: u32,
        bytes: &'a [u8],
    },
}

impl<'a> Sizes<'a> {
    pub(super) fn full(content: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(content);
        fields.version()?;
        let (size, count) = (fields.u32()?, fields.u32()?);
        if size != 0 {
            return Some(Self::Same { size, count });
        }
        let (entries, _) = fields.0.as_chunks::<4>();
        entries.get(..count as usize).map(Self::Each)
    }

    pub(super) fn compact(content: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(content);
        fields.version()?;
        let bits = (fields.u32()? & 0xFF) as u8;
        let count = fields.u32()?;
        let whole =
            matches!(bits, 4 | 8 | 16) && (u64::from(count) * u64::from(bits)).div_ceil(8) <= fields.0.len() as u64;
        whole.then_some(Self::Packed { bits, count, bytes: fields.0 })
    }

    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Same { count, .. } | Self::Packed { count, .. } => (*count).into(),
            Self::Each(entries) => entries.len() as u64,
        }
    }

    pub(super) fn get(&self, i: usize) -> Option<u32> {
        match self {
            Self::Same { size, .. } => Some(*size),
            Self::Each(entries) => entries.get(i).map(|entry| u32::from_be_bytes(*entry)),
            Self::Packed { bits: 16, bytes, .. } => {
                Some((u32::from(*bytes.get(2 * i)?) << 8) | u32::from(*bytes.get(2 * i + 1)?))
            }
            Self::Packed { bits: 8, bytes, .. } => bytes.get(i).map(|byte| u32::from(*byte)),
            Self::Packed { bytes, .. } => {
                let byte = u32::from(*bytes.get(i / 2)?);
                Some(if i.is_multiple_of(2) { byte >> 4 } else { byte & 0xF })
            }
        }
    }
}

/// Walks samples through their chunks.
pub(super) struct Places<'a> {
    /// (first chunk, samples per chunk) of the runs still to come.
    runs: std::iter::Peekable<std::slice::Iter<'a, [u8; 12]>>,
    per_chunk: u32,
    chunks: Chunks<'a>,
    /// Chunks begun so far.
    chunk: u32,
    left: u32,
    at: u64,
}

enum Chunks<'a> {
    Narrow(std::slice::Iter<'a, [u8; 4]>),
    Wide(std::slice::Iter<'a, [u8; 8]>),
}

impl<'a> Places<'a> {
    pub(super) fn new(tables: &'a [u8]) -> Option<Self> {
        let runs = child(tables, b"stsc").and_then(entries::<12>)?.iter().peekable();
        let chunks = match (child(tables, b"stco"), child(tables, b"co64")) {
            (Some(table), _) => Chunks::Narrow(entries(table)?.iter()),
            (None, Some(table)) => Chunks::Wide(entries(table)?.iter()),
            (None, None) => return None,
        };
        Some(Self { runs, per_chunk: 0, chunks, chunk: 0, left: 0, at: 0 })
    }

    /// Where the next sample, of `size` bytes, begins.
    pub(super) fn next(&mut self, size: u32) -> Option<u64> {
        while self.left == 0 {
            self.at = match &mut self.chunks {
                Chunks::Narrow(chunks) => u32::from_be_bytes(*chunks.next()?).into(),
                Chunks::Wide(chunks) => u64::from_be_bytes(*chunks.next()?),
            };
            self.chunk += 1;
            let begun = |[a, b, c, d, ..]: &&[u8; 12]| u32::from_be_bytes([*a, *b, *c, *d]) <= self.chunk;
            while let Some([_, _, _, _, e, f, g, h, ..]) = self.runs.next_if(begun) {
                self.per_chunk = u32::from_be_bytes([*e, *f, *g, *h]);
            }
            self.left = self.per_chunk;
        }
        self.left -= 1;
        let at = self.at;
        self.at = self.at.saturating_add(size.into());
        Some(at)
    }
}
