//! All rows of the recurrent cells.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, differences, dot, nan, on_any_threads, rows, widen};
use framefit_kernels::activation::Activation;
use framefit_kernels::recurrent::*;
use framefit_kernels::{Pool, Real};

/// Sizes around registers, tiles and tasks.
fn shapes() -> Vec<CellShape> {
    let mut shapes = Vec::new();
    for units in (1..=18).chain([31, 32, 33, 40, 64, 511, 512, 513, 1100]) {
        for positions in [0, 1, 2, 13] {
            shapes.push(CellShape { positions, units });
        }
    }
    shapes.push(CellShape { positions: 700, units: 40 });
    shapes.push(CellShape { positions: 8200, units: 1 });
    shapes
}

const KINDS: [CellActivations; 4] = [
    CellActivations::DEFAULT,
    CellActivations { state: Activation::Tanh, gate: Activation::HardSigmoid },
    CellActivations { state: Activation::Relu, gate: Activation::HardSigmoidKeras2 },
    CellActivations { state: Activation::Softplus, gate: Activation::Sigmoid },
];

const ORDERS: [GateOrder; 2] = [GateOrder::ResetUpdate, GateOrder::UpdateReset];

/// Numbers in −4..4.
fn wide(random: &mut Random, len: usize) -> Vec<f32> {
    random.vector::<f32>(len).into_iter().map(|x| 4.0 * x).collect()
}

fn f(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::HardSigmoid => ((x + 3.0) / 6.0).clamp(0.0, 1.0),
        Activation::HardSigmoidKeras2 => (0.2 * x + 0.5).clamp(0.0, 1.0),
        Activation::Relu => x.max(0.0),
        Activation::Softplus => x.exp().ln_1p(),
        other => unreachable!("{other:?}"),
    }
}

/// (c, h) by definition.
fn lstm_by_definition(s: &CellShape, kinds: CellActivations, gates: &[f64], c_prev: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let one = |at: usize| {
        let gate = |g: usize| gates[(at / s.units * 4 + g) * s.units + at % s.units];
        let sigma = |g: usize| f(kinds.gate, gate(g));
        let c = sigma(1) * c_prev[at] + sigma(0) * f(kinds.state, gate(2));
        (c, sigma(3) * f(kinds.state, c))
    };
    (0..s.len()).map(one).unzip()
}

/// \[gates, c, h\] after the forward.
fn lstm_forward<E: Real>(
    row: &LstmForward<E>,
    s: &CellShape,
    activations: CellActivations,
    (gates, c_prev): (&[E], Option<&[E]>),
    pool: &Pool,
) -> [Vec<E>; 3] {
    let (mut gates, mut c, mut h) = (gates.to_vec(), nan(s.len()), nan(s.len()));
    (row.run)(s, LstmForwardArgs { activations, gates: &mut gates, c_prev, c: &mut c, h: &mut h }, pool);
    [gates, c, h]
}

/// \[dgates, dc\].
fn lstm_backward<E: Real>(
    row: &LstmBackward<E>,
    s: &CellShape,
    activations: CellActivations,
    ([gates, c, _], c_prev): (&[Vec<E>; 3], Option<&[E]>),
    (dh, dc): (&[E], &[E]),
    pool: &Pool,
) -> [Vec<E>; 2] {
    let (mut dc, mut dgates) = (dc.to_vec(), nan(gates.len()));
    let (dc_of, dgates_of) = (&mut dc, &mut dgates);
    let args = LstmBackwardArgs { activations, gates: Some(gates), c_prev, c, dh, dc: dc_of, dgates: dgates_of };
    (row.run)(s, args, pool);
    [dgates, dc]
}

const CELL: Tolerance = Tolerance { absolute: 5e-6, relative: 5e-6 };

