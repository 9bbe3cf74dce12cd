//! Twenty steps of Adam against PyTorch, from the same weights and clips
//! (`reference/pytorch/train_20_steps.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::ledger::Fixed;
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::{Cut, Keeping};
use framefit::core::{Dims3, Graph, ParamId};
use framefit::engine::{Element, Engine, Kernels, Normalisation, Tensor};
use framefit::kernels::Isa;
use framefit::kernels::optimizer::AdamStep;
use framefit::models::{ModelSpec, NormPlace};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::PathBuf;

struct Reference {
    bytes: Vec<u8>,
    about: Value,
    spec: ModelSpec,
}

fn reference(name: &str) -> Reference {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../reference/pytorch/train_20_steps");
    let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
    let about: Value = serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
    let model = &about["model"];
    let n = |v: &Value| v.as_u64().unwrap() as usize;
    let list = |v: &Value| v.as_array().unwrap().iter().map(n).collect::<Vec<_>>();
    let dims = |v: &Value| match list(v)[..] {
        [t, h, w] => Dims3 { t, h, w },
        _ => panic!("three extents"),
    };
    let spec = ModelSpec {
        family: name.parse().unwrap(),
        widths: list(&model["widths"]),
        filters: 0,
        kernel: dims(&model["kernel"]),
        stride: 1,
        norm: NormPlace::Before,
        recurrent_dropout: 0.0,
        pool: dims(&model["pool"]),
        hidden: n(&model["hidden"]),
        frames: n(&model["clip"]["T"]),
        height: n(&model["clip"]["H"]),
        width: n(&model["clip"]["W"]),
        channels: n(&model["clip"]["C"]),
        classes: n(&model["classes"]),
    };
    Reference { bytes, about, spec }
}

impl Reference {
    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = file.tensor(name).ok()?.data();
        Some(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn clips(&self) -> Vec<u8> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor("clips").unwrap().data().to_vec()
    }

