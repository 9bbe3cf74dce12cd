//! Forward and gradient by the input.

use super::body::{self, Bodies, Segment, Taps};
use super::{BLOCK, period, width};
use crate::conv::axis::{Axis, numbers, phases};
use crate::conv::{ConvForwardArgs, ConvInputGradientArgs, ConvShape};
use crate::isa::Isa;
use crate::shared::SharedMut;
use crate::threads::Pool;

/// A sum over taps, for every output position of three axes and every channel.
struct Product {
    t: Axis,
    h: Axis,
    w: Axis,
    clips: usize,
    channels: usize,
    in_lo: usize,
    in_height: usize,
    in_width: usize,
    out_lo: usize,
    out_height: usize,
    out_width: usize,
    kernel_h: usize,
    kernel_w: usize,
    kernel_volume: usize,
    /// Elements of a block.
    block: usize,
    /// Blocks after which weights repeat along a row; 0 where each position is a segment.
    row_periods: usize,
    /// Blocks of one position.
    position_periods: usize,
}

/// Packed weights and bias: \[periods\]\[taps\]\[block\] and \[periods\]\[block\].
#[derive(Clone, Copy)]
struct Packed<'a> {
    weights: &'a [f32],
    bias: &'a [f32],
    periods: usize,
}

impl Product {
    fn forward(isa: Isa, s: &ConvShape) -> Product {
        let [t, h, w] = numbers(s);
        let axes = [
            Axis::forward(t, s.y.lo..s.y.hi, s.input.t),
            Axis::forward(h, 0..s.output.h, s.input.h),
            Axis::forward(w, 0..s.output.w, s.input.w),
        ];
        Product::new(isa, s, axes)
    }

    fn input_gradient(isa: Isa, s: &ConvShape, phase: [usize; 3]) -> Product {
        let [t, h, w] = numbers(s);
        let axes = [
            Axis::backward(t, phase[0], s.x.lo..s.x.hi, s.y.lo..s.y.hi),
            Axis::backward(h, phase[1], 0..s.input.h, 0..s.output.h),
            Axis::backward(w, phase[2], 0..s.input.w, 0..s.output.w),
        ];
        let forward = Product::new(isa, s, axes);
        Product {
            in_lo: forward.out_lo,
            in_height: forward.out_height,
            in_width: forward.out_width,
            out_lo: forward.in_lo,
            out_height: forward.in_height,
            out_width: forward.in_width,
            ..forward
        }
    }

    fn new(isa: Isa, s: &ConvShape, [t, h, w]: [Axis; 3]) -> Product {
        let block = BLOCK * width(isa);
        let contiguous = w.in_step == 1 && w.out_step == 1 && s.channels < block;
        Product {
            t,
            h,
            w,
            clips: s.clips,
            channels: s.channels,
            in_lo: s.x.lo,
            in_height: s.input.h,
            in_width: s.input.w,
            out_lo: s.y.lo,
            out_height: s.output.h,
            out_width: s.output.w,
            kernel_h: s.kernel.h,
            kernel_w: s.kernel.w,
            kernel_volume: s.kernel.volume(),
            block,
            row_periods: if contiguous { period(s.channels, block) } else { 0 },
            position_periods: s.channels.div_ceil(block),
        }
    }

    fn taps(&self) -> usize {
        self.t.taps * self.h.taps * self.w.taps
    }

    /// Elements of the packed weights and bias of so many periods.
    fn packed_len(&self, periods: usize) -> [usize; 2] {
        [periods * self.taps() * self.block, periods * self.block]
    }

    fn scratch(&self) -> usize {
        let periods = [self.row_periods, self.position_periods];
        periods.into_iter().flat_map(|periods| self.packed_len(periods)).sum()
    }

