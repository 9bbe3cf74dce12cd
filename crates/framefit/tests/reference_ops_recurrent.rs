//! LSTM and GRU, composed of linear layers and cells on every instruction set, against Keras
//! (`reference/keras/recurrent.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::kernels::isa::Isa;
use framefit::kernels::linear::*;
use framefit::kernels::recurrent::*;
use framefit::kernels::{Pool, Row, choose};
use reference::{Array, Case, Cases, Element, THREADS, assert_close, nan, pool, zeros};

const ACTIVATIONS: CellActivations = CellActivations::DEFAULT;
const ORDER: GateOrder = GateOrder::UpdateReset;

/// Where kernels run. The tables of this file have one row for each instruction set, `f64` the scalar row alone.
struct On {
    isa: Isa,
    pool: Pool,
}

impl On {
    fn row<E: Element, S, R: Row<S>>(&self, table: &'static [R], shape: &S) -> &'static R {
        let row = choose(table, self.isa, shape);
        assert!(row.isa() == self.isa || E::NAME == "f64", "{} instead of a row for {}", row.name(), self.isa);
        row
    }
}

/// A matrix w: [K,D] with the gradients of itself and its bias [K], where there is one.
struct Product<E> {
    features: usize,
    out_features: usize,
    w: Vec<E>,
    bias: Option<Vec<E>>,
    dw: Vec<E>,
    db: Vec<E>,
}

impl<E: Element> Product<E> {
    fn new(features: usize, w: &[E], bias: Option<&[E]>) -> Self {
        let out_features = w.len() / features;
        let (w, bias) = (w.to_vec(), bias.map(<[E]>::to_vec));
        Product { features, out_features, dw: zeros(w.len()), db: zeros(out_features), w, bias }
    }

    fn shape(&self, x_len: usize) -> LinearShape {
        let (features, out_features) = (self.features, self.out_features);
        LinearShape { clips: x_len / features, frames: 1, features, out_features }
    }

    /// y (+)= x · wᵀ + bias.
    fn forward(&self, on: &On, x: &[E], accumulate: bool, y: &mut [E]) {
        let s = self.shape(x.len());
        let row = on.row::<E, _, _>(E::linear_forward(), &s);
        let mut scratch = nan((row.scratch)(&s, THREADS));
        let (w, bias) = (&self.w, self.bias.as_deref());
        let args = LinearForwardArgs { x, w, bias, relu: false, accumulate, y, scratch: &mut scratch };
        (row.run)(&s, args, &on.pool);
    }