#[test]
fn lstm_rows_agree() {
    let pool = Pool::new(1).unwrap();
    for s in shapes() {
        for (i, kinds) in KINDS.into_iter().enumerate() {
            let mut random = Random::new(1);
            let (gates, c_prev) = (wide(&mut random, 4 * s.len()), random.vector::<f32>(s.len()));
            let (dh, dc) = (random.vector::<f32>(s.len()), random.vector::<f32>(s.len()));
            let c_prev = (i != 1).then_some(&c_prev[..]);
            let c_wide = c_prev.map(widen);
            let double = (&widen(&gates)[..], c_wide.as_deref());
            let want = lstm_forward(&f64::lstm_forward()[0], &s, kinds, double, &pool);
            let zeros = vec![0.0; s.len()];
            let (c, h) = lstm_by_definition(&s, kinds, double.0, double.1.unwrap_or(&zeros));
            assert_close(&want[1], &c, Tolerance::F64_REORDERED, "c");
            assert_close(&want[2], &h, Tolerance::F64_REORDERED, "h");
            for row in rows(f32::lstm_forward()) {
                let what = format!("{} {s:?} {kinds:?}", row.name);
                let all = on_any_threads(&what, |pool| lstm_forward(row, &s, kinds, (&gates, c_prev), pool).concat());
                assert_close(&all, &want.concat(), CELL, &what);
            }
            let row = &f64::lstm_backward()[0];
            let gradients = (&widen(&dh)[..], &widen(&dc)[..]);
            let want = lstm_backward(row, &s, kinds, (&want, c_wide.as_deref()), gradients, &pool).concat();
            let kept = lstm_forward(&f32::lstm_forward()[0], &s, kinds, (&gates, c_prev), &pool);
            for row in rows(f32::lstm_backward()) {
                let what = format!("{} {s:?} {kinds:?}", row.name);
                let got = on_any_threads(&what, |pool| {
                    lstm_backward(row, &s, kinds, (&kept, c_prev), (&dh, &dc), pool).concat()
                });
                assert_close(&got, &want, CELL, &what);
                let (mut dgates, mut dc) = (kept[0].clone(), dc.clone());
                let (activations, gates, c) = (kinds, None, &kept[1][..]);
                let args =
                    LstmBackwardArgs { activations, gates, c_prev, c, dh: &dh, dc: &mut dc, dgates: &mut dgates };
                (row.run)(&s, args, &pool);
                assert_eq!([dgates, dc].concat(), got, "{what}");
            }
        }
    }
}

#[test]
fn lstm_gradient_agrees_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = CellShape { positions: 2, units: 3 };
    for kinds in KINDS {
        let mut random = Random::new(2);
        let (gates, c_prev) = (random.vector::<f64>(24), random.vector::<f64>(6));
        let (dh, dc) = (random.vector::<f64>(6), random.vector::<f64>(6));
        let value = |gates: &[f64], c_prev: &[f64]| {
            let (c, h) = lstm_by_definition(&s, kinds, gates, c_prev);
            dot(&c, &dc) + dot(&h, &dh)
        };
        let kept = lstm_forward(&f64::lstm_forward()[0], &s, kinds, (&gates, Some(&c_prev)), &pool);
        let row = &f64::lstm_backward()[0];
        let [dgates, dc_prev] = lstm_backward(row, &s, kinds, (&kept, Some(&c_prev)), (&dh, &dc), &pool);
        let want = differences(&gates, |gates| value(gates, &c_prev));
        assert_close(&dgates, &want, Tolerance::F64_DIFFERENCES, &format!("{kinds:?}"));
        let want = differences(&c_prev, |c_prev| value(&gates, c_prev));
        assert_close(&dc_prev, &want, Tolerance::F64_DIFFERENCES, &format!("{kinds:?}"));
    }
}

/// A GRU's functions and the order of its gates.
#[derive(Clone, Copy, Debug)]
struct Kind {
    activations: CellActivations,
    order: GateOrder,
}

fn kinds() -> impl Iterator<Item = Kind> {
    KINDS.into_iter().flat_map(|activations| ORDERS.map(|order| Kind { activations, order }))
}

impl Kind {
    /// (where r lies, where z lies).
    fn places(self) -> (usize, usize) {
        if self.order == GateOrder::ResetUpdate { (0, 1) } else { (1, 0) }
    }
}

