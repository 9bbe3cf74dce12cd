//! The innermost loops of dense convolutions: a tile of output positions × output channels in registers.

use crate::lanes::{Avx2, Avx512, Lanes};

/// One loop over taps.
#[derive(Clone, Copy)]
pub(super) struct Taps {
    pub(super) count: usize,
    /// Elements between the inputs of two taps.
    pub(super) x_pitch: usize,
    /// Elements between the weights of two taps.
    pub(super) w_pitch: usize,
}

/// `positions` × `vectors` registers of outputs.
///
/// Position m at tap (jt, jh, jw) reads the `run` elements at x + jt·t.x_pitch + jh·h.x_pitch + jw·w.x_pitch +
/// m·x_step, each of which meets `vectors` registers of weights at the same place of the panel.
pub(super) struct Tile {
    pub(super) x: *const f32,
    pub(super) x_step: usize,
    pub(super) panel: *const f32,
    pub(super) t: Taps,
    pub(super) h: Taps,
    pub(super) w: Taps,
    pub(super) run: usize,
    pub(super) y: *mut f32,
    pub(super) y_step: usize,
    /// Lanes of the last register that are channels.
    pub(super) last_lanes: usize,
    /// As many as the registers have lanes.
    pub(super) bias: *const f32,
    pub(super) relu: bool,
    pub(super) accumulate: bool,
}

/// Computes a tile.
///
/// # Safety
///
/// The instruction set must be there, and every address that the tile names must be valid.
pub(super) type TileFn = unsafe fn(&Tile);

/// The tile functions of one instruction set.
pub(super) struct TileSet {
    /// Lanes of a register.
    pub(super) width: usize,
    /// `one[m − 1]`, `two[m − 1]`, `four[m − 1]`: tiles of m positions × 1, 2 and 4 registers.
    pub(super) one: &'static [TileFn],
    pub(super) two: &'static [TileFn],
    pub(super) four: &'static [TileFn],
}

/// # Safety
///
/// As for [`TileFn`].
#[inline(always)]
unsafe fn tile<V: Lanes, const M: usize, const N: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [[V::zero(); N]; M];
        let (mut x_t, mut panel_t) = (tile.x, tile.panel);
        for _ in 0..tile.t.count {
            let (mut x_h, mut panel_h) = (x_t, panel_t);
            for _ in 0..tile.h.count {
                let (mut x_w, mut panel_w) = (x_h, panel_h);
                for _ in 0..tile.w.count {
                    run::<V, M, N>(&mut sums, x_w, tile.x_step, panel_w, tile.run);
                    x_w = x_w.wrapping_add(tile.w.x_pitch);
                    panel_w = panel_w.wrapping_add(tile.w.w_pitch);
                }
                x_h = x_h.wrapping_add(tile.h.x_pitch);
                panel_h = panel_h.wrapping_add(tile.h.w_pitch);
            }
            x_t = x_t.wrapping_add(tile.t.x_pitch);
            panel_t = panel_t.wrapping_add(tile.t.w_pitch);
        }
        finish(tile, &sums);
    }
}

/// Bias, earlier contents, ReLU, and the way to memory.
///
/// The loops have constant lengths and constant indices, so that the sums never leave their registers before.
///
/// # Safety
///
/// As for [`TileFn`].
#[inline(always)]
unsafe fn finish<V: Lanes, const M: usize, const N: usize>(tile: &Tile, sums: &[[V; N]; M]) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut bias = [V::zero(); N];
        for (n, bias) in bias.iter_mut().enumerate() {
            *bias = V::load(tile.bias.add(n * V::WIDTH));
        }
        let mut y = tile.y;
        for sums in sums {
            for (n, (sum, bias)) in sums.iter().zip(bias).enumerate() {
                let y = y.add(n * V::WIDTH);
                let lanes = if n + 1 == N { tile.last_lanes } else { V::WIDTH };
                let mut sum = sum.add(bias);
                if tile.accumulate {
                    sum = sum.add(V::load_part(y, lanes));
                }
                if tile.relu {
                    sum = sum.relu();
                }
                if lanes == V::WIDTH {
                    sum.store(y);
                } else {
                    sum.store_part(y, lanes);
                }
            }
            y = y.wrapping_add(tile.y_step);
        }
    }
}

/// # Safety
///
/// As for [`TileFn`].
#[inline(always)]
unsafe fn run<V: Lanes, const M: usize, const N: usize>(
    sums: &mut [[V; N]; M],
    x: *const f32,
    x_step: usize,
    panel: *const f32,
    len: usize,
) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut x = x;
        let mut panel = panel;
        for _ in 0..len {
            let mut w = [V::zero(); N];
            for (n, w) in w.iter_mut().enumerate() {
                *w = V::load(panel.add(n * V::WIDTH));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let x = V::splat(*x.add(m * x_step));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = x.mul_add(w, *sum);
                }
            }
            x = x.add(1);
            panel = panel.add(N * V::WIDTH);
        }
    }
}

/// # Safety
///
/// As for [`TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const M: usize, const N: usize>(it: &Tile) {
    // SAFETY: the caller vouches for every address; the instruction set is this function's.
    unsafe { tile::<Avx512, M, N>(it) }
}

/// # Safety
///
/// As for [`TileFn`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const M: usize, const N: usize>(it: &Tile) {
    // SAFETY: the caller vouches for every address; the instruction set is this function's.
    unsafe { tile::<Avx2, M, N>(it) }
}

macro_rules! tiles {
    ($function:ident, $vectors:literal, $($positions:literal)*) => {
        &[$($function::<$positions, $vectors>),*]
    };
}

/// 28 of 32 registers hold sums, at most.
pub(super) static AVX512: TileSet = TileSet {
    width: Avx512::WIDTH,
    one: tiles!(avx512, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    two: tiles!(avx512, 2, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    four: tiles!(avx512, 4, 1 2 3 4 5 6),
};

/// 12 of 16 registers hold sums, at most.
pub(super) static AVX2: TileSet = TileSet {
    width: Avx2::WIDTH,
    one: tiles!(avx2, 1, 1 2 3 4 5 6 7 8 9 10),
    two: tiles!(avx2, 2, 1 2 3 4 5 6),
    four: tiles!(avx2, 4, 1 2),
};
