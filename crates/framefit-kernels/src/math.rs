//! Elementary functions of `f32` without branches, so that loops over them become vector code.
//!
//! Every instruction set computes the same bits: sums of products are fused, or not, by what is written here alone.
//! Where the instruction set has no fused multiply-add, the standard library's is exact and slow. NaN gives NaN.

use std::f32::consts::LOG2_E;

/// Adding it to a number below 2²² in size leaves the number, rounded, in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
const LN2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);

/// x in `low..=high`; NaN stays NaN.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// 2ⁿ for n in −126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// (n, eʳ − 1) with x = n · ln 2 + r and |r| ≤ ln(2)/2, for |x| below 2²⁰.
///
/// The polynomial is that of the Cephes library's `expf`.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUNDER);
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let whole = shifted - ROUNDER;
    let r = whole.mul_add(-LN2.1, whole.mul_add(-LN2.0, x));
    let p: f32 = 1.987_569_1e-4;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    (n, p.mul_add(r * r, r))
}

/// eˣ.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, p) = reduce(clamp(x, -104.0, 89.0));
    let half = n >> 1;
    // Two factors reach the subnormal numbers and, above the greatest, infinity.
    (p + 1.0) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// eˣ − 1.
#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    let (n, p) = reduce(clamp(x, -18.0, 89.0));
    // Half of it, as 2¹²⁸ is no number.
    let half = power_of_two(n.wrapping_sub(1));
    2.0 * half.mul_add(p, half - 0.5)
}

/// tanh x; the polynomial near zero is that of the Cephes library's `tanhf`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let s = x * x;
    let p: f32 = -5.704_988_7e-3;
    let p = p.mul_add(s, 2.063_909e-2);
    let p = p.mul_add(s, -5.373_971_6e-2);
    let p = p.mul_add(s, 1.333_144_2e-1);
    let p = p.mul_add(s, -3.333_328e-1);
    let near = (p * s).mul_add(size, size);
    let far = 1.0 - 2.0 / (exp(2.0 * size) + 1.0);
    (if size < 0.625 { near } else { far }).copysign(x)
}

/// 1/(1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// ln(1 + eˣ).
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    // ln(1 + e) = 2 artanh(e/(2 + e)), with e at most 1.
    let e = exp(-x.abs());
    let t = e / (2.0 + e);
    let s = t * t;
    let p: f32 = 1.0 / 15.0;
    let p = p.mul_add(s, 1.0 / 13.0);
    let p = p.mul_add(s, 1.0 / 11.0);
    let p = p.mul_add(s, 1.0 / 9.0);
    let p = p.mul_add(s, 1.0 / 7.0);
    let p = p.mul_add(s, 1.0 / 5.0);
    let p = p.mul_add(s, 1.0 / 3.0);
    let tail = 2.0 * (p * s).mul_add(t, t);
    (if x < 0.0 { 0.0 } else { x }) + tail
}

/// The error function, by two minimax polynomials: of erf(x)/x near zero, of ln(1 − erf |x|) elsewhere.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let p = t.mul_add(-1.728_534_7e-5, 3.831_971_3e-4);
    let q = t.mul_add(-3.883_964_4e-3, 2.425_462_2e-2);
    let p = p.mul_add(s, q);
    let p = p.mul_add(t, -1.067_778_8e-1);
    let p = p.mul_add(t, -6.348_467e-1);
    let p = p.mul_add(t, -1.287_175_1e-1);
    let p = p.mul_add(t, -t);
    // Beyond 4 the result is 1, and the polynomial's own growth must not come back from infinity as NaN.
    let far = if t > 4.0 { 1.0 } else { 1.0 - exp(p) };
    let q: f32 = -5.967_617e-4;
    let q = q.mul_add(s, 4.991_194_2e-3);
    let q = q.mul_add(s, -2.676_813_5e-2);
    let q = q.mul_add(s, 1.128_199_25e-1);
    let q = q.mul_add(s, -3.761_253_4e-1);
    let q = q.mul_add(s, 1.283_791_7e-1);
    let near = q.mul_add(x, x);
    if t > 0.927_734_4 { far.copysign(x) } else { near }
}

/// The error function of `f64`, by the series 2/√π · e^(−x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n+1)!!, whose terms have one sign.
pub(crate) fn erf_f64(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { 1.0_f64.copysign(x) };
    }
    let (mut term, mut sum) = (x, x);
    let mut odd = 1.0;
    while term.abs() > sum.abs() * 1e-17 {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
