//! Vector rows of the linear layers.
//!
//! With few clips these are bound by reading w once: it is walked in chunks of features, each of which meets
//! all clips while it is in near memory.

use super::{LinearForwardArgs, LinearInputGradientArgs, LinearShape, LinearWeightGradientArgs, bias_gradient};
use crate::isa::Isa;
use crate::lanes::{Avx2, Avx512, Lanes};
use crate::shared::SharedMut;
use crate::threads::Pool;

/// Features of one chunk of the forward pass.
const FORWARD_CHUNK: usize = 2048;

/// Features of one chunk of the gradients.
const GRADIENT_CHUNK: usize = 1024;

/// Output features of one task.
const TASK_FEATURES: usize = 16;

/// Slices of the sum over frames and features, at most.
const SLICES: usize = 64;

/// Rows of a tile, and columns of a tile of dot products.
const TILE: usize = 4;

/// to\[m, n\] += Σ over features of a\[m\] · b\[n\], for up to TILE rows of each.
struct Dots {
    a: *const f32,
    b: *const f32,
    /// Elements between rows of a and of b.
    step: usize,
    len: usize,
    to: *mut f32,
    to_step: usize,
}

/// out\[m, d\] += Σ over j of factor\[m, j\] · rows\[j, d\].
struct Update {
    out: *mut f32,
    out_step: usize,
    out_rows: usize,
    factors: *const f32,
    /// Elements between factors of two m, and of two j.
    factor_m: usize,
    factor_j: usize,
    rows: *const f32,
    row_step: usize,
    row_count: usize,
    len: usize,
}

/// The bodies of one instruction set.
///
/// # Safety
///
/// The instruction set must be there, and every address that the argument names must be valid.
struct Bodies {
    /// By rows of a less one, then rows of b less one.
    dots: [[unsafe fn(&Dots); TILE]; TILE],
    update: unsafe fn(&Update),
}

/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn dots<V: Lanes, const M: usize, const N: usize>(s: &Dots) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [[V::zero(); N]; M];
        let mut at = 0;
        while at + V::WIDTH <= s.len {
            let mut b = [V::zero(); N];
            for (n, b) in b.iter_mut().enumerate() {
                *b = V::load(s.b.add(n * s.step + at));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let a = V::load(s.a.add(m * s.step + at));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(b, *sum);
                }
            }
            at += V::WIDTH;
        }
        if at < s.len {
            let lanes = s.len - at;
            let mut b = [V::zero(); N];
            for (n, b) in b.iter_mut().enumerate() {
                *b = V::load_part(s.b.add(n * s.step + at), lanes);
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let a = V::load_part(s.a.add(m * s.step + at), lanes);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(b, *sum);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                *s.to.add(m * s.to_step + n) += sum.sum();
            }
        }
    }
}

/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn update<V: Lanes>(s: &Update) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut m = 0;
        while m < s.out_rows {
            let full_m = s.out_rows - m >= TILE;
            let mut j = 0;
            while j < s.row_count {
                let full_j = s.row_count - j >= TILE;
                match (full_m, full_j) {
                    (true, true) => update_tile::<V, TILE, TILE>(s, m, j),
                    (true, false) => update_tile::<V, TILE, 1>(s, m, j),
                    (false, true) => update_tile::<V, 1, TILE>(s, m, j),
                    (false, false) => update_tile::<V, 1, 1>(s, m, j),
                }
                j += if full_j { TILE } else { 1 };
            }
            m += if full_m { TILE } else { 1 };
        }
    }
}

/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn update_tile<V: Lanes, const M: usize, const J: usize>(s: &Update, m: usize, j: usize) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut factors = [[V::zero(); J]; M];
        for (dm, factors) in factors.iter_mut().enumerate() {
            for (dj, factor) in factors.iter_mut().enumerate() {
                *factor = V::splat(*s.factors.add((m + dm) * s.factor_m + (j + dj) * s.factor_j));
            }
        }
        let mut at = 0;
        while at < s.len {
            let lanes = (s.len - at).min(V::WIDTH);
            let full = lanes == V::WIDTH;
            let mut rows = [V::zero(); J];
            for (dj, row) in rows.iter_mut().enumerate() {
                let from = s.rows.add((j + dj) * s.row_step + at);
                *row = if full { V::load(from) } else { V::load_part(from, lanes) };
            }
            for (dm, factors) in factors.iter().enumerate() {
                let out = s.out.add((m + dm) * s.out_step + at);
                let mut sum = if full { V::load(out) } else { V::load_part(out, lanes) };
                for (row, factor) in rows.iter().zip(factors) {
                    sum = row.mul_add(*factor, sum);
                }
                if full {
                    sum.store(out);
                } else {
                    sum.store_part(out, lanes);
                }
            }
            at += V::WIDTH;
        }
    }
}

