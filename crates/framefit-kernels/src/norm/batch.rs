//! BatchNorm: applying it, and its gradients.

use super::ChannelShape;
use super::columns::{LANES, period, sums, task_rows};
use crate::channels::Pattern;
use crate::real::Real;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What scaling and shifting channels reads and writes.
#[derive(Debug)]
pub struct ScaleShiftArgs<'a, E> {
    /// x: \[rows, C\]; when absent y holds it, and `accumulate` must be false.
    pub x: Option<&'a [E]>,
    /// a: \[C\].
    pub scale: &'a [E],
    /// b: \[C\]; zero when absent.
    pub shift: Option<&'a [E]>,
    /// Whether the ReLU is applied to the result; `accumulate` must then be false.
    pub relu: bool,
    /// Whether the result is added to y instead of overwriting it.
    pub accumulate: bool,
    /// y: \[rows, C\].
    pub y: &'a mut [E],
}

/// What the sums of BatchNorm's backward read and write.
#[derive(Debug)]
pub struct BatchNormSumsArgs<'a, E> {
    /// x: \[rows, C\].
    pub x: &'a [E],
    /// dy: \[rows, C\].
    pub dy: &'a [E],
    /// \[C\].
    pub mean: &'a [E],
    /// \[C\].
    pub inv_std: &'a [E],
    /// \[2, C\]: Σ dy, which is the gradient of β, and Σ dy · x̂, which is that of γ, are added.
    pub sums: &'a mut [f64],
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What BatchNorm's gradient by its input reads and writes.
#[derive(Debug)]
pub struct BatchNormInputGradientArgs<'a, E> {
    /// x: \[rows, C\].
    pub x: &'a [E],
    /// dy: \[rows, C\].
    pub dy: &'a [E],
    /// a, b, d: \[3, C\], as [`GradientMeans::coefficients`] makes them.
    pub coefficients: &'a [E],
    /// Whether the gradient is added to dx instead of overwriting it.
    pub accumulate: bool,
    /// dx: \[rows, C\].
    pub dx: &'a mut [E],
}

kernel_row! {
    /// y (+)= relu?(x · a\[c\] + b\[c\]).
    ///
    /// With a = γ · inv_std and b = β − mean · a it is BatchNorm; with the same a, without b, and dy for x, its
    /// gradient by the input where the statistics are frozen.
    ScaleShift, ChannelShape, ScaleShiftArgs
}
kernel_row! {
    /// The sums that BatchNorm's backward needs of all windows before it can give the gradient of any.
    BatchNormSums, ChannelShape, BatchNormSumsArgs
}
kernel_row! {
    /// dx (+)= a\[c\] · dy + b\[c\] + d\[c\] · x, where the statistics are those of x.
    BatchNormInputGradient, ChannelShape, BatchNormInputGradientArgs
}

/// Means over all that a mean and an inv_std were taken of: what the gradient by the input is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientMeans {
    /// Of x.
    pub mean: f64,
    /// 1/√(variance + eps) of x.
    pub inv_std: f64,
    /// Of γ · dy.
    pub dy: f64,
    /// Of γ · dy · x̂.
    pub product: f64,
}

impl GradientMeans {
    /// a, b, d of a channel with this γ, so that a · dy + b + d · x is
    /// inv_std · (γ · dy − mean(γ · dy) − x̂ · mean(γ · dy · x̂)).
    pub fn coefficients(&self, gamma: f64) -> [f64; 3] {
        let d = -self.inv_std * self.inv_std * self.product;
        [gamma * self.inv_std, -self.inv_std * self.dy - d * self.mean, d]
    }
}

/// Elements of one task, about.
const CHUNK: usize = 16 * 1024;

fn chunk(s: &ChannelShape) -> usize {
    (CHUNK / s.channels.max(1)).max(1) * s.channels
}

/// What becomes of a · x + b.
#[derive(Clone, Copy)]
struct Then {
    relu: bool,
    accumulate: bool,
}