    /// dx (+)= dy · w; the gradients of w and the bias are added to.
    fn backward(&mut self, on: &On, x: &[E], dy: &[E], accumulate: bool, dx: &mut [E]) {
        let s = self.shape(x.len());
        let row = on.row::<E, _, _>(E::linear_input_gradient(), &s);
        let mut scratch = nan((row.scratch)(&s, THREADS));
        let args = LinearInputGradientArgs { dy, w: &self.w, dx, accumulate, scratch: &mut scratch };
        (row.run)(&s, args, &on.pool);
        let row = on.row::<E, _, _>(E::linear_weight_gradient(), &s);
        let mut scratch = nan((row.scratch)(&s, THREADS));
        let db = self.bias.as_ref().map(|_| self.db.as_mut_slice());
        let args = LinearWeightGradientArgs { x, dy, dw: &mut self.dw, db, scratch: &mut scratch };
        (row.run)(&s, args, &on.pool);
    }
}

/// What goes from frame to frame, [N,K] each: the state and, of an LSTM, the cell; or their gradients.
#[derive(Clone)]
struct State<E> {
    h: Vec<E>,
    c: Vec<E>,
}

/// A recurrent cell over the frames of a clip.
trait Cell<E> {
    /// The next state from the frame x: [N,C] and the state before; what the backward needs is kept.
    fn forward(&mut self, on: &On, x: &[E], before: &State<E>) -> State<E>;
    /// The gradient of the state before and of x, which is overwritten; frames come last to first.
    fn backward(&mut self, on: &On, x: &[E], before: &State<E>, d: State<E>, dx: &mut [E]) -> State<E>;
    /// The gradients of kernel and recurrent kernel, [gates · K, in], and of the bias.
    fn gradients(self: Box<Self>) -> [Vec<E>; 3];
}

fn cell_shape<E>(units: usize, state: &State<E>) -> CellShape {
    CellShape { positions: state.h.len() / units, units }
}

struct Lstm<E> {
    units: usize,
    of_x: Product<E>,
    of_h: Product<E>,
    /// Activated gates and c of each frame.
    kept: Vec<(Vec<E>, Vec<E>)>,
}

impl<E: Element> Cell<E> for Lstm<E> {
    fn forward(&mut self, on: &On, x: &[E], before: &State<E>) -> State<E> {
        let s = cell_shape(self.units, before);
        let mut gates = nan(4 * s.len());
        self.of_x.forward(on, x, false, &mut gates);
        self.of_h.forward(on, &before.h, true, &mut gates);
        let (mut h, mut c) = (nan(s.len()), nan(s.len()));
        let args = LstmForwardArgs {
            activations: ACTIVATIONS,
            gates: &mut gates,
            c_prev: Some(&before.c),
            c: &mut c,
            h: &mut h,
        };
        (on.row::<E, _, _>(E::lstm_forward(), &s).run)(&s, args, &on.pool);
        self.kept.push((gates, c.clone()));
        State { h, c }
    }

    fn backward(&mut self, on: &On, x: &[E], before: &State<E>, d: State<E>, dx: &mut [E]) -> State<E> {
        let s = cell_shape(self.units, before);
        let (gates, c) = self.kept.pop().unwrap();
        let (mut dgates, mut dc, mut dh_prev) = (nan(4 * s.len()), d.c, nan(s.len()));
        let args = LstmBackwardArgs {
            activations: ACTIVATIONS,
            gates: Some(&gates),
            c_prev: Some(&before.c),
            c: &c,
            dh: &d.h,
            dc: &mut dc,
            dgates: &mut dgates,
        };
        (on.row::<E, _, _>(E::lstm_backward(), &s).run)(&s, args, &on.pool);
        self.of_x.backward(on, x, &dgates, false, dx);
        self.of_h.backward(on, &before.h, &dgates, false, &mut dh_prev);
        State { h: dh_prev, c: dc }
    }

    fn gradients(self: Box<Self>) -> [Vec<E>; 3] {
        [self.of_x.dw, self.of_h.dw, self.of_x.db]
    }
}

/// Resets after the product; the recurrent product has a bias of its own.
struct GruAfter<E> {
    units: usize,
    of_x: Product<E>,
    of_h: Product<E>,
    /// Activated gates, and the product with the state before, of each frame.
    kept: Vec<(Vec<E>, Vec<E>)>,
}

impl<E: Element> Cell<E> for GruAfter<E> {
    fn forward(&mut self, on: &On, x: &[E], before: &State<E>) -> State<E> {
        let s = cell_shape(self.units, before);
        let (mut x_gates, mut h_gates, mut h) = (nan(3 * s.len()), nan(3 * s.len()), nan(s.len()));
        self.of_x.forward(on, x, false, &mut x_gates);
        self.of_h.forward(on, &before.h, false, &mut h_gates);
        let args = GruForwardArgs {
            activations: ACTIVATIONS,
            order: ORDER,
            x_gates: &mut x_gates,
            h_gates: &h_gates,
            h_prev: Some(&before.h),
            h: &mut h,
        };
        (on.row::<E, _, _>(E::gru_forward(), &s).run)(&s, args, &on.pool);
        self.kept.push((x_gates, h_gates));
        State { h, c: Vec::new() }
    }

