//! All rows of the convolution tables, on the same cases.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, bits, differences, dot, widen};
use framefit_kernels::conv::*;
use framefit_kernels::{Pool, Real, Row};

const fn dims(t: usize, h: usize, w: usize) -> Dims3 {
    Dims3 { t, h, w }
}

/// The whole clip: every frame of x and y.
#[allow(clippy::too_many_arguments)]
fn whole(
    clips: usize,
    (channels, out_channels, groups): (usize, usize, usize),
    input: Dims3,
    kernel: Dims3,
    stride: Dims3,
    padding: Dims3,
    dilation: Dims3,
) -> ConvShape {
    let output = ConvShape::output_of(input, kernel, stride, padding, dilation);
    ConvShape {
        clips,
        channels,
        out_channels,
        groups,
        input,
        output,
        kernel,
        stride,
        padding,
        dilation,
        x: Window { lo: 0, hi: input.t },
        y: Window { lo: 0, hi: output.t },
    }
}

fn simple(channels: usize, out_channels: usize, input: Dims3) -> ConvShape {
    let one = Dims3::cube(1);
    whole(1, (channels, out_channels, 1), input, Dims3::cube(3), one, one, one)
}

/// Every width around a tile's edge.
fn widths() -> Vec<ConvShape> {
    (1..=32).flat_map(|w| [simple(3, 5, dims(2, 3, w)), simple(2, 33, dims(1, 2, w))]).collect()
}

/// Every number of channels around a register's edge.
fn channels() -> Vec<ConvShape> {
    let outs = (1..=33).chain([40, 47, 48, 49, 63, 64, 65, 80, 97]);
    let ins = (1..=17).chain([31, 32, 33]);
    outs.map(|k| simple(4, k, dims(2, 2, 5))).chain(ins.map(|c| simple(c, 17, dims(2, 3, 4)))).collect()
}

/// Kernels, strides, paddings and dilations together.
fn geometries() -> Vec<ConvShape> {
    let kernels = [dims(1, 1, 1), dims(3, 3, 3), dims(1, 3, 3), dims(3, 1, 1), dims(2, 3, 4), dims(1, 1, 5)];
    let strides = [dims(1, 1, 1), dims(2, 2, 2), dims(1, 2, 2), dims(2, 1, 3), dims(4, 3, 2)];
    let paddings = [dims(0, 0, 0), dims(1, 1, 1), dims(0, 1, 2), dims(3, 4, 5)];
    let dilations = [dims(1, 1, 1), dims(2, 2, 2), dims(1, 2, 1), dims(1, 1, 3)];
    let mut cases = Vec::new();
    for kernel in kernels {
        for stride in strides {
            for padding in paddings {
                for dilation in dilations {
                    for channels in [(3, 4, 1), (4, 4, 4), (4, 6, 2)] {
                        let shape = whole(2, channels, dims(5, 6, 7), kernel, stride, padding, dilation);
                        if shape.output.volume() > 0 {
                            cases.push(shape);
                        }
                    }
                }
            }
        }
    }
    cases
}

/// More or less padding at the end than at the start: fewer outputs than the same padding gives, and more.
fn ends() -> Vec<ConvShape> {
    let mut cases = Vec::new();
    for (kernel, stride, dilation) in [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 3, 1), (4, 1, 2), (2, 3, 2)] {
        for padding in 0..3 {
            for (c, k, groups) in [(3, 5, 1), (4, 4, 4), (20, 20, 20)] {
                let all = Dims3::cube;
                let input = dims(3, 4, 5);
                let s = whole(2, (c, k, groups), input, all(kernel), all(stride), all(padding), all(dilation));
                for (t, h, w) in [(0, 1, 1), (1, 0, 2), (2, 2, 0), (3, 3, 5)] {
                    let output = dims(s.output.t + t, s.output.h + h, s.output.w + w);
                    cases.push(ConvShape { output, y: Window { lo: 0, hi: output.t }, ..s.clone() });
                    let output = dims(s.output.t - t.min(s.output.t), s.output.h, s.output.w - w.min(s.output.w));
                    cases.push(ConvShape { output, y: Window { lo: 0, hi: output.t }, ..s.clone() });
                }
            }
        }
    }
    cases
}

