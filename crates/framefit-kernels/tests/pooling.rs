//! All rows of the maximum pooling and mean tables, on the same cases.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, bits, differences, dot, nan, rows, widen};
use framefit_kernels::conv::{Dims3, Window};
use framefit_kernels::mean::*;
use framefit_kernels::pooling::*;
use framefit_kernels::{Pool, Real};

const fn dims(t: usize, h: usize, w: usize) -> Dims3 {
    Dims3 { t, h, w }
}

fn whole(clips: usize, channels: usize, input: Dims3, kernel: Dims3, stride: Dims3, padding: Dims3) -> PoolShape {
    let output = PoolShape::output_of(input, kernel, stride, padding);
    PoolShape {
        clips,
        channels,
        input,
        output,
        kernel,
        stride,
        padding,
        x: Window { lo: 0, hi: input.t },
        y: Window { lo: 0, hi: output.t },
    }
}

fn cases() -> Vec<PoolShape> {
    let mut cases = Vec::new();
    let (two, one, none) = (Dims3::cube(2), Dims3::cube(1), Dims3::cube(0));
    for c in (1..=18).chain([31, 32, 33, 50]) {
        cases.push(whole(2, c, dims(4, 5, 6), two, two, none));
    }
    for kernel in [one, two, Dims3::cube(3), dims(1, 2, 3), dims(3, 1, 2)] {
        for stride in [one, two, Dims3::cube(3), dims(2, 3, 1), dims(1, 2, 2)] {
            for padding in [none, dims(kernel.t / 2, kernel.h / 2, kernel.w / 2)] {
                let shape = whole(2, 3, dims(5, 6, 7), kernel, stride, padding);
                cases.push(shape.clone());
                for (lo, hi) in [(0, 1), (1, 2), (1, shape.output.t), (1, 1)] {
                    let mut part = PoolShape { y: Window { lo, hi: hi.min(shape.output.t) }, ..shape.clone() };
                    if part.y.lo > part.y.hi {
                        continue;
                    }
                    part.x = part.reads();
                    cases.push(part.clone());
                    part.x = Window { lo: part.x.lo.saturating_sub(1), hi: (part.x.hi + 2).min(5) };
                    cases.push(part);
                }
            }
        }
    }
    cases
}

/// The forward pass by definition, with the index in x of each maximum.
fn by_definition(s: &PoolShape, x: &[f64]) -> (Vec<f64>, Vec<usize>) {
    let (mut y, mut places) = (Vec::new(), Vec::new());
    let inputs = |o: usize, k: usize, stride: usize, p: usize, n: usize| {
        (0..k).filter_map(move |j| (o * stride + j).checked_sub(p)).filter(move |i| *i < n)
    };
    for ot in s.y.lo..s.y.hi {
        for n in 0..s.clips {
            for oh in 0..s.output.h {
                for ow in 0..s.output.w {
                    for c in 0..s.channels {
                        let (mut best, mut place) = (f64::NEG_INFINITY, None);
                        for t in inputs(ot, s.kernel.t, s.stride.t, s.padding.t, s.input.t) {
                            for h in inputs(oh, s.kernel.h, s.stride.h, s.padding.h, s.input.h) {
                                for w in inputs(ow, s.kernel.w, s.stride.w, s.padding.w, s.input.w) {
                                    let row = ((t - s.x.lo) * s.clips + n) * s.input.h + h;
                                    let at = (row * s.input.w + w) * s.channels + c;
                                    if place.is_none() || x[at] > best || x[at].is_nan() {
                                        (best, place) = (x[at], Some(at));
                                    }
                                }
                            }
                        }
                        y.push(best);
                        places.push(place.unwrap());
                    }
                }
            }
        }
    }
    (y, places)
}

/// Numbers with many ties, some NaN and some −∞.
fn with_ties(random: &mut Random, len: usize) -> Vec<f32> {
    let number = |bits: u64| match bits % 23 {
        0 => f32::NAN,
        1 => f32::NEG_INFINITY,
        n => (n % 5) as f32 - 2.0,
    };
    (0..len).map(|_| number(random.next())).collect()
}

