//! All rows of average and adaptive pooling, and of maximum pooling whose last windows stick out.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;

use common::{Random, Tolerance, assert_close, differences, dot, nan, on_any_threads, rows, widen};
use framefit_kernels::conv::{Dims3, Window};
use framefit_kernels::pooling::*;
use framefit_kernels::{Pool, Real};

const fn dims(t: usize, h: usize, w: usize) -> Dims3 {
    Dims3 { t, h, w }
}

/// Poolings that round up, that round down, and one output in between; whole clips and windows.
fn strided() -> Vec<PoolShape> {
    let mut shapes = Vec::new();
    let (one, two, three) = (Dims3::cube(1), Dims3::cube(2), Dims3::cube(3));
    for channels in [1, 2, 3, 7, 8, 9, 15, 16, 17, 33] {
        push(&mut shapes, channels, dims(4, 5, 5), (two, two, Dims3::cube(0)));
    }
    for kernel in [one, two, three, dims(1, 2, 3), dims(4, 1, 2)] {
        for stride in [one, two, three, dims(2, 3, 1), dims(3, 2, 4)] {
            for padding in [Dims3::cube(0), dims(kernel.t / 2, kernel.h / 2, kernel.w / 2)] {
                push(&mut shapes, 3, dims(5, 6, 4), (kernel, stride, padding));
            }
        }
    }
    shapes
}

fn push(shapes: &mut Vec<PoolShape>, channels: usize, input: Dims3, (kernel, stride, padding): (Dims3, Dims3, Dims3)) {
    let down = PoolShape::output_of(input, kernel, stride, padding);
    let up = PoolShape::output_rounded_up(input, kernel, stride, padding);
    for output in [down, up, Dims3 { t: up.t, ..down }] {
        for (lo, hi) in [(0, output.t), (1, output.t), (0, 1), (output.t, output.t)] {
            let y = Window { lo: lo.min(hi), hi };
            let x = Window { lo: 0, hi: input.t };
            let whole = PoolShape { clips: 2, channels, input, output, kernel, stride, padding, x, y };
            shapes.push(PoolShape { x: whole.reads(), ..whole.clone() });
            shapes.push(whole);
        }
    }
}

fn adaptive() -> Vec<AdaptiveShape> {
    let mut shapes = Vec::new();
    for (channels, input, output) in [
        (1, dims(5, 6, 7), dims(2, 3, 4)),
        (3, dims(5, 6, 7), dims(5, 6, 7)),
        (8, dims(7, 4, 5), dims(3, 3, 2)),
        (17, dims(3, 5, 4), dims(5, 7, 1)),
        (16, dims(9, 2, 3), dims(1, 1, 1)),
    ] {
        for (lo, hi) in [(0, output.t), (1, output.t), (0, 1), (0, 0)] {
            let (x, y) = (Window { lo: 0, hi: input.t }, Window { lo: lo.min(hi), hi });
            let whole = AdaptiveShape { clips: 2, channels, input, output, x, y };
            shapes.push(AdaptiveShape { x: whole.reads(), ..whole.clone() });
            shapes.push(whole);
        }
    }
    shapes
}

/// (inputs, what the divisor counts) of each output of an axis.
type Axis = Box<dyn Fn(usize) -> (Range<usize>, usize)>;

/// What a pooling is, by definition: for every output, its inputs on each axis and its divisor.
struct Definition {
    clips: usize,
    channels: usize,
    input: Dims3,
    output: Dims3,
    x: Window,
    y: Window,
    axes: [Axis; 3],
    fixed: Option<usize>,
}

fn of_strided(s: &PoolShape, divisor: Divisor) -> Definition {
    let axis = |k: usize, stride: usize, p: usize, n: usize| -> Axis {
        Box::new(move |o| {
            let inside = (0..k).filter_map(|j| (o * stride + j).checked_sub(p)).filter(|i| *i < n);
            let (lo, hi) = (inside.clone().min().unwrap(), inside.max().unwrap() + 1);
            let padded = (0..k).filter(|j| o * stride + j < n + 2 * p).count();
            (lo..hi, if divisor == Divisor::WithPadding { padded } else { hi - lo })
        })
    };
    Definition {
        clips: s.clips,
        channels: s.channels,
        input: s.input,
        output: s.output,
        x: s.x,
        y: s.y,
        axes: [
            axis(s.kernel.t, s.stride.t, s.padding.t, s.input.t),
            axis(s.kernel.h, s.stride.h, s.padding.h, s.input.h),
            axis(s.kernel.w, s.stride.w, s.padding.w, s.input.w),
        ],
        fixed: if let Divisor::Fixed(number) = divisor { Some(number) } else { None },
    }
}

