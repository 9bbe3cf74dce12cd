//! Recurrent dropout: its masks, read off the outputs of units that do not meet, and whole layers by hand with them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::ops::{Cell, Recurrent, RecurrentLayout};
use framefit::core::schedule::Cut;
use framefit::core::{Dims3, Graph, Op, Origin, Shape};
use framefit::engine::Kernels;
use framefit::engine::probe::{self, Given};
use framefit::kernels::Isa;
use reference::{Array, THREADS, assert_close};
use std::ops::Range;

const KEYS: [u64; 2] = [77, 4_000_000_000_077];
const P: f64 = 0.3;
const FRAMES: usize = 6;
const CHANNELS: usize = 2;
const UNITS: usize = 3;

/// Maps, of 288 draws for each gate, and one vector per frame.
const MAPS: (usize, usize) = (8, 6);
const VECTORS: (usize, usize) = (1, 1);

const CELLS: [Cell; 3] = [Cell::Lstm, Cell::GruResetAfter, Cell::GruResetBefore];

/// Numbers in −1..1, the same for the same seed.
fn noise(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    };
    next();
    (0..len).map(|_| next()).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A layer of convolutions by one: every position of every clip is a sequence of its own.
struct Layer {
    op: Recurrent,
    graph: Graph,
    /// P = N·H·W.
    positions: usize,
    source: Vec<f64>,
    params: Vec<(String, Vec<f64>)>,
}

impl Layer {
    fn new(cell: Cell, (h, w): (usize, usize), recurrent_dropout: f64, units_meet: bool) -> Self {
        let plain = Recurrent::features(cell, CHANNELS, UNITS, RecurrentLayout::ConvCell);
        let op = Recurrent { recurrent_dropout, ..plain };
        let source = Shape::video(Dims3 { t: FRAMES, h, w }, CHANNELS);
        let mut b = probe::builder(source).unwrap();
        b.layer("rnn", Op::Recurrent(op.clone()), &Origin::BuiltIn).unwrap();
        let graph = b.finish().unwrap();
        let own = graph.params.iter().enumerate().filter(|(_, p)| p.name != "probe.weight");
        let mut params: Vec<_> = own.map(|(i, p)| (p.name.clone(), noise(3 + i as u64, p.len()))).collect();
        let (_, u) = params.iter_mut().find(|(name, _)| name == "rnn.hidden.weight").unwrap();
        for (i, u) in u.iter_mut().enumerate() {
            let alone = i / UNITS % UNITS == i % UNITS;
            *u *= if units_meet || alone { 1.0 } else { 0.0 };
        }
        let positions = KEYS.len() * h * w;
        Self { op, graph, positions, source: noise(1, FRAMES * positions * CHANNELS), params }
    }

    fn param(&self, name: &str) -> &[f64] {
        self.params.iter().find(|(n, _)| n == name).map_or(&[], |(_, values)| values)
    }

    fn gates(&self) -> usize {
        self.op.cell.gates_per_unit()
    }

    fn train<E: framefit::engine::Element>(&self, keys: Option<&[u64]>, isa: Isa, cut: Cut) -> Vec<E> {
        let output_gradient = noise(2, FRAMES * self.positions * UNITS);
        let given = Given { source: &self.source, output_gradient: &output_gradient, params: &self.params };
        let kernels = Kernels { isa, threads: THREADS };
        match keys {
            Some(keys) => probe::train_with_keys(keys, &self.graph, kernels, cut, &given).unwrap().output,
            None => probe::train(&self.graph, kernels, cut, &given).unwrap().output,
        }
    }

    fn predict(&self) -> Vec<f64> {
        let given = Given { source: &self.source, output_gradient: &[], params: &self.params };
        let kernels = Kernels { isa: Isa::Scalar, threads: THREADS };
        probe::predict(&self.graph, kernels, Cut::exact(2, 0), &given).unwrap().output
    }

