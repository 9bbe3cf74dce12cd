//! The elementary functions of `f32` against `f64`, in units in the last place.

use framefit_kernels::Real;

/// A thinned walk through all numbers, and those that need care.
fn numbers() -> impl Iterator<Item = f32> {
    let walk = (0..=u32::MAX).step_by(997).map(f32::from_bits).filter(|x| x.is_finite());
    let near = (-200_000..200_000).map(|i| i as f32 * 1e-3);
    let special = [
        0.0,
        -0.0,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE,
        f32::from_bits(1),
        -f32::from_bits(1),
        f32::MAX,
        f32::MIN,
        0.625,
        88.722_84,
        88.8,
        -87.336_54,
        -103.972_08,
        -104.1,
        0.927_734_4,
        f32::INFINITY,
        f32::NEG_INFINITY,
    ];
    walk.chain(near).chain(special)
}

/// |got − want| in units in the last place of `want` as `f32`.
fn units(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if got == nearest {
        return 0.0;
    }
    let size = nearest.abs().min(f32::MAX);
    let above = f64::from(f32::from_bits(size.to_bits() + 1));
    let unit = if above.is_finite() { above - f64::from(size) } else { 2_f64.powi(104) };
    if got.is_infinite() {
        (want.abs() - f64::from(f32::MAX)).abs() / unit
    } else {
        (f64::from(got) - want).abs() / unit
    }
}

fn check(name: &str, limit: f64, single: fn(f32) -> f32, double: fn(f64) -> f64) {
    let mut worst = (0.0, 0.0);
    for x in numbers() {
        let error = units(single(x), double(f64::from(x)));
        assert!(error.is_finite(), "{name}({x}) = {}, want {}", single(x), double(f64::from(x)));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    assert!(worst.0 <= limit, "{name}: {} units at {}", worst.0, worst.1);
    assert!(single(f32::NAN).is_nan(), "{name}");
}

#[test]
fn exponentials_are_accurate() {
    check("exp", 2.0, Real::exp, Real::exp);
    check("exp_m1", 2.0, Real::exp_m1, Real::exp_m1);
}

#[test]
fn squashing_functions_are_accurate() {
    check("tanh", 2.0, Real::tanh, Real::tanh);
    check("sigmoid", 2.5, Real::sigmoid, Real::sigmoid);
    check("softplus", 3.0, Real::softplus, Real::softplus);
    check("erf", 2.0, Real::erf, Real::erf);
}

#[test]
fn limits_are_exact() {
    let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
    assert_eq!([Real::exp(low), Real::exp(high), Real::exp(0.0_f32)], [0.0, high, 1.0]);
    assert_eq!([Real::exp_m1(low), Real::exp_m1(high)], [-1.0, high]);
    assert_eq!([Real::tanh(low), Real::tanh(high)], [-1.0, 1.0]);
    assert_eq!([low.sigmoid(), high.sigmoid(), 0.0.sigmoid()], [0.0, 1.0, 0.5]);
    assert_eq!([low.softplus(), high.softplus()], [0.0, high]);
    assert_eq!([Real::erf(low), Real::erf(high)], [-1.0, 1.0]);
    for f in [Real::tanh, Real::erf] {
        let f: fn(f32) -> f32 = f;
        assert_eq!(f(-0.0).to_bits(), (-0.0_f32).to_bits());
    }
}
