//! The loops over the elements of a segment.

use super::BLOCK;
use crate::isa::Isa;
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

/// `len` contiguous outputs: y\[e\] = Σ over taps of w\[tap, e\] · x\[tap offset + e\].
///
/// Weights are \[periods\]\[taps\]\[block\]: block b of the segment meets period b mod periods.
pub(super) struct Segment {
    pub(super) x: *const f32,
    pub(super) y: *mut f32,
    pub(super) len: usize,
    pub(super) t: Taps,
    pub(super) h: Taps,
    pub(super) w: Taps,
    /// The weight of the segment's first tap in period 0.
    pub(super) weights: *const f32,
    pub(super) periods: usize,
    /// Elements between the weights of two periods.
    pub(super) period_pitch: usize,
    /// \[periods\]\[block\].
    pub(super) bias: *const f32,
    pub(super) relu: bool,
    pub(super) accumulate: bool,
}

/// Sums over the positions of one row: sums\[periods\]\[tap\]\[block\] += dy · x, for `taps` taps.
pub(super) struct WeightSegments {
    pub(super) x: *const f32,
    /// Elements between the inputs of two taps.
    pub(super) x_pitch: usize,
    pub(super) taps: usize,
    pub(super) dy: *const f32,
    /// Elements of one segment.
    pub(super) len: usize,
    /// Segments, and elements between the inputs and between the outputs of two of them.
    pub(super) count: usize,
    pub(super) x_step: usize,
    pub(super) dy_step: usize,
    pub(super) sums: *mut f32,
    pub(super) sums_pitch: usize,
    pub(super) periods: usize,
    pub(super) period_pitch: usize,
    /// Sums of dy alone, \[periods\]\[block\], or null.
    pub(super) bias: *mut f32,
}

/// The bodies of one instruction set.
///
/// # Safety
///
/// The instruction set must be there, and every address that the argument names must be valid.
pub(super) struct Bodies {
    pub(super) segment: unsafe fn(&Segment),
    pub(super) weights: unsafe fn(&WeightSegments),
}

/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn segment<V: Lanes>(s: &Segment) {
    let block = BLOCK * V::WIDTH;
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut period = 0;
        let mut at = 0;
        while at < s.len {
            let weights = s.weights.add(period * s.period_pitch);
            let bias = s.bias.add(period * block);
            let left = s.len - at;
            if left >= block {
                registers::<V, BLOCK>(s, at, weights, bias, V::WIDTH);
            } else {
                let mut done = 0;
                while done < left {
                    let lanes = (left - done).min(V::WIDTH);
                    registers::<V, 1>(s, at + done, weights.add(done), bias.add(done), lanes);
                    done += V::WIDTH;
                }
            }
            at += block;
            period = if period + 1 == s.periods { 0 } else { period + 1 };
        }
    }
}

/// `N` registers of outputs from element `at` on, the last of which has `last_lanes` lanes.
///
/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn registers<V: Lanes, const N: usize>(
    s: &Segment,
    at: usize,
    weights: *const f32,
    bias: *const f32,
    last_lanes: usize,
) {
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [V::zero(); N];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(bias.add(n * V::WIDTH));
        }
        for jt in 0..s.t.count {
            for jh in 0..s.h.count {
                let mut x = s.x.add(at + jt * s.t.x_pitch + jh * s.h.x_pitch);
                let mut w = weights.add(jt * s.t.w_pitch + jh * s.h.w_pitch);
                for _ in 0..s.w.count {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        let x = x.add(n * V::WIDTH);
                        let x = if N == 1 { V::load_part(x, last_lanes) } else { V::load(x) };
                        *sum = x.mul_add(V::load(w.add(n * V::WIDTH)), *sum);
                    }
                    x = x.wrapping_add(s.w.x_pitch);
                    w = w.wrapping_add(s.w.w_pitch);
                }
            }
        }
        for (n, sum) in sums.iter().enumerate() {
            let y = s.y.add(at + n * V::WIDTH);
            let lanes = if N == 1 { last_lanes } else { V::WIDTH };
            let mut sum = *sum;
            if s.accumulate {
                sum = sum.add(V::load_part(y, lanes));
            }
            if s.relu {
                sum = sum.relu();
            }
            if N == 1 {
                sum.store_part(y, lanes);
            } else {
                sum.store(y);
            }
        }
    }
}

