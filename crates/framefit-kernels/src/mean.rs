//! The mean over frames and positions, one value per clip and channel.

use crate::real::Real;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// Frames of a window, averaged over frames and positions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeanShape {
    /// N.
    pub clips: usize,
    /// T, the frames held in x.
    pub frames: usize,
    /// P = H · W.
    pub positions: usize,
    /// C.
    pub channels: usize,
}

impl MeanShape {
    /// Elements of x.
    pub fn x_len(&self) -> usize {
        self.frames * self.clips * self.positions * self.channels
    }

    /// Elements of y.
    pub fn y_len(&self) -> usize {
        self.clips * self.channels
    }

    fn check(&self, x: usize, y: usize) {
        assert_eq!(x, self.x_len(), "x: {self:?}");
        assert_eq!(y, self.y_len(), "y: {self:?}");
    }
}

/// What the forward reads and writes.
#[derive(Debug)]
pub struct MeanForwardArgs<'a, E> {
    /// x: \[T, N, P, C\].
    pub x: &'a [E],
    /// 1/(T·P) of the whole clip; a window then adds its share.
    pub scale: E,
    /// Whether the share is added to y instead of overwriting it.
    pub accumulate: bool,
    /// y: \[N, C\].
    pub y: &'a mut [E],
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What the backward reads and writes.
#[derive(Debug)]
pub struct MeanBackwardArgs<'a, E> {
    /// dy: \[N, C\].
    pub dy: &'a [E],
    /// 1/(T·P) of the whole clip.
    pub scale: E,
    /// Whether the gradient is added to dx instead of overwriting it.
    pub accumulate: bool,
    /// dx: \[T, N, P, C\].
    pub dx: &'a mut [E],
}

kernel_row! {
    /// y (+)= scale · Σ x over frames and positions.
    ///
    /// Summed per frame in blocks of positions, then over frames in order.
    MeanForward, MeanShape, MeanForwardArgs
}
kernel_row! {
    /// dx (+)= scale · dy, for every frame and position.
    MeanBackward, MeanShape, MeanBackwardArgs
}

/// Channels summed together.
const LANES: usize = 32;

/// Positions summed before their sum joins the frame's: keeps rounding errors low.
const BLOCK: usize = 128;

fn forward_scratch(s: &MeanShape, _: usize) -> usize {
    s.frames * s.clips * s.channels
}

/// sums\[C\] = Σ over positions of x\[P, C\].
#[inline(always)]
fn sum_body<E: Real>(x: &[E], sums: &mut [E]) {
    let channels = sums.len();
    for (block, sums) in sums.chunks_mut(LANES).enumerate() {
        let mut total = [E::ZERO; LANES];
        for x in x.chunks(BLOCK * channels) {
            let mut part = [E::ZERO; LANES];
            for x in x.chunks_exact(channels) {
                let x = &x[block * LANES..];
                if let Some(x) = x.first_chunk::<LANES>() {
                    for (part, x) in part.iter_mut().zip(x) {
                        *part += *x;
                    }
                } else {
                    for (part, x) in part.iter_mut().zip(x) {
                        *part += *x;
                    }
                }
            }
            for (total, part) in total.iter_mut().zip(part) {
                *total += part;
            }
        }
        sums.copy_from_slice(&total[..sums.len()]);
    }
}

/// dx\[P, C\] (+)= scale · dy\[C\].
#[inline(always)]
fn spread_body<E: Real>(dy: &[E], scale: E, accumulate: bool, dx: &mut [E]) {
    for dx in dx.chunks_exact_mut(dy.len()) {
        if accumulate {
            for (dx, dy) in dx.iter_mut().zip(dy) {
                *dx += scale * *dy;
            }
        } else {
            for (dx, dy) in dx.iter_mut().zip(dy) {
                *dx = scale * *dy;
            }
        }
    }
}

fn forward<E: Real>(s: &MeanShape, args: MeanForwardArgs<'_, E>, pool: &Pool, body: impl Fn(&[E], &mut [E]) + Sync) {
    s.check(args.x.len(), args.y.len());
    let parts = &mut args.scratch[..forward_scratch(s, 1)];
    let x = args.x;
    let plane = s.positions * s.channels;
    pool.chunks(parts, s.channels, &|task, sums| body(&x[task.index * plane..][..plane], sums));
    for (i, y) in args.y.iter_mut().enumerate() {
        let sum: E = parts.iter().skip(i).step_by(s.clips * s.channels).copied().sum();
        let share = args.scale * sum;
        *y = if args.accumulate { *y + share } else { share };
    }
}

fn backward<E: Real>(
    s: &MeanShape,
    args: MeanBackwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&[E], E, bool, &mut [E]) + Sync,
) {
    s.check(args.dx.len(), args.dy.len());
    let (dy, scale, accumulate) = (args.dy, args.scale, args.accumulate);
    pool.chunks(args.dx, s.positions * s.channels, &|task, dx| {
        let clip = task.index % s.clips;
        body(&dy[clip * s.channels..][..s.channels], scale, accumulate, dx);
    });
}

compiled_tables! {
    FORWARD_F32, FORWARD_F64: MeanForward, scratch: forward_scratch,
    names: ["mean_forward_f32__avx512", "mean_forward_f32__avx2", "mean_forward_f32__scalar", "mean_forward_f64__scalar"],
    forward(sum_body: (x: &[f32], sums: &mut [f32]))
}

compiled_tables! {
    BACKWARD_F32, BACKWARD_F64: MeanBackward, scratch: no_scratch,
    names: ["mean_backward_f32__avx512", "mean_backward_f32__avx2", "mean_backward_f32__scalar", "mean_backward_f64__scalar"],
    backward(spread_body: (dy: &[f32], scale: f32, accumulate: bool, dx: &mut [f32]))
}