macro_rules! bodies {
    ($name:ident, $lanes:ty, $features:literal) => {
        mod $name {
            use super::*;

            /// # Safety
            ///
            /// As for [`Bodies`].
            #[target_feature(enable = $features)]
            unsafe fn dots<const M: usize, const N: usize>(s: &Dots) {
                // SAFETY: the caller vouches for every address; the instruction set is this function's.
                unsafe { super::dots::<$lanes, M, N>(s) }
            }

            /// # Safety
            ///
            /// As for [`Bodies`].
            #[target_feature(enable = $features)]
            unsafe fn update(s: &Update) {
                // SAFETY: the caller vouches for every address; the instruction set is this function's.
                unsafe { super::update::<$lanes>(s) }
            }

            pub(super) static BODIES: Bodies = Bodies {
                dots: [
                    [dots::<1, 1>, dots::<1, 2>, dots::<1, 3>, dots::<1, 4>],
                    [dots::<2, 1>, dots::<2, 2>, dots::<2, 3>, dots::<2, 4>],
                    [dots::<3, 1>, dots::<3, 2>, dots::<3, 3>, dots::<3, 4>],
                    [dots::<4, 1>, dots::<4, 2>, dots::<4, 3>, dots::<4, 4>],
                ],
                update,
            };
        }
    };
}

bodies!(avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
bodies!(avx2, Avx2, "avx2,fma");

/// The bodies of an instruction set; panics where it is not there.
fn bodies(isa: Isa) -> &'static Bodies {
    assert!(isa.available(), "this machine has no {isa}");
    match isa {
        Isa::Avx512 => &avx512::BODIES,
        Isa::Avx2 | Isa::Scalar => &avx2::BODIES,
    }
}

/// Chunks of all frames, and the slices they are summed in.
fn slices(s: &LinearShape) -> [usize; 2] {
    let chunks = s.frames * s.features.div_ceil(FORWARD_CHUNK);
    [chunks, chunks.clamp(1, SLICES)]
}

pub(super) fn forward_scratch(_: Isa, s: &LinearShape, _: usize) -> usize {
    slices(s)[1] * s.y_len()
}

pub(super) fn forward(isa: Isa, s: &LinearShape, args: LinearForwardArgs<'_, f32>, pool: &Pool) {
    let len = forward_scratch(isa, s, pool.threads());
    args.check(s, len);
    let bodies = bodies(isa);
    let [chunks, slices] = slices(s);
    let frame_chunks = s.features.div_ceil(FORWARD_CHUNK);
    let blocks = s.out_features.div_ceil(TASK_FEATURES);
    let (x, w) = (args.x, args.w);
    let partials = &mut args.scratch[..len];
    let shared = SharedMut::new(partials);
    pool.run(slices * blocks, &|task| {
        let (slice, block) = (task.index / blocks, task.index % blocks);
        let features = block * TASK_FEATURES..((block + 1) * TASK_FEATURES).min(s.out_features);
        for n in 0..s.clips {
            let at = (slice * s.clips + n) * s.out_features;
            // SAFETY: the slice's sums of this block's features are this task's.
            unsafe { shared.part(at + features.start..at + features.end) }.fill(0.0);
        }
        for chunk in slice * chunks / slices..(slice + 1) * chunks / slices {
            let (t, first) = (chunk / frame_chunks, chunk % frame_chunks * FORWARD_CHUNK);
            for k in features.clone().step_by(TILE) {
                for n in (0..s.clips).step_by(TILE) {
                    let (ks, ns) = ((features.end - k).min(TILE), (s.clips - n).min(TILE));
                    // SAFETY: rows n.. of x and k.. of w of frame t hold the features of the chunk; the sums
                    // are this task's, as above; the bodies' instruction set has been found.
                    unsafe {
                        bodies.dots[ns - 1][ks - 1](&Dots {
                            a: x.as_ptr().add((t * s.clips + n) * s.features + first),
                            b: w.as_ptr().add((t * s.out_features + k) * s.features + first),
                            step: s.features,
                            len: (s.features - first).min(FORWARD_CHUNK),
                            to: shared.start().add((slice * s.clips + n) * s.out_features + k),
                            to_step: s.out_features,
                        });
                    }
                }
            }
        }
    });
    let partials = &*partials;
    for (i, y) in args.y.iter_mut().enumerate() {
        let mut sum = if args.accumulate { *y } else { 0.0 };
        sum += partials[i..].iter().step_by(s.clips * s.out_features).sum::<f32>();
        sum += args.bias.map_or(0.0, |bias| bias[i % s.out_features]);
        *y = if args.relu && sum < 0.0 { 0.0 } else { sum };
    }
}