    fn labels(&self) -> Vec<u32> {
        self.about["labels"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    }

    fn normalisation(&self) -> Normalisation {
        let number = |key: &str| self.about[key].as_f64().unwrap();
        Normalisation::uniform(number("mean"), number("std"), self.spec.channels)
    }
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn engine<E: Element>(reference: &Reference, kernels: Kernels, micro_batch: usize) -> Engine<E> {
    engine_cut(reference, kernels, micro_batch, None)
}

fn engine_cut<E: Element>(reference: &Reference, kernels: Kernels, micro_batch: usize, cut: Option<Cut>) -> Engine<E> {
    let graph = reference.spec.build().unwrap();
    let request = Request {
        graph: &graph,
        dtype: E::DTYPE,
        batch: 3,
        training: true,
        cut,
        keeping: Keeping::Memory,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with_micro_batch(&request, micro_batch);
    plan.check(&request).unwrap();
    let mut engine = Engine::new(graph.clone(), plan, kernels, &reference.normalisation()).unwrap();
    for (index, param) in graph.params.iter().enumerate() {
        let start = reference.floats(&format!("start.{}", param.name)).unwrap();
        let to = engine.tensor_mut(Tensor::Weight(ParamId(index))).unwrap();
        param.stored.each(0, start.len(), |user, stored| to[stored] = E::from_f32(start[user]));
    }
    engine
}

/// One pass over the batch in micro-batches of at most `micro` clips: the loss, as PyTorch's mean.
fn accumulate<E: Element>(engine: &mut Engine<E>, r: &Reference, weights: Option<&[f64]>, micro: usize) -> f64 {
    let (clips, labels) = (r.clips(), r.labels());
    let total: f64 = labels.iter().map(|&l| weights.map_or(1.0, |w| w[l as usize])).sum();
    engine.begin_step().unwrap();
    let (t, per_frame) = (r.spec.frames, clips.len() / labels.len() / r.spec.frames);
    let mut sum = 0.0;
    for from in (0..labels.len()).step_by(micro) {
        let n = micro.min(labels.len() - from);
        let slots = engine.training_slots(n).unwrap();
        for frame in 0..t {
            for clip in 0..n {
                let source = ((from + clip) * t + frame) * per_frame;
                let to = (frame * n + clip) * per_frame;
                slots.frames[to..to + per_frame].copy_from_slice(&clips[source..source + per_frame]);
            }
        }
        slots.labels.copy_from_slice(&labels[from..from + n]);
        let outcome = engine.accumulate(n, 1.0 / total).unwrap();
        sum += outcome.losses.iter().map(|l| l.to_f64()).sum::<f64>();
    }
    sum / total
}

fn users_order<E: Element>(engine: &Engine<E>, graph: &Graph, index: usize, tensor: Tensor) -> Vec<f64> {
    let data = engine.tensor(tensor).unwrap();
    let mut user = vec![0.0; data.len()];
    graph.params[index].stored.each(0, data.len(), |u, stored| user[u] = data[stored].to_f64());
    user
}

/// The largest difference, relative to the largest value.
fn difference(got: &[f64], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-8f64, |m, v| m.max(f64::from(v.abs())));
    got.iter().zip(want).map(|(g, w)| (g - f64::from(*w)).abs() / scale).fold(0.0, f64::max)
}

const MODELS: [&str; 3] = ["cnn3d", "cnn3d-separable", "cnn3d-flatten"];

fn runs(r: &Reference) -> Vec<(String, Option<Vec<f64>>, Vec<f64>)> {
    let floats = |v: &Value| v.as_array().map(|a| a.iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>());
    let runs = r.about["runs"].as_array().unwrap();
    runs.iter()
        .map(|run| {
            let name = run["name"].as_str().unwrap().to_owned();
            (name, floats(&run["class_weights"]), floats(&run["losses_f64"]).unwrap())
        })
        .collect()
}

#[test]
fn losses_over_twenty_steps_are_pytorchs() {
    const RELATIVE: f64 = 1e-4;
    for name in MODELS {
        let r = reference(name);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for (run, weights, losses) in runs(&r) {
                let mut engine = engine::<f32>(&r, Kernels { isa, threads: 2 }, 3);
                engine.set_class_weights(weights.as_deref()).unwrap();
                let mut worst: f64 = 0.0;
                for (i, want) in losses.iter().enumerate() {
                    let got = accumulate(&mut engine, &r, weights.as_deref(), 3);
                    worst = worst.max((got - want).abs() / want);
                    assert!(worst < RELATIVE, "{name} {run} {isa:?} step {i}: {got} instead of {want}");
                    engine.update(AdamStep { step: i as u64 + 1, ..AdamStep::DEFAULT }).unwrap();
                }
                println!("{name:16} {run:9} {:7} largest relative difference {worst:.1e}", isa.name());
            }
        }
    }
}

#[test]
fn gradients_and_final_weights_in_f64_are_pytorchs() {
    const RELATIVE: f64 = 1e-5;
    for name in MODELS {
        let r = reference(name);
        for (run, weights, losses) in runs(&r) {
            let mut engine = engine::<f64>(&r, Kernels { isa: Isa::Scalar, threads: 1 }, 3);
            engine.set_class_weights(weights.as_deref()).unwrap();
            let graph = engine.graph().clone();
            for step in 0..losses.len() {
                accumulate(&mut engine, &r, weights.as_deref(), 3);
                if step == 0 {
                    for (i, param) in graph.params.iter().enumerate() {
                        let Some(want) = r.floats(&format!("{run}.gradient.{}", param.name)) else { continue };
                        let got = users_order(&engine, &graph, i, Tensor::Gradient(ParamId(i)));
                        let off = difference(&got, &want);
                        assert!(off < RELATIVE, "{name} {run}: gradient of {} is {off:.1e} off", param.name);
                    }
                }
                engine.update(AdamStep { step: step as u64 + 1, ..AdamStep::DEFAULT }).unwrap();
            }
            let mut compared = 0;
            for (i, param) in graph.params.iter().enumerate() {
                let Some(want) = r.floats(&format!("{run}.end.{}", param.name)) else { continue };
                let got = users_order(&engine, &graph, i, Tensor::Weight(ParamId(i)));
                let off = difference(&got, &want);
                assert!(off < RELATIVE, "{name} {run}: {} ends {off:.1e} off", param.name);
                compared += 1;
            }
            assert!(compared >= 5);
        }
    }
}

#[test]
fn any_split_into_micro_batches_gives_the_same_gradient() {
    for name in MODELS {
        let r = reference(name);
        let weights = [1.0, 0.5, 2.0, 1.5];
        let mut whole = engine::<f64>(&r, Kernels { isa: Isa::Scalar, threads: 2 }, 3);
        whole.set_class_weights(Some(&weights)).unwrap();
        let loss = accumulate(&mut whole, &r, Some(&weights), 3);
        let graph = whole.graph().clone();
        for micro in [1, 2] {
            let mut split = engine::<f64>(&r, Kernels { isa: Isa::Scalar, threads: 2 }, micro);
            split.set_class_weights(Some(&weights)).unwrap();
            let other = accumulate(&mut split, &r, Some(&weights), micro);
            assert!((loss - other).abs() < 1e-12);
            for i in 0..graph.params.len() {
                let a = whole.tensor(Tensor::Gradient(ParamId(i))).unwrap();
                let b = split.tensor(Tensor::Gradient(ParamId(i))).unwrap();
                let scale = a.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                for (x, y) in a.iter().zip(b) {
                    assert!((x - y).abs() <= 1e-11 * scale.max(1e-6), "{name} {}", graph.params[i].name);
                }
            }
        }
    }
}

#[test]
fn any_cut_into_segments_gives_the_loss_and_gradient_of_the_whole_clip() {
    const RELATIVE: f64 = 1e-10;
    let kernels = Kernels { isa: Isa::Scalar, threads: 2 };
    for name in MODELS {
        let r = reference(name);
        let mut whole = engine::<f64>(&r, kernels, 3);
        let loss = accumulate(&mut whole, &r, None, 3);
        let graph = whole.graph().clone();
        for (segment, checkpoints, micro) in
            [(4, 0, 3), (4, 1, 2), (3, 1, 3), (2, 3, 3), (2, 0, 1), (1, 0, 3), (1, 2, 3)]
        {
            let cut = Cut::exact(segment, checkpoints);
            let mut cut_engine = engine_cut::<f64>(&r, kernels, micro, Some(cut));
            let other = accumulate(&mut cut_engine, &r, None, micro);
            assert!((loss - other).abs() < RELATIVE * loss, "{name} {cut:?}: loss {other} instead of {loss}");
            for i in 0..graph.params.len() {
                let a = whole.tensor(Tensor::Gradient(ParamId(i))).unwrap();
                let b = cut_engine.tensor(Tensor::Gradient(ParamId(i))).unwrap();
                let scale = a.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                let off = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                let param = &graph.params[i].name;
                assert!(off <= RELATIVE * scale.max(1e-6), "{name} {cut:?}: gradient of {param} is {off:.1e} off");
            }
        }
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    // A step that moves a value over a kink of ReLU or of a maximum says nothing; a shorter one stays clear of it.
    const STEPS: [f64; 3] = [1e-5, 1e-6, 1e-7];
    const RELATIVE: f64 = 1e-5;
    for name in MODELS {
        let r = reference(name);
        let mut engine = engine::<f64>(&r, Kernels { isa: Isa::Scalar, threads: 2 }, 3);
        let graph = engine.graph().clone();
        for i in 0..graph.params.len() {
            let weight = Tensor::Weight(ParamId(i));
            accumulate(&mut engine, &r, None, 3);
            let gradient = engine.tensor(Tensor::Gradient(ParamId(i))).unwrap().to_vec();
            let scale = gradient.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let len = gradient.len();
            for at in [0, len / 3, len / 2, len - 1] {
                let mut loss_with = |delta: f64| {
                    let before = engine.tensor(weight).unwrap()[at];
                    engine.tensor_mut(weight).unwrap()[at] = before + delta;
                    let loss = accumulate(&mut engine, &r, None, 3);
                    engine.tensor_mut(weight).unwrap()[at] = before;
                    loss
                };
                let numeric = STEPS.map(|step| (loss_with(step) - loss_with(-step)) / (2.0 * step));
                let off = numeric.map(|n| (n - gradient[at]).abs()).into_iter().fold(f64::INFINITY, f64::min);
                let allowed = RELATIVE * scale.max(1e-3);
                let param = &graph.params[i].name;
                assert!(off <= allowed, "{name} {param}[{at}]: {} instead of {numeric:?}", gradient[at]);
            }
        }
    }
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let r = reference("cnn3d");
    let gradients = |threads: usize| {
        let mut engine = engine::<f32>(&r, Kernels { isa: Isa::best(), threads }, 3);
        accumulate(&mut engine, &r, None, 3);
        let count = engine.graph().params.len();
        (0..count)
            .flat_map(|i| engine.tensor(Tensor::Gradient(ParamId(i))).unwrap().to_vec())
            .map(f32::to_bits)
            .collect::<Vec<_>>()
    };
    let one = gradients(1);
    for threads in [2, 3, 5] {
        assert!(gradients(threads) == one, "{threads} threads");
    }
}
