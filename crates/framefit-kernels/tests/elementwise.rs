//! Activation, loss, optimizer and frame kernels: all rows on the same cases.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, bits, differences, rows, widen};
use framefit_kernels::activation::*;
use framefit_kernels::frames::*;
use framefit_kernels::loss::*;
use framefit_kernels::optimizer::*;
use framefit_kernels::{Pool, Real};

/// Lengths around registers and tasks.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=35).chain([16 * 1024 - 1, 16 * 1024 + 1, 64 * 1024, 64 * 1024 + 3, 200_000])
}

#[test]
fn relu_keeps_what_is_positive_and_nan() {
    let pool = Pool::new(2).unwrap();
    for len in lengths() {
        let mut random = Random::new(1);
        let (mut before, dy) = (random.vector::<f32>(len), random.vector::<f32>(len));
        for (i, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0].into_iter().enumerate() {
            if let Some(x) = before.get_mut(3 * i) {
                *x = special;
            }
        }
        let want: Vec<f32> = before.iter().map(|x| if *x < 0.0 { 0.0 } else { *x }).collect();
        let want_dy: Vec<f32> = want.iter().zip(&dy).map(|(y, dy)| if *y > 0.0 { *dy } else { 0.0 }).collect();
        for row in rows(f32::relu_forward()) {
            let mut y = before.clone();
            (row.run)(&len, ReluForwardArgs { y: &mut y }, &pool);
            assert_eq!(bits(&y), bits(&want), "{} {len}", row.name);
        }
        for row in rows(f32::relu_backward()) {
            let mut dx = dy.clone();
            (row.run)(&len, ReluBackwardArgs { y: &want, dy: &mut dx }, &pool);
            assert_eq!(bits(&dx), bits(&want_dy), "{} {len}", row.name);
        }
    }
}

#[test]
fn frames_are_normalised_by_channel() {
    let pool = Pool::new(2).unwrap();
    for channels in (1..=17).chain([64, 191, 192, 193, 250]) {
        for pixels in [0, 1, 2, 7, 64, 129, 20_000 / channels] {
            let s = FramesShape { pixels, channels };
            let mut random = Random::new(2);
            let x: Vec<u8> = (0..pixels * channels).map(|_| random.next() as u8).collect();
            let mean = random.vector::<f32>(channels);
            let std: Vec<f32> = random.vector::<f32>(channels).iter().map(|s| s.abs() + 0.1).collect();
            let value = |(i, x): (usize, &u8)| {
                let c = i % channels;
                (f64::from(*x) / 255.0 - f64::from(mean[c])) / f64::from(std[c])
            };
            let want: Vec<f64> = x.iter().enumerate().map(value).collect();
            for row in rows(f32::frames_normalize()) {
                let mut y = vec![f32::NAN; x.len()];
                (row.run)(&s, FramesNormalizeArgs { x: &x, mean: &mean, std: &std, y: &mut y }, &pool);
                assert_close(&y, &want, Tolerance { absolute: 5e-6, relative: 1e-6 }, &format!("{} {s:?}", row.name));
            }
        }
    }
}

struct Moments<E> {
    w: Vec<E>,
    m: Vec<E>,
    v: Vec<E>,
}

/// Three steps with fixed gradients.
fn three_steps<E: Real>(row: &Adam<E>, from: &[E], weight_decay: f64, pool: &Pool) -> Moments<E> {
    let len = from.len();
    let mut it = Moments { w: from.to_vec(), m: vec![E::ZERO; len], v: vec![E::ZERO; len] };
    let mut random = Random::new(4);
    for step in 1..=3 {
        let g: Vec<E> = random.vector(len);
        let step = AdamStep { lr: 0.01, weight_decay, step, ..AdamStep::DEFAULT };
        (row.run)(&len, AdamArgs { step, w: &mut it.w, g: &g, m: &mut it.m, v: &mut it.v }, pool);
    }
    it
}

#[test]
fn adam_rows_agree() {
    let pool = Pool::new(2).unwrap();
    for len in lengths() {
        for weight_decay in [0.0, 0.1] {
            let from = Random::new(3).vector::<f32>(len);
            let want = three_steps(&f64::adam()[0], &widen(&from), weight_decay, &pool);
            for row in rows(f32::adam()) {
                let got = three_steps(row, &from, weight_decay, &pool);
                assert_close(&got.w, &want.w, Tolerance::F32_REORDERED, row.name);
                assert_close(&got.m, &want.m, Tolerance::F32_ELEMENTWISE, row.name);
                assert_close(&got.v, &want.v, Tolerance::F32_ELEMENTWISE, row.name);
            }
        }
    }
}

/// The first step moves each weight by the learning rate against the gradient's sign, as m/√v = ±1 then.
#[test]
fn the_first_adam_step_is_the_learning_rate() {
    let pool = Pool::new(1).unwrap();
    let step = AdamStep { lr: 0.5, eps: 0.0, ..AdamStep::DEFAULT };
    let (mut w, mut m, mut v) = ([1.0, 1.0], [0.0; 2], [0.0; 2]);
    (f64::adam()[0].run)(&2, AdamArgs { step, w: &mut w, g: &[3.0, -0.2], m: &mut m, v: &mut v }, &pool);
    assert_close(&w, &[0.5, 1.5], Tolerance::F64_REORDERED, "w");
}

fn cross_entropy<E: Real>(
    s: &LossShape,
    logits: &[E],
    labels: &[u32],
    class_weights: Option<&[E]>,
    scale: E,
) -> (Vec<E>, Vec<E>) {
    let pool = Pool::new(1).unwrap();
    let mut losses = vec![E::from_f64(f64::NAN); s.clips];
    let mut dlogits = vec![E::from_f64(f64::NAN); s.clips * s.classes];
    let args = CrossEntropyArgs { logits, labels, class_weights, scale, losses: &mut losses, dlogits: &mut dlogits };
    (E::cross_entropy()[0].run)(s, args, &pool);
    (losses, dlogits)
}

#[test]
fn cross_entropy_gradient_agrees_with_differences() {
    let s = LossShape { clips: 3, classes: 5 };
    let mut random = Random::new(5);
    let (logits, labels) = (random.vector::<f64>(15), [4, 0, 2]);
    let weights: Vec<f64> = random.vector::<f64>(5).iter().map(|w| w.abs() + 0.5).collect();
    for class_weights in [None, Some(&weights[..])] {
        let scale = 0.25;
        let total =
            |logits: &[f64]| scale * cross_entropy(&s, logits, &labels, class_weights, scale).0.iter().sum::<f64>();
        let (_, dlogits) = cross_entropy(&s, &logits, &labels, class_weights, scale);
        assert_close(&dlogits, &differences(&logits, total), Tolerance::F64_DIFFERENCES, "dlogits");
    }
}

#[test]
fn cross_entropy_is_stable_for_large_logits() {
    let s = LossShape { clips: 2, classes: 2 };
    let (losses, dlogits) = cross_entropy(&s, &[1e4_f32, -1e4, 1e4, -1e4], &[0, 1], None, 1.0);
    assert_eq!(losses, [0.0, 2e4]);
    assert_eq!(dlogits, [0.0, 0.0, 1.0, -1.0]);
}
