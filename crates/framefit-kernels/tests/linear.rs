//! All rows of the linear tables, on the same cases.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, bits, differences, dot, widen};
use framefit_kernels::linear::*;
use framefit_kernels::{Pool, Real, Row};

fn cases() -> Vec<LinearShape> {
    let mut cases = Vec::new();
    let mut add = |clips, frames, features, out_features| {
        cases.push(LinearShape { clips, frames, features, out_features });
    };
    for clips in 1..=9 {
        for out_features in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33] {
            add(clips, 1, 19, out_features);
        }
    }
    for features in (1..=34).chain([1023, 1024, 1025, 2047, 2048, 2049, 5000]) {
        add(3, 2, features, 5);
    }
    for frames in [0, 1, 2, 3, 70] {
        add(2, frames, 40, 6);
    }
    cases
}

struct Inputs<E> {
    x: Vec<E>,
    w: Vec<E>,
    bias: Vec<E>,
    dy: Vec<E>,
}

impl Inputs<f32> {
    fn new(s: &LinearShape) -> Self {
        let mut random = Random::new(3);
        Inputs {
            x: random.vector(s.x_len()),
            w: random.vector(s.weight_len()),
            bias: random.vector(s.out_features),
            dy: random.vector(s.y_len()),
        }
    }

    fn widen(&self) -> Inputs<f64> {
        Inputs { x: widen(&self.x), w: widen(&self.w), bias: widen(&self.bias), dy: widen(&self.dy) }
    }
}

fn nan<E: Real>(len: usize) -> Vec<E> {
    vec![E::from_f64(f64::NAN); len]
}

/// `full`: with bias, ReLU, and from an earlier sum.
fn forward<E: Real>(row: &LinearForward<E>, s: &LinearShape, i: &Inputs<E>, full: bool, pool: &Pool) -> Vec<E> {
    let mut y = if full { i.dy.clone() } else { nan(s.y_len()) };
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    let args = LinearForwardArgs {
        x: &i.x,
        w: &i.w,
        bias: full.then_some(&i.bias[..]),
        relu: full,
        accumulate: full,
        y: &mut y,
        scratch: &mut scratch,
    };
    (row.run)(s, args, pool);
    y
}

fn input_gradient<E: Real>(
    row: &LinearInputGradient<E>,
    s: &LinearShape,
    i: &Inputs<E>,
    accumulate: bool,
    pool: &Pool,
) -> Vec<E> {
    let mut dx = if accumulate { i.x.clone() } else { nan(s.x_len()) };
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    let args = LinearInputGradientArgs { dy: &i.dy, w: &i.w, dx: &mut dx, accumulate, scratch: &mut scratch };
    (row.run)(s, args, pool);
    dx
}

fn weight_gradient<E: Real>(
    row: &LinearWeightGradient<E>,
    s: &LinearShape,
    i: &Inputs<E>,
    pool: &Pool,
) -> (Vec<E>, Vec<E>) {
    let (mut dw, mut db) = (i.w.clone(), i.bias.clone());
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    let args = LinearWeightGradientArgs { x: &i.x, dy: &i.dy, dw: &mut dw, db: Some(&mut db), scratch: &mut scratch };
    (row.run)(s, args, pool);
    (dw, db)
}

