//! Linear layers: ordinary (T = 1), and of a flattened clip, where each frame meets its own slice of the weight.

#[cfg(target_arch = "x86_64")]
mod vector;

use crate::isa::Isa;
use crate::real::Real;
use crate::table::{any, kernel_row, no_scratch};
use crate::threads::Pool;

/// A linear layer over a window of frames: x: \[T, N, D\], w: \[T, K, D\] → y: \[N, K\].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearShape {
    /// N.
    pub clips: usize,
    /// T, the frames held in x, and the slices held in w.
    pub frames: usize,
    /// D.
    pub features: usize,
    /// K.
    pub out_features: usize,
}

impl LinearShape {
    /// Elements of x.
    pub fn x_len(&self) -> usize {
        self.frames * self.clips * self.features
    }

    /// Elements of w.
    pub fn weight_len(&self) -> usize {
        self.frames * self.out_features * self.features
    }

    /// Elements of y.
    pub fn y_len(&self) -> usize {
        self.clips * self.out_features
    }

    /// Floating-point operations of one pass (forward, or either gradient).
    pub fn flops(&self) -> u64 {
        2 * self.clips as u64 * self.weight_len() as u64
    }
}

/// What the forward reads and writes.
#[derive(Debug)]
pub struct LinearForwardArgs<'a, E> {
    /// x: \[T, N, D\].
    pub x: &'a [E],
    /// w: \[T, K, D\].
    pub w: &'a [E],
    /// \[K\], added to y: give it for the clip's last window alone.
    pub bias: Option<&'a [E]>,
    /// Whether y = max(0, ·): ask for it for the clip's last window alone.
    pub relu: bool,
    /// Whether y starts from what it holds (the earlier windows' sum) instead of zero.
    pub accumulate: bool,
    /// y: \[N, K\].
    pub y: &'a mut [E],
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What the gradient by the input reads and writes.
#[derive(Debug)]
pub struct LinearInputGradientArgs<'a, E> {
    /// dy: \[N, K\].
    pub dy: &'a [E],
    /// w: \[T, K, D\].
    pub w: &'a [E],
    /// dx: \[T, N, D\].
    pub dx: &'a mut [E],
    /// Whether the gradient is added to dx instead of overwriting it.
    pub accumulate: bool,
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What the gradient by the weights reads and writes.
#[derive(Debug)]
pub struct LinearWeightGradientArgs<'a, E> {
    /// x: \[T, N, D\].
    pub x: &'a [E],
    /// dy: \[N, K\].
    pub dy: &'a [E],
    /// dw: \[T, K, D\]; the gradient is added.
    pub dw: &'a mut [E],
    /// db: \[K\]; the gradient of the bias is added. Give it for one window of the clip alone.
    pub db: Option<&'a mut [E]>,
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

kernel_row! {
    /// y\[n,k\] = relu?(y? + Σ over t and d of x\[t,n,d\] · w\[t,k,d\] + bias\[k\]).
    LinearForward, LinearShape, LinearForwardArgs
}
kernel_row! {
    /// dx\[t,n,d\] (+)= Σ over k of dy\[n,k\] · w\[t,k,d\].
    LinearInputGradient, LinearShape, LinearInputGradientArgs
}
kernel_row! {
    /// dw\[t,k,d\] += Σ over n of dy\[n,k\] · x\[t,n,d\], db\[k\] += Σ over n of dy\[n,k\].
    LinearWeightGradient, LinearShape, LinearWeightGradientArgs
}

impl<E> LinearForwardArgs<'_, E> {
    fn check(&self, s: &LinearShape, scratch: usize) {
        assert_eq!(self.x.len(), s.x_len(), "x: {s:?}");
        assert_eq!(self.w.len(), s.weight_len(), "w: {s:?}");
        assert!(self.bias.is_none_or(|bias| bias.len() == s.out_features), "bias: {s:?}");
        assert_eq!(self.y.len(), s.y_len(), "y: {s:?}");
        assert!(self.scratch.len() >= scratch, "scratch: {s:?}");
    }
}

impl<E> LinearInputGradientArgs<'_, E> {
    fn check(&self, s: &LinearShape, scratch: usize) {
        assert_eq!(self.dy.len(), s.y_len(), "dy: {s:?}");
        assert_eq!(self.w.len(), s.weight_len(), "w: {s:?}");
        assert_eq!(self.dx.len(), s.x_len(), "dx: {s:?}");
        assert!(self.scratch.len() >= scratch, "scratch: {s:?}");
    }
}

impl<E> LinearWeightGradientArgs<'_, E> {
    fn check(&self, s: &LinearShape, scratch: usize) {
        assert_eq!(self.x.len(), s.x_len(), "x: {s:?}");
        assert_eq!(self.dy.len(), s.y_len(), "dy: {s:?}");
        assert_eq!(self.dw.len(), s.weight_len(), "dw: {s:?}");
        assert!(self.db.as_ref().is_none_or(|db| db.len() == s.out_features), "db: {s:?}");
        assert!(self.scratch.len() >= scratch, "scratch: {s:?}");
    }
}

