//! The initialisation of the default cnn3d against PyTorch (`reference/pytorch/initialisation.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::graph::Initial;
use framefit::core::ledger::Fixed;
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::Keeping;
use framefit::core::{DType, Graph, ParamId};
use framefit::engine::{Engine, Kernels, Normalisation, Tensor};
use framefit::kernels::Isa;
use framefit::models::{Family, ModelSpec, initialise};
use serde_json::Value;

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(size).collect()
}

/// The model of the reference, on a clip that two poolings leave something of.
fn graph(about: &Value) -> Graph {
    let model = &about["model"];
    let default = ModelSpec::of(Family::Cnn3d);
    assert_eq!((sizes(&model["widths"]), size(&model["hidden"])), (default.widths.clone(), default.hidden));
    assert_eq!(sizes(&model["kernel"]), [default.kernel.t, default.kernel.h, default.kernel.w]);
    let (channels, classes) = (size(&model["channels"]), size(&model["classes"]));
    ModelSpec { channels, classes, frames: 4, height: 4, width: 4, ..default }.build().unwrap()
}

#[test]
fn bounds_are_pytorchs() {
    let about = reference::about("pytorch/initialisation");
    let graph = graph(&about);
    let want = about["parameters"].as_array().unwrap();
    assert_eq!((graph.params.len(), want.len()), (8, 8));
    for (param, want) in graph.params.iter().zip(want) {
        assert_eq!(want["name"], param.name);
        assert_eq!(sizes(&want["shape"]), param.dims, "{}", param.name);
        assert_eq!(param.initial, Initial::Uniform { fan_in: size(&want["fan_in"]) }, "{}", param.name);
    }
}

#[test]
fn draws_are_spread_as_pytorchs() {
    /// Standard errors that a spread may be off.
    const ERRORS: f64 = 5.0;
    let about = reference::about("pytorch/initialisation");
    let (graph, kernels) = (graph(&about), Kernels { isa: Isa::best(), threads: 1 });
    let no_fixed = |_: usize| Fixed::default();
    let request = Request {
        graph: &graph,
        dtype: DType::F32,
        batch: 1,
        training: true,
        cut: None,
        keeping: Keeping::Memory,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let normalisation = Normalisation::uniform(0.0, 1.0, size(&about["model"]["channels"]));
    let plan = Plan::with_micro_batch(&request, 1);
    let mut engine = Engine::<f32>::new(graph.clone(), plan, kernels, &normalisation).unwrap();

    let mut drawn = vec![Vec::new(); graph.params.len()];
    let seeds = &about["made_by"]["seeds"];
    for seed in seeds[0].as_u64().unwrap()..seeds[1].as_u64().unwrap() {
        initialise(&mut engine, seed).unwrap();
        for (i, drawn) in drawn.iter_mut().enumerate() {
            drawn.extend(engine.tensor(Tensor::Weight(ParamId(i))).unwrap().iter().map(|&v| f64::from(v)));
        }
    }
    for (drawn, want) in drawn.iter().zip(about["parameters"].as_array().unwrap()) {
        let (name, bound, std) = (&want["name"], want["bound"].as_f64().unwrap(), want["std"].as_f64().unwrap());
        let count = drawn.len() as f64;
        let largest = drawn.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        // Of n draws the largest comes about bound/n near to the bound, and 20 times that once in e²⁰.
        let near = bound * (1.0 - 20.0 / count);
        assert!(near <= largest && largest <= bound, "{name}: the largest is {largest}, the bound {bound}");
        let mean = drawn.iter().sum::<f64>() / count;
        assert!(mean.abs() <= ERRORS * std / count.sqrt(), "{name}: the mean is {mean}");
        let measured = (drawn.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt();
        // The fourth moment of a uniform distribution is 9/5 of its squared variance.
        let error = std * (0.2 / count).sqrt();
        assert!((measured - std).abs() <= ERRORS * error, "{name}: {measured} instead of {std}");
        let pytorchs = want["measured_std"].as_f64().unwrap();
        assert!((measured - pytorchs).abs() <= 2.0 * ERRORS * error, "{name}: PyTorch's is {pytorchs}");
    }
}