/// Grouped and depthwise convolutions.
fn grouped() -> Vec<ConvShape> {
    let one = Dims3::cube(1);
    let mut cases = Vec::new();
    for channels in [(4, 6, 2), (6, 6, 3), (34, 34, 2), (3, 6, 3), (40, 80, 40), (4, 2, 2), (66, 132, 2)] {
        cases.push(whole(1, channels, dims(2, 3, 5), Dims3::cube(3), one, one, one));
    }
    for c in (1..=17).chain([24, 31, 32, 33, 48, 64, 65, 100]) {
        for (kernel, stride) in [(Dims3::cube(3), one), (dims(1, 3, 3), dims(1, 2, 2)), (one, one)] {
            let padding = dims(kernel.t / 2, kernel.h / 2, kernel.w / 2);
            cases.push(whole(2, (c, c, c), dims(2, 3, 19), kernel, stride, padding, one));
        }
    }
    for w in 1..40 {
        cases.push(whole(1, (3, 3, 3), dims(1, 2, w), Dims3::cube(3), one, one, one));
    }
    cases
}

/// Windows of output frames, with exactly the inputs they read, and with more.
fn windows() -> Vec<ConvShape> {
    let mut cases = Vec::new();
    for (kernel, stride, padding, dilation) in [(3, 1, 1, 1), (3, 2, 1, 1), (2, 3, 0, 1), (3, 1, 2, 2), (1, 1, 0, 1)] {
        let on_time = |t| dims(t, 1, 1);
        for (c, k, groups) in [(3, 5, 1), (5, 5, 5)] {
            let clip = whole(
                2,
                (c, k, groups),
                dims(9, 2, 3),
                on_time(kernel),
                on_time(stride),
                dims(padding, 0, 0),
                on_time(dilation),
            );
            for lo in 0..=clip.output.t {
                for hi in lo..=clip.output.t {
                    let mut shape = ConvShape { y: Window { lo, hi }, ..clip.clone() };
                    let reads = shape.reads();
                    shape.x = reads;
                    cases.push(shape.clone());
                    shape.x = Window { lo: reads.lo.saturating_sub(1), hi: (reads.hi + 2).min(9) };
                    cases.push(shape);
                }
            }
        }
    }
    cases
}

/// Rows longer than a stretch, and enough weights that slices share the sums.
fn large() -> Vec<ConvShape> {
    let one = Dims3::cube(1);
    vec![
        simple(3, 20, dims(2, 3, 300)),
        whole(1, (150, 70, 1), dims(3, 4, 6), Dims3::cube(3), one, one, one),
        whole(2, (70, 70, 1), dims(3, 3, 3), Dims3::cube(3), dims(1, 2, 2), one, one),
        whole(3, (200, 300, 1), dims(2, 2, 2), one, one, dims(0, 0, 0), one),
    ]
}

fn nan<E: Real>(len: usize) -> Vec<E> {
    vec![E::from_f64(f64::NAN); len]
}

/// The inputs of a case.
struct Inputs<E> {
    x: Vec<E>,
    w: Vec<E>,
    bias: Vec<E>,
    dy: Vec<E>,
}

impl Inputs<f32> {
    fn new(s: &ConvShape) -> Self {
        let mut random = Random::new(7);
        Inputs {
            x: random.vector(s.x_len()),
            w: random.vector(s.weight_len()),
            bias: random.vector(s.out_channels),
            dy: random.vector(s.y_len()),
        }
    }

    fn widen(&self) -> Inputs<f64> {
        Inputs { x: widen(&self.x), w: widen(&self.w), bias: widen(&self.bias), dy: widen(&self.dy) }
    }
}

/// What a forward does besides the convolution.
#[derive(Clone, Copy, Default)]
struct Besides {
    bias: bool,
    relu: bool,
    accumulate: bool,
}

fn forward<E: Real>(
    row: &ConvForward<E>,
    s: &ConvShape,
    i: &Inputs<E>,
    Besides { bias, relu, accumulate }: Besides,
    pool: &Pool,
) -> Vec<E> {
    let mut y = if accumulate { i.dy.clone() } else { nan(s.y_len()) };
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    let bias = bias.then_some(&i.bias[..]);
    let args = ConvForwardArgs { x: &i.x, w: &i.w, bias, relu, accumulate, y: &mut y, scratch: &mut scratch };
    (row.run)(s, args, pool);
    y
}

