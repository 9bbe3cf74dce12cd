//! Activations and their slopes over a slice, the choice outside the loop.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use super::Activation;
use crate::real::Real;

/// α of SELU.
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
/// λ of SELU.
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
/// √(2/π) = (2/√π)/√2.
const GELU_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The cubic term of GELU's tanh approximation.
const GELU_CUBIC: f64 = 0.044_715;

/// x in `low..=high`; NaN stays NaN.
#[inline(always)]
fn clamp<E: Real>(x: E, low: f64, high: f64) -> E {
    let (low, high) = (E::from_f64(low), E::from_f64(high));
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// x > 0 ? scale · x : scale · alpha · (eˣ − 1).
#[inline(always)]
fn elu<E: Real>(x: E, alpha: E, scale: E) -> E {
    let below = alpha * clamp(x, f64::NEG_INFINITY, 0.0).exp_m1();
    scale * if x > E::ZERO { x } else { below }
}

/// tanh(√(2/π) · (x + 0.044715x³)).
#[inline(always)]
fn gelu_tanh<E: Real>(x: E) -> E {
    (E::from_f64(GELU_SCALE) * (x + E::from_f64(GELU_CUBIC) * x * x * x)).tanh()
}

/// Φ(x).
#[inline(always)]
fn normal<E: Real>(x: E) -> E {
    E::from_f64(0.5) * (E::ONE + (x * E::from_f64(FRAC_1_SQRT_2)).erf())
}

#[inline(always)]
fn each<E: Real>(y: &mut [E], f: impl Fn(E) -> E) {
    for y in y {
        *y = f(*y);
    }
}

/// y = f(y).
#[inline(always)]
pub(crate) fn apply<E: Real>(activation: Activation, y: &mut [E]) {
    let number = E::from_f64;
    match activation {
        Activation::Relu => each(y, |x| if x < E::ZERO { E::ZERO } else { x }),
        Activation::LeakyRelu { slope } => {
            let slope = number(slope);
            each(y, |x| if x > E::ZERO { x } else { slope * x });
        }
        Activation::Elu { alpha } => {
            let alpha = number(alpha);
            each(y, |x| elu(x, alpha, E::ONE));
        }
        Activation::Selu => each(y, |x| elu(x, number(SELU_ALPHA), number(SELU_SCALE))),
        Activation::Relu6 => each(y, |x| clamp(x, 0.0, 6.0)),
        Activation::Gelu => each(y, |x| x * normal(x)),
        Activation::GeluTanh => each(y, |x| number(0.5) * x * (E::ONE + gelu_tanh(x))),
        Activation::Silu => each(y, |x| x * x.sigmoid()),
        Activation::Sigmoid => each(y, E::sigmoid),
        Activation::HardSigmoid => each(y, |x| clamp(x + number(3.0), 0.0, 6.0) / number(6.0)),
        Activation::HardSigmoidKeras2 => each(y, |x| clamp(number(0.2) * x + number(0.5), 0.0, 1.0)),
        Activation::HardSwish => each(y, |x| x * clamp(x + number(3.0), 0.0, 6.0) / number(6.0)),
        Activation::Tanh => each(y, E::tanh),
        Activation::Softplus => each(y, E::softplus),
        Activation::Identity => {}
    }
}

#[inline(always)]
fn times<E: Real>(d: &mut [E], of: &[E], slope: impl Fn(E) -> E) {
    for (d, of) in d.iter_mut().zip(of) {
        *d *= slope(*of);
    }
}

/// Where the slope is `slope` or nothing: what is multiplied by nothing is 0, whatever it was.
#[inline(always)]
fn keep<E: Real>(d: &mut [E], of: &[E], slope: E, kept: impl Fn(E) -> bool) {
    for (d, of) in d.iter_mut().zip(of) {
        *d = if kept(*of) { *d * slope } else { E::ZERO };
    }
}

/// d = d · f'(of), where `of` is x if the activation reads it, else y.
#[inline(always)]
pub(crate) fn times_slope<E: Real>(activation: Activation, of: &[E], d: &mut [E]) {
    let number = E::from_f64;
    let between = |low: f64, y: E, high: f64| y > number(low) && y < number(high);
    match activation {
        Activation::Relu => keep(d, of, E::ONE, |y| y > E::ZERO),
        Activation::LeakyRelu { slope } => {
            let slope = number(slope);
            times(d, of, |x_or_y| if x_or_y > E::ZERO { E::ONE } else { slope });
        }
        Activation::Elu { alpha } if alpha < 0.0 => {
            let alpha = number(alpha);
            times(d, of, |x| if x > E::ZERO { E::ONE } else { alpha * clamp(x, f64::NEG_INFINITY, 0.0).exp() });
        }
        Activation::Elu { alpha } => {
            let alpha = number(alpha);
            times(d, of, |y| if y > E::ZERO { E::ONE } else { y + alpha });
        }
        Activation::Selu => {
            let (scale, limit) = (number(SELU_SCALE), number(SELU_SCALE * SELU_ALPHA));
            times(d, of, |y| if y > E::ZERO { scale } else { y + limit });
        }
        Activation::Relu6 => keep(d, of, E::ONE, |y| between(0.0, y, 6.0)),
        Activation::Gelu => {
            let density = number(0.5 * FRAC_2_SQRT_PI / SQRT_2);
            times(d, of, |x| normal(x) + x * density * (number(-0.5) * x * x).exp());
        }
        Activation::GeluTanh => times(d, of, |x| {
            let t = gelu_tanh(x);
            let inner = number(GELU_SCALE) * (E::ONE + number(3.0 * GELU_CUBIC) * x * x);
            number(0.5) * (E::ONE + t) + number(0.5) * x * (E::ONE - t * t) * inner
        }),
        Activation::Silu => times(d, of, |x| {
            let s = x.sigmoid();
            s * (E::ONE + x * (E::ONE - s))
        }),
        Activation::Sigmoid => times(d, of, |y| y * (E::ONE - y)),
        Activation::HardSigmoid => keep(d, of, number(1.0 / 6.0), |y| between(0.0, y, 1.0)),
        Activation::HardSigmoidKeras2 => keep(d, of, number(0.2), |y| between(0.0, y, 1.0)),
        Activation::HardSwish => times(d, of, |x| {
            let middle = (number(2.0) * x + number(3.0)) / number(6.0);
            let above = if x >= number(3.0) { E::ONE } else { middle };
            if x <= number(-3.0) { E::ZERO } else { above }
        }),
        Activation::Tanh => times(d, of, |y| E::ONE - y * y),
        Activation::Softplus => times(d, of, |y| -(-y).exp_m1()),
        Activation::Identity => {}
    }
}