    /// Packs weights and bias for `periods` blocks, channels repeating, and cuts them off `scratch`.
    fn pack<'a>(
        &self,
        periods: usize,
        w: &[f32],
        given: Option<&[f32]>,
        scratch: &'a mut [f32],
    ) -> (Packed<'a>, &'a mut [f32]) {
        let [weights_len, bias_len] = self.packed_len(periods);
        let (weights, scratch) = scratch.split_at_mut(weights_len);
        let (bias, scratch) = scratch.split_at_mut(bias_len);
        let mut rows = weights.chunks_exact_mut(self.block);
        for period in 0..periods {
            let first = period * self.block % self.channels;
            for jt in 0..self.t.taps {
                for jh in 0..self.h.taps {
                    for jw in 0..self.w.taps {
                        let row = (self.t.tap(jt) * self.kernel_h + self.h.tap(jh)) * self.kernel_w;
                        let tap = row + self.w.tap(jw);
                        let Some(row) = rows.next() else { continue };
                        let mut c = first;
                        for to in row {
                            *to = w[c * self.kernel_volume + tap];
                            c = if c + 1 == self.channels { 0 } else { c + 1 };
                        }
                    }
                }
            }
        }
        for (i, to) in bias.iter_mut().enumerate() {
            *to = given.map_or(0.0, |bias| bias[i % self.channels]);
        }
        (Packed { weights, bias, periods }, scratch)
    }

    fn run(&self, bodies: &Bodies, io: Io<'_>, scratch: &mut [f32], pool: &Pool) {
        let (row, scratch) = self.pack(self.row_periods, io.w, io.bias, scratch);
        let (position, _) = self.pack(self.position_periods, io.w, io.bias, scratch);
        let y = SharedMut::new(io.y);
        let rows = self.t.count * self.clips * self.h.count;
        pool.run(rows, &|task| {
            let work = Work { product: self, bodies, row, position, shared: io.shared, y: &y };
            work.row(task.index);
        });
    }
}

/// What a product reads and writes.
struct Io<'a> {
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    y: &'a mut [f32],
    shared: Shared<'a>,
}

#[derive(Clone, Copy)]
struct Shared<'a> {
    x: &'a [f32],
    relu: bool,
    accumulate: bool,
}

struct Work<'a> {
    product: &'a Product,
    bodies: &'a Bodies,
    row: Packed<'a>,
    position: Packed<'a>,
    shared: Shared<'a>,
    y: &'a SharedMut<'a, f32>,
}