fn rows<R: Row<LinearShape>>(table: &'static [R]) -> impl Iterator<Item = &'static R> {
    table.iter().filter(|row| row.isa().available())
}

#[test]
fn rows_agree() {
    let pool = Pool::new(2).unwrap();
    let close = Tolerance::F32_REORDERED;
    for s in &cases() {
        let narrow = Inputs::new(s);
        let wide = narrow.widen();
        for flag in [false, true] {
            let want = forward(&f64::linear_forward()[0], s, &wide, flag, &pool);
            for row in rows(f32::linear_forward()) {
                let got = forward(row, s, &narrow, flag, &pool);
                assert_close(&got, &want, Tolerance::F32_LONG_SUMS, &format!("{} {s:?}", row.name));
            }
            let want = input_gradient(&f64::linear_input_gradient()[0], s, &wide, flag, &pool);
            for row in rows(f32::linear_input_gradient()) {
                let got = input_gradient(row, s, &narrow, flag, &pool);
                assert_close(&got, &want, close, &format!("{} {s:?}", row.name));
            }
        }
        let (dw, db) = weight_gradient(&f64::linear_weight_gradient()[0], s, &wide, &pool);
        for row in rows(f32::linear_weight_gradient()) {
            let got = weight_gradient(row, s, &narrow, &pool);
            assert_close(&got.0, &dw, close, &format!("{} dw {s:?}", row.name));
            assert_close(&got.1, &db, close, &format!("{} db {s:?}", row.name));
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
    for s in [
        LinearShape { clips: 5, frames: 7, features: 5000, out_features: 37 },
        LinearShape { clips: 1, frames: 1, features: 300, out_features: 100 },
    ] {
        let i = Inputs::new(&s);
        for row in rows(f32::linear_forward()) {
            let [a, b, c] = pools.each_ref().map(|pool| bits(&forward(row, &s, &i, true, pool)));
            assert!(a == b && a == c, "{}", row.name);
        }
        for row in rows(f32::linear_input_gradient()) {
            let [a, b, c] = pools.each_ref().map(|pool| bits(&input_gradient(row, &s, &i, false, pool)));
            assert!(a == b && a == c, "{}", row.name);
        }
        for row in rows(f32::linear_weight_gradient()) {
            let [a, b, c] = pools.each_ref().map(|pool| bits(&weight_gradient(row, &s, &i, pool).0));
            assert!(a == b && a == c, "{}", row.name);
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = LinearShape { clips: 3, frames: 2, features: 5, out_features: 4 };
    let i = Inputs::new(&s).widen();
    let value = |x: &[f64], w: &[f64]| {
        let inputs = Inputs { x: x.to_vec(), w: w.to_vec(), bias: Vec::new(), dy: Vec::new() };
        dot(&i.dy, &forward(&f64::linear_forward()[0], &s, &inputs, false, &pool))
    };
    let dx = input_gradient(&f64::linear_input_gradient()[0], &s, &i, false, &pool);
    assert_close(&dx, &differences(&i.x, |x| value(x, &i.w)), Tolerance::F64_DIFFERENCES, "dx");
    let (mut dw, _) = weight_gradient(&f64::linear_weight_gradient()[0], &s, &i, &pool);
    dw.iter_mut().zip(&i.w).for_each(|(dw, w)| *dw -= w);
    assert_close(&dw, &differences(&i.w, |w| value(&i.x, w)), Tolerance::F64_DIFFERENCES, "dw");
}

/// A clip's windows, each added to the earlier ones' sum, give the whole clip's output.
#[test]
fn windows_add_up() {
    let pool = Pool::new(2).unwrap();
    let whole = LinearShape { clips: 2, frames: 5, features: 30, out_features: 3 };
    let i = Inputs::new(&whole);
    for row in rows(f32::linear_forward()) {
        let run = |s: &LinearShape, at: usize, y: &mut [f32], accumulate: bool| {
            let mut scratch = nan((row.scratch)(s, pool.threads()));
            let (x, w) = (&i.x[at * 60..][..s.x_len()], &i.w[at * 90..][..s.weight_len()]);
            let args = LinearForwardArgs { x, w, bias: None, relu: false, accumulate, y, scratch: &mut scratch };
            (row.run)(s, args, &pool);
        };
        let (mut once, mut parts) = (nan(6), nan(6));
        run(&whole, 0, &mut once, false);
        run(&LinearShape { frames: 2, ..whole.clone() }, 0, &mut parts, false);
        run(&LinearShape { frames: 3, ..whole.clone() }, 2, &mut parts, true);
        assert_close(&parts, &once, Tolerance::F32_REORDERED, row.name);
    }
}
