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

/// Every U-th position has its own sums, so that few elements still keep the multipliers busy.
///
/// # Safety
///
/// As for [`WeightTileFn`].
#[inline(always)]
unsafe fn tile<V: Lanes, const M: usize, const N: usize, const U: usize>(tile: &WeightTile<'_>) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [[[V::zero(); N]; M]; U];
        for strip in tile.strips {
            let mut x = strip.x.wrapping_add(tile.x_first);
            let mut dy = strip.dy.wrapping_add(tile.dy_first);
            for _ in 0..strip.count / U {
                for sums in &mut sums {
                    position(tile, sums, x, dy);
                    x = x.wrapping_add(strip.x_step);
                    dy = dy.wrapping_add(tile.dy_step);
                }
            }
            if U > 1 {
                for _ in 0..strip.count % U {
                    position(tile, &mut sums[0], x, dy);
                    x = x.wrapping_add(strip.x_step);
                    dy = dy.wrapping_add(tile.dy_step);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                let to = tile.sums.add((m * N + n) * V::WIDTH);
                let mut sum = V::load(to);
                for sums in &sums {
                    sum = sum.add(sums[m][n]);
                }
                sum.store(to);
            }
        }
    }
}

/// Adds the products of one position.
///
/// # Safety
///
/// As for [`WeightTileFn`].
#[inline(always)]
unsafe fn position<V: Lanes, const M: usize, const N: usize>(
    tile: &WeightTile<'_>,
    sums: &mut [[V; N]; M],
    x: *const f32,
    dy: *const f32,
) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
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
    }
}

/// # Safety
///
/// As for [`WeightTileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const M: usize, const N: usize, const U: usize>(it: &WeightTile<'_>) {
    // SAFETY: the caller vouches for every address; the instruction set is this function's.
    unsafe { tile::<Avx512, M, N, U>(it) }
}

/// # Safety
///
/// As for [`WeightTileFn`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const M: usize, const N: usize, const U: usize>(it: &WeightTile<'_>) {
    // SAFETY: the caller vouches for every address; the instruction set is this function's.
    unsafe { tile::<Avx2, M, N, U>(it) }
}

macro_rules! tiles {
    ($function:ident, $vectors:literal, $($elements:literal: $sums:literal)*) => {
        &[$($function::<$elements, $vectors, $sums>),*]
    };
}

/// 28 of 32 registers hold sums, at most.
static AVX512: WeightTileSet = WeightTileSet {
    width: Avx512::WIDTH,
    one: tiles!(avx512, 1, 1:4 2:4 3:4 4:2 5:2 6:2 7:2 8:1 9:1 10:1 11:1 12:1 13:1 14:1),
    two: tiles!(avx512, 2, 1:4 2:2 3:2 4:1 5:1 6:1 7:1 8:1 9:1 10:1 11:1 12:1 13:1 14:1),
};

/// 12 of 16 registers hold sums, at most.
static AVX2: WeightTileSet = WeightTileSet {
    width: Avx2::WIDTH,
    one: tiles!(avx2, 1, 1:4 2:4 3:3 4:2 5:2 6:2 7:1 8:1 9:1 10:1),
    two: tiles!(avx2, 2, 1:4 2:2 3:2 4:1 5:1 6:1),
};