impl Work<'_> {
    /// Computes one row of output positions.
    fn row(&self, row: usize) {
        let p = self.product;
        let (qh, clip, qt) = (row % p.h.count, row / p.h.count % p.clips, row / p.h.count / p.clips);
        let (taps_t, taps_h) = (p.t.valid_taps(qt), p.h.valid_taps(qh));
        let row_len = p.in_width * p.channels;
        let empty = taps_t.is_empty() || taps_h.is_empty() || p.w.taps == 0;
        let x_row = if empty {
            0
        } else {
            let t = p.t.input(qt) + (taps_t.start * p.t.in_dilation) as isize - p.in_lo as isize;
            let h = p.h.input(qh) + (taps_h.start * p.h.in_dilation) as isize;
            ((t as usize * p.clips + clip) * p.in_height + h as usize) * row_len
        };
        let y_row = {
            let t = p.t.out_first + qt * p.t.out_step - p.out_lo;
            let h = p.h.out_first + qh * p.h.out_step;
            ((t * p.clips + clip) * p.out_height + h) * p.out_width
        };
        let first_tap = if empty { 0 } else { (taps_t.start * p.h.taps + taps_h.start) * p.w.taps };
        let place = Place {
            x_row,
            y_row,
            first_tap,
            t: Taps {
                count: if empty { 0 } else { taps_t.len() },
                x_pitch: p.t.in_dilation * p.clips * p.in_height * row_len,
                w_pitch: p.h.taps * p.w.taps * p.block,
            },
            h: Taps { count: taps_h.len(), x_pitch: p.h.in_dilation * row_len, w_pitch: p.w.taps * p.block },
        };
        let interior = if p.row_periods > 0 { p.w.interior() } else { 0..0 };
        if !interior.is_empty() {
            self.segment(&place, self.row, interior.start, interior.len(), 0..p.w.taps);
        }
        for q in (0..interior.start).chain(interior.end..p.w.count) {
            self.segment(&place, self.position, q, 1, p.w.valid_taps(q));
        }
    }

    /// Computes `positions` positions from `q` on, which all read the columns of `taps`.
    fn segment(&self, place: &Place, packed: Packed<'_>, q: usize, positions: usize, taps: std::ops::Range<usize>) {
        let p = self.product;
        let len = positions * p.channels;
        let y = (place.y_row + p.w.out_first + q * p.w.out_step) * p.channels;
        assert!(y + len <= self.y.len());
        let column = p.w.input(q) + (taps.start * p.w.in_dilation) as isize;
        let x = place.x_row as isize + if taps.is_empty() { 0 } else { column * p.channels as isize };
        // SAFETY: valid taps of valid positions lie in the slab, so x is the address of the first of them, and
        // the pitches lead to the others. The outputs are asserted to lie in y; those of different tasks and
        // segments are disjoint. Weights and bias are [periods][taps][block] and [periods][block]. The bodies'
        // instruction set has been found.
        unsafe {
            (self.bodies.segment)(&Segment {
                x: self.shared.x.as_ptr().wrapping_offset(x),
                y: self.y.start().add(y),
                len,
                t: place.t,
                h: place.h,
                w: Taps { count: taps.len(), x_pitch: p.w.in_dilation * p.channels, w_pitch: p.block },
                weights: packed.weights.as_ptr().wrapping_add((place.first_tap + taps.start) * p.block),
                periods: packed.periods,
                period_pitch: p.taps() * p.block,
                bias: packed.bias.as_ptr(),
                relu: self.shared.relu,
                accumulate: self.shared.accumulate,
            });
        }
    }
}

/// One output row.
struct Place {
    /// Where the row of the first valid tap starts in x.
    x_row: usize,
    /// Positions before the row in y.
    y_row: usize,
    /// The first valid tap in time and height.
    first_tap: usize,
    t: Taps,
    h: Taps,
}

pub(in crate::conv) fn forward_scratch(isa: Isa, s: &ConvShape, _: usize) -> usize {
    Product::forward(isa, s).scratch()
}

pub(in crate::conv) fn forward(isa: Isa, s: &ConvShape, args: ConvForwardArgs<'_, f32>, pool: &Pool) {
    assert!(super::handles(s), "{s:?}");
    args.check(s, forward_scratch(isa, s, pool.threads()));
    let io = Io {
        w: args.w,
        bias: args.bias,
        y: args.y,
        shared: Shared { x: args.x, relu: args.relu, accumulate: args.accumulate },
    };
    Product::forward(isa, s).run(&body::of(isa), io, args.scratch, pool);
}

pub(in crate::conv) fn input_gradient_scratch(isa: Isa, s: &ConvShape, _: usize) -> usize {
    phases(s).map(|phase| Product::input_gradient(isa, s, phase).scratch()).max().unwrap_or(0)
}

pub(in crate::conv) fn input_gradient(isa: Isa, s: &ConvShape, args: ConvInputGradientArgs<'_, f32>, pool: &Pool) {
    assert!(super::handles(s), "{s:?}");
    args.check(s, input_gradient_scratch(isa, s, pool.threads()));
    for phase in phases(s) {
        let io = Io {
            w: args.w,
            bias: None,
            y: &mut *args.dx,
            shared: Shared { x: args.dy, relu: false, accumulate: args.accumulate },
        };
        Product::input_gradient(isa, s, phase).run(&body::of(isa), io, &mut *args.scratch, pool);
    }
}
