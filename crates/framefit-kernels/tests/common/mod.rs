//! What the kernel tests share: numbers, tolerances, and the machine's instruction sets.
#![allow(dead_code)]

use framefit_kernels::{Pool, Real, Row};

/// A small generator of reproducible numbers (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in −1..1.
    pub fn unit<E: Real>(&mut self) -> E {
        E::from_f32((self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0)
    }

    pub fn vector<E: Real>(&mut self, len: usize) -> Vec<E> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// How far a result may lie from its reference: `absolute + relative · |reference|`.
#[derive(Clone, Copy)]
pub struct Tolerance {
    pub absolute: f64,
    pub relative: f64,
}

impl Tolerance {
    /// f32 sums of up to a few thousand products of numbers below one, in any order.
    pub const F32_REORDERED: Tolerance = Tolerance { absolute: 5e-5, relative: 1e-5 };
    /// The same with sums of many thousand products.
    pub const F32_LONG_SUMS: Tolerance = Tolerance { absolute: 1e-3, relative: 1e-5 };
    /// One or two f32 roundings.
    pub const F32_ELEMENTWISE: Tolerance = Tolerance { absolute: 1e-6, relative: 1e-6 };
    /// f64 against central differences.
    pub const F64_DIFFERENCES: Tolerance = Tolerance { absolute: 1e-7, relative: 1e-6 };
    /// f64 sums in any order.
    pub const F64_REORDERED: Tolerance = Tolerance { absolute: 1e-11, relative: 1e-11 };
}

#[track_caller]
pub fn assert_close<A: Real, B: Real>(got: &[A], want: &[B], tolerance: Tolerance, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let (got, want) = (got.to_f64(), want.to_f64());
        let allowed = tolerance.absolute + tolerance.relative * want.abs();
        let close = (got - want).abs() <= allowed || (got.is_nan() && want.is_nan()) || got == want;
        assert!(close, "{what}: at {i} got {got}, want {want}");
    }
}

pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The derivative of `value` by each element of `at`, by central differences.
pub fn differences(at: &[f64], value: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut at = at.to_vec();
    (0..at.len())
        .map(|i| {
            let kept = at[i];
            at[i] = kept + STEP;
            let above = value(&at);
            at[i] = kept - STEP;
            let below = value(&at);
            at[i] = kept;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// The rows that this machine can run.
pub fn rows<S, R: Row<S>>(table: &'static [R]) -> impl Iterator<Item = &'static R> {
    table.iter().filter(|row| row.isa().available())
}

pub fn nan<E: Real>(len: usize) -> Vec<E> {
    vec![E::from_f64(f64::NAN); len]
}

/// Runs a kernel on one, two and three threads, checks that the bits are the same, and gives them.
#[track_caller]
pub fn on_any_threads(what: &str, run: impl Fn(&Pool) -> Vec<f32>) -> Vec<f32> {
    let [one, two, three] = [1, 2, 3].map(|threads| run(&Pool::new(threads).unwrap()));
    assert!(bits(&one) == bits(&two) && bits(&one) == bits(&three), "{what}: threads change bits");
    one
}

/// The numbers that the reference file gives for `name`.
#[track_caller]
pub fn reference(name: &str) -> Vec<f64> {
    let mut lines = include_str!("../reference/pytorch.txt").lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    line.split(' ').map(|number| number.parse().unwrap()).collect()
}