    fn backward(&mut self, on: &On, x: &[E], before: &State<E>, d: State<E>, dx: &mut [E]) -> State<E> {
        let s = cell_shape(self.units, before);
        let (mut x_gates, mut h_gates) = self.kept.pop().unwrap();
        let mut dh_prev = nan(s.len());
        let args = GruBackwardArgs {
            activations: ACTIVATIONS,
            order: ORDER,
            x_gates: &mut x_gates,
            h_gates: &mut h_gates,
            h_prev: Some(&before.h),
            dh: &d.h,
            dh_prev: &mut dh_prev,
        };
        (on.row::<E, _, _>(E::gru_backward(), &s).run)(&s, args, &on.pool);
        self.of_x.backward(on, x, &x_gates, false, dx);
        self.of_h.backward(on, &before.h, &h_gates, true, &mut dh_prev);
        State { h: dh_prev, c: Vec::new() }
    }

    fn gradients(self: Box<Self>) -> [Vec<E>; 3] {
        [self.of_x.dw, self.of_h.dw, [self.of_x.db, self.of_h.db].concat()]
    }
}

/// Resets before the product: the gates have one pair of products, the candidate another.
struct GruBefore<E> {
    units: usize,
    gates_of_x: Product<E>,
    gates_of_h: Product<E>,
    candidate_of_x: Product<E>,
    candidate_of_reset: Product<E>,
    /// Activated gates, the reset state and the candidate of each frame.
    kept: Vec<[Vec<E>; 3]>,
}

impl<E: Element> Cell<E> for GruBefore<E> {
    fn forward(&mut self, on: &On, x: &[E], before: &State<E>) -> State<E> {
        let s = cell_shape(self.units, before);
        let (mut gates, mut reset) = (nan(2 * s.len()), nan(s.len()));
        let (mut candidate, mut h) = (nan(s.len()), nan(s.len()));
        self.gates_of_x.forward(on, x, false, &mut gates);
        self.gates_of_h.forward(on, &before.h, true, &mut gates);
        let (activations, order, h_prev) = (ACTIVATIONS, ORDER, Some(before.h.as_slice()));
        let args = GruGatesForwardArgs { activations, order, gates: &mut gates, h_prev, reset: &mut reset };
        (on.row::<E, _, _>(E::gru_gates_forward(), &s).run)(&s, args, &on.pool);
        self.candidate_of_x.forward(on, x, false, &mut candidate);
        self.candidate_of_reset.forward(on, &reset, true, &mut candidate);
        let candidate_out = &mut candidate;
        let args =
            GruStateForwardArgs { activations, order, gates: &gates, candidate: candidate_out, h_prev, h: &mut h };
        (on.row::<E, _, _>(E::gru_state_forward(), &s).run)(&s, args, &on.pool);
        self.kept.push([gates, reset, candidate]);
        State { h, c: Vec::new() }
    }

    fn backward(&mut self, on: &On, x: &[E], before: &State<E>, d: State<E>, dx: &mut [E]) -> State<E> {
        let s = cell_shape(self.units, before);
        let [mut gates, reset, mut candidate] = self.kept.pop().unwrap();
        let (mut dh_prev, mut dreset) = (nan(s.len()), nan(s.len()));
        let (activations, order, h_prev) = (ACTIVATIONS, ORDER, Some(before.h.as_slice()));
        let args = GruStateBackwardArgs {
            activations,
            order,
            gates: &mut gates,
            candidate: &mut candidate,
            h_prev,
            dh: &d.h,
            dh_prev: &mut dh_prev,
        };
        (on.row::<E, _, _>(E::gru_state_backward(), &s).run)(&s, args, &on.pool);
        self.candidate_of_x.backward(on, x, &candidate, false, dx);
        self.candidate_of_reset.backward(on, &reset, &candidate, false, &mut dreset);
        let (gates_io, dh_io) = (&mut gates, &mut dh_prev);
        let args =
            GruGatesBackwardArgs { activations, order, gates: gates_io, h_prev, dreset: &dreset, dh_prev: dh_io };
        (on.row::<E, _, _>(E::gru_gates_backward(), &s).run)(&s, args, &on.pool);
        self.gates_of_x.backward(on, x, &gates, true, dx);
        self.gates_of_h.backward(on, &before.h, &gates, true, &mut dh_prev);
        State { h: dh_prev, c: Vec::new() }
    }

