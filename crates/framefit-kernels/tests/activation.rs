//! All rows of the activation tables.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, bits, differences, nan, rows, widen};
use framefit_kernels::activation::*;
use framefit_kernels::{Pool, Real};

/// Every function, with parameters of both signs where the sign matters.
const ALL: [Activation; 17] = [
    Activation::Relu,
    Activation::LeakyRelu { slope: 0.01 },
    Activation::LeakyRelu { slope: -0.3 },
    Activation::Elu { alpha: 1.3 },
    Activation::Elu { alpha: -0.7 },
    Activation::Selu,
    Activation::Relu6,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::Sigmoid,
    Activation::HardSigmoid,
    Activation::HardSigmoidKeras2,
    Activation::HardSwish,
    Activation::Tanh,
    Activation::Softplus,
    Activation::Identity,
];

/// Lengths around registers, blocks and tasks.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=35).chain([511, 512, 513, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 40_003])
}

/// Numbers in −8..8.
fn wide<E: Real>(random: &mut Random, len: usize) -> Vec<E> {
    random.vector::<E>(len).into_iter().map(|x| E::from_f64(8.0) * x).collect()
}

fn forward<E: Real>(row: &ActivationForward<E>, activation: Activation, x: &[E], pool: &Pool) -> Vec<E> {
    let mut y = nan(x.len());
    (row.run)(&x.len(), ActivationForwardArgs { activation, x: Some(x), y: &mut y }, pool);
    y
}

/// The gradient from what the activation says it reads, and from nothing else.
fn backward<E: Real>(
    row: &ActivationBackward<E>,
    activation: Activation,
    (x, y): (&[E], &[E]),
    dy: &[E],
    pool: &Pool,
) -> Vec<E> {
    let (reads_x, reads_y) = (activation.reads_input(), activation.reads_output());
    let (x, y) = (if reads_x { x } else { &[] }, if reads_y { y } else { &[] });
    let mut dx = nan(dy.len());
    let args = ActivationBackwardArgs { activation, x, y, dy: Some(dy), accumulate: false, dx: &mut dx };
    (row.run)(&dy.len(), args, pool);
    dx
}

#[test]
fn rows_agree() {
    let pool = Pool::new(2).unwrap();
    for activation in ALL {
        for len in lengths() {
            let mut random = Random::new(1);
            let (x, dy) = (wide::<f32>(&mut random, len), random.vector::<f32>(len));
            let want = forward(&f64::activation_forward()[0], activation, &widen(&x), &pool);
            let want_dx = backward(&f64::activation_backward()[0], activation, (&widen(&x), &want), &widen(&dy), &pool);
            let tolerance = Tolerance { absolute: 2e-6, relative: 2e-6 };
            for row in rows(f32::activation_forward()) {
                let y = forward(row, activation, &x, &pool);
                assert_close(&y, &want, tolerance, &format!("{} {activation:?} {len}", row.name));
                let mut inplace = x.clone();
                (row.run)(&len, ActivationForwardArgs { activation, x: None, y: &mut inplace }, &pool);
                assert_eq!(bits(&y), bits(&inplace), "{} {activation:?} {len}", row.name);
            }
            let y = forward(&f32::activation_forward()[0], activation, &x, &pool);
            for row in rows(f32::activation_backward()) {
                let what = format!("{} {activation:?} {len}", row.name);
                let dx = backward(row, activation, (&x, &y), &dy, &pool);
                assert_close(&dx, &want_dx, tolerance, &what);
                let mut inplace = dy.clone();
                let args =
                    ActivationBackwardArgs { activation, x: &x, y: &y, dy: None, accumulate: false, dx: &mut inplace };
                (row.run)(&len, args, &pool);
                assert_eq!(bits(&dx), bits(&inplace), "{what}");
                let mut added = x.clone();
                let args = ActivationBackwardArgs {
                    activation,
                    x: &x,
                    y: &y,
                    dy: Some(&dy),
                    accumulate: true,
                    dx: &mut added,
                };
                (row.run)(&len, args, &pool);
                let sum: Vec<f32> = x.iter().zip(&dx).map(|(x, dx)| x + dx).collect();
                assert_eq!(bits(&added), bits(&sum), "{what}");
            }
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    let pool = Pool::new(1).unwrap();
    for activation in ALL {
        let mut random = Random::new(2);
        let (x, dy) = (wide::<f64>(&mut random, 60), random.vector::<f64>(60));
        let row = &f64::activation_forward()[0];
        let y = forward(row, activation, &x, &pool);
        let dx = backward(&f64::activation_backward()[0], activation, (&x, &y), &dy, &pool);
        let value = |x: &[f64]| common::dot(&dy, &forward(row, activation, x, &pool));
        assert_close(&dx, &differences(&x, value), Tolerance::F64_DIFFERENCES, &format!("{activation:?}"));
    }
}

#[test]
fn nothing_overflows_and_nan_stays() {
    let pool = Pool::new(1).unwrap();
    let x = [f32::NAN, f32::MAX, 1e5, 1e3, -1e3, -1e5, f32::MIN, 0.0];
    for activation in ALL {
        for row in rows(f32::activation_forward()) {
            let y = forward(row, activation, &x, &pool);
            assert!(y[0].is_nan(), "{activation:?}");
            // A product before the division may overflow at the greatest number itself.
            assert!(y[2..6].iter().all(|y| y.is_finite()), "{activation:?}: {y:?}");
            for backward_row in rows(f32::activation_backward()) {
                let dx = backward(backward_row, activation, (&x, &y), &[1.0; 8], &pool);
                assert!(dx[2..6].iter().all(|dx| dx.is_finite()), "{activation:?}: {dx:?}");
            }
        }
    }
}

/// At ±3 the slope is that of the outer piece, as in PyTorch 2.15; earlier ones took that of the inner piece.
#[test]
fn the_hard_swish_is_flat_up_to_its_kinks() {
    let pool = Pool::new(1).unwrap();
    let activation = Activation::HardSwish;
    let x = [-3.5, -3.0, 0.0, 3.0, 3.5];
    for row in rows(f32::activation_backward()) {
        let dx = backward(row, activation, (&x, &[]), &[1.0; 5], &pool);
        assert_eq!(dx, [0.0, 0.0, 0.5, 1.0, 1.0], "{}", row.name);
    }
}

#[test]
fn no_function_reads_both() {
    for activation in ALL {
        assert!(!(activation.reads_input() && activation.reads_output()), "{activation:?}");
    }
}
