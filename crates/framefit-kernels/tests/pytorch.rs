//! The scalar f64 rows against PyTorch's numbers (`reference/pytorch.py`).
#![allow(clippy::unwrap_used)]

mod common;

use common::{Tolerance, assert_close, reference};
use framefit_kernels::conv::*;
use framefit_kernels::loss::*;
use framefit_kernels::optimizer::*;
use framefit_kernels::pooling::*;
use framefit_kernels::{Pool, Real};

const fn dims(t: usize, h: usize, w: usize) -> Dims3 {
    Dims3 { t, h, w }
}

#[test]
fn convolution() {
    let pool = Pool::new(1).unwrap();
    let (input, kernel, stride) = (dims(4, 5, 6), dims(2, 3, 2), dims(1, 2, 1));
    let (padding, dilation) = (dims(1, 1, 0), dims(1, 1, 2));
    let output = ConvShape::output_of(input, kernel, stride, padding, dilation);
    let s = ConvShape {
        clips: 2,
        channels: 4,
        out_channels: 6,
        groups: 2,
        input,
        output,
        kernel,
        stride,
        padding,
        dilation,
        x: Window { lo: 0, hi: input.t },
        y: Window { lo: 0, hi: output.t },
    };
    let (x, w, bias, dy) = (reference("conv.x"), reference("conv.w"), reference("conv.bias"), reference("conv.dy"));
    let mut y = vec![f64::NAN; s.y_len()];
    let args = ConvForwardArgs {
        x: &x,
        w: &w,
        bias: Some(&bias),
        relu: false,
        accumulate: false,
        y: &mut y,
        scratch: &mut [],
    };
    (f64::conv_forward()[0].run)(&s, args, &pool);
    assert_close(&y, &reference("conv.y"), Tolerance::F64_REORDERED, "y");

    let mut dx = vec![f64::NAN; s.x_len()];
    let args = ConvInputGradientArgs { dy: &dy, w: &w, dx: &mut dx, accumulate: false, scratch: &mut [] };
    (f64::conv_input_gradient()[0].run)(&s, args, &pool);
    assert_close(&dx, &reference("conv.dx"), Tolerance::F64_REORDERED, "dx");

    let (mut dw, mut db) = (vec![0.0; s.weight_len()], vec![0.0; 6]);
    let args = ConvWeightGradientArgs { x: &x, dy: &dy, dw: &mut dw, db: Some(&mut db), scratch: &mut [] };
    (f64::conv_weight_gradient()[0].run)(&s, args, &pool);
    assert_close(&dw, &reference("conv.dw"), Tolerance::F64_REORDERED, "dw");
    assert_close(&db, &reference("conv.db"), Tolerance::F64_REORDERED, "db");
}

#[test]
fn maximum_pooling() {
    let pool = Pool::new(1).unwrap();
    let (input, kernel, stride, padding) = (dims(4, 5, 5), dims(2, 3, 2), dims(2, 2, 1), dims(1, 1, 0));
    let output = PoolShape::output_of(input, kernel, stride, padding);
    let (x_window, y_window) = (Window { lo: 0, hi: input.t }, Window { lo: 0, hi: output.t });
    let s = PoolShape { clips: 2, channels: 3, input, output, kernel, stride, padding, x: x_window, y: y_window };
    let (x, dy) = (reference("pool.x"), reference("pool.dy"));
    let (mut y, mut dx) = (vec![0.0; s.y_len()], vec![f64::NAN; s.x_len()]);
    (f64::max_pool_forward()[0].run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, &pool);
    assert_close(&y, &reference("pool.y"), Tolerance::F64_REORDERED, "y");
    let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
    (f64::max_pool_backward()[0].run)(&s, args, &pool);
    assert_close(&dx, &reference("pool.dx"), Tolerance::F64_REORDERED, "dx");
}

#[test]
fn cross_entropy() {
    let pool = Pool::new(1).unwrap();
    let s = LossShape { clips: 4, classes: 3 };
    let labels: Vec<u32> = reference("loss.labels").iter().map(|label| *label as u32).collect();
    let (mut losses, mut dlogits) = (vec![f64::NAN; 4], vec![f64::NAN; 12]);
    let args = CrossEntropyArgs {
        logits: &reference("loss.logits"),
        labels: &labels,
        class_weights: Some(&reference("loss.weights")),
        scale: 0.25,
        losses: &mut losses,
        dlogits: &mut dlogits,
    };
    (f64::cross_entropy()[0].run)(&s, args, &pool);
    assert_close(&losses, &reference("loss.losses"), Tolerance::F64_REORDERED, "losses");
    assert_close(&dlogits, &reference("loss.dlogits"), Tolerance::F64_REORDERED, "dlogits");
}

#[test]
fn adam() {
    let pool = Pool::new(1).unwrap();
    let mut w = reference("adam.from");
    let (mut m, mut v) = (vec![0.0; 5], vec![0.0; 5]);
    for step in 1..=4 {
        let numbers = AdamStep { lr: 0.02, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1, step };
        let g = reference(&format!("adam.g{step}"));
        (f64::adam()[0].run)(&5, AdamArgs { step: numbers, w: &mut w, g: &g, m: &mut m, v: &mut v }, &pool);
        assert_close(&w, &reference(&format!("adam.w{step}")), Tolerance::F64_REORDERED, "w");
    }
}
