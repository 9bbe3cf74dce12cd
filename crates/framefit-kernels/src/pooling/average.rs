//! The average over windows.

use super::geometry::{Axis, Geometry, Windows};
use super::{AdaptiveShape, AvgPoolShape, Divisor};
use crate::real::Real;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the forward reads and writes.
#[derive(Debug)]
pub struct AvgPoolForwardArgs<'a, E> {
    /// x: \[x.lo..x.hi, N, H, W, C\].
    pub x: &'a [E],
    /// y: \[y.lo..y.hi, N, H', W', C\], overwritten.
    pub y: &'a mut [E],
}

/// What the backward reads and writes.
#[derive(Debug)]
pub struct AvgPoolBackwardArgs<'a, E> {
    /// dy: \[y.lo..y.hi, N, H', W', C\]; frames outside `y` are taken as zero.
    pub dy: &'a [E],
    /// Whether the gradient is added to dx; otherwise all of dx is overwritten.
    pub accumulate: bool,
    /// dx: \[x.lo..x.hi, N, H, W, C\].
    pub dx: &'a mut [E],
}

kernel_row! {
    /// y = the sum over each window by its divisor. As PyTorch's `AvgPool3d`.
    AvgPoolForward, AvgPoolShape, AvgPoolForwardArgs
}
kernel_row! {
    /// dx (+)= the sum of dy by its divisor over the windows that cover each input.
    AvgPoolBackward, AvgPoolShape, AvgPoolBackwardArgs
}
kernel_row! {
    /// y = the mean over each window. As PyTorch's `AdaptiveAvgPool3d`.
    AdaptiveAvgPoolForward, AdaptiveShape, AvgPoolForwardArgs
}
kernel_row! {
    /// dx (+)= the sum of dy by the window's size over the windows that cover each input.
    AdaptiveAvgPoolBackward, AdaptiveShape, AvgPoolBackwardArgs
}

/// A pooling and what its sums are divided by.
pub(super) trait Averages: Windows {
    fn divisor(&self) -> Divisor;
}

impl Averages for AvgPoolShape {
    fn divisor(&self) -> Divisor {
        self.divisor
    }
}

impl Averages for AdaptiveShape {
    fn divisor(&self) -> Divisor {
        Divisor::Inputs
    }
}

struct Average {
    geometry: Geometry,
    divisor: Divisor,
}

impl Average {
    /// What the divisor counts of output `o` along one axis.
    #[inline(always)]
    fn count(&self, axis: &Axis, o: usize) -> usize {
        match (self.divisor, *axis) {
            (Divisor::WithPadding, Axis::Strided { kernel, stride, padding, inputs }) => {
                // In coordinates that begin with the padding.
                (o * stride + kernel).min(inputs + 2 * padding) - o * stride
            }
            _ => axis.covered(o).len(),
        }
    }

    /// 1/divisor of an output whose frame and row count `count`.
    #[inline(always)]
    fn factor<E: Real>(&self, count: usize, ow: usize) -> E {
        let divisor = match self.divisor {
            Divisor::WithPadding | Divisor::Inputs => count * self.count(&self.geometry.w, ow),
            Divisor::Fixed(divisor) => divisor,
        };
        E::from_f64(1.0 / divisor as f64)
    }
}

/// A row of a frame of a clip.
#[derive(Clone, Copy)]
struct RowOf {
    t: usize,
    clip: usize,
    h: usize,
}

/// One output row: y\[W', C\].
#[inline(always)]
fn forward_row<E: Real>(s: &Average, x: &[E], of: RowOf, y: &mut [E]) {
    let g = &s.geometry;
    let channels = g.channels;
    let count = s.count(&g.t, of.t) * s.count(&g.h, of.h);
    y.fill(E::ZERO);
    for t in g.t.covered(of.t) {
        for h in g.h.covered(of.h) {
            let row = &x[g.x_row(t, of.clip, h)..][..g.input.w * channels];
            for (ow, y) in y.chunks_exact_mut(channels).enumerate() {
                let w = g.w.covered(ow);
                for x in row[w.start * channels..w.end * channels].chunks_exact(channels) {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y += *x;
                    }
                }
            }
        }
    }
    for (ow, y) in y.chunks_exact_mut(channels).enumerate() {
        let factor = s.factor::<E>(count, ow);
        for y in y {
            *y *= factor;
        }
    }
}

