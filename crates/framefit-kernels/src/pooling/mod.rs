//! Maximum over windows of time, height and width.

mod max;
#[cfg(target_arch = "x86_64")]
mod vector;

use crate::conv::{Dims3, Window, extent, reads};
use crate::isa::Isa;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{any, kernel_row, no_scratch};
use crate::threads::Pool;

/// One pooling over the output frames `y.lo..y.hi`.
///
/// x: \[x.lo..x.hi, N, H, W, C\] → y: \[y.lo..y.hi, N, H', W', C\]
///
/// Output o covers the inputs `o·s − p + j` for j in `0..k`, on each axis; what lies outside the clip is −∞.
/// p is at most k/2. The slab x must hold every frame that the outputs `y.lo..y.hi` cover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// N.
    pub clips: usize,
    /// C.
    pub channels: usize,
    /// T, H, W of the whole clip.
    pub input: Dims3,
    /// T', H', W' of the whole clip.
    pub output: Dims3,
    /// k.
    pub kernel: Dims3,
    /// s.
    pub stride: Dims3,
    /// p, on both sides.
    pub padding: Dims3,
    /// The input frames held in x.
    pub x: Window,
    /// The output frames held in y.
    pub y: Window,
}

impl PoolShape {
    /// The output sizes, rounded down as PyTorch's without `ceil_mode`.
    pub fn output_of(input: Dims3, kernel: Dims3, stride: Dims3, padding: Dims3) -> Dims3 {
        Dims3 {
            t: extent(input.t, kernel.t, stride.t, padding.t, 1),
            h: extent(input.h, kernel.h, stride.h, padding.h, 1),
            w: extent(input.w, kernel.w, stride.w, padding.w, 1),
        }
    }

    /// The input frames that the outputs `y` cover.
    pub fn reads(&self) -> Window {
        reads(self.input.t, self.y, self.kernel.t, self.stride.t, self.padding.t, 1)
    }

    /// Elements of the slab x.
    pub fn x_len(&self) -> usize {
        self.x.frames() * self.clips * self.input.h * self.input.w * self.channels
    }

    /// Elements of the slab y.
    pub fn y_len(&self) -> usize {
        self.y.frames() * self.clips * self.output.h * self.output.w * self.channels
    }

    fn check(&self) {
        let each = |d: Dims3| d.t >= 1 && d.h >= 1 && d.w >= 1;
        let half = |p: usize, k: usize| 2 * p <= k;
        assert!(each(self.kernel) && each(self.stride), "{self:?}");
        assert!(
            half(self.padding.t, self.kernel.t)
                && half(self.padding.h, self.kernel.h)
                && half(self.padding.w, self.kernel.w),
            "padding must be at most half the kernel: {self:?}"
        );
        let output = Self::output_of(self.input, self.kernel, self.stride, self.padding);
        assert!(output == self.output, "the output must be {output:?}: {self:?}");
        assert!(self.x.lo <= self.x.hi && self.x.hi <= self.input.t, "x leaves the clip: {self:?}");
        assert!(self.y.lo <= self.y.hi && self.y.hi <= self.output.t, "y leaves the clip: {self:?}");
        let reads = self.reads();
        assert!(
            reads.frames() == 0 || (self.x.lo <= reads.lo && reads.hi <= self.x.hi),
            "y covers {reads:?}, which x does not hold: {self:?}"
        );
    }
}

/// What the forward reads and writes.
#[derive(Debug)]
pub struct MaxPoolForwardArgs<'a, E> {
    /// x: \[x.lo..x.hi, N, H, W, C\].
    pub x: &'a [E],
    /// y: \[y.lo..y.hi, N, H', W', C\], overwritten.
    pub y: &'a mut [E],
}

/// What the backward reads and writes.
#[derive(Debug)]
pub struct MaxPoolBackwardArgs<'a, E> {
    /// x: \[x.lo..x.hi, N, H, W, C\]; the maxima are found again in it.
    pub x: &'a [E],
    /// dy: \[y.lo..y.hi, N, H', W', C\]; frames outside `y` are taken as zero.
    pub dy: &'a [E],
    /// Whether the gradient goes to maxima above zero only: x is the output of a ReLU, and dx becomes the
    /// gradient of that ReLU's input.
    pub relu: bool,
    /// Whether the gradient is added to dx; otherwise all of dx is overwritten.
    pub accumulate: bool,
    /// dx: \[x.lo..x.hi, N, H, W, C\].
    pub dx: &'a mut [E],
}

