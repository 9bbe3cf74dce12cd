//! Which inputs an output covers, and which outputs cover an input, on each axis.

use std::ops::Range;

use crate::conv::{Dims3, Window};

/// The windows along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// Output o covers `o·stride − padding .. o·stride − padding + kernel`, clipped to `0..inputs`.
    Strided { kernel: usize, stride: usize, padding: usize, inputs: usize },
    /// Output o covers ⌊o·inputs/outputs⌋ .. ⌈(o+1)·inputs/outputs⌉.
    Adaptive { inputs: usize, outputs: usize },
}

impl Axis {
    /// The inputs that output `o` covers.
    #[inline(always)]
    pub(super) fn covered(&self, o: usize) -> Range<usize> {
        match *self {
            Axis::Strided { kernel, stride, padding, inputs } => {
                let lo = (o * stride).saturating_sub(padding);
                let hi = (o * stride + kernel).saturating_sub(padding).min(inputs);
                lo..hi.max(lo)
            }
            Axis::Adaptive { inputs, outputs } => o * inputs / outputs..((o + 1) * inputs).div_ceil(outputs),
        }
    }

    /// The outputs, of `of`, that cover an index of `inputs`.
    #[inline(always)]
    pub(super) fn covering(&self, inputs: &Range<usize>, of: Range<usize>) -> Range<usize> {
        if inputs.is_empty() || of.is_empty() {
            return 0..0;
        }
        let (lo, hi) = match *self {
            Axis::Strided { kernel, stride, padding, .. } => (
                (inputs.start + padding + 1).saturating_sub(kernel).div_ceil(stride),
                (inputs.end - 1 + padding) / stride + 1,
            ),
            Axis::Adaptive { inputs: n, outputs } => (inputs.start * outputs / n, (inputs.end * outputs).div_ceil(n)),
        };
        let lo = lo.max(of.start);
        lo..hi.min(of.end).max(lo)
    }

    /// The inputs that cell `cell` of `cells` owns: those from its window's start to the next cell's, the first and
    /// the last cell reaching to the ends of `held`.
    pub(super) fn owned(&self, cell: usize, cells: &Range<usize>, held: Range<usize>) -> Range<usize> {
        let border = |o: usize| {
            let start = match *self {
                Axis::Strided { stride, padding, .. } => (o * stride).saturating_sub(padding),
                Axis::Adaptive { inputs, outputs } => o * inputs / outputs.max(1),
            };
            start.clamp(held.start, held.end)
        };
        let lo = if cell == cells.start { held.start } else { border(cell) };
        let hi = if cell + 1 == cells.end { held.end } else { border(cell + 1) };
        lo..hi
    }

    /// The inputs that the outputs `y` cover.
    pub(super) fn reads(&self, y: Window) -> Window {
        if y.frames() == 0 {
            return Window { lo: 0, hi: 0 };
        }
        let (first, last) = (self.covered(y.lo), self.covered(y.hi - 1));
        Window { lo: first.start, hi: last.end }
    }
}

/// A pooling of any kind: sizes, the windows along each axis, and what the slabs hold.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    pub(super) clips: usize,
    pub(super) channels: usize,
    pub(super) input: Dims3,
    pub(super) output: Dims3,
    pub(super) t: Axis,
    pub(super) h: Axis,
    pub(super) w: Axis,
    pub(super) x: Window,
    pub(super) y: Window,
}

impl Geometry {
    pub(super) fn x_len(&self) -> usize {
        self.x.frames() * self.clips * self.input.h * self.input.w * self.channels
    }

    pub(super) fn y_len(&self) -> usize {
        self.y.frames() * self.clips * self.output.h * self.output.w * self.channels
    }

    /// Where row `h` of clip `n` of frame `t` starts in x.
    #[inline(always)]
    pub(super) fn x_row(&self, t: usize, n: usize, h: usize) -> usize {
        (((t - self.x.lo) * self.clips + n) * self.input.h + h) * self.input.w * self.channels
    }

    /// Where row `h` of clip `n` of output frame `t` starts in y.
    #[inline(always)]
    pub(super) fn y_row(&self, t: usize, n: usize, h: usize) -> usize {
        (((t - self.y.lo) * self.clips + n) * self.output.h + h) * self.output.w * self.channels
    }
}

/// A shape of a pooling.
pub(super) trait Windows {
    /// Panics unless the shape is consistent.
    fn geometry(&self) -> Geometry;
}