fn gru_by_definition(s: &CellShape, kind: Kind, x: &[f64], h: &[f64], h_prev: &[f64]) -> Vec<f64> {
    let (r_at, z_at) = kind.places();
    let one = |at: usize| {
        let of = |from: &[f64], g: usize| from[(at / s.units * 3 + g) * s.units + at % s.units];
        let r = f(kind.activations.gate, of(x, r_at) + of(h, r_at));
        let z = f(kind.activations.gate, of(x, z_at) + of(h, z_at));
        let n = f(kind.activations.state, of(x, 2) + r * of(h, 2));
        (1.0 - z) * n + z * h_prev[at]
    };
    (0..s.len()).map(one).collect()
}

/// \[x_gates, h\].
fn gru_forward<E: Real>(
    row: &GruForward<E>,
    s: &CellShape,
    kind: Kind,
    (x_gates, h_gates, h_prev): (&[E], &[E], Option<&[E]>),
    pool: &Pool,
) -> [Vec<E>; 2] {
    let (mut x_gates, mut h) = (x_gates.to_vec(), nan(s.len()));
    let Kind { activations, order } = kind;
    (row.run)(s, GruForwardArgs { activations, order, x_gates: &mut x_gates, h_gates, h_prev, h: &mut h }, pool);
    [x_gates, h]
}

/// \[dx, dh, dh_prev\].
fn gru_backward<E: Real>(
    row: &GruBackward<E>,
    s: &CellShape,
    kind: Kind,
    (x_gates, h_gates, h_prev): (&[E], &[E], Option<&[E]>),
    dh: &[E],
    pool: &Pool,
) -> [Vec<E>; 3] {
    let (mut x_gates, mut h_gates, mut dh_prev) = (x_gates.to_vec(), h_gates.to_vec(), nan(s.len()));
    let Kind { activations, order } = kind;
    let (x, h, out) = (&mut x_gates, &mut h_gates, &mut dh_prev);
    (row.run)(s, GruBackwardArgs { activations, order, x_gates: x, h_gates: h, h_prev, dh, dh_prev: out }, pool);
    [x_gates, h_gates, dh_prev]
}

#[test]
fn gru_rows_agree() {
    let pool = Pool::new(1).unwrap();
    for s in shapes() {
        for (i, kind) in kinds().enumerate() {
            let mut random = Random::new(3);
            let (x, h) = (wide(&mut random, 3 * s.len()), wide(&mut random, 3 * s.len()));
            let (h_prev, dh) = (random.vector::<f32>(s.len()), random.vector::<f32>(s.len()));
            let h_prev = (i != 1).then_some(&h_prev[..]);
            let (x_wide, h_wide, prev_wide) = (widen(&x), widen(&h), h_prev.map(widen));
            let double = (&x_wide[..], &h_wide[..], prev_wide.as_deref());
            let want = gru_forward(&f64::gru_forward()[0], &s, kind, double, &pool);
            let zeros = vec![0.0; s.len()];
            let by_definition = gru_by_definition(&s, kind, &x_wide, &h_wide, double.2.unwrap_or(&zeros));
            assert_close(&want[1], &by_definition, Tolerance::F64_REORDERED, "h");
            for row in rows(f32::gru_forward()) {
                let what = format!("{} {s:?} {kind:?}", row.name);
                let all = on_any_threads(&what, |pool| gru_forward(row, &s, kind, (&x, &h, h_prev), pool).concat());
                assert_close(&all, &want.concat(), CELL, &what);
            }
            let double = (&want[0][..], &h_wide[..], prev_wide.as_deref());
            let want = gru_backward(&f64::gru_backward()[0], &s, kind, double, &widen(&dh), &pool).concat();
            let [kept, _] = gru_forward(&f32::gru_forward()[0], &s, kind, (&x, &h, h_prev), &pool);
            for row in rows(f32::gru_backward()) {
                let what = format!("{} {s:?} {kind:?}", row.name);
                let got =
                    on_any_threads(&what, |pool| gru_backward(row, &s, kind, (&kept, &h, h_prev), &dh, pool).concat());
                assert_close(&got, &want, CELL, &what);
            }
        }
    }
}

