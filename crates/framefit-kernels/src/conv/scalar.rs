//! The plain convolutions: the reference for every other row.

use super::{ConvForwardArgs, ConvInputGradientArgs, ConvShape, ConvWeightGradientArgs};
use crate::real::Real;
use crate::threads::Pool;

/// The input index that output `o` reads at tap `j`, unless it is padding.
fn reads(o: usize, j: usize, s: usize, p: usize, d: usize, n: usize) -> Option<usize> {
    (o * s + d * j).checked_sub(p).filter(|i| *i < n)
}

/// The output index that reads input `i` at tap `j`, if there is one.
fn read_by(i: usize, j: usize, s: usize, p: usize, d: usize, n: usize) -> Option<usize> {
    let scaled = (i + p).checked_sub(d * j)?;
    (scaled.is_multiple_of(s) && scaled / s < n).then_some(scaled / s)
}

/// The (frame, clip, row) that index `index` of a slab's rows names.
fn row(index: usize, clips: usize, height: usize) -> (usize, usize, usize) {
    (index / (clips * height), index / height % clips, index % height)
}

pub(super) fn forward<E: Real>(shape: &ConvShape, args: ConvForwardArgs<'_, E>, pool: &Pool) {
    args.check(shape, 0);
    let s = shape;
    let (x, w) = (args.x, args.w);
    let (group_c, group_k) = (s.group_channels(), s.group_out_channels());
    pool.chunks(args.y, s.output.w * s.out_channels, &|task, y_row| {
        let (frame, clip, oh) = row(task.index, s.clips, s.output.h);
        let ot = s.y.lo + frame;
        for (ow, y) in y_row.chunks_exact_mut(s.out_channels).enumerate() {
            for (k, y) in y.iter_mut().enumerate() {
                let mut sum = args.bias.map_or(E::ZERO, |bias| bias[k]);
                if args.accumulate {
                    sum += *y;
                }
                for_taps(s, |tap, jt, jh, jw| {
                    let (Some(it), Some(ih), Some(iw)) = (
                        reads(ot, jt, s.stride.t, s.padding.t, s.dilation.t, s.input.t),
                        reads(oh, jh, s.stride.h, s.padding.h, s.dilation.h, s.input.h),
                        reads(ow, jw, s.stride.w, s.padding.w, s.dilation.w, s.input.w),
                    ) else {
                        return;
                    };
                    let at = x_at(s, it, clip, ih, iw) + k / group_k * group_c;
                    let xs = &x[at..at + group_c];
                    let ws = &w[(k * s.kernel.volume() + tap) * group_c..][..group_c];
                    for (x, w) in xs.iter().zip(ws) {
                        sum += *x * *w;
                    }
                });
                *y = if args.relu && sum < E::ZERO { E::ZERO } else { sum };
            }
        }
    });
}

pub(super) fn input_gradient<E: Real>(shape: &ConvShape, args: ConvInputGradientArgs<'_, E>, pool: &Pool) {
    args.check(shape, 0);
    let s = shape;
    let (dy, w) = (args.dy, args.w);
    let (group_c, group_k) = (s.group_channels(), s.group_out_channels());
    pool.chunks(args.dx, s.input.w * s.channels, &|task, dx_row| {
        let (frame, clip, ih) = row(task.index, s.clips, s.input.h);
        let it = s.x.lo + frame;
        for (iw, dx) in dx_row.chunks_exact_mut(s.channels).enumerate() {
            if !args.accumulate {
                dx.fill(E::ZERO);
            }
            for_taps(s, |tap, jt, jh, jw| {
                let (Some(ot), Some(oh), Some(ow)) = (
                    read_by(it, jt, s.stride.t, s.padding.t, s.dilation.t, s.output.t),
                    read_by(ih, jh, s.stride.h, s.padding.h, s.dilation.h, s.output.h),
                    read_by(iw, jw, s.stride.w, s.padding.w, s.dilation.w, s.output.w),
                ) else {
                    return;
                };
                if !s.y.contains(ot) {
                    return;
                }
                let at = y_at(s, ot, clip, oh, ow);
                for (k, dy) in dy[at..at + s.out_channels].iter().enumerate() {
                    let ws = &w[(k * s.kernel.volume() + tap) * group_c..][..group_c];
                    let dxs = &mut dx[k / group_k * group_c..][..group_c];
                    for (dx, w) in dxs.iter_mut().zip(ws) {
                        *dx += *dy * *w;
                    }
                }
            });
        }
    });
}

pub(super) fn weight_gradient<E: Real>(shape: &ConvShape, args: ConvWeightGradientArgs<'_, E>, pool: &Pool) {
    args.check(shape, 0);
    let s = shape;
    let (x, dy) = (args.x, args.dy);
    let (group_c, group_k) = (s.group_channels(), s.group_out_channels());
    pool.chunks(args.dw, group_c, &|task, dw| {
        let (k, tap) = (task.index / s.kernel.volume(), task.index % s.kernel.volume());
        let (jt, jh, jw) = (tap / (s.kernel.h * s.kernel.w), tap / s.kernel.w % s.kernel.h, tap % s.kernel.w);
        for_outputs(s, |ot, clip, oh, ow| {
            let (Some(it), Some(ih), Some(iw)) = (
                reads(ot, jt, s.stride.t, s.padding.t, s.dilation.t, s.input.t),
                reads(oh, jh, s.stride.h, s.padding.h, s.dilation.h, s.input.h),
                reads(ow, jw, s.stride.w, s.padding.w, s.dilation.w, s.input.w),
            ) else {
                return;
            };
            let dy = dy[y_at(s, ot, clip, oh, ow) + k];
            let at = x_at(s, it, clip, ih, iw) + k / group_k * group_c;
            for (dw, x) in dw.iter_mut().zip(&x[at..at + group_c]) {
                *dw += dy * *x;
            }
        });
    });
    if let Some(db) = args.db {
        pool.chunks(db, 1, &|task, db| {
            for dy in dy.chunks_exact(s.out_channels) {
                db[0] += dy[task.index];
            }
        });
    }
}

/// Where \[frame, clip, row, column, 0\] lies in x.
fn x_at(s: &ConvShape, t: usize, n: usize, h: usize, w: usize) -> usize {
    ((((t - s.x.lo) * s.clips + n) * s.input.h + h) * s.input.w + w) * s.channels
}

/// Where \[frame, clip, row, column, 0\] lies in y.
fn y_at(s: &ConvShape, t: usize, n: usize, h: usize, w: usize) -> usize {
    ((((t - s.y.lo) * s.clips + n) * s.output.h + h) * s.output.w + w) * s.out_channels
}

/// Calls `visit(tap, jt, jh, jw)` for every tap of the kernel.
fn for_taps(s: &ConvShape, mut visit: impl FnMut(usize, usize, usize, usize)) {
    let mut tap = 0;
    for jt in 0..s.kernel.t {
        for jh in 0..s.kernel.h {
            for jw in 0..s.kernel.w {
                visit(tap, jt, jh, jw);
                tap += 1;
            }
        }
    }
}

/// Calls `visit(frame, clip, row, column)` for every output of the window.
fn for_outputs(s: &ConvShape, mut visit: impl FnMut(usize, usize, usize, usize)) {
    for ot in s.y.lo..s.y.hi {
        for clip in 0..s.clips {
            for oh in 0..s.output.h {
                for ow in 0..s.output.w {
                    visit(ot, clip, oh, ow);
                }
            }
        }
    }
}
