//! Prints the rate of each convolution row, in GFLOP/s, on shapes of real models.
//!
//! Rates of one thread are by its time on the processor, so that other programs disturb them little; those of
//! two threads are by the clock.
//!
//! `cargo run --release -p framefit-kernels --example rates [-- FILTER...]`, where each FILTER is part of a row's or
//! a shape's name.

mod common;

use common::rate;
use framefit_kernels::conv::*;
use framefit_kernels::{Isa, Pool, Real};

struct Case {
    name: &'static str,
    shape: ConvShape,
}

fn case(name: &'static str, channels: [usize; 3], input: [usize; 3], kernel: usize, stride: usize) -> Case {
    let [channels, out_channels, groups] = channels;
    let [t, h, w] = input;
    let input = Dims3 { t, h, w };
    let (kernel, padding, stride) =
        (Dims3::cube(kernel), Dims3::cube(kernel / 2), Dims3 { t: 1, h: stride, w: stride });
    let dilation = Dims3::cube(1);
    let output = ConvShape::output_of(input, kernel, stride, padding, dilation);
    let (x, y) = (Window { lo: 0, hi: t }, Window { lo: 0, hi: output.t });
    let shape =
        ConvShape { clips: 1, channels, out_channels, groups, input, output, kernel, stride, padding, dilation, x, y };
    Case { name, shape }
}

fn cases() -> Vec<Case> {
    vec![
        case("3->32 3x3x3 8x230x230", [3, 32, 1], [8, 230, 230], 3, 1),
        case("32->64 3x3x3 8x115x115", [32, 64, 1], [8, 115, 115], 3, 1),
        case("32->64 3x3x3 4x230x230", [32, 64, 1], [4, 230, 230], 3, 1),
        case("3->16 3x3x3 16x64x64", [3, 16, 1], [16, 64, 64], 3, 1),
        case("1->16 3x3x3 16x64x64", [1, 16, 1], [16, 64, 64], 3, 1),
        case("16->32 3x3x3 16x32x32", [16, 32, 1], [16, 32, 32], 3, 1),
        case("32->64 3x3x3 16x16x16", [32, 64, 1], [16, 16, 16], 3, 1),
        case("64->64 3x3x3 16x8x8", [64, 64, 1], [16, 8, 8], 3, 1),
        case("256->256 3x3x3 4x7x7", [256, 256, 1], [4, 7, 7], 3, 1),
        case("32->64 3x3x3/2 4x115x115", [32, 64, 1], [4, 115, 115], 3, 2),
        case("pointwise 3->32 8x230x230", [3, 32, 1], [8, 230, 230], 1, 1),
        case("pointwise 32->64 8x115x115", [32, 64, 1], [8, 115, 115], 1, 1),
        case("depthwise 3 3x3x3 8x230x230", [3, 3, 3], [8, 230, 230], 3, 1),
        case("depthwise 32 3x3x3 8x115x115", [32, 32, 32], [8, 115, 115], 3, 1),
    ]
}

fn main() -> std::io::Result<()> {
    let filters: Vec<String> = std::env::args().skip(1).collect();
    println!("{:30} {:44} {:>8} {:>8}", "GFLOP/s", "threads", 1, 2);
    let pools = [Pool::new(1)?, Pool::new(2)?];
    for Case { name, shape: s } in cases() {
        let wanted = |row: &str, isa: Isa| {
            isa != Isa::Scalar && isa.available() && filters.iter().all(|f| name.contains(f) || row.contains(f))
        };
        let fill = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect() };
        let (x, w, dy) = (fill(s.x_len()), fill(s.weight_len()), fill(s.y_len()));
        let (mut dx, mut dw, mut y) = (x.clone(), w.clone(), dy.clone());
        let mut db = fill(s.out_channels);
        let print = |row: &str, rates: [f64; 2]| println!("{name:30} {row:44} {:8.1} {:8.1}", rates[0], rates[1]);
        for row in f32::conv_forward().iter().filter(|row| wanted(row.name, row.isa) && (row.handles)(&s)) {
            let mut scratch = vec![0.0; (row.scratch)(&s, 2)];
            print(
                row.name,
                pools.each_ref().map(|pool| {
                    rate(s.flops(), pool, || {
                        let args = ConvForwardArgs {
                            x: &x,
                            w: &w,
                            bias: None,
                            relu: true,
                            accumulate: false,
                            y: &mut y,
                            scratch: &mut scratch,
                        };
                        (row.run)(&s, args, pool);
                    })
                }),
            );
        }
        for row in f32::conv_input_gradient().iter().filter(|row| wanted(row.name, row.isa) && (row.handles)(&s)) {
            let mut scratch = vec![0.0; (row.scratch)(&s, 2)];
            print(
                row.name,
                pools.each_ref().map(|pool| {
                    rate(s.flops(), pool, || {
                        let args = ConvInputGradientArgs {
                            dy: &dy,
                            w: &w,
                            dx: &mut dx,
                            accumulate: false,
                            scratch: &mut scratch,
                        };
                        (row.run)(&s, args, pool);
                    })
                }),
            );
        }
        for row in f32::conv_weight_gradient().iter().filter(|row| wanted(row.name, row.isa) && (row.handles)(&s)) {
            let mut scratch = vec![0.0; (row.scratch)(&s, 2)];
            print(
                row.name,
                pools.each_ref().map(|pool| {
                    rate(s.flops(), pool, || {
                        let args = ConvWeightGradientArgs {
                            x: &x,
                            dy: &dy,
                            dw: &mut dw,
                            db: Some(&mut db),
                            scratch: &mut scratch,
                        };
                        (row.run)(&s, args, pool);
                    })
                }),
            );
        }
    }
    Ok(())
}