    fn gradients(self: Box<Self>) -> [Vec<E>; 3] {
        [
            [self.gates_of_x.dw, self.candidate_of_x.dw].concat(),
            [self.gates_of_h.dw, self.candidate_of_reset.dw].concat(),
            [self.gates_of_x.db, self.candidate_of_x.db].concat(),
        ]
    }
}

/// The cell with the weights that begin with `prefix`.
fn cell<E: Element>(case: &Case<'_>, prefix: &str) -> Box<dyn Cell<E>> {
    let of = |name: &str| case.get(&format!("{prefix}{name}"));
    let (w, u) = (of("kernel").unwrap().transposed(), of("recurrent_kernel").unwrap().transposed());
    let bias: Option<Vec<E>> = of("bias").map(Array::to);
    assert_eq!(bias.is_some(), case.flag("use_bias"));
    let (channels, units, rows) = (w.dims[1], u.dims[1], w.dims[0]);
    let (w, u): (Vec<E>, Vec<E>) = (w.to(), u.to());
    let of_x = |from: usize, to: usize| {
        Product::new(channels, &w[from * channels..to * channels], bias.as_ref().map(|b| &b[from..to]))
    };
    let of_h = |from: usize, to: usize| Product::new(units, &u[from * units..to * units], None);
    if case.op == "lstm" {
        return Box::new(Lstm { units, of_x: of_x(0, rows), of_h: of_h(0, rows), kept: Vec::new() });
    }
    if case.flag("reset_after") {
        let of_h = Product::new(units, &u, bias.as_ref().map(|b| &b[rows..]));
        return Box::new(GruAfter { units, of_x: of_x(0, rows), of_h, kept: Vec::new() });
    }
    Box::new(GruBefore {
        units,
        gates_of_x: of_x(0, 2 * units),
        gates_of_h: of_h(0, 2 * units),
        candidate_of_x: of_x(2 * units, rows),
        candidate_of_reset: of_h(2 * units, rows),
        kept: Vec::new(),
    })
}

/// One direction of a layer: its output and the gradient of its input, both in the order of the clip.
struct Half<'a, E> {
    case: &'a Case<'a>,
    /// What the names of its weights begin with.
    prefix: &'a str,
    /// Whether it takes the last frame first.
    backwards: bool,
    /// x: [T,N,C].
    x: &'a [E],
    frames: usize,
    /// The gradient of each frame's h: [T,N,K], in the order of processing.
    dh: Vec<E>,
}

impl<E: Element> Half<'_, E> {
    /// h: [T,N,K] in the order of processing, and the gradient of x: [T,N,C] in that of the clip.
    fn check(&self, on: &On, what: &str) -> (Vec<E>, Vec<E>) {
        let (case, frames) = (self.case, self.frames);
        let (x_len, h_len) = (self.x.len() / frames, self.dh.len() / frames);
        let place = |step: usize| if self.backwards { frames - 1 - step } else { step };
        let x_of = |step: usize| &self.x[place(step) * x_len..][..x_len];
        let state = |name: &str| case.get(name).map_or(zeros(h_len), Array::to::<E>);
        let mut cell = cell::<E>(case, self.prefix);

        let mut states = vec![State { h: state("initial_hidden"), c: state("initial_cell") }];
        for step in 0..frames {
            let next = cell.forward(on, x_of(step), &states[step]);
            states.push(next);
        }
        let mut d = State { h: state("grad_final_hidden"), c: state("grad_final_cell") };
        let mut dx = nan(self.x.len());
        for step in (0..frames).rev() {
            for (d, own) in d.h.iter_mut().zip(&self.dh[step * h_len..]) {
                *d += *own;
            }
            let dx = &mut dx[place(step) * x_len..][..x_len];
            d = cell.backward(on, x_of(step), &states[step], d, dx);
        }
        let last = &states[frames];
        for (name, got) in [
            ("final_hidden", &last.h),
            ("final_cell", &last.c),
            ("grad_initial_hidden", &d.h),
            ("grad_initial_cell", &d.c),
        ] {
            if let Some(want) = case.get(name) {
                assert_close(&format!("{what}: {name}"), got, want);
            }
        }
        for (name, got) in ["kernel", "recurrent_kernel", "bias"].into_iter().zip(cell.gradients()) {
            let name = format!("grad_{}{name}", self.prefix);
            match case.get(&name) {
                Some(want) if name.ends_with("kernel") => {
                    assert_close(&format!("{what}: {name}"), &got, &want.transposed());
                }
                Some(want) => assert_close(&format!("{what}: {name}"), &got, want),
                None => assert!(name.ends_with("bias") && !case.flag("use_bias"), "{what}: no {name}"),
            }
        }
        (states.into_iter().skip(1).flat_map(|state| state.h).collect(), dx)
    }
}

