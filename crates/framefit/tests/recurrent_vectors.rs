//! Recurrent layers over vectors: as many as are computed at once, in any cut, of flattened frames in either order.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::axes::{DType, Order, Window};
use framefit::core::ops::{Cell, Flatten, Recurrent, RecurrentLayout};
use framefit::core::schedule::{Cut, KernelRequest, Pass, Workspaces};
use framefit::core::{Dims3, Graph, Op, Origin, Shape};
use framefit::engine::probe::{self, Given, Seen};
use framefit::engine::{self, Kernels};
use framefit::kernels::Isa;
use reference::{Array, Element, THREADS, Tolerance, assert_close, assert_within};

/// Numbers in −0.5..0.5, the same for the same seed.
fn noise(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    next();
    (0..len).map(|_| next()).collect()
}

/// One recurrent layer, and what goes in.
struct Layer {
    graph: Graph,
    source: Vec<f64>,
    output_gradient: Vec<f64>,
    params: Vec<(String, Vec<f64>)>,
}

impl Layer {
    fn new(clips: usize, source: Shape, flatten: Option<Order>, op: Recurrent) -> Self {
        let mut b = probe::builder(source).unwrap();
        if let Some(order) = flatten {
            b.layer("flatten", Op::Flatten(Flatten { per_frame: true, order }), &Origin::BuiltIn).unwrap();
        }
        b.layer("rnn", Op::Recurrent(op), &Origin::BuiltIn).unwrap();
        let graph = b.finish().unwrap();
        let source = noise(1, clips * source.per_clip());
        let output_gradient = noise(2, clips * graph.shape(graph.output).per_clip());
        let own = graph.params.iter().enumerate().filter(|(_, p)| p.name != "probe.weight");
        let params = own.map(|(i, p)| (p.name.clone(), noise(3 + i as u64, p.len()))).collect();
        Self { graph, source, output_gradient, params }
    }

    fn given(&self) -> Given<'_> {
        Given { source: &self.source, output_gradient: &self.output_gradient, params: &self.params }
    }

    fn train<E: Element + engine::Element>(&self, isa: Isa, cut: Cut) -> Seen<E> {
        probe::train(&self.graph, Kernels { isa, threads: THREADS }, cut, &self.given()).unwrap()
    }

    fn predict<E: Element + engine::Element>(&self, isa: Isa, cut: Cut) -> Seen<E> {
        probe::predict(&self.graph, Kernels { isa, threads: THREADS }, cut, &self.given()).unwrap()
    }
}

fn array(values: &[f64]) -> Array {
    Array { dims: vec![values.len()], values: values.to_vec() }
}

fn assert_same<E: Element>(what: &str, got: &Seen<E>, want: &Seen<f64>, tolerance: Tolerance) {
    assert_within(&format!("{what}: output"), &got.output, &array(&want.output), tolerance);
    assert_within(&format!("{what}: input"), &got.source_gradient, &array(&want.source_gradient), tolerance);
    assert_eq!(got.gradients.len(), want.gradients.len());
    for ((name, got), (_, want)) in got.gradients.iter().zip(&want.gradients) {
        // The probe's own weight apart, whose gradient is a sum of products that may cancel.
        if name != "probe.weight" {
            assert_within(&format!("{what}: {name}"), got, &array(want), tolerance);
        }
    }
}

const CELLS: [(Cell, RecurrentLayout); 4] = [
    (Cell::Lstm, RecurrentLayout::PyTorch { layer: 0, reverse: false }),
    (Cell::Lstm, RecurrentLayout::Keras),
    (Cell::GruResetAfter, RecurrentLayout::Keras),
    (Cell::GruResetBefore, RecurrentLayout::Keras),
];

/// Vectors of clips × frames from one to more than are computed at once, by all rows of the kernels' tables.
#[test]
fn any_number_of_vectors_and_any_cut_give_the_same() {
    for (cell, layout) in CELLS {
        for (clips, t) in [(1, 63), (1, 64), (5, 26), (3, 100), (30, 3), (300, 2)] {
            let source = Shape::video(Dims3 { t, h: 1, w: 1 }, 7);
            let layer = Layer::new(clips, source, None, Recurrent::features(cell, 7, 5, layout));
            let what = format!("{cell:?} {layout:?}, {clips} clips of {t} frames");
            let want = layer.train::<f64>(Isa::Scalar, Cut::WHOLE);
            for cut in [Cut::exact(1, 2), Cut::exact(9, 1), Cut::exact(t.div_ceil(2), 0)] {
                let got = layer.train::<f64>(Isa::Scalar, cut);
                assert_same(&format!("{what}, {cut:?}"), &got, &want, Tolerance::F64_REORDERED);
                let predicted = layer.predict::<f64>(Isa::Scalar, cut);
                assert_close(&format!("{what}, predicting {cut:?}"), &predicted.output, &array(&want.output));
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                for cut in [Cut::WHOLE, Cut::exact(9, 1)] {
                    let what = format!("{what}, {isa}, {cut:?}");
                    assert_same(&what, &layer.train::<f32>(isa, cut), &want, Tolerance::F32_REORDERED);
                    assert_close(&what, &layer.predict::<f32>(isa, cut).output, &array(&want.output));
                }
            }
        }
    }
}