#[test]
fn rows_agree_with_the_definition() {
    let pool = Pool::new(2).unwrap();
    for s in &cases() {
        let mut random = Random::new(5);
        let ties = with_ties(&mut random, s.x_len());
        let distinct = random.vector(s.x_len());
        let (dy, before) = (random.vector::<f32>(s.y_len()), random.vector::<f32>(s.x_len()));
        for x in [ties, distinct] {
            let (want, places) = by_definition(s, &widen(&x));
            for row in rows(f32::max_pool_forward()) {
                let mut y = nan(s.y_len());
                (row.run)(s, MaxPoolForwardArgs { x: &x, y: &mut y }, &pool);
                assert_close(&y, &want, Tolerance { absolute: 0.0, relative: 0.0 }, &format!("{} {s:?}", row.name));
            }
            for (relu, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut want = if accumulate { widen(&before) } else { vec![0.0; s.x_len()] };
                for (dy, place) in dy.iter().zip(&places) {
                    if !relu || x[*place] > 0.0 {
                        want[*place] += f64::from(*dy);
                    }
                }
                for row in rows(f32::max_pool_backward()) {
                    let mut dx = if accumulate { before.clone() } else { nan(s.x_len()) };
                    let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu, accumulate, dx: &mut dx };
                    (row.run)(s, args, &pool);
                    assert_close(&dx, &want, Tolerance::F32_REORDERED, &format!("{} {s:?}", row.name));
                }
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
    for s in &cases() {
        let mut random = Random::new(6);
        let (x, dy) = (random.vector::<f32>(s.x_len()), random.vector::<f32>(s.y_len()));
        for row in rows(f32::max_pool_backward()) {
            let [a, b, c] = pools.each_ref().map(|pool| {
                let mut dx = nan(s.x_len());
                let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: true, accumulate: false, dx: &mut dx };
                (row.run)(s, args, pool);
                bits(&dx)
            });
            assert!(a == b && a == c, "{} {s:?}", row.name);
        }
    }
}

#[test]
fn pooling_gradient_agrees_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = whole(2, 2, dims(3, 4, 5), Dims3::cube(3), Dims3::cube(2), Dims3::cube(1));
    let mut random = Random::new(8);
    let (x, dy) = (random.vector::<f64>(s.x_len()), random.vector::<f64>(s.y_len()));
    let value = |x: &[f64]| {
        let mut y = nan(s.y_len());
        (f64::max_pool_forward()[0].run)(&s, MaxPoolForwardArgs { x, y: &mut y }, &pool);
        dot(&dy, &y)
    };
    let mut dx = nan(s.x_len());
    let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
    (f64::max_pool_backward()[0].run)(&s, args, &pool);
    assert_close(&dx, &differences(&x, value), Tolerance::F64_DIFFERENCES, "dx");
}

#[test]
fn mean_rows_agree_with_the_definition() {
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
    let mut random = Random::new(9);
    for channels in (1..=17).chain([31, 32, 33, 64, 70]) {
        for (clips, frames, positions) in [(1, 1, 1), (2, 3, 5), (3, 2, 300), (2, 0, 4)] {
            let s = MeanShape { clips, frames, positions, channels };
            let (x, dy) = (random.vector::<f32>(s.x_len()), random.vector::<f32>(s.y_len()));
            let scale = 1.0 / 7.0;
            for accumulate in [false, true] {
                let mut want = if accumulate { widen(&dy) } else { vec![0.0; s.y_len()] };
                let mut want_dx = if accumulate { widen(&x) } else { vec![0.0; s.x_len()] };
                for (i, x) in x.iter().enumerate() {
                    let at = i / (positions * channels) % clips * channels + i % channels;
                    want[at] += f64::from(*x) / 7.0;
                    want_dx[i] += f64::from(dy[at]) / 7.0;
                }
                for row in rows(f32::mean_forward()) {
                    let [a, b, c] = pools.each_ref().map(|pool| {
                        let mut y = if accumulate { dy.clone() } else { nan(s.y_len()) };
                        let mut scratch = nan((row.scratch)(&s, pool.threads()));
                        let args = MeanForwardArgs { x: &x, scale, accumulate, y: &mut y, scratch: &mut scratch };
                        (row.run)(&s, args, pool);
                        y
                    });
                    assert!(bits(&a) == bits(&b) && bits(&a) == bits(&c), "{} {s:?}", row.name);
                    assert_close(&a, &want, Tolerance::F32_REORDERED, &format!("{} {s:?}", row.name));
                }
                for row in rows(f32::mean_backward()) {
                    let mut dx = if accumulate { x.clone() } else { nan(s.x_len()) };
                    let args = MeanBackwardArgs { dy: &dy, scale, accumulate, dx: &mut dx };
                    (row.run)(&s, args, &pools[1]);
                    assert_close(&dx, &want_dx, Tolerance::F32_ELEMENTWISE, &format!("{} {s:?}", row.name));
                }
            }
        }
    }
}