/// y (+)= relu?(a · x + b) over whole rows.
#[inline(always)]
fn scale_shift_body<E: Real>(p: &Pattern<E, 2>, x: Option<&[E]>, then: Then, y: &mut [E]) {
    let rectified = |v: E| if then.relu && v < E::ZERO { E::ZERO } else { v };
    let [scale, shift] = &p.values;
    for part in p.parts(y.len()) {
        let y = &mut y[part.clone()];
        match x {
            None => {
                for ((y, a), b) in y.iter_mut().zip(scale).zip(shift) {
                    *y = rectified(*y * *a + *b);
                }
            }
            Some(x) if then.accumulate => {
                for (((y, x), a), b) in y.iter_mut().zip(&x[part]).zip(scale).zip(shift) {
                    *y += *x * *a + *b;
                }
            }
            Some(x) => {
                for (((y, x), a), b) in y.iter_mut().zip(&x[part]).zip(scale).zip(shift) {
                    *y = rectified(*x * *a + *b);
                }
            }
        }
    }
}

fn scale_shift<E: Real>(
    s: &ChannelShape,
    args: ScaleShiftArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&Pattern<E, 2>, Option<&[E]>, Then, &mut [E]) + Sync,
) {
    assert!(args.x.is_none_or(|x| x.len() == s.len()), "x: {s:?}");
    assert!(args.x.is_some() || !args.accumulate, "y cannot hold x and be added to");
    assert!(!(args.relu && args.accumulate), "the ReLU of what is added to y is not that of the sum");
    assert_eq!(args.scale.len(), s.channels, "scale: {s:?}");
    assert!(args.shift.is_none_or(|shift| shift.len() == s.channels), "shift: {s:?}");
    assert_eq!(args.y.len(), s.len(), "y: {s:?}");
    let chunk = chunk(s);
    let then = Then { relu: args.relu, accumulate: args.accumulate };
    pool.chunks(args.y, chunk, &|task, y| {
        let x = args.x.map(|x| &x[task.index * chunk..][..y.len()]);
        for first in Pattern::<E, 2>::runs(s.channels) {
            let pattern = Pattern::new(s.channels, first, |channels, [scale, shift]| {
                scale[..channels.len()].copy_from_slice(&args.scale[channels.clone()]);
                if let Some(b) = args.shift {
                    shift[..channels.len()].copy_from_slice(&b[channels]);
                }
            });
            body(&pattern, x, then, y);
        }
    });
}

fn sums_scratch(s: &ChannelShape, _: usize) -> usize {
    s.rows.div_ceil(task_rows(s.channels)) * 2 * s.channels
}

/// What the sums read of one task's rows.
struct SumsOf<'a, E> {
    x: &'a [E],
    dy: &'a [E],
    mean: &'a [E],
    inv_std: &'a [E],
}

/// parts: \[2, C\] = Σ dy, Σ dy · x̂.
#[inline(always)]
fn sums_body<E: Real>(of: SumsOf<'_, E>, parts: &mut [E]) {
    let channels = of.mean.len();
    let width = period(channels);
    parts.fill(E::ZERO);
    for first in (0..width).step_by(LANES) {
        let mut mean = [E::ZERO; LANES];
        for (j, mean) in mean.iter_mut().enumerate() {
            *mean = of.mean[(first + j) % channels];
        }
        let [plain, product] = sums(of.x, of.dy, width, first, |j, x, dy| [dy, dy * (x - mean[j])]);
        for j in 0..LANES {
            let c = (first + j) % channels;
            parts[c] += plain[j];
            parts[channels + c] += product[j];
        }
    }
    for (product, inv_std) in parts[channels..].iter_mut().zip(of.inv_std) {
        *product *= *inv_std;
    }
}

