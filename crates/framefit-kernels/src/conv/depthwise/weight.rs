//! The gradient by the weights.
//!
//! Output rows are cut into slices, each with its own partial sums, which are added up in order.

use std::ops::Range;

use super::body::{self, Bodies, WeightSegments};
use super::{BLOCK, period, width};
use crate::conv::axis::{Axis, numbers};
use crate::conv::{ConvShape, ConvWeightGradientArgs};
use crate::isa::Isa;
use crate::threads::Pool;

/// Partial sums take at most this many elements, unless one slice alone takes more.
const PARTIALS: usize = 1 << 20;

/// Slices, at most.
const SLICES: usize = 64;

struct Weights<'s> {
    s: &'s ConvShape,
    t: Axis,
    h: Axis,
    w: Axis,
    /// Elements of a block.
    block: usize,
    /// Blocks after which channels repeat along a row; 0 where each position is a segment.
    row_periods: usize,
    /// Blocks of one position.
    position_periods: usize,
    rows: usize,
    slices: usize,
}

/// Partial sums of one slice: \[periods\]\[taps\]\[block\] and \[periods\]\[block\], for whole rows and for positions.
struct Partial<'a> {
    row: &'a mut [f32],
    row_bias: &'a mut [f32],
    position: &'a mut [f32],
    position_bias: &'a mut [f32],
}

impl<'s> Weights<'s> {
    fn new(isa: Isa, s: &'s ConvShape) -> Weights<'s> {
        let [t, h, w] = numbers(s);
        let block = BLOCK * width(isa);
        let contiguous = s.stride.w == 1 && s.channels < block;
        let mut it = Weights {
            s,
            t: Axis::forward(t, s.y.lo..s.y.hi, s.input.t),
            h: Axis::forward(h, 0..s.output.h, s.input.h),
            w: Axis::forward(w, 0..s.output.w, s.input.w),
            block,
            row_periods: if contiguous { period(s.channels, block) } else { 0 },
            position_periods: s.channels.div_ceil(block),
            rows: s.y.frames() * s.clips * s.output.h,
            slices: 0,
        };
        it.slices = (PARTIALS / it.partial_len().max(1)).clamp(1, SLICES).min(it.rows.max(1));
        it
    }

    fn taps(&self) -> usize {
        self.s.kernel.volume()
    }

    fn partial_len(&self) -> usize {
        (self.row_periods + self.position_periods) * self.block * (self.taps() + 1)
    }

    fn partial<'a>(&self, partial: &'a mut [f32]) -> Partial<'a> {
        let (row, rest) = partial.split_at_mut(self.row_periods * self.taps() * self.block);
        let (row_bias, rest) = rest.split_at_mut(self.row_periods * self.block);
        let (position, position_bias) = rest.split_at_mut(self.position_periods * self.taps() * self.block);
        Partial { row, row_bias, position, position_bias }
    }

    /// Adds the products of one output row.
    fn row(&self, bodies: &Bodies, x: &[f32], dy: &[f32], row: usize, partial: &mut Partial<'_>) {
        let s = self.s;
        let (oh, clip, qt) = (row % s.output.h, row / s.output.h % s.clips, row / s.output.h / s.clips);
        let row_len = s.output.w * s.channels;
        let dy_row = &dy[row * row_len..][..row_len];
        let interior = if self.row_periods > 0 { self.w.interior() } else { 0..0 };
        let edges = [0..interior.start, interior.end..s.output.w];

        self.add(bodies, None, dy_row, interior.clone(), partial);
        for edge in &edges {
            self.add(bodies, None, dy_row, edge.clone(), partial);
        }
        for jt in self.t.valid_taps(qt) {
            let t = (self.t.input(qt) + (jt * self.t.in_dilation) as isize) as usize;
            for jh in self.h.valid_taps(oh) {
                let h = (self.h.input(oh) + (jh * self.h.in_dilation) as isize) as usize;
                let at = (((t - s.x.lo) * s.clips + clip) * s.input.h + h) * s.input.w * s.channels;
                let x_row = &x[at..at + s.input.w * s.channels];
                let tap = (jt * s.kernel.h + jh) * s.kernel.w;
                let all = Reads { x_row, tap, jw: 0, taps: s.kernel.w };
                self.add(bodies, Some(all), dy_row, interior.clone(), partial);
                for jw in 0..s.kernel.w {
                    let valid = self.w.positions_of(jw);
                    for edge in &edges {
                        let positions = edge.start.max(valid.start)..edge.end.min(valid.end);
                        let one = Reads { x_row, tap: tap + jw, jw, taps: 1 };
                        self.add(bodies, Some(one), dy_row, positions, partial);
                    }
                }
            }
        }
    }

    /// Adds the products of `positions` with the taps of `reads`, all valid, or with one for the bias.
    ///
    /// With `reads` of several taps, or inside, positions are one segment; at the edges each is one.
    fn add(
        &self,
        bodies: &Bodies,
        reads: Option<Reads<'_>>,
        dy_row: &[f32],
        positions: Range<usize>,
        partial: &mut Partial<'_>,
    ) {
        let s = self.s;
        if positions.is_empty() {
            return;
        }
        let inside = self.row_periods > 0 && positions == self.w.interior();
        let (periods, sums, bias) = if inside {
            (self.row_periods, &mut *partial.row, &mut *partial.row_bias)
        } else {
            (self.position_periods, &mut *partial.position, &mut *partial.position_bias)
        };
        let (count, len) = if inside { (1, positions.len() * s.channels) } else { (positions.len(), s.channels) };
        let dy_row = &dy_row[positions.start * s.channels..positions.end * s.channels];
        let (x, tap, taps, bias) = match &reads {
            Some(reads) => {
                let column = self.w.input(positions.start) + (reads.jw * self.w.in_dilation) as isize;
                (&reads.x_row[column as usize * s.channels..], reads.tap, reads.taps, std::ptr::null_mut())
            }
            None => (dy_row, 0, 0, bias.as_mut_ptr()),
        };
        // SAFETY: the positions' inputs at these taps are valid, so they lie in the row from x on; dy_row holds
        // the positions. The sums are [periods][taps][block], the bias [periods][block]. The bodies'
        // instruction set has been found.
        unsafe {
            (bodies.weights)(&WeightSegments {
                x: x.as_ptr(),
                x_pitch: self.w.in_dilation * s.channels,
                taps,
                dy: dy_row.as_ptr(),
                len,
                count,
                x_step: self.w.in_step * s.channels,
                dy_step: s.channels,
                sums: sums.as_mut_ptr().add(tap * self.block),
                sums_pitch: self.block,
                periods,
                period_pitch: self.taps() * self.block,
                bias,
            });
        }
    }

    /// The sum of channel `c` at tap `tap` (or of the bias, with one tap) over \[periods\]\[taps\]\[block\].
    fn sum(&self, sums: &[f32], taps: usize, tap: usize, c: usize, repeat: bool) -> f32 {
        let periods = sums.len() / (taps * self.block);
        let last = if repeat { periods * self.block } else { (c + 1).min(periods * self.block) };
        let elements = (c..last).step_by(self.s.channels);
        elements.map(|e| sums[(e / self.block * taps + tap) * self.block + e % self.block]).sum()
    }
}

