//! The innermost loops of the gradient by the weights: a tile of run elements × output channels in registers.

use crate::isa::Isa;
use crate::lanes::{Avx2, Avx512, Lanes};

/// Neighbouring output positions: position i reads x + i·x_step and dy + i·dy_step.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    pub(super) x: *const f32,
    pub(super) x_step: usize,
    pub(super) dy: *const f32,
    pub(super) count: usize,
}

impl Strip {
    /// No positions.
    pub(super) const EMPTY: Strip = Strip { x: std::ptr::null(), x_step: 0, dy: std::ptr::null(), count: 0 };
}

/// sums\[element\]\[lane\] += Σ over the positions of `strips` of x\[x_first + element\] · dy\[dy_first + lane\].
pub(super) struct WeightTile<'a> {
    pub(super) strips: &'a [Strip],
    pub(super) x_first: usize,
    pub(super) dy_first: usize,
    pub(super) dy_step: usize,
    /// Lanes of the last register that are channels.
    pub(super) last_lanes: usize,
    pub(super) sums: *mut f32,
}

/// Computes a tile.
///
/// # Safety
///
/// The instruction set must be there, and every address that the tile names must be valid.
pub(super) type WeightTileFn = unsafe fn(&WeightTile<'_>);

/// The tile functions of one instruction set.
pub(super) struct WeightTileSet {
    /// Lanes of a register.
    pub(super) width: usize,
    /// `[m − 1]`: tiles of m elements × 1 or 2 registers.
    one: &'static [WeightTileFn],
    two: &'static [WeightTileFn],
}

impl WeightTileSet {
    /// The tiles of an instruction set, whether or not it is there.
    pub(super) fn of(isa: Isa) -> &'static WeightTileSet {
        match isa {
            Isa::Avx512 => &AVX512,
            Isa::Avx2 | Isa::Scalar => &AVX2,
        }
    }

    pub(super) fn functions(&self, vectors: usize) -> &'static [WeightTileFn] {
        if vectors == 1 { self.one } else { self.two }
    }
}

/// # Safety
///
/// As for [`WeightTileFn`].
#[inline(always)]
unsafe fn tile<V: Lanes, const M: usize, const N: usize>(tile: &WeightTile<'_>) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [[V::zero(); N]; M];
        for strip in tile.strips {
            let mut x = strip.x.wrapping_add(tile.x_first);
            let mut dy = strip.dy.wrapping_add(tile.dy_first);
            for _ in 0..strip.count {
                let mut lanes = [V::zero(); N];
                for (n, lanes) in lanes.iter_mut().enumerate() {
                    let dy = dy.add(n * V::WIDTH);
                    *lanes = if n + 1 == N { V::load_part(dy, tile.last_lanes) } else { V::load(dy) };
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let x = V::splat(*x.add(m));
                    for (sum, lanes) in sums.iter_mut().zip(lanes) {
                        *sum = x.mul_add(lanes, *sum);
                    }
                }
                x = x.wrapping_add(strip.x_step);
                dy = dy.wrapping_add(tile.dy_step);
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                let to = tile.sums.add((m * N + n) * V::WIDTH);
                V::load(to).add(*sum).store(to);
            }
        }
    }
}

/// # Safety
///
/// As for [`WeightTileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const M: usize, const N: usize>(it: &WeightTile<'_>) {
    // SAFETY: the caller vouches for every address; the instruction set is this function's.
    unsafe { tile::<Avx512, M, N>(it) }
}

/// # Safety
///
/// As for [`WeightTileFn`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const M: usize, const N: usize>(it: &WeightTile<'_>) {
    // SAFETY: the caller vouches for every address; the instruction set is this function's.
    unsafe { tile::<Avx2, M, N>(it) }
}

macro_rules! tiles {
    ($function:ident, $vectors:literal, $($elements:literal)*) => {
        &[$($function::<$elements, $vectors>),*]
    };
}

/// 28 of 32 registers hold sums, at most.
static AVX512: WeightTileSet = WeightTileSet {
    width: Avx512::WIDTH,
    one: tiles!(avx512, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    two: tiles!(avx512, 2, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
};

/// 12 of 16 registers hold sums, at most.
static AVX2: WeightTileSet =
    WeightTileSet { width: Avx2::WIDTH, one: tiles!(avx2, 1, 1 2 3 4 5 6 7 8 9 10), two: tiles!(avx2, 2, 1 2 3 4 5 6) };