/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn weights<V: Lanes>(s: &WeightSegments) {
    let block = BLOCK * V::WIDTH;
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        for period in 0..s.periods.min(s.len.div_ceil(block)) {
            let sums = s.sums.add(period * s.period_pitch);
            let mut tap = 0;
            while tap + 3 <= s.taps {
                weight_taps::<V, 3>(s, period, tap, sums.add(tap * s.sums_pitch));
                tap += 3;
            }
            while tap < s.taps {
                weight_taps::<V, 1>(s, period, tap, sums.add(tap * s.sums_pitch));
                tap += 1;
            }
            if !s.bias.is_null() {
                bias_sums::<V>(s, period, s.bias.add(period * block));
            }
        }
    }
}

/// `J` taps from `tap` on, over the blocks of one period.
///
/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn weight_taps<V: Lanes, const J: usize>(s: &WeightSegments, period: usize, tap: usize, to: *mut f32) {
    let block = BLOCK * V::WIDTH;
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [[V::zero(); BLOCK]; J];
        for i in 0..s.count {
            let x = s.x.add(i * s.x_step + tap * s.x_pitch);
            let dy = s.dy.add(i * s.dy_step);
            let mut at = period * block;
            while at + block <= s.len {
                for n in 0..BLOCK {
                    let at = at + n * V::WIDTH;
                    let dy = V::load(dy.add(at));
                    for (j, sums) in sums.iter_mut().enumerate() {
                        sums[n] = V::load(x.add(at + j * s.x_pitch)).mul_add(dy, sums[n]);
                    }
                }
                at += s.periods * block;
            }
            if at < s.len {
                for n in 0..BLOCK {
                    let at = at + n * V::WIDTH;
                    let lanes = s.len.saturating_sub(at).min(V::WIDTH);
                    if lanes == 0 {
                        break;
                    }
                    let dy = V::load_part(dy.add(at), lanes);
                    for (j, sums) in sums.iter_mut().enumerate() {
                        sums[n] = V::load_part(x.add(at + j * s.x_pitch), lanes).mul_add(dy, sums[n]);
                    }
                }
            }
        }
        for (j, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                let to = to.add(j * s.sums_pitch + n * V::WIDTH);
                V::load(to).add(*sum).store(to);
            }
        }
    }
}

/// The sums of dy over the blocks of one period.
///
/// # Safety
///
/// As for [`Bodies`].
#[inline(always)]
unsafe fn bias_sums<V: Lanes>(s: &WeightSegments, period: usize, to: *mut f32) {
    let block = BLOCK * V::WIDTH;
    // SAFETY: the caller vouches for the instruction set and for every address.
    unsafe {
        let mut sums = [V::zero(); BLOCK];
        for i in 0..s.count {
            let dy = s.dy.add(i * s.dy_step);
            let mut at = period * block;
            while at < s.len {
                for (n, sum) in sums.iter_mut().enumerate() {
                    let at = at + n * V::WIDTH;
                    let lanes = s.len.saturating_sub(at).min(V::WIDTH);
                    if lanes > 0 {
                        *sum = sum.add(V::load_part(dy.add(at), lanes));
                    }
                }
                at += s.periods * block;
            }
        }
        for (n, sum) in sums.iter().enumerate() {
            let to = to.add(n * V::WIDTH);
            V::load(to).add(*sum).store(to);
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
            pub(super) unsafe fn segment(s: &Segment) {
                // SAFETY: the caller vouches for every address; the instruction set is this function's.
                unsafe { super::segment::<$lanes>(s) }
            }

            /// # Safety
            ///
            /// As for [`Bodies`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn weights(s: &WeightSegments) {
                // SAFETY: the caller vouches for every address; the instruction set is this function's.
                unsafe { super::weights::<$lanes>(s) }
            }
        }
    };
}

bodies!(avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
bodies!(avx2, Avx2, "avx2,fma");

/// The bodies of an instruction set; panics where it is not there.
pub(super) fn of(isa: Isa) -> Bodies {
    assert!(isa.available(), "this machine has no {isa}");
    match isa {
        Isa::Avx512 => Bodies { segment: avx512::segment, weights: avx512::weights },
        Isa::Avx2 | Isa::Scalar => Bodies { segment: avx2::segment, weights: avx2::weights },
    }
}