kernel_row! {
    /// y = the maximum over each window; NaN if the window holds one. As PyTorch's `MaxPool3d`.
    MaxPoolForward, PoolShape, MaxPoolForwardArgs
}
kernel_row! {
    /// The gradient of each window goes to its first maximum in t, h, w order, or to its last NaN if it
    /// holds one. As PyTorch's `MaxPool3d`.
    MaxPoolBackward, PoolShape, MaxPoolBackwardArgs
}

fn forward<E: Real>(
    s: &PoolShape,
    args: MaxPoolForwardArgs<'_, E>,
    pool: &Pool,
    row: impl Fn(&PoolShape, &[E], usize, usize, usize, &mut [E]) + Sync,
) {
    s.check();
    assert_eq!(args.x.len(), s.x_len(), "x: {s:?}");
    assert_eq!(args.y.len(), s.y_len(), "y: {s:?}");
    let x = args.x;
    pool.chunks(args.y, s.output.w * s.channels, &|task, y_row| {
        let (frame, clip) = (task.index / (s.clips * s.output.h), task.index / s.output.h % s.clips);
        row(s, x, s.y.lo + frame, clip, task.index % s.output.h, y_row);
    });
}

fn backward<E: Real>(
    s: &PoolShape,
    args: MaxPoolBackwardArgs<'_, E>,
    pool: &Pool,
    cell: impl Fn(&PoolShape, &max::Backward<'_, E>, usize, &SharedMut<'_, E>) + Sync,
) {
    s.check();
    assert_eq!(args.x.len(), s.x_len(), "x: {s:?}");
    assert_eq!(args.dy.len(), s.y_len(), "dy: {s:?}");
    assert_eq!(args.dx.len(), s.x_len(), "dx: {s:?}");
    let dx = SharedMut::new(args.dx);
    let inputs = max::Backward { x: args.x, dy: args.dy, relu: args.relu, accumulate: args.accumulate };
    pool.run(max::cells(s), &|task| cell(s, &inputs, task.index, &dx));
}

fn forward_scalar<E: Real>(s: &PoolShape, args: MaxPoolForwardArgs<'_, E>, pool: &Pool) {
    forward(s, args, pool, max::forward_row);
}

fn backward_scalar<E: Real>(s: &PoolShape, args: MaxPoolBackwardArgs<'_, E>, pool: &Pool) {
    backward(s, args, pool, max::backward_cell);
}

macro_rules! row {
    ($row:ident, $name:literal, $isa:expr, $run:expr) => {
        $row { name: $name, isa: $isa, handles: any, scratch: no_scratch, run: $run }
    };
}

pub(crate) static FORWARD_F32: &[MaxPoolForward<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    row!(MaxPoolForward, "max_pool_forward_f32__avx512", Isa::Avx512, |s, args, pool| vector::forward(
        Isa::Avx512,
        s,
        args,
        pool
    )),
    #[cfg(target_arch = "x86_64")]
    row!(MaxPoolForward, "max_pool_forward_f32__avx2", Isa::Avx2, |s, args, pool| vector::forward(
        Isa::Avx2,
        s,
        args,
        pool
    )),
    row!(MaxPoolForward, "max_pool_forward_f32__scalar", Isa::Scalar, forward_scalar),
];
pub(crate) static FORWARD_F64: &[MaxPoolForward<f64>] =
    &[row!(MaxPoolForward, "max_pool_forward_f64__scalar", Isa::Scalar, forward_scalar)];
pub(crate) static BACKWARD_F32: &[MaxPoolBackward<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    row!(MaxPoolBackward, "max_pool_backward_f32__avx512", Isa::Avx512, |s, args, pool| vector::backward(
        Isa::Avx512,
        s,
        args,
        pool
    )),
    #[cfg(target_arch = "x86_64")]
    row!(MaxPoolBackward, "max_pool_backward_f32__avx2", Isa::Avx2, |s, args, pool| vector::backward(
        Isa::Avx2,
        s,
        args,
        pool
    )),
    row!(MaxPoolBackward, "max_pool_backward_f32__scalar", Isa::Scalar, backward_scalar),
];
pub(crate) static BACKWARD_F64: &[MaxPoolBackward<f64>] =
    &[row!(MaxPoolBackward, "max_pool_backward_f64__scalar", Isa::Scalar, backward_scalar)];