    /// h of all frames of one position, `[T][K]`; `mask` says by gate and unit what is kept of the state before.
    fn by_hand(&self, position: usize, mask: &dyn Fn(usize, usize) -> bool) -> Vec<[f64; UNITS]> {
        let [w, u, bias, recurrent_bias] =
            ["input.weight", "hidden.weight", "bias", "hidden.bias"].map(|name| self.param(&format!("rnn.{name}")));
        let (mut h, mut c) = ([0.0; UNITS], [0.0; UNITS]);
        let frame = |t: usize| {
            let x = &self.source[(t * self.positions + position) * CHANNELS..][..CHANNELS];
            let of_frame = |gate: usize, k: usize| {
                let row = gate * UNITS + k;
                bias[row] + (0..CHANNELS).map(|j| w[row * CHANNELS + j] * x[j]).sum::<f64>()
            };
            let of_state = |gate: usize, k: usize, h: &[f64; UNITS]| {
                let row = gate * UNITS + k;
                let kept = |j| if mask(gate, j) { h[j] / (1.0 - P) } else { 0.0 };
                recurrent_bias.get(row).unwrap_or(&0.0) + (0..UNITS).map(|j| u[row * UNITS + j] * kept(j)).sum::<f64>()
            };
            let before = h;
            let gate = |g: usize, k: usize| sigmoid(of_frame(g, k) + of_state(g, k, &before));
            let reset: [f64; UNITS] = std::array::from_fn(|k| gate(0, k) * before[k]);
            for k in 0..UNITS {
                h[k] = match self.op.cell {
                    Cell::Lstm => {
                        c[k] = gate(1, k) * c[k] + gate(0, k) * (of_frame(2, k) + of_state(2, k, &before)).tanh();
                        gate(3, k) * c[k].tanh()
                    }
                    Cell::GruResetAfter => {
                        let candidate = (of_frame(2, k) + gate(0, k) * of_state(2, k, &before)).tanh();
                        (1.0 - gate(1, k)) * candidate + gate(1, k) * before[k]
                    }
                    Cell::GruResetBefore => {
                        let candidate = (of_frame(2, k) + of_state(2, k, &reset)).tanh();
                        (1.0 - gate(1, k)) * candidate + gate(1, k) * before[k]
                    }
                };
            }
            h
        };
        (0..FRAMES).map(frame).collect()
    }

    /// Whether h by hand is what was made at a position, of some unit or of all.
    fn fits(&self, position: usize, units: Range<usize>, outputs: &[f64], by_hand: &[[f64; UNITS]]) -> bool {
        by_hand.iter().enumerate().all(|(t, h)| {
            let made = &outputs[(t * self.positions + position) * UNITS..][..UNITS];
            units.clone().all(|unit| (h[unit] - made[unit]).abs() < 1e-12)
        })
    }

    /// What is kept at each position: the masks, the same for all frames, that give the outputs of units that do not
    /// meet. None where the output does not depend on it: a reset gate's where the candidate drops what it resets.
    fn masks(&self, outputs: &[f64]) -> Vec<Mask> {
        let of_unit = |position: usize, unit: usize| -> Vec<Option<bool>> {
            let found: Vec<usize> = (0..1 << self.gates())
                .filter(|bits| {
                    let by_hand = self.by_hand(position, &|gate, _| bits >> gate & 1 == 1);
                    self.fits(position, unit..unit + 1, outputs, &by_hand)
                })
                .collect();
            assert!(!found.is_empty(), "{:?}: no mask fits position {position}, unit {unit}", self.op.cell);
            let kept = |gate: usize| found.iter().map(move |bits| bits >> gate & 1 == 1);
            let known = |gate: usize| kept(gate).next().filter(|first| kept(gate).all(|k| k == *first));
            let mask: Vec<_> = (0..self.gates()).map(known).collect();
            for (gate, known) in mask.iter().enumerate() {
                let idle = self.op.cell == Cell::GruResetBefore && gate == 0 && mask[2] == Some(false);
                assert_eq!(known.is_none(), idle, "{:?}: {found:?} fit position {position}", self.op.cell);
            }
            mask
        };
        let of = |position| {
            let units: [_; UNITS] = std::array::from_fn(|unit| of_unit(position, unit));
            (0..self.gates()).map(|gate| std::array::from_fn(|unit| units[unit][gate])).collect()
        };
        (0..self.positions).map(of).collect()
    }