fn reversed<E: Copy>(values: &[E], frame: usize) -> Vec<E> {
    values.chunks_exact(frame).rev().flatten().copied().collect()
}

fn check<E: Element>(case: &Case<'_>, isa: Isa) {
    let on = On { isa, pool: pool() };
    let what = format!("{} {} {isa}", case.name, E::NAME);
    assert_eq!(
        (case.attribute("activation").as_str(), case.attribute("recurrent_activation").as_str()),
        (Some("tanh"), Some("sigmoid"))
    );
    let input = case.tensor("input").permuted(&[1, 0, 2]);
    let (frames, clips, units) = (input.dims[0], input.dims[1], case.size("units"));
    let x: Vec<E> = input.to();
    let both = !case.attribute("merge_mode").is_null();
    let halves: &[(&str, bool)] =
        if both { &[("forward.", false), ("backward.", true)] } else { &[("", case.flag("go_backwards"))] };

    let all = case.flag("return_sequences");
    let mut dx: Vec<E> = zeros(x.len());
    for (place, &(prefix, backwards)) in halves.iter().enumerate() {
        // The units of this half, [T,N,K] in the order of processing; without sequences those of the last frame.
        let of_half = |tensor: &str| -> Vec<f64> {
            let array = case.tensor(tensor);
            let array = if all { array.permuted(&[1, 0, 2]) } else { array.clone() };
            let own = array.values.chunks_exact(units).skip(place).step_by(halves.len()).flatten().copied();
            let own: Vec<f64> = own.collect();
            if both && backwards { reversed(&own, clips * units) } else { own }
        };
        let mut dh = zeros(frames * clips * units);
        let given = of_half("grad_output");
        let from = dh.len() - given.len();
        dh[from..].iter_mut().zip(&given).for_each(|(to, &v)| *to = E::from_f64(v));
        let half = Half { case, prefix, backwards, x: &x, frames, dh };
        let (h, dx_half) = half.check(&on, &what);
        let output = of_half("output");
        let want = Array { dims: vec![output.len()], values: output };
        assert_close(&format!("{what}: {prefix}output"), &h[from..], &want);
        dx.iter_mut().zip(dx_half).for_each(|(sum, d)| *sum += d);
    }
    assert_close(&format!("{what}: grad_input"), &dx, &case.tensor("grad_input").permuted(&[1, 0, 2]));
}

fn check_all(op: &str, count: usize) {
    Cases::of("keras/recurrent").check(op, count, &[], |case| {
        check::<f64>(case, Isa::Scalar);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            check::<f32>(case, isa);
        }
    });
}

#[test]
fn the_lstm_is_keras() {
    check_all("lstm", 6);
}

#[test]
fn the_gru_is_keras() {
    check_all("gru", 12);
}

#[test]
fn every_op_has_a_test() {
    let cases = Cases::of("keras/recurrent");
    cases.assert_ops(&["lstm", "gru"]);
    assert_eq!(cases.all().len(), 18);
}
