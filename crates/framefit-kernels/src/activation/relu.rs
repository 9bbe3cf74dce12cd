//! The rectified linear unit, in place.

use crate::real::Real;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the forward reads and writes.
#[derive(Debug)]
pub struct ReluForwardArgs<'a, E> {
    /// y = max(0, y), any shape. NaN stays NaN.
    pub y: &'a mut [E],
}

/// What the backward reads and writes.
#[derive(Debug)]
pub struct ReluBackwardArgs<'a, E> {
    /// The output of the forward, any shape.
    pub y: &'a [E],
    /// dy = y > 0 ? dy : 0, of the same shape.
    pub dy: &'a mut [E],
}

kernel_row! {
    /// y = max(0, y); the shape is the number of elements.
    ReluForward, usize, ReluForwardArgs
}
kernel_row! {
    /// dy = y > 0 ? dy : 0; the shape is the number of elements.
    ReluBackward, usize, ReluBackwardArgs
}

/// Elements of one task.
const CHUNK: usize = 64 * 1024;

#[inline(always)]
fn forward_body<E: Real>(y: &mut [E]) {
    for y in y {
        *y = if *y < E::ZERO { E::ZERO } else { *y };
    }
}

#[inline(always)]
fn backward_body<E: Real>(y: &[E], dy: &mut [E]) {
    for (y, dy) in y.iter().zip(dy) {
        *dy = if *y > E::ZERO { *dy } else { E::ZERO };
    }
}

fn forward<E: Real>(len: &usize, args: ReluForwardArgs<'_, E>, pool: &Pool, body: impl Fn(&mut [E]) + Sync) {
    assert_eq!(args.y.len(), *len, "y");
    pool.chunks(args.y, CHUNK, &|_, y| body(y));
}

fn backward<E: Real>(len: &usize, args: ReluBackwardArgs<'_, E>, pool: &Pool, body: impl Fn(&[E], &mut [E]) + Sync) {
    assert_eq!(args.y.len(), *len, "y");
    assert_eq!(args.dy.len(), *len, "dy");
    let y = args.y;
    pool.chunks(args.dy, CHUNK, &|task, dy| body(&y[task.index * CHUNK..][..dy.len()], dy));
}

compiled_tables! {
    FORWARD_F32, FORWARD_F64: ReluForward, scratch: no_scratch,
    names: ["relu_forward_f32__avx512", "relu_forward_f32__avx2", "relu_forward_f32__scalar", "relu_forward_f64__scalar"],
    forward(forward_body: (y: &mut [f32]))
}

compiled_tables! {
    BACKWARD_F32, BACKWARD_F64: ReluBackward, scratch: no_scratch,
    names: ["relu_backward_f32__avx512", "relu_backward_f32__avx2", "relu_backward_f32__scalar", "relu_backward_f64__scalar"],
    backward(backward_body: (y: &[f32], dy: &mut [f32]))
}
