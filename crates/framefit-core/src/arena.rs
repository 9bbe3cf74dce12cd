//! Packing: an offset for each buffer, so that buffers alive at the same time never share a byte.

/// Every offset is a multiple of this many bytes: a cache line, and a vector register of AVX-512.
pub const ALIGNMENT: usize = 64;

/// What packing needs to know of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Size in bytes.
    pub bytes: usize,
    /// First step that touches it.
    pub first: usize,
    /// Last step that touches it.
    pub last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Offsets, in the order of the buffers, and the bytes they need in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Byte offset of each buffer.
    pub offsets: Vec<usize>,
    /// One past the last byte in use.
    pub bytes: usize,
}

/// Rounds up to [`ALIGNMENT`].
pub const fn aligned(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT) * ALIGNMENT
}

/// Places buffers one by one at the lowest offset where they fit, in several orders, and keeps the tightest.
pub fn pack(buffers: &[Lifetime]) -> Packing {
    let mut by_size: Vec<usize> = (0..buffers.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].bytes), buffers[i].first));
    let mut by_start: Vec<usize> = (0..buffers.len()).collect();
    by_start.sort_by_key(|&i| (buffers[i].first, std::cmp::Reverse(buffers[i].bytes)));
    let mut by_area: Vec<usize> = (0..buffers.len()).collect();
    by_area.sort_by_key(|&i| {
        let b = &buffers[i];
        (std::cmp::Reverse(b.bytes.saturating_mul(b.last - b.first + 1)), b.first)
    });
    let mut best = place(buffers, &by_size);
    for order in [by_start, by_area] {
        let other = place(buffers, &order);
        if other.bytes < best.bytes {
            best = other;
        }
    }
    best
}

fn place(buffers: &[Lifetime], order: &[usize]) -> Packing {
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    let mut total = 0;
    for &index in order {
        let buffer = &buffers[index];
        if buffer.bytes == 0 {
            continue;
        }
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&other| buffers[other].meets(buffer))
            .map(|&other| (offsets[other], offsets[other] + buffers[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (lo, hi) in taken {
            if offset + buffer.bytes <= lo {
                break;
            }
            offset = offset.max(aligned(hi));
        }
        offsets[index] = offset;
        total = total.max(offset + buffer.bytes);
        placed.push(index);
    }
    Packing { offsets, bytes: aligned(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(bytes: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { bytes, first, last }
    }

    #[test]
    fn buffers_that_never_meet_share_bytes() {
        let packing = pack(&[life(128, 0, 1), life(64, 1, 2), life(128, 2, 3)]);
        assert_eq!(packing, Packing { offsets: vec![0, 128, 0], bytes: 192 });
    }

    #[test]
    fn offsets_are_aligned_and_empty_buffers_take_nothing() {
        let packing = pack(&[life(100, 0, 4), life(0, 0, 4), life(10, 0, 4)]);
        assert_eq!(packing, Packing { offsets: vec![0, 0, 128], bytes: 192 });
    }

    #[test]
    fn a_gap_below_a_long_lived_buffer_is_used() {
        let packing = pack(&[life(256, 0, 1), life(192, 0, 9), life(256, 2, 9), life(64, 5, 6)]);
        assert_eq!(packing.bytes, 512);
    }

    #[test]
    fn random_lifetimes_never_overlap_and_stay_near_the_least_possible() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % n) as usize
        };
        for _ in 0..300 {
            let buffers: Vec<Lifetime> = (0..1 + random(30))
                .map(|_| {
                    let first = random(20);
                    life(random(5000), first, first + random(8))
                })
                .collect();
            let packing = pack(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                assert_eq!(packing.offsets[i] % ALIGNMENT, 0);
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let (x, y) = (packing.offsets[i], packing.offsets[j]);
                    let apart = x + a.bytes <= y || y + b.bytes <= x;
                    assert!(apart || !a.meets(b) || a.bytes == 0 || b.bytes == 0);
                }
            }
            let least = (0..30)
                .map(|t| {
                    buffers.iter().filter(|b| b.first <= t && t <= b.last).map(|b| aligned(b.bytes)).sum::<usize>()
                })
                .max()
                .unwrap_or(0);
            assert!(packing.bytes >= least.saturating_sub(ALIGNMENT) && packing.bytes <= 2 * least + ALIGNMENT);
        }
    }
}
