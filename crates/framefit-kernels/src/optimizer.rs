//! Optimizer steps over one parameter tensor.

use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// The numbers of one step of Adam, named as in PyTorch's `torch.optim.Adam`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// λ of the L2 term λ·w that is added to the gradient.
    pub weight_decay: f64,
    /// Which step this is, from 1.
    pub step: u64,
}

impl AdamStep {
    /// PyTorch's defaults for the first step: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, no weight decay.
    pub const DEFAULT: AdamStep =
        AdamStep { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, step: 1 };
}

/// What a step of Adam reads and writes; all of the same shape.
#[derive(Debug)]
pub struct AdamArgs<'a, E> {
    /// The numbers of the step.
    pub step: AdamStep,
    /// The parameter, updated.
    pub w: &'a mut [E],
    /// Its gradient.
    pub g: &'a [E],
    /// The first moment, updated; zero before step 1.
    pub m: &'a mut [E],
    /// The second moment, updated; zero before step 1.
    pub v: &'a mut [E],
}

kernel_row! {
    /// One step of Adam, as PyTorch's `torch.optim.Adam` (Kingma and Ba, 2015); the shape is the number of
    /// elements.
    ///
    /// g += λw; m = β₁m + (1−β₁)g; v = β₂v + (1−β₂)g²;
    /// w −= lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + eps).
    Adam, usize, AdamArgs
}

/// Elements of one task.
const CHUNK: usize = 16 * 1024;

/// The numbers of a step, as the loop over elements uses them.
#[derive(Clone, Copy)]
struct Factors<E> {
    rest1: E,
    beta2: E,
    rest2: E,
    step_size: E,
    root_correction2: E,
    eps: E,
    weight_decay: E,
}

impl<E: Real> Factors<E> {
    fn new(step: AdamStep) -> Factors<E> {
        let power = step.step as f64;
        Factors {
            rest1: E::from_f64(1.0 - step.beta1),
            beta2: E::from_f64(step.beta2),
            rest2: E::from_f64(1.0 - step.beta2),
            step_size: E::from_f64(step.lr / (1.0 - step.beta1.powf(power))),
            root_correction2: E::from_f64((1.0 - step.beta2.powf(power)).sqrt()),
            eps: E::from_f64(step.eps),
            weight_decay: E::from_f64(step.weight_decay),
        }
    }
}

#[inline(always)]
fn body<E: Real>(f: Factors<E>, w: &mut [E], g: &[E], m: &mut [E], v: &mut [E]) {
    for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
        let g = *g + f.weight_decay * *w;
        // As PyTorch's lerp: m + (1−β₁)(g − m).
        *m += f.rest1 * (g - *m);
        *v = f.beta2 * *v + f.rest2 * g * g;
        *w -= f.step_size * (*m / (v.sqrt() / f.root_correction2 + f.eps));
    }
}

fn step<E: Real>(
    len: &usize,
    args: AdamArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Factors<E>, &mut [E], &[E], &mut [E], &mut [E]) + Sync,
) {
    assert!(args.step.step >= 1, "the first step is 1");
    assert!(
        [args.w.len(), args.g.len(), args.m.len(), args.v.len()] == [*len; 4],
        "w, g, m and v must have {len} elements"
    );
    let factors = Factors::new(args.step);
    let g = args.g;
    let (m, v) = (SharedMut::new(args.m), SharedMut::new(args.v));
    pool.chunks(args.w, CHUNK, &|task, w| {
        let range = task.index * CHUNK..task.index * CHUNK + w.len();
        // SAFETY: each task takes the range of its own chunk, once.
        let (m, v) = unsafe { (m.part(range.clone()), v.part(range.clone())) };
        body(factors, w, &g[range], m, v);
    });
}

compiled_tables! {
    ADAM_F32, ADAM_F64: Adam, scratch: no_scratch,
    names: ["adam_f32__avx512", "adam_f32__avx2", "adam_f32__scalar", "adam_f64__scalar"],
    step(body: (f: Factors<f32>, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]))
}