fn input_gradient<E: Real>(
    row: &ConvInputGradient<E>,
    s: &ConvShape,
    i: &Inputs<E>,
    accumulate: bool,
    pool: &Pool,
) -> Vec<E> {
    let mut dx = if accumulate { i.x.clone() } else { nan(s.x_len()) };
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    let args = ConvInputGradientArgs { dy: &i.dy, w: &i.w, dx: &mut dx, accumulate, scratch: &mut scratch };
    (row.run)(s, args, pool);
    dx
}

fn weight_gradient<E: Real>(
    row: &ConvWeightGradient<E>,
    s: &ConvShape,
    i: &Inputs<E>,
    with_bias: bool,
    pool: &Pool,
) -> (Vec<E>, Vec<E>) {
    let (mut dw, mut db) = (i.w.clone(), i.bias.clone());
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    let args = ConvWeightGradientArgs {
        x: &i.x,
        dy: &i.dy,
        dw: &mut dw,
        db: with_bias.then_some(&mut db[..]),
        scratch: &mut scratch,
    };
    (row.run)(s, args, pool);
    (dw, db)
}

/// Every row that is available here and handles the shape.
fn rows<R: Row<ConvShape>>(table: &'static [R], s: &ConvShape) -> Vec<&'static R> {
    table.iter().filter(|row| row.isa().available() && row.handles(s)).collect()
}

fn scalar<R>(table: &'static [R]) -> &'static R {
    table.last().unwrap()
}

/// All rows agree with the f64 reference.
fn agree(cases: Vec<ConvShape>, close: Tolerance) {
    let pool = Pool::new(2).unwrap();
    for s in &cases {
        let narrow = Inputs::new(s);
        let wide = narrow.widen();
        for (bias, relu, accumulate) in [(false, false, false), (true, true, false), (true, true, true)] {
            let besides = Besides { bias, relu, accumulate };
            let want = forward(scalar(f64::conv_forward()), s, &wide, besides, &pool);
            if accumulate {
                let plain =
                    forward(scalar(f64::conv_forward()), s, &wide, Besides { bias, ..Besides::default() }, &pool);
                let sum: Vec<f64> = plain.iter().zip(&wide.dy).map(|(y, before)| (y + before).max(0.0)).collect();
                assert_close(&want, &sum, Tolerance::F64_REORDERED, &format!("added {s:?}"));
            }
            for row in rows(f32::conv_forward(), s) {
                let got = forward(row, s, &narrow, besides, &pool);
                assert_close(&got, &want, close, &format!("{} {s:?}", row.name));
            }
        }
        for accumulate in [false, true] {
            let want = input_gradient(scalar(f64::conv_input_gradient()), s, &wide, accumulate, &pool);
            for row in rows(f32::conv_input_gradient(), s) {
                let got = input_gradient(row, s, &narrow, accumulate, &pool);
                assert_close(&got, &want, close, &format!("{} {s:?}", row.name));
            }
        }
        for with_bias in [false, true] {
            let (dw, db) = weight_gradient(scalar(f64::conv_weight_gradient()), s, &wide, with_bias, &pool);
            for row in rows(f32::conv_weight_gradient(), s) {
                let (got_w, got_b) = weight_gradient(row, s, &narrow, with_bias, &pool);
                assert_close(&got_w, &dw, close, &format!("{} dw {s:?}", row.name));
                assert_close(&got_b, &db, close, &format!("{} db {s:?}", row.name));
            }
        }
    }
}

#[test]
fn rows_agree_on_widths() {
    agree(widths(), Tolerance::F32_REORDERED);
}

#[test]
fn rows_agree_on_channels() {
    agree(channels(), Tolerance::F32_REORDERED);
}

#[test]
fn rows_agree_on_geometries() {
    agree(geometries(), Tolerance::F32_REORDERED);
}

#[test]
fn rows_agree_on_end_padding() {
    agree(ends(), Tolerance::F32_REORDERED);
}

#[test]
fn rows_agree_on_groups() {
    agree(grouped(), Tolerance::F32_REORDERED);
}

#[test]
fn rows_agree_on_windows() {
    agree(windows(), Tolerance::F32_REORDERED);
}

#[test]
fn rows_agree_on_large_shapes() {
    agree(large(), Tolerance::F32_LONG_SUMS);
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let one = Dims3::cube(1);
    let mut cases = large();
    cases.push(whole(2, (33, 33, 33), dims(3, 5, 40), Dims3::cube(3), one, one, one));
    cases.push(whole(2, (5, 9, 1), dims(4, 6, 21), Dims3::cube(3), dims(2, 2, 2), one, one));
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
    for s in &cases {
        let i = Inputs::new(s);
        let with_bias = Besides { bias: true, ..Besides::default() };
        for row in rows(f32::conv_forward(), s) {
            let [a, b, c] = pools.each_ref().map(|pool| bits(&forward(row, s, &i, with_bias, pool)));
            assert!(a == b && a == c, "{} {s:?}", row.name);
        }
        for row in rows(f32::conv_input_gradient(), s) {
            let [a, b, c] = pools.each_ref().map(|pool| bits(&input_gradient(row, s, &i, false, pool)));
            assert!(a == b && a == c, "{} {s:?}", row.name);
        }
        for row in rows(f32::conv_weight_gradient(), s) {
            let [a, b, c] = pools.each_ref().map(|pool| {
                let (dw, db) = weight_gradient(row, s, &i, true, pool);
                (bits(&dw), bits(&db))
            });
            assert!(a == b && a == c, "{} {s:?}", row.name);
        }
    }
}

/// ⟨dy, conv(x, w)⟩ = ⟨dx, x⟩ = ⟨dw, w⟩, for the linear map that a convolution is in each argument.
#[test]
fn gradients_are_dual_to_the_forward() {
    let pool = Pool::new(2).unwrap();
    for s in geometries().iter().chain(&windows()).chain(&grouped()).chain(&ends()) {
        let i = Inputs::new(s).widen();
        let y = forward(scalar(f64::conv_forward()), s, &i, Besides::default(), &pool);
        let dx = input_gradient(scalar(f64::conv_input_gradient()), s, &i, false, &pool);
        let (mut dw, _) = weight_gradient(scalar(f64::conv_weight_gradient()), s, &i, false, &pool);
        dw.iter_mut().zip(&i.w).for_each(|(dw, w)| *dw -= w);
        let by_y = dot(&i.dy, &y);
        assert_close(&[dot(&dx, &i.x), dot(&dw, &i.w)], &[by_y, by_y], Tolerance::F64_REORDERED, &format!("{s:?}"));
    }
}

#[test]
fn gradients_agree_with_differences() {
    let pool = Pool::new(1).unwrap();
    let with_bias = Besides { bias: true, ..Besides::default() };
    let cases = [
        whole(2, (2, 3, 1), dims(3, 4, 5), Dims3::cube(3), dims(1, 2, 2), dims(1, 0, 1), Dims3::cube(1)),
        whole(1, (4, 4, 2), dims(4, 3, 4), dims(2, 2, 3), Dims3::cube(1), Dims3::cube(1), dims(2, 1, 1)),
    ];
    for s in &cases {
        let i = Inputs::new(s).widen();
        let value = |x: &[f64], w: &[f64], bias: &[f64]| {
            let inputs = Inputs { x: x.to_vec(), w: w.to_vec(), bias: bias.to_vec(), dy: Vec::new() };
            dot(&i.dy, &forward(scalar(f64::conv_forward()), s, &inputs, with_bias, &pool))
        };
        let close = Tolerance::F64_DIFFERENCES;
        let dx = input_gradient(scalar(f64::conv_input_gradient()), s, &i, false, &pool);
        assert_close(&dx, &differences(&i.x, |x| value(x, &i.w, &i.bias)), close, "dx");
        let (mut dw, mut db) = weight_gradient(scalar(f64::conv_weight_gradient()), s, &i, true, &pool);
        dw.iter_mut().zip(&i.w).for_each(|(dw, w)| *dw -= w);
        db.iter_mut().zip(&i.bias).for_each(|(db, bias)| *db -= bias);
        assert_close(&dw, &differences(&i.w, |w| value(&i.x, w, &i.bias)), close, "dw");
        assert_close(&db, &differences(&i.bias, |bias| value(&i.x, &i.w, bias)), close, "db");
    }
}