/// The same with the clips as positions of maps, which go another way.
#[test]
fn vectors_are_maps_of_one_position() {
    let (clips, t, features, units) = (3, 60, 7, 5);
    for cell in [Cell::Lstm, Cell::GruResetAfter, Cell::GruResetBefore] {
        let op = Recurrent::features(cell, features, units, RecurrentLayout::ConvCell);
        let vectors = Shape::video(Dims3 { t, h: 1, w: 1 }, features);
        let maps = Shape::video(Dims3 { t, h: 1, w: clips }, features);
        let want = Layer::new(1, maps, None, op.clone()).train::<f64>(Isa::Scalar, Cut::WHOLE);
        let got = Layer::new(clips, vectors, None, op).train::<f64>(Isa::Scalar, Cut::WHOLE);
        assert_same(&format!("{cell:?}"), &got, &want, Tolerance::F64_REORDERED);
    }
}

/// A plan lays out the scratch of its whole micro-batch; the last one may have fewer clips.
#[test]
fn fewer_clips_never_need_more_scratch() {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.available());
    for kernels in isas.map(|isa| Kernels { isa, threads: THREADS }) {
        for ((cell, layout), (features, units, t)) in
            CELLS.into_iter().flat_map(|cell| [(7, 5, 300), (100, 3, 3), (5000, 2, 1)].map(|sizes| (cell, sizes)))
        {
            let op = Recurrent::features(cell, features, units, layout);
            let op = Op::Recurrent(Recurrent { recurrent_dropout: 0.2, ..op });
            let shape = |channels| Shape::video(Dims3 { t, h: 1, w: 1 }, channels);
            let (input, output, window) = (shape(features), shape(units), Window::whole(t));
            for pass in [Pass::Forward, Pass::State, Pass::InputGradient, Pass::WeightGradient] {
                let bytes = |clips| {
                    let (op, input, output, dtype) = (&op, &input, &output, DType::F32);
                    let (read, made, training) = (window, window, true);
                    kernels.bytes(&KernelRequest { op, pass, clips, input, output, read, made, dtype, training })
                };
                for clips in 2..300 {
                    let (fewer, more) = (bytes(clips - 1), bytes(clips));
                    assert!(fewer <= more, "{pass:?} of {op:?}: {clips} clips need {more}, one less {fewer}");
                }
            }
        }
    }
}

/// Flattened frames are vectors whose features are in the framework's order; weights and gradients are the user's.
#[test]
fn flattened_frames_are_vectors_in_the_order_of_their_framework() {
    let (clips, dims, c) = (2, Dims3 { t: 4, h: 2, w: 3 }, 5);
    let features = dims.h * dims.w * c;
    for (cell, layout) in CELLS {
        for order in [Order::PyTorch, Order::Keras] {
            let op = Recurrent::features(cell, features, 3, layout);
            let frames = Layer::new(clips, Shape::video(dims, c), Some(order), op.clone());
            let vector = Shape::video(Dims3 { h: 1, w: 1, ..dims }, features);
            let mut vectors = Layer::new(clips, vector, None, op);
            let flat = |values: &[f64]| {
                let array = Array { dims: vec![dims.t, clips, dims.h, dims.w, c], values: values.to_vec() };
                match order {
                    Order::PyTorch => array.permuted(&[0, 1, 4, 2, 3]).values,
                    Order::Keras => array.values,
                }
            };
            vectors.source = flat(&frames.source);
            assert_eq!(vectors.params, frames.params);
            let want = vectors.train::<f64>(Isa::Scalar, Cut::WHOLE);
            let mut got = frames.train::<f64>(Isa::Scalar, Cut::exact(3, 0));
            got.source_gradient = flat(&got.source_gradient);
            assert_same(&format!("{cell:?} {order:?}"), &got, &want, Tolerance::F64_REORDERED);
        }
    }
}