fn batch_norm_sums<E: Real>(
    s: &ChannelShape,
    args: BatchNormSumsArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(SumsOf<'_, E>, &mut [E]) + Sync,
) {
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert_eq!(args.dy.len(), s.len(), "dy: {s:?}");
    assert_eq!(args.mean.len(), s.channels, "mean: {s:?}");
    assert_eq!(args.inv_std.len(), s.channels, "inv_std: {s:?}");
    assert_eq!(args.sums.len(), 2 * s.channels, "sums: {s:?}");
    if s.is_empty() {
        return;
    }
    let step = task_rows(s.channels) * s.channels;
    let parts = &mut args.scratch[..sums_scratch(s, 1)];
    let (x, dy, mean, inv_std) = (args.x, args.dy, args.mean, args.inv_std);
    pool.chunks(parts, 2 * s.channels, &|task, parts| {
        let range = task.index * step..(task.index * step + step).min(x.len());
        body(SumsOf { x: &x[range.clone()], dy: &dy[range], mean, inv_std }, parts);
    });
    for parts in parts.chunks_exact(2 * s.channels) {
        for (sum, part) in args.sums.iter_mut().zip(parts) {
            *sum += part.to_f64();
        }
    }
}

/// The numbers of a channel: a, b, d.
#[inline(always)]
fn input_gradient_body<E: Real>(p: &Pattern<E, 3>, x: &[E], dy: &[E], accumulate: bool, dx: &mut [E]) {
    for part in p.parts(dx.len()) {
        let n = part.len();
        let (x, dy, dx) = (&x[part.clone()], &dy[part.clone()], &mut dx[part]);
        let [a, b, d] = &p.values;
        let (a, b, d) = (&a[..n], &b[..n], &d[..n]);
        for i in 0..n {
            let gradient = a[i] * dy[i] + (b[i] + d[i] * x[i]);
            dx[i] = if accumulate { dx[i] + gradient } else { gradient };
        }
    }
}

fn input_gradient<E: Real>(
    s: &ChannelShape,
    args: BatchNormInputGradientArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&Pattern<E, 3>, &[E], &[E], bool, &mut [E]) + Sync,
) {
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert_eq!(args.dy.len(), s.len(), "dy: {s:?}");
    assert_eq!(args.coefficients.len(), 3 * s.channels, "coefficients: {s:?}");
    assert_eq!(args.dx.len(), s.len(), "dx: {s:?}");
    let (x, dy) = (args.x, args.dy);
    let chunk = chunk(s);
    pool.chunks(args.dx, chunk, &|task, dx| {
        let range = task.index * chunk..task.index * chunk + dx.len();
        for first in Pattern::<E, 3>::runs(s.channels) {
            let pattern = Pattern::new(s.channels, first, |channels, numbers| {
                for (numbers, of_all) in numbers.iter_mut().zip(args.coefficients.chunks_exact(s.channels)) {
                    numbers[..channels.len()].copy_from_slice(&of_all[channels.clone()]);
                }
            });
            body(&pattern, &x[range.clone()], &dy[range.clone()], args.accumulate, dx);
        }
    });
}

compiled_tables! {
    SCALE_SHIFT_F32, SCALE_SHIFT_F64: ScaleShift, scratch: no_scratch,
    names: ["scale_shift_f32__avx512", "scale_shift_f32__avx2", "scale_shift_f32__scalar", "scale_shift_f64__scalar"],
    scale_shift(scale_shift_body: (p: &Pattern<f32, 2>, x: Option<&[f32]>, then: Then, y: &mut [f32]))
}

compiled_tables! {
    SUMS_F32, SUMS_F64: BatchNormSums, scratch: sums_scratch,
    names: ["batch_norm_sums_f32__avx512", "batch_norm_sums_f32__avx2", "batch_norm_sums_f32__scalar", "batch_norm_sums_f64__scalar"],
    batch_norm_sums(sums_body: (of: SumsOf<'_, f32>, parts: &mut [f32]))
}

compiled_tables! {
    INPUT_GRADIENT_F32, INPUT_GRADIENT_F64: BatchNormInputGradient, scratch: no_scratch,
    names: ["batch_norm_input_gradient_f32__avx512", "batch_norm_input_gradient_f32__avx2", "batch_norm_input_gradient_f32__scalar", "batch_norm_input_gradient_f64__scalar"],
    input_gradient(input_gradient_body: (p: &Pattern<f32, 3>, x: &[f32], dy: &[f32], accumulate: bool, dx: &mut [f32]))
}