fn of_adaptive(s: &AdaptiveShape) -> Definition {
    let axis = |n: usize, of: usize| -> Axis {
        Box::new(move |o| {
            let lo = (o as f64 * n as f64 / of as f64).floor() as usize;
            let hi = ((o + 1) as f64 * n as f64 / of as f64).ceil() as usize;
            (lo..hi, hi - lo)
        })
    };
    Definition {
        clips: s.clips,
        channels: s.channels,
        input: s.input,
        output: s.output,
        x: s.x,
        y: s.y,
        axes: [axis(s.input.t, s.output.t), axis(s.input.h, s.output.h), axis(s.input.w, s.output.w)],
        fixed: None,
    }
}

impl Definition {
    /// For every output: the places in x of its inputs, and its divisor.
    fn outputs(&self) -> Vec<(Vec<usize>, usize)> {
        let mut outputs = Vec::new();
        for ot in self.y.lo..self.y.hi {
            for n in 0..self.clips {
                for oh in 0..self.output.h {
                    for ow in 0..self.output.w {
                        let [(t, a), (h, b), (w, c)] = [(self.axes[0])(ot), (self.axes[1])(oh), (self.axes[2])(ow)];
                        for channel in 0..self.channels {
                            let mut places = Vec::new();
                            for t in t.clone() {
                                for h in h.clone() {
                                    for w in w.clone() {
                                        let row = ((t - self.x.lo) * self.clips + n) * self.input.h + h;
                                        places.push((row * self.input.w + w) * self.channels + channel);
                                    }
                                }
                            }
                            outputs.push((places, self.fixed.unwrap_or(a * b * c)));
                        }
                    }
                }
            }
        }
        outputs
    }

    fn mean(&self, x: &[f64]) -> Vec<f64> {
        let mean =
            |(places, divisor): (Vec<usize>, usize)| places.into_iter().map(|at| x[at]).sum::<f64>() / divisor as f64;
        self.outputs().into_iter().map(mean).collect()
    }

    fn mean_gradient(&self, dy: &[f64], dx: &mut [f64]) {
        for ((places, divisor), dy) in self.outputs().into_iter().zip(dy) {
            places.into_iter().for_each(|at| dx[at] += dy / divisor as f64);
        }
    }

    /// The maximum of each window and its place.
    fn maximum(&self, x: &[f64]) -> Vec<(f64, usize)> {
        let first_greatest = |(places, _): (Vec<usize>, usize)| {
            let mut best = places[0];
            for at in places {
                if x[at] > x[best] || x[at].is_nan() {
                    best = at;
                }
            }
            (x[best], best)
        };
        self.outputs().into_iter().map(first_greatest).collect()
    }
}

#[test]
fn average_rows_agree_with_the_definition() {
    let pool = Pool::new(2).unwrap();
    for pool_shape in strided() {
        for divisor in [Divisor::WithPadding, Divisor::Inputs, Divisor::Fixed(5)] {
            let s = AvgPoolShape { pool: pool_shape.clone(), divisor };
            let definition = of_strided(&pool_shape, divisor);
            let mut random = Random::new(1);
            let (x, dy) = (random.vector::<f32>(pool_shape.x_len()), random.vector::<f32>(pool_shape.y_len()));
            let want = definition.mean(&widen(&x));
            for row in rows(f32::avg_pool_forward()) {
                let mut y = nan(want.len());
                (row.run)(&s, AvgPoolForwardArgs { x: &x, y: &mut y }, &pool);
                assert_close(&y, &want, Tolerance::F32_ELEMENTWISE, &format!("{} {s:?}", row.name));
            }
            for accumulate in [false, true] {
                let mut want = if accumulate { widen(&x) } else { vec![0.0; x.len()] };
                definition.mean_gradient(&widen(&dy), &mut want);
                for row in rows(f32::avg_pool_backward()) {
                    let mut dx = if accumulate { x.clone() } else { nan(x.len()) };
                    (row.run)(&s, AvgPoolBackwardArgs { dy: &dy, accumulate, dx: &mut dx }, &pool);
                    assert_close(&dx, &want, Tolerance::F32_ELEMENTWISE, &format!("{} {s:?}", row.name));
                }
            }
        }
    }
}

#[test]
fn adaptive_average_rows_agree_with_the_definition() {
    for s in adaptive() {
        let definition = of_adaptive(&s);
        let mut random = Random::new(2);
        let (x, dy) = (random.vector::<f32>(s.x_len()), random.vector::<f32>(s.y_len()));
        let want = definition.mean(&widen(&x));
        let mut want_dx = vec![0.0; x.len()];
        definition.mean_gradient(&widen(&dy), &mut want_dx);
        for row in rows(f32::adaptive_avg_pool_forward()) {
            let what = format!("{} {s:?}", row.name);
            let y = on_any_threads(&what, |pool| {
                let mut y = nan(want.len());
                (row.run)(&s, AvgPoolForwardArgs { x: &x, y: &mut y }, pool);
                y
            });
            assert_close(&y, &want, Tolerance::F32_ELEMENTWISE, &what);
        }
        for row in rows(f32::adaptive_avg_pool_backward()) {
            let what = format!("{} {s:?}", row.name);
            let dx = on_any_threads(&what, |pool| {
                let mut dx = nan(x.len());
                (row.run)(&s, AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx: &mut dx }, pool);
                dx
            });
            assert_close(&dx, &want_dx, Tolerance::F32_ELEMENTWISE, &what);
        }
    }
}

