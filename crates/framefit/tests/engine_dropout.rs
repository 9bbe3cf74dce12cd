//! Dropout in the engine: what its zeros depend on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::axes::Order;
use framefit::core::ledger::Fixed;
use framefit::core::ops::{Dropout, DropoutUnit, Flatten, Linear, LinearLayout};
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::{Cut, Keeping};
use framefit::core::{DType, Dims3, Graph, GraphBuilder, Op, Origin, ParamId, Shape};
use framefit::engine::{Engine, Kernels, Normalisation, Tensor};
use framefit::kernels::Isa;

const CLASSES: usize = 2;

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn source() -> Shape {
    Shape::video(Dims3 { t: 10, h: 6, w: 5 }, 3)
}

/// Dropouts one after the other, then a matrix: the gradient of its weight has zeros where the values have.
fn graph(drops: &[f64]) -> Graph {
    let mut b = GraphBuilder::new(source());
    for (i, &p) in drops.iter().enumerate() {
        let op = Op::Dropout(Dropout { p, unit: DropoutUnit::Element });
        b.layer(&format!("drop{i}"), op, &Origin::BuiltIn).unwrap();
    }
    b.layer("flatten", Op::Flatten(Flatten::clip(Order::Keras)), &Origin::BuiltIn).unwrap();
    let in_features = b.shape().per_clip();
    let layout = LinearLayout::Keras;
    let linear = Op::Linear(Linear { in_features, out_features: CLASSES, bias: false, layout });
    b.layer("fc", linear, &Origin::BuiltIn).unwrap();
    b.finish().unwrap()
}

fn engine(graph: &Graph, micro: usize, cut: Cut) -> Engine<f64> {
    let kernels = Kernels { isa: Isa::Scalar, threads: 2 };
    let request = Request {
        graph,
        dtype: DType::F64,
        batch: micro,
        training: true,
        cut: Some(cut),
        keeping: Keeping::Memory,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with(&request, micro, cut);
    plan.check(&request).unwrap();
    let mut engine = Engine::new(graph.clone(), plan, kernels, &Normalisation::uniform(0.0, 1.0, 3)).unwrap();
    for (i, weight) in engine.tensor_mut(Tensor::Weight(ParamId(0))).unwrap().iter_mut().enumerate() {
        *weight = (i % 7) as f64 * 0.01;
    }
    engine
}

/// The gradient of the matrix for one clip of ones.
fn gradient(engine: &mut Engine<f64>, key: u64) -> Vec<f64> {
    engine.begin_step().unwrap();
    let slots = engine.training_slots(1).unwrap();
    slots.frames.fill(255);
    slots.labels.fill(1);
    slots.keys.fill(key);
    engine.accumulate(1, 1.0).unwrap();
    engine.tensor(Tensor::Gradient(ParamId(0))).unwrap().to_vec()
}

/// Which of one class's features are there.
fn kept(gradient: &[f64]) -> Vec<bool> {
    let per_frame = source().per_frame();
    gradient.chunks_exact(CLASSES * per_frame).flat_map(|of_frame| &of_frame[..per_frame]).map(|g| *g != 0.0).collect()
}

fn share(kept: &[bool]) -> f64 {
    kept.iter().filter(|kept| **kept).count() as f64 / kept.len() as f64
}

#[test]
fn a_clips_key_says_what_is_dropped() {
    let graph = graph(&[0.4]);
    let mut engine = engine(&graph, 1, Cut::WHOLE);
    let first = gradient(&mut engine, 5);
    let other = gradient(&mut engine, 6);
    assert_eq!(gradient(&mut engine, 5), first);
    // 900 draws: five standard deviations.
    assert!((share(&kept(&first)) - 0.6).abs() < 0.082, "{}", share(&kept(&first)));
    let agree: Vec<bool> = kept(&first).iter().zip(kept(&other)).map(|(a, b)| *a == b).collect();
    assert!((share(&agree) - 0.52).abs() < 0.084, "{}", share(&agree));
}

#[test]
fn segments_and_micro_batches_drop_the_same() {
    let graph = graph(&[0.4, 0.1]);
    let want = gradient(&mut engine(&graph, 1, Cut::WHOLE), 9);
    for cut in [Cut::exact(1, 2), Cut::exact(3, 0), Cut::exact(7, 1)] {
        for micro in [1, 3] {
            let got = gradient(&mut engine(&graph, micro, cut), 9);
            assert_eq!(kept(&got), kept(&want), "{cut:?}, {micro} at a time");
        }
    }
}

#[test]
fn two_layers_draw_apart() {
    let both = kept(&gradient(&mut engine(&graph(&[0.5, 0.5]), 1, Cut::WHOLE), 3));
    assert!((share(&both) - 0.25).abs() < 0.073, "{}", share(&both));
}

/// Evaluation drops nothing, and training with p = 0 is the same.
#[test]
fn evaluation_drops_nothing() {
    let losses = |drops: &[f64]| {
        let mut engine = engine(&graph(drops), 2, Cut::exact(4, 0));
        let slots = engine.evaluation_slots(2).unwrap();
        slots.frames.iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (i * 37 % 256) as u8);
        slots.labels.copy_from_slice(&[0, 1]);
        engine.evaluate(2).unwrap().losses.to_vec()
    };
    let plain = losses(&[]);
    assert_eq!(losses(&[0.5]), plain);
    assert_eq!(losses(&[0.0, 1.0]), plain);
}