/// Neighbouring taps of one kernel row, and the input row they read.
struct Reads<'a> {
    x_row: &'a [f32],
    /// The first tap, in the kernel and in its row.
    tap: usize,
    jw: usize,
    taps: usize,
}

pub(in crate::conv) fn weight_gradient_scratch(isa: Isa, s: &ConvShape, _: usize) -> usize {
    let it = Weights::new(isa, s);
    it.slices * it.partial_len()
}

pub(in crate::conv) fn weight_gradient(isa: Isa, s: &ConvShape, args: ConvWeightGradientArgs<'_, f32>, pool: &Pool) {
    assert!(super::handles(s), "{s:?}");
    let len = weight_gradient_scratch(isa, s, pool.threads());
    args.check(s, len);
    let it = Weights::new(isa, s);
    let bodies = body::of(isa);
    let (x, dy) = (args.x, args.dy);
    let partials = &mut args.scratch[..len];
    pool.chunks(partials, it.partial_len(), &|task, partial| {
        partial.fill(0.0);
        let mut partial = it.partial(partial);
        for row in task.index * it.rows / it.slices..(task.index + 1) * it.rows / it.slices {
            it.row(&bodies, x, dy, row, &mut partial);
        }
    });
    let taps = it.taps();
    // Slice after slice, so that the order of the sum is fixed.
    for partial in partials.chunks_exact_mut(it.partial_len()) {
        let partial = it.partial(partial);
        for c in 0..s.channels {
            for (tap, dw) in args.dw[c * taps..][..taps].iter_mut().enumerate() {
                *dw += it.sum(partial.row, taps, tap, c, true) + it.sum(partial.position, taps, tap, c, false);
            }
        }
    }
    let Some(db) = args.db else { return };
    for partial in partials.chunks_exact_mut(it.partial_len()) {
        let partial = it.partial(partial);
        for (c, db) in db.iter_mut().enumerate() {
            *db += it.sum(partial.row_bias, 1, 0, c, true) + it.sum(partial.position_bias, 1, 0, c, false);
        }
    }
}