/// Numbers with ties and NaN.
fn with_ties(random: &mut Random, len: usize) -> Vec<f32> {
    let number = |bits: u64| if bits.is_multiple_of(31) { f32::NAN } else { (bits % 5) as f32 - 2.0 };
    (0..len).map(|_| number(random.next())).collect()
}

fn gradient_of_maxima(maxima: &[(f64, usize)], dy: &[f32], len: usize) -> Vec<f64> {
    let mut dx = vec![0.0; len];
    for ((_, place), dy) in maxima.iter().zip(dy) {
        dx[*place] += f64::from(*dy);
    }
    dx
}

#[test]
fn adaptive_maximum_rows_agree_with_the_definition() {
    for s in adaptive() {
        let mut random = Random::new(3);
        let (x, dy) = (with_ties(&mut random, s.x_len()), random.vector::<f32>(s.y_len()));
        let maxima = of_adaptive(&s).maximum(&widen(&x));
        let want: Vec<f64> = maxima.iter().map(|(y, _)| *y).collect();
        for row in rows(f32::adaptive_max_pool_forward()) {
            let what = format!("{} {s:?}", row.name);
            let y = on_any_threads(&what, |pool| {
                let mut y = nan(want.len());
                (row.run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, pool);
                y
            });
            assert_close(&y, &want, Tolerance { absolute: 0.0, relative: 0.0 }, &what);
        }
        for row in rows(f32::adaptive_max_pool_backward()) {
            let what = format!("{} {s:?}", row.name);
            let dx = on_any_threads(&what, |pool| {
                let mut dx = nan(x.len());
                let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
                (row.run)(&s, args, pool);
                dx
            });
            assert_close(&dx, &gradient_of_maxima(&maxima, &dy, x.len()), Tolerance::F32_ELEMENTWISE, &what);
        }
    }
}

#[test]
fn maximum_rows_handle_windows_that_stick_out() {
    let pool = Pool::new(2).unwrap();
    for s in strided() {
        let mut random = Random::new(4);
        let (x, dy) = (with_ties(&mut random, s.x_len()), random.vector::<f32>(s.y_len()));
        let maxima = of_strided(&s, Divisor::Inputs).maximum(&widen(&x));
        let want: Vec<f64> = maxima.iter().map(|(y, _)| *y).collect();
        for row in rows(f32::max_pool_forward()) {
            let mut y = nan(want.len());
            (row.run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, &pool);
            assert_close(&y, &want, Tolerance { absolute: 0.0, relative: 0.0 }, &format!("{} {s:?}", row.name));
        }
        for row in rows(f32::max_pool_backward()) {
            let mut dx = nan(x.len());
            let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
            (row.run)(&s, args, &pool);
            let want = gradient_of_maxima(&maxima, &dy, x.len());
            assert_close(&dx, &want, Tolerance::F32_ELEMENTWISE, &format!("{} {s:?}", row.name));
        }
    }
}

#[test]
#[should_panic(expected = "the last window must cover an input")]
fn a_window_outside_the_clip_is_refused() {
    let (input, two, none) = (dims(2, 4, 4), Dims3::cube(2), Dims3::cube(0));
    let (x, y) = (Window { lo: 0, hi: 2 }, Window { lo: 0, hi: 1 });
    let output = dims(1, 3, 2);
    let s = PoolShape { clips: 1, channels: 1, input, output, kernel: two, stride: two, padding: none, x, y };
    let (values, mut y) = (vec![0.0; s.x_len()], vec![0.0; s.y_len()]);
    (f64::max_pool_forward()[0].run)(&s, MaxPoolForwardArgs { x: &values, y: &mut y }, &Pool::new(1).unwrap());
}

#[test]
fn gradients_agree_with_differences() {
    let pool = Pool::new(1).unwrap();
    let mut random = Random::new(5);
    for pool_shape in strided().into_iter().filter(|s| s.channels == 3).step_by(17) {
        let s = AvgPoolShape { pool: pool_shape, divisor: Divisor::WithPadding };
        let (x, dy) = (random.vector::<f64>(s.pool.x_len()), random.vector::<f64>(s.pool.y_len()));
        let value = |x: &[f64]| {
            let mut y = nan(dy.len());
            (f64::avg_pool_forward()[0].run)(&s, AvgPoolForwardArgs { x, y: &mut y }, &pool);
            dot(&dy, &y)
        };
        let mut dx = nan(x.len());
        (f64::avg_pool_backward()[0].run)(&s, AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx: &mut dx }, &pool);
        assert_close(&dx, &differences(&x, value), Tolerance::F64_DIFFERENCES, "dx");
    }
}
