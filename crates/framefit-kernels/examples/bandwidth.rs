//! Prints the rate of each row of the kernels that memory bounds, in GB/s of what they read and write.
//!
//! Rates of one thread are by its time on the processor, so that other programs disturb them little; those of
//! two threads are by the clock.
//!
//! `cargo run --release -p framefit-kernels --example bandwidth [-- FILTER]`, where FILTER is part of a row's
//! name.

mod common;

use common::{Bench, fill};
use framefit_kernels::Real;
use framefit_kernels::activation::*;
use framefit_kernels::conv::{Dims3, Window};
use framefit_kernels::frames::*;
use framefit_kernels::linear::*;
use framefit_kernels::mean::*;
use framefit_kernels::optimizer::*;
use framefit_kernels::pooling::*;

fn main() -> std::io::Result<()> {
    let bench = Bench::new()?;
    pooling(&bench);
    linear(&bench);
    elementwise(&bench);
    Ok(())
}

fn pooling(bench: &Bench) {
    let (input, two, none) = (Dims3 { t: 4, h: 230, w: 230 }, Dims3::cube(2), Dims3::cube(0));
    let output = PoolShape::output_of(input, two, two, none);
    let s = PoolShape {
        clips: 1,
        channels: 32,
        input,
        output,
        kernel: two,
        stride: two,
        padding: none,
        x: Window { lo: 0, hi: 4 },
        y: Window { lo: 0, hi: 2 },
    };
    let (x, mut y, mut dx) = (fill(s.x_len()), fill(s.y_len()), fill(s.x_len()));
    bench.table(f32::max_pool_forward(), &s, |row, pool| {
        (row.run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, pool);
        x.len() + s.y_len()
    });
    bench.table(f32::max_pool_backward(), &s, |row, pool| {
        (row.run)(&s, MaxPoolBackwardArgs { x: &x, dy: &y, relu: true, accumulate: false, dx: &mut dx }, pool);
        2 * x.len() + y.len()
    });
    let s = MeanShape { clips: 1, frames: 4, positions: 230 * 230, channels: 32 };
    let (mut y, mut scratch) = (fill(32), fill(s.y_len() * s.frames));
    bench.table(f32::mean_forward(), &s, |row, pool| {
        let args = MeanForwardArgs { x: &x, scale: 1.0, accumulate: false, y: &mut y, scratch: &mut scratch };
        (row.run)(&s, args, pool);
        x.len()
    });
    bench.table(f32::mean_backward(), &s, |row, pool| {
        (row.run)(&s, MeanBackwardArgs { dy: &y, scale: 1.0, accumulate: false, dx: &mut dx }, pool);
        dx.len()
    });
}

fn linear(bench: &Bench) {
    let s = LinearShape { clips: 4, frames: 2, features: 300_000, out_features: 16 };
    let (x, w, mut dw, mut dx) = (fill(s.x_len()), fill(s.weight_len()), fill(s.weight_len()), fill(s.x_len()));
    let mut y = fill(s.y_len());
    bench.table(f32::linear_forward(), &s, |row, pool| {
        let mut scratch = vec![0.0; (row.scratch)(&s, pool.threads())];
        let args = LinearForwardArgs {
            x: &x,
            w: &w,
            bias: None,
            relu: false,
            accumulate: false,
            y: &mut y,
            scratch: &mut scratch,
        };
        (row.run)(&s, args, pool);
        x.len() + w.len()
    });
    bench.table(f32::linear_input_gradient(), &s, |row, pool| {
        let args = LinearInputGradientArgs { dy: &y, w: &w, dx: &mut dx, accumulate: false, scratch: &mut [] };
        (row.run)(&s, args, pool);
        x.len() + w.len()
    });
    bench.table(f32::linear_weight_gradient(), &s, |row, pool| {
        let args = LinearWeightGradientArgs { x: &x, dy: &y, dw: &mut dw, db: None, scratch: &mut [] };
        (row.run)(&s, args, pool);
        x.len() + 2 * w.len()
    });
}

fn elementwise(bench: &Bench) {
    let len = 4 << 20;
    let (mut w, g, mut m, mut v) = (fill(len), fill(len), fill(len), vec![1.0; len]);
    bench.table(f32::relu_forward(), &len, |row, pool| {
        (row.run)(&len, ReluForwardArgs { y: &mut w }, pool);
        2 * len
    });
    bench.table(f32::relu_backward(), &len, |row, pool| {
        (row.run)(&len, ReluBackwardArgs { y: &g, dy: &mut w }, pool);
        3 * len
    });
    bench.table(f32::adam(), &len, |row, pool| {
        (row.run)(&len, AdamArgs { step: AdamStep::DEFAULT, w: &mut w, g: &g, m: &mut m, v: &mut v }, pool);
        7 * len
    });
    let s = FramesShape { pixels: len / 3, channels: 3 };
    let x = vec![100; s.pixels * 3];
    let (mean, std) = ([0.4; 3], [0.2; 3]);
    bench.table(f32::frames_normalize(), &s, |row, pool| {
        let y = &mut w[..s.pixels * 3];
        (row.run)(&s, FramesNormalizeArgs { x: &x, mean: &mean, std: &std, y }, pool);
        s.pixels * 3 * 5 / 4
    });
}