#[test]
fn gru_gradient_agrees_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = CellShape { positions: 2, units: 3 };
    for kind in kinds() {
        let mut random = Random::new(4);
        let (x, h, h_prev) = (random.vector::<f64>(18), random.vector::<f64>(18), random.vector::<f64>(6));
        let dh = random.vector::<f64>(6);
        let value = |x: &[f64], h: &[f64], h_prev: &[f64]| dot(&dh, &gru_by_definition(&s, kind, x, h, h_prev));
        let [kept, _] = gru_forward(&f64::gru_forward()[0], &s, kind, (&x, &h, Some(&h_prev)), &pool);
        let row = &f64::gru_backward()[0];
        let [dx, dh_gates, dh_prev] = gru_backward(row, &s, kind, (&kept, &h, Some(&h_prev)), &dh, &pool);
        let close =
            |got: &[f64], want: &[f64]| assert_close(got, want, Tolerance::F64_DIFFERENCES, &format!("{kind:?}"));
        close(&dx, &differences(&x, |x| value(x, &h, &h_prev)));
        close(&dh_gates, &differences(&h, |h| value(&x, h, &h_prev)));
        close(&dh_prev, &differences(&h_prev, |h_prev| value(&x, &h, h_prev)));
    }
}

/// The rows of a GRU that resets before the product.
#[derive(Clone, Copy)]
struct Stages<E: 'static>(
    &'static GruGatesForward<E>,
    &'static GruStateForward<E>,
    &'static GruStateBackward<E>,
    &'static GruGatesBackward<E>,
);

impl<E: Real> Stages<E> {
    fn scalar() -> Stages<E> {
        Stages(
            E::gru_gates_forward().last().unwrap(),
            E::gru_state_forward().last().unwrap(),
            E::gru_state_backward().last().unwrap(),
            E::gru_gates_backward().last().unwrap(),
        )
    }

    /// Where the product makes the candidate `input` + 2 · reset: \[gates, candidate, h\].
    fn forward(self, s: &CellShape, kind: Kind, inputs: (&[E], &[E], Option<&[E]>), pool: &Pool) -> [Vec<E>; 3] {
        let Kind { activations, order } = kind;
        let (gates, input, h_prev) = inputs;
        let (mut gates, mut reset, mut h) = (gates.to_vec(), nan::<E>(s.len()), nan(s.len()));
        let args = GruGatesForwardArgs { activations, order, gates: &mut gates, h_prev, reset: &mut reset };
        (self.0.run)(s, args, pool);
        let mut candidate: Vec<E> = input.iter().zip(&reset).map(|(x, r)| *x + *r + *r).collect();
        let (candidate_of, h_of) = (&mut candidate, &mut h);
        let args = GruStateForwardArgs { activations, order, gates: &gates, candidate: candidate_of, h_prev, h: h_of };
        (self.1.run)(s, args, pool);
        [gates, candidate, h]
    }

    /// \[dgates, dinput, dh_prev\].
    fn backward(
        self,
        s: &CellShape,
        kind: Kind,
        ([gates, candidate, _], h_prev): (&[Vec<E>; 3], Option<&[E]>),
        dh: &[E],
        pool: &Pool,
    ) -> [Vec<E>; 3] {
        let Kind { activations, order } = kind;
        let (mut gates, mut candidate, mut dh_prev) = (gates.clone(), candidate.clone(), nan(s.len()));
        let args = GruStateBackwardArgs {
            activations,
            order,
            gates: &mut gates,
            candidate: &mut candidate,
            h_prev,
            dh,
            dh_prev: &mut dh_prev,
        };
        (self.2.run)(s, args, pool);
        let dreset: Vec<E> = candidate.iter().map(|d| *d + *d).collect();
        let (gates_of, out) = (&mut gates, &mut dh_prev);
        let args = GruGatesBackwardArgs { activations, order, gates: gates_of, h_prev, dreset: &dreset, dh_prev: out };
        (self.3.run)(s, args, pool);
        [gates, candidate, dh_prev]
    }
}