pub(super) fn input_gradient_scratch(_: Isa, _: &LinearShape, _: usize) -> usize {
    0
}

pub(super) fn input_gradient(isa: Isa, s: &LinearShape, args: LinearInputGradientArgs<'_, f32>, pool: &Pool) {
    args.check(s, 0);
    let bodies = bodies(isa);
    let chunks = s.features.div_ceil(GRADIENT_CHUNK);
    let (dy, w) = (args.dy, args.w);
    let dx = SharedMut::new(args.dx);
    pool.run(s.frames * chunks, &|task| {
        let (t, first) = (task.index / chunks, task.index % chunks * GRADIENT_CHUNK);
        let len = (s.features - first).min(GRADIENT_CHUNK);
        let start = t * s.clips * s.features + first;
        if !args.accumulate {
            for n in 0..s.clips {
                // SAFETY: the chunk's features of the frame's clips are this task's.
                unsafe { dx.part(start + n * s.features..start + n * s.features + len) }.fill(0.0);
            }
        }
        // SAFETY: the rows of dx are this task's, as above; dy is [N, K], w of frame t [K, D]; the bodies'
        // instruction set has been found.
        unsafe {
            (bodies.update)(&Update {
                out: dx.start().add(start),
                out_step: s.features,
                out_rows: s.clips,
                factors: dy.as_ptr(),
                factor_m: s.out_features,
                factor_j: 1,
                rows: w.as_ptr().add(t * s.out_features * s.features + first),
                row_step: s.features,
                row_count: s.out_features,
                len,
            });
        }
    });
}

pub(super) fn weight_gradient_scratch(_: Isa, _: &LinearShape, _: usize) -> usize {
    0
}

pub(super) fn weight_gradient(isa: Isa, s: &LinearShape, args: LinearWeightGradientArgs<'_, f32>, pool: &Pool) {
    args.check(s, 0);
    let bodies = bodies(isa);
    let chunks = s.features.div_ceil(GRADIENT_CHUNK);
    let blocks = s.out_features.div_ceil(TASK_FEATURES);
    let (x, dy) = (args.x, args.dy);
    let dw = SharedMut::new(args.dw);
    pool.run(s.frames * blocks * chunks, &|task| {
        let (t, block) = (task.index / (blocks * chunks), task.index / chunks % blocks);
        let first = task.index % chunks * GRADIENT_CHUNK;
        let k = block * TASK_FEATURES;
        // SAFETY: the chunk's features of the block's rows of dw are this task's; dy is [N, K], x of frame t
        // [N, D]; the bodies' instruction set has been found.
        unsafe {
            (bodies.update)(&Update {
                out: dw.start().add((t * s.out_features + k) * s.features + first),
                out_step: s.features,
                out_rows: (s.out_features - k).min(TASK_FEATURES),
                factors: dy.as_ptr().add(k),
                factor_m: 1,
                factor_j: s.out_features,
                rows: x.as_ptr().add(t * s.clips * s.features + first),
                row_step: s.features,
                row_count: s.clips,
                len: (s.features - first).min(GRADIENT_CHUNK),
            });
        }
    });
    bias_gradient(s, dy, args.db);
}