/// One input row: dx\[W, C\].
#[inline(always)]
fn backward_row<E: Real>(s: &Average, dy: &[E], accumulate: bool, of: RowOf, dx: &mut [E]) {
    let g = &s.geometry;
    let channels = g.channels;
    if !accumulate {
        dx.fill(E::ZERO);
    }
    for ot in g.t.covering(&(of.t..of.t + 1), g.y.lo..g.y.hi) {
        for oh in g.h.covering(&(of.h..of.h + 1), 0..g.output.h) {
            let count = s.count(&g.t, ot) * s.count(&g.h, oh);
            let row = &dy[g.y_row(ot, of.clip, oh)..][..g.output.w * channels];
            for (ow, dy) in row.chunks_exact(channels).enumerate() {
                let factor = s.factor::<E>(count, ow);
                let w = g.w.covered(ow);
                for dx in dx[w.start * channels..w.end * channels].chunks_exact_mut(channels) {
                    for (dx, dy) in dx.iter_mut().zip(dy) {
                        *dx += factor * *dy;
                    }
                }
            }
        }
    }
}

fn forward<E: Real>(
    s: &impl Averages,
    args: AvgPoolForwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&Average, &[E], RowOf, &mut [E]) + Sync,
) {
    let s = Average { geometry: s.geometry(), divisor: s.divisor() };
    let g = &s.geometry;
    assert_eq!(args.x.len(), g.x_len(), "x: {g:?}");
    assert_eq!(args.y.len(), g.y_len(), "y: {g:?}");
    pool.chunks(args.y, g.output.w * g.channels, &|task, y| {
        let (frame, clip) = (task.index / (g.clips * g.output.h), task.index / g.output.h % g.clips);
        body(&s, args.x, RowOf { t: g.y.lo + frame, clip, h: task.index % g.output.h }, y);
    });
}

fn backward<E: Real>(
    s: &impl Averages,
    args: AvgPoolBackwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&Average, &[E], bool, RowOf, &mut [E]) + Sync,
) {
    let s = Average { geometry: s.geometry(), divisor: s.divisor() };
    let g = &s.geometry;
    assert_eq!(args.dy.len(), g.y_len(), "dy: {g:?}");
    assert_eq!(args.dx.len(), g.x_len(), "dx: {g:?}");
    pool.chunks(args.dx, g.input.w * g.channels, &|task, dx| {
        let (frame, clip) = (task.index / (g.clips * g.input.h), task.index / g.input.h % g.clips);
        body(&s, args.dy, args.accumulate, RowOf { t: g.x.lo + frame, clip, h: task.index % g.input.h }, dx);
    });
}

compiled_tables! {
    FORWARD_F32, FORWARD_F64: AvgPoolForward, scratch: no_scratch,
    names: ["avg_pool_forward_f32__avx512", "avg_pool_forward_f32__avx2", "avg_pool_forward_f32__scalar", "avg_pool_forward_f64__scalar"],
    forward(forward_row: (s: &Average, x: &[f32], of: RowOf, y: &mut [f32]))
}

compiled_tables! {
    BACKWARD_F32, BACKWARD_F64: AvgPoolBackward, scratch: no_scratch,
    names: ["avg_pool_backward_f32__avx512", "avg_pool_backward_f32__avx2", "avg_pool_backward_f32__scalar", "avg_pool_backward_f64__scalar"],
    backward(backward_row: (s: &Average, dy: &[f32], accumulate: bool, of: RowOf, dx: &mut [f32]))
}

compiled_tables! {
    ADAPTIVE_FORWARD_F32, ADAPTIVE_FORWARD_F64: AdaptiveAvgPoolForward, scratch: no_scratch,
    names: ["adaptive_avg_pool_forward_f32__avx512", "adaptive_avg_pool_forward_f32__avx2", "adaptive_avg_pool_forward_f32__scalar", "adaptive_avg_pool_forward_f64__scalar"],
    forward(forward_row: (s: &Average, x: &[f32], of: RowOf, y: &mut [f32]))
}

compiled_tables! {
    ADAPTIVE_BACKWARD_F32, ADAPTIVE_BACKWARD_F64: AdaptiveAvgPoolBackward, scratch: no_scratch,
    names: ["adaptive_avg_pool_backward_f32__avx512", "adaptive_avg_pool_backward_f32__avx2", "adaptive_avg_pool_backward_f32__scalar", "adaptive_avg_pool_backward_f64__scalar"],
    backward(backward_row: (s: &Average, dy: &[f32], accumulate: bool, of: RowOf, dx: &mut [f32]))
}