/// h with the same product.
fn stages_by_definition(s: &CellShape, kind: Kind, gates: &[f64], input: &[f64], h_prev: &[f64]) -> Vec<f64> {
    let (r_at, z_at) = kind.places();
    let one = |at: usize| {
        let of = |g: usize| f(kind.activations.gate, gates[(at / s.units * 2 + g) * s.units + at % s.units]);
        let n = f(kind.activations.state, input[at] + 2.0 * of(r_at) * h_prev[at]);
        (1.0 - of(z_at)) * n + of(z_at) * h_prev[at]
    };
    (0..s.len()).map(one).collect()
}

#[test]
fn stages_of_a_gru_agree() {
    let pool = Pool::new(1).unwrap();
    for s in shapes() {
        for (i, kind) in kinds().enumerate() {
            let mut random = Random::new(5);
            let (gates, input) = (wide(&mut random, 2 * s.len()), random.vector::<f32>(s.len()));
            let (h_prev, dh) = (random.vector::<f32>(s.len()), random.vector::<f32>(s.len()));
            let h_prev = (i != 1).then_some(&h_prev[..]);
            let prev_wide = h_prev.map(widen);
            let double = (&widen(&gates)[..], &widen(&input)[..], prev_wide.as_deref());
            let stages = Stages::<f64>::scalar();
            let want = stages.forward(&s, kind, double, &pool);
            let zeros = vec![0.0; s.len()];
            let by_definition = stages_by_definition(&s, kind, double.0, double.1, double.2.unwrap_or(&zeros));
            assert_close(&want[2], &by_definition, Tolerance::F64_REORDERED, "h");
            let want_back = stages.backward(&s, kind, (&want, prev_wide.as_deref()), &widen(&dh), &pool).concat();
            let kept = Stages::<f32>::scalar().forward(&s, kind, (&gates, &input, h_prev), &pool);
            let forward = rows(f32::gru_gates_forward()).zip(rows(f32::gru_state_forward()));
            let backward = rows(f32::gru_state_backward()).zip(rows(f32::gru_gates_backward()));
            for ((a, b), (c, d)) in forward.zip(backward) {
                let stages = Stages(a, b, c, d);
                let what = format!("{} {s:?} {kind:?}", a.name);
                let all =
                    on_any_threads(&what, |pool| stages.forward(&s, kind, (&gates, &input, h_prev), pool).concat());
                assert_close(&all, &want.concat(), CELL, &what);
                let all = on_any_threads(&what, |pool| stages.backward(&s, kind, (&kept, h_prev), &dh, pool).concat());
                assert_close(&all, &want_back, CELL, &what);
            }
        }
    }
}

#[test]
fn gradients_of_the_stages_agree_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = CellShape { positions: 2, units: 3 };
    for kind in kinds() {
        let mut random = Random::new(6);
        let (gates, input, h_prev) = (random.vector::<f64>(12), random.vector::<f64>(6), random.vector::<f64>(6));
        let dh = random.vector::<f64>(6);
        let value = |gates: &[f64], input: &[f64], h_prev: &[f64]| {
            dot(&dh, &stages_by_definition(&s, kind, gates, input, h_prev))
        };
        let stages = Stages::<f64>::scalar();
        let kept = stages.forward(&s, kind, (&gates, &input, Some(&h_prev)), &pool);
        let [dgates, dinput, dh_prev] = stages.backward(&s, kind, (&kept, Some(&h_prev)), &dh, &pool);
        let close =
            |got: &[f64], want: &[f64]| assert_close(got, want, Tolerance::F64_DIFFERENCES, &format!("{kind:?}"));
        close(&dgates, &differences(&gates, |gates| value(gates, &input, &h_prev)));
        close(&dinput, &differences(&input, |input| value(&gates, input, &h_prev)));
        close(&dh_prev, &differences(&h_prev, |h_prev| value(&gates, &input, h_prev)));
    }
}

#[test]
#[should_panic(expected = "keeps no inputs")]
fn a_cell_refuses_functions_that_need_their_input() {
    let activations = CellActivations { state: Activation::Gelu, gate: Activation::Sigmoid };
    lstm_forward(
        &f64::lstm_forward()[0],
        &CellShape { positions: 0, units: 1 },
        activations,
        (&[], None),
        &Pool::new(1).unwrap(),
    );
}