    /// The outputs `[T][P][K]` by hand with these masks; what the masks leave open is as `outputs` say.
    fn all_by_hand(&self, masks: &[Mask], outputs: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; outputs.len()];
        for (position, mask) in masks.iter().enumerate() {
            let with = |open: usize| self.by_hand(position, &|gate, k| mask[gate][k].unwrap_or(open >> k & 1 == 1));
            let found = (0..1 << UNITS).map(with).find(|by_hand| self.fits(position, 0..UNITS, outputs, by_hand));
            for (t, h) in found.unwrap_or_else(|| with(0)).iter().enumerate() {
                all[(t * self.positions + position) * UNITS..][..UNITS].copy_from_slice(h);
            }
        }
        all
    }
}

/// What each gate keeps of the state at a position, `[g][K]`.
type Mask = Vec<[Option<bool>; UNITS]>;

fn masks(cell: Cell, maps: (usize, usize)) -> Vec<Mask> {
    let apart = Layer::new(cell, maps, P, false);
    apart.masks(&apart.train::<f64>(Some(&KEYS), Isa::Scalar, Cut::WHOLE))
}

/// Five standard deviations of a share of so many draws.
fn allowed(share: f64, draws: usize) -> f64 {
    5.0 * (share * (1.0 - share) / draws as f64).sqrt()
}

#[test]
fn each_gate_of_each_clip_drops_its_own_share() {
    for cell in CELLS {
        let masks = masks(cell, MAPS);
        let gates = masks[0].len();
        let share = |of: &dyn Fn(&Mask, usize, usize) -> Option<bool>| {
            let each = masks.iter().flat_map(|m| (0..gates * UNITS).map(move |i| of(m, i / UNITS, i % UNITS)));
            let drawn: Vec<bool> = each.flatten().collect();
            (drawn.iter().filter(|yes| **yes).count() as f64 / drawn.len() as f64, drawn.len())
        };
        let (kept, draws) = share(&|m, gate, k| m[gate][k]);
        assert!((kept - (1.0 - P)).abs() < allowed(P, draws), "{cell:?} keeps {kept}");
        let alike = P * P + (1.0 - P) * (1.0 - P);
        let (agree, draws) = share(&|m, gate, k| (gate == 0).then_some(m[0][k]? == m[1][k]?));
        assert!((agree - alike).abs() < allowed(alike, draws), "{cell:?}: gates agree on {agree}");
        let half = masks.len() / 2;
        assert_ne!(masks[..half], masks[half..], "{cell:?}: the clips' masks");
    }
}

#[test]
fn a_layer_is_the_one_by_hand_in_any_cut() {
    for (cell, maps) in CELLS.into_iter().flat_map(|cell| [(cell, MAPS), (cell, VECTORS)]) {
        let masks = masks(cell, maps);
        let layer = Layer::new(cell, maps, P, true);
        let want = layer.all_by_hand(&masks, &layer.train::<f64>(Some(&KEYS), Isa::Scalar, Cut::WHOLE));
        let want = Array { dims: vec![want.len()], values: want };
        for cut in [Cut::WHOLE, Cut::exact(1, 1), Cut::exact(4, 0)] {
            let what = format!("{cell:?} of {maps:?}, {cut:?}");
            assert_close(&what, &layer.train::<f64>(Some(&KEYS), Isa::Scalar, cut), &want);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                assert_close(&format!("{what}, {isa}"), &layer.train::<f32>(Some(&KEYS), isa, cut), &want);
            }
        }
    }
}

#[test]
fn nothing_is_dropped_without_a_probability_or_without_training() {
    for (cell, maps) in CELLS.into_iter().flat_map(|cell| [(cell, MAPS), (cell, VECTORS)]) {
        let plain = Layer::new(cell, maps, 0.0, true);
        let want = plain.train::<f64>(None, Isa::Scalar, Cut::WHOLE);
        assert_eq!(plain.train::<f64>(Some(&KEYS), Isa::Scalar, Cut::WHOLE), want, "{cell:?} of {maps:?}");
        let dropping = Layer::new(cell, maps, P, true);
        assert_eq!(dropping.predict(), plain.predict(), "{cell:?} of {maps:?}");
        assert_ne!(dropping.train::<f64>(Some(&KEYS), Isa::Scalar, Cut::WHOLE), want, "{cell:?} of {maps:?}");
    }
}
