//! The tables of activations.

use super::{Activation, apply, times_slope};
use crate::real::Real;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the forward reads and writes; all of the same shape.
#[derive(Debug)]
pub struct ActivationForwardArgs<'a, E> {
    /// The function f.
    pub activation: Activation,
    /// x; when absent y holds it.
    pub x: Option<&'a [E]>,
    /// y, overwritten.
    pub y: &'a mut [E],
}

/// What the backward reads and writes; all of the same shape.
#[derive(Debug)]
pub struct ActivationBackwardArgs<'a, E> {
    /// The function f.
    pub activation: Activation,
    /// x; may be empty unless [`Activation::reads_input`].
    pub x: &'a [E],
    /// y; may be empty unless [`Activation::reads_output`].
    pub y: &'a [E],
    /// dy; when absent dx holds it, and `accumulate` must be false.
    pub dy: Option<&'a [E]>,
    /// Whether the gradient is added to dx instead of overwriting it.
    pub accumulate: bool,
    /// dx.
    pub dx: &'a mut [E],
}

kernel_row! {
    /// y = f(x); the shape is the number of elements.
    ActivationForward, usize, ActivationForwardArgs
}
kernel_row! {
    /// dx (+)= dy · f'(x); the shape is the number of elements.
    ActivationBackward, usize, ActivationBackwardArgs
}

/// Elements of one task.
const CHUNK: usize = 16 * 1024;

/// Elements that one loop after the other runs over, in cache.
const BLOCK: usize = 512;

#[inline(always)]
fn forward_body<E: Real>(activation: Activation, x: Option<&[E]>, y: &mut [E]) {
    for (i, y) in y.chunks_mut(BLOCK).enumerate() {
        if let Some(x) = x {
            y.copy_from_slice(&x[i * BLOCK..][..y.len()]);
        }
        apply(activation, y);
    }
}

/// `of` is empty when neither x nor y is read.
#[inline(always)]
fn backward_body<E: Real>(activation: Activation, of: &[E], dy: Option<&[E]>, accumulate: bool, dx: &mut [E]) {
    let mut d = [E::ZERO; BLOCK];
    for (i, dx) in dx.chunks_mut(BLOCK).enumerate() {
        let d = &mut d[..dx.len()];
        match dy {
            Some(dy) => d.copy_from_slice(&dy[i * BLOCK..][..dx.len()]),
            None => d.copy_from_slice(dx),
        }
        let of = of.get(i * BLOCK..i * BLOCK + dx.len()).unwrap_or(&[]);
        times_slope(activation, of, d);
        if accumulate {
            for (dx, d) in dx.iter_mut().zip(d) {
                *dx += *d;
            }
        } else {
            dx.copy_from_slice(d);
        }
    }
}

fn forward<E: Real>(
    len: &usize,
    args: ActivationForwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Activation, Option<&[E]>, &mut [E]) + Sync,
) {
    assert_eq!(args.y.len(), *len, "y");
    assert!(args.x.is_none_or(|x| x.len() == *len), "x must have {len} elements");
    pool.chunks(args.y, CHUNK, &|task, y| {
        body(args.activation, args.x.map(|x| &x[task.index * CHUNK..][..y.len()]), y);
    });
}

fn backward<E: Real>(
    len: &usize,
    args: ActivationBackwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Activation, &[E], Option<&[E]>, bool, &mut [E]) + Sync,
) {
    let activation = args.activation;
    assert_eq!(args.dx.len(), *len, "dx");
    assert!(args.dy.is_none_or(|dy| dy.len() == *len), "dy must have {len} elements");
    assert!(args.dy.is_some() || !args.accumulate, "dx cannot hold dy and be added to");
    let of = if activation.reads_input() { args.x } else { args.y };
    let reads = activation.reads_input() || activation.reads_output();
    assert!(!reads || of.len() == *len, "what the backward of {activation:?} reads must have {len} elements");
    pool.chunks(args.dx, CHUNK, &|task, dx| {
        let at = task.index * CHUNK;
        let of = if reads { &of[at..][..dx.len()] } else { &[] };
        body(activation, of, args.dy.map(|dy| &dy[at..][..dx.len()]), args.accumulate, dx);
    });
}

compiled_tables! {
    FORWARD_F32, FORWARD_F64: ActivationForward, scratch: no_scratch,
    names: ["activation_forward_f32__avx512", "activation_forward_f32__avx2", "activation_forward_f32__scalar", "activation_forward_f64__scalar"],
    forward(forward_body: (activation: Activation, x: Option<&[f32]>, y: &mut [f32]))
}

compiled_tables! {
    BACKWARD_F32, BACKWARD_F64: ActivationBackward, scratch: no_scratch,
    names: ["activation_backward_f32__avx512", "activation_backward_f32__avx2", "activation_backward_f32__scalar", "activation_backward_f64__scalar"],
    backward(backward_body: (activation: Activation, of: &[f32], dy: Option<&[f32]>, accumulate: bool, dx: &mut [f32]))
}
