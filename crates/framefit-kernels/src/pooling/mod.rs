//! Pooling over windows of time, height and width: maximum and average, strided and adaptive.

mod average;
mod geometry;
mod max;
mod shape;
#[cfg(target_arch = "x86_64")]
mod vector;

use crate::isa::Isa;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{any, kernel_row, no_scratch};
use crate::threads::Pool;
use geometry::{Geometry, Windows};

pub(crate) use average::{
    ADAPTIVE_BACKWARD_F32 as ADAPTIVE_AVG_BACKWARD_F32, ADAPTIVE_BACKWARD_F64 as ADAPTIVE_AVG_BACKWARD_F64,
    ADAPTIVE_FORWARD_F32 as ADAPTIVE_AVG_FORWARD_F32, ADAPTIVE_FORWARD_F64 as ADAPTIVE_AVG_FORWARD_F64,
    BACKWARD_F32 as AVG_BACKWARD_F32, BACKWARD_F64 as AVG_BACKWARD_F64, FORWARD_F32 as AVG_FORWARD_F32,
    FORWARD_F64 as AVG_FORWARD_F64,
};
pub use average::{
    AdaptiveAvgPoolBackward, AdaptiveAvgPoolForward, AvgPoolBackward, AvgPoolBackwardArgs, AvgPoolForward,
    AvgPoolForwardArgs,
};
pub use shape::{AdaptiveShape, AvgPoolShape, Divisor, PoolShape};

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
    /// As [`MaxPoolForward`] over adaptive windows: PyTorch's `AdaptiveMaxPool3d`.
    AdaptiveMaxPoolForward, AdaptiveShape, MaxPoolForwardArgs
}
kernel_row! {
    /// The gradient of each window goes to its first maximum in t, h, w order, or to its last NaN if it
    /// holds one. As PyTorch's `MaxPool3d`.
    MaxPoolBackward, PoolShape, MaxPoolBackwardArgs
}

kernel_row! {
    /// As [`MaxPoolBackward`] over adaptive windows.
    AdaptiveMaxPoolBackward, AdaptiveShape, MaxPoolBackwardArgs
}

fn forward<E: Real>(
    s: &Geometry,
    args: MaxPoolForwardArgs<'_, E>,
    pool: &Pool,
    row: impl Fn(&Geometry, &[E], usize, usize, usize, &mut [E]) + Sync,
) {
    assert_eq!(args.x.len(), s.x_len(), "x: {s:?}");
    assert_eq!(args.y.len(), s.y_len(), "y: {s:?}");
    let x = args.x;
    pool.chunks(args.y, s.output.w * s.channels, &|task, y_row| {
        let (frame, clip) = (task.index / (s.clips * s.output.h), task.index / s.output.h % s.clips);
        row(s, x, s.y.lo + frame, clip, task.index % s.output.h, y_row);
    });
}

fn backward<E: Real>(
    s: &Geometry,
    args: MaxPoolBackwardArgs<'_, E>,
    pool: &Pool,
    cell: impl Fn(&Geometry, &max::Backward<'_, E>, usize, &SharedMut<'_, E>) + Sync,
) {
    assert_eq!(args.x.len(), s.x_len(), "x: {s:?}");
    assert_eq!(args.dy.len(), s.y_len(), "dy: {s:?}");
    assert_eq!(args.dx.len(), s.x_len(), "dx: {s:?}");
    let dx = SharedMut::new(args.dx);
    let inputs = max::Backward { x: args.x, dy: args.dy, relu: args.relu, accumulate: args.accumulate };
    pool.run(max::cells(s), &|task| cell(s, &inputs, task.index, &dx));
}

fn forward_scalar<E: Real>(s: &impl Windows, args: MaxPoolForwardArgs<'_, E>, pool: &Pool) {
    forward(&s.geometry(), args, pool, max::forward_row);
}

fn backward_scalar<E: Real>(s: &impl Windows, args: MaxPoolBackwardArgs<'_, E>, pool: &Pool) {
    backward(&s.geometry(), args, pool, max::backward_cell);
}

/// The tables of one maximum pooling, its forward or its backward.
macro_rules! tables {
    (
        $f32:ident, $f64:ident: $row:ident, $vector:ident, $scalar:ident,
        names: [$avx512:literal, $avx2:literal, $scalar_f32:literal, $scalar_f64:literal]
    ) => {
        pub(crate) static $f32: &[$row<f32>] = &[
            #[cfg(target_arch = "x86_64")]
            $row {
                name: $avx512,
                isa: Isa::Avx512,
                handles: any,
                scratch: no_scratch,
                run: |s, args, pool| vector::$vector(Isa::Avx512, &s.geometry(), args, pool),
            },
            #[cfg(target_arch = "x86_64")]
            $row {
                name: $avx2,
                isa: Isa::Avx2,
                handles: any,
                scratch: no_scratch,
                run: |s, args, pool| vector::$vector(Isa::Avx2, &s.geometry(), args, pool),
            },
            $row { name: $scalar_f32, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: $scalar },
        ];
        pub(crate) static $f64: &[$row<f64>] =
            &[$row { name: $scalar_f64, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: $scalar }];
    };
}

tables! {
    FORWARD_F32, FORWARD_F64: MaxPoolForward, forward, forward_scalar,
    names: ["max_pool_forward_f32__avx512", "max_pool_forward_f32__avx2", "max_pool_forward_f32__scalar", "max_pool_forward_f64__scalar"]
}
tables! {
    BACKWARD_F32, BACKWARD_F64: MaxPoolBackward, backward, backward_scalar,
    names: ["max_pool_backward_f32__avx512", "max_pool_backward_f32__avx2", "max_pool_backward_f32__scalar", "max_pool_backward_f64__scalar"]
}
tables! {
    ADAPTIVE_MAX_FORWARD_F32, ADAPTIVE_MAX_FORWARD_F64: AdaptiveMaxPoolForward, forward, forward_scalar,
    names: ["adaptive_max_pool_forward_f32__avx512", "adaptive_max_pool_forward_f32__avx2", "adaptive_max_pool_forward_f32__scalar", "adaptive_max_pool_forward_f64__scalar"]
}
tables! {
    ADAPTIVE_MAX_BACKWARD_F32, ADAPTIVE_MAX_BACKWARD_F64: AdaptiveMaxPoolBackward, backward, backward_scalar,
    names: ["adaptive_max_pool_backward_f32__avx512", "adaptive_max_pool_backward_f32__avx2", "adaptive_max_pool_backward_f32__scalar", "adaptive_max_pool_backward_f64__scalar"]
}