fn forward_scalar<E: Real>(s: &LinearShape, args: LinearForwardArgs<'_, E>, pool: &Pool) {
    args.check(s, 0);
    let (x, w, d) = (args.x, args.w, s.features);
    pool.chunks(args.y, 1, &|task, y| {
        let (n, k) = (task.index / s.out_features, task.index % s.out_features);
        let mut sum = if args.accumulate { y[0] } else { E::ZERO };
        for t in 0..s.frames {
            let x = &x[(t * s.clips + n) * d..][..d];
            let w = &w[(t * s.out_features + k) * d..][..d];
            for (x, w) in x.iter().zip(w) {
                sum += *x * *w;
            }
        }
        sum += args.bias.map_or(E::ZERO, |bias| bias[k]);
        y[0] = if args.relu && sum < E::ZERO { E::ZERO } else { sum };
    });
}

fn input_gradient_scalar<E: Real>(s: &LinearShape, args: LinearInputGradientArgs<'_, E>, pool: &Pool) {
    args.check(s, 0);
    let (dy, w, d) = (args.dy, args.w, s.features);
    pool.chunks(args.dx, d, &|task, dx| {
        let (t, n) = (task.index / s.clips, task.index % s.clips);
        if !args.accumulate {
            dx.fill(E::ZERO);
        }
        for k in 0..s.out_features {
            let dy = dy[n * s.out_features + k];
            let w = &w[(t * s.out_features + k) * d..][..d];
            for (dx, w) in dx.iter_mut().zip(w) {
                *dx += dy * *w;
            }
        }
    });
}

fn weight_gradient_scalar<E: Real>(s: &LinearShape, args: LinearWeightGradientArgs<'_, E>, pool: &Pool) {
    args.check(s, 0);
    let (x, dy, d) = (args.x, args.dy, s.features);
    pool.chunks(args.dw, d, &|task, dw| {
        let (t, k) = (task.index / s.out_features, task.index % s.out_features);
        for n in 0..s.clips {
            let dy = dy[n * s.out_features + k];
            let x = &x[(t * s.clips + n) * d..][..d];
            for (dw, x) in dw.iter_mut().zip(x) {
                *dw += dy * *x;
            }
        }
    });
    bias_gradient(s, dy, args.db);
}

/// db\[k\] += Σ over n of dy\[n,k\].
fn bias_gradient<E: Real>(s: &LinearShape, dy: &[E], db: Option<&mut [E]>) {
    let Some(db) = db else { return };
    for dy in dy.chunks_exact(s.out_features.max(1)) {
        for (db, dy) in db.iter_mut().zip(dy) {
            *db += *dy;
        }
    }
}

const fn forward_row<E: Real>(name: &'static str) -> LinearForward<E> {
    LinearForward { name, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: forward_scalar }
}

const fn input_gradient_row<E: Real>(name: &'static str) -> LinearInputGradient<E> {
    LinearInputGradient { name, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: input_gradient_scalar }
}

const fn weight_gradient_row<E: Real>(name: &'static str) -> LinearWeightGradient<E> {
    LinearWeightGradient { name, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: weight_gradient_scalar }
}

/// A row of the vector module, which takes the instruction set as its first argument.
#[cfg(target_arch = "x86_64")]
macro_rules! vector_row {
    ($row:ident, $name:literal, $isa:expr, $run:ident, $scratch:ident) => {
        $row {
            name: $name,
            isa: $isa,
            handles: any,
            scratch: |shape, threads| vector::$scratch($isa, shape, threads),
            run: |shape, args, pool| vector::$run($isa, shape, args, pool),
        }
    };
}

pub(crate) static FORWARD_F32: &[LinearForward<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    vector_row!(LinearForward, "linear_forward_f32__avx512_4x4", Isa::Avx512, forward, forward_scratch),
    #[cfg(target_arch = "x86_64")]
    vector_row!(LinearForward, "linear_forward_f32__avx2_4x4", Isa::Avx2, forward, forward_scratch),
    forward_row("linear_forward_f32__scalar"),
];
pub(crate) static FORWARD_F64: &[LinearForward<f64>] = &[forward_row("linear_forward_f64__scalar")];

pub(crate) static INPUT_GRADIENT_F32: &[LinearInputGradient<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        LinearInputGradient,
        "linear_input_gradient_f32__avx512_4x4",
        Isa::Avx512,
        input_gradient,
        input_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        LinearInputGradient,
        "linear_input_gradient_f32__avx2_4x4",
        Isa::Avx2,
        input_gradient,
        input_gradient_scratch
    ),
    input_gradient_row("linear_input_gradient_f32__scalar"),
];
pub(crate) static INPUT_GRADIENT_F64: &[LinearInputGradient<f64>] =
    &[input_gradient_row("linear_input_gradient_f64__scalar")];

pub(crate) static WEIGHT_GRADIENT_F32: &[LinearWeightGradient<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        LinearWeightGradient,
        "linear_weight_gradient_f32__avx512_4x4",
        Isa::Avx512,
        weight_gradient,
        weight_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        LinearWeightGradient,
        "linear_weight_gradient_f32__avx2_4x4",
        Isa::Avx2,
        weight_gradient,
        weight_gradient_scratch
    ),
    weight_gradient_row("linear_weight_gradient_f32__scalar"),
];
pub(crate) static WEIGHT_GRADIENT_F64: &[LinearWeightGradient<f64>] =
    &[weight_gradient_row("linear_weight_gradient_f64__scalar")];
