//! ConvLSTM2D → BatchNormalization → AveragePooling3D → Dense per frame against Keras
//! (`reference/keras/second_seed.py`), whole and in segments.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::ParamId;
use framefit::core::ledger::Fixed;
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::{Cut, Keeping};
use framefit::engine::{Element, Engine, Kernels, Normalisation, Tensor};
use framefit::kernels::Isa;
use framefit::kernels::optimizer::AdamStep;
use framefit::models::{Family, ModelSpec};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::PathBuf;

struct Reference {
    bytes: Vec<u8>,
    about: Value,
    spec: ModelSpec,
}

fn reference(name: &str) -> Reference {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../reference/keras/second_seed");
    let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
    let about: Value = serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
    let n = |v: &Value| v.as_u64().unwrap() as usize;
    let (model, input) = (&about["model"], &about["model"]["input"]);
    let spec = ModelSpec {
        filters: n(&model["filters"]),
        frames: n(&input["T"]),
        height: n(&input["H"]),
        width: n(&input["W"]),
        channels: n(&input["C"]),
        classes: n(&model["classes"]),
        ..ModelSpec::of(Family::ConvLstm)
    };
    Reference { bytes, about, spec }
}

impl Reference {
    fn tensor(&self, name: &str) -> Option<Vec<f64>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).ok()?;
        let data = tensor.data();
        Some(match tensor.dtype() {
            safetensors::Dtype::F32 => {
                data.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
            }
            safetensors::Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            safetensors::Dtype::I64 => data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
            _ => data.iter().map(|&b| f64::from(b)).collect(),
        })
    }

    /// The tensor of one of our parameters, which is named by its layer and its last name.
    fn of_param(&self, prefix: &str, param: &str) -> Option<Vec<f64>> {
        let (layer, last) = param.split_once('.').unwrap();
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let path = file
            .names()
            .into_iter()
            .find(|n| n.starts_with(prefix) && n.contains(&format!("/{layer}/")) && n.ends_with(&format!("/{last}")))?;
        self.tensor(path)
    }
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn engine<E: Element>(r: &Reference, isa: Isa, clips: usize, cut: Option<Cut>) -> Engine<E> {
    let graph = r.spec.build().unwrap();
    let kernels = Kernels { isa, threads: 2 };
    let request = Request {
        graph: &graph,
        dtype: E::DTYPE,
        batch: clips,
        training: true,
        cut,
        keeping: Keeping::Memory,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with_micro_batch(&request, clips);
    plan.check(&request).unwrap();
    let mut engine = Engine::new(graph.clone(), plan, kernels, &Normalisation::uniform(0.0, 1.0, 1)).unwrap();
    for (index, param) in graph.params.iter().enumerate() {
        let start = r.of_param("start.", &param.name).unwrap_or_else(|| panic!("{}", param.name));
        let to = engine.tensor_mut(Tensor::Weight(ParamId(index))).unwrap();
        param.stored.each(0, start.len(), |user, stored| to[stored] = E::from_f64(start[user]));
    }
    engine
}

fn fill<E: Element>(engine: &mut Engine<E>, r: &Reference, clips: &[usize], training: bool) {
    let (all, labels) = (r.tensor("clips").unwrap(), r.tensor("labels").unwrap());
    let (t, frame) = (r.spec.frames, r.spec.height * r.spec.width);
    let n = clips.len();
    let slots = if training { engine.training_slots(n).unwrap() } else { engine.evaluation_slots(n).unwrap() };
    for frame_index in 0..t {
        for (place, &clip) in clips.iter().enumerate() {
            let from = (clip * t + frame_index) * frame;
            let to = (frame_index * n + place) * frame;
            for i in 0..frame {
                slots.frames[to + i] = all[from + i] as u8;
            }
            slots.labels[frame_index * n + place] = labels[clip * t + frame_index] as u32;
        }
    }
}

fn step<E: Element>(engine: &mut Engine<E>, r: &Reference, clips: &[usize]) -> f64 {
    engine.begin_step().unwrap();
    fill(engine, r, clips, true);
    let count = (clips.len() * r.spec.frames) as f64;
    let outcome = engine.accumulate(clips.len(), 1.0 / count).unwrap();
    outcome.losses.iter().map(|l| l.to_f64()).sum::<f64>() / count
}

/// Keras adds epsilon to the root of the uncorrected second moment.
fn keras_adam(t: u64) -> AdamStep {
    let eps = 1e-7 / (1.0 - 0.999f64.powi(t as i32)).sqrt();
    AdamStep { step: t, eps, ..AdamStep::DEFAULT }
}

fn off(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-9f64, |m, v| m.max(v.abs()));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / scale
}

fn users<E: Element>(engine: &Engine<E>, index: usize, tensor: Tensor) -> Vec<f64> {
    let data = engine.tensor(tensor).unwrap();
    let mut user = vec![0.0; data.len()];
    engine.graph().params[index].stored.each(0, data.len(), |u, stored| user[u] = data[stored].to_f64());
    user
}

fn cuts() -> Vec<Option<Cut>> {
    let cut = |segment, checkpoints| Some(Cut::exact(segment, checkpoints));
    vec![None, cut(6, 1), cut(5, 0), cut(4, 2), cut(1, 3), cut(1, 0), cut(7, 5)]
}

#[test]
fn ten_steps_are_keras_whole_and_in_any_cut() {
    const RELATIVE: f64 = 1e-8;
    for name in ["filters_2", "filters_4"] {
        let r = reference(name);
        for run in r.about["runs"].as_array().unwrap() {
            let run_name = run["name"].as_str().unwrap();
            let losses: Vec<f64> = run["losses_f64"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            for cut in cuts() {
                let clips_of = |i: usize| -> Vec<usize> {
                    let all = run["clips_of_step"][i].as_array().unwrap();
                    all.iter().map(|v| v.as_u64().unwrap() as usize).collect()
                };
                let mut engine = engine::<f64>(&r, Isa::Scalar, clips_of(0).len(), cut);
                let params = engine.graph().params.clone();
                for (i, want) in losses.iter().enumerate() {
                    let got = step(&mut engine, &r, &clips_of(i));
                    assert!((got - want).abs() < RELATIVE * want, "{name} {run_name} {cut:?} {i}: {got}, not {want}");
                    for (p, param) in params.iter().enumerate().filter(|_| i == 0) {
                        let Some(want) = r.of_param(&format!("{run_name}.gradient."), &param.name) else {
                            assert!(!param.trained);
                            continue;
                        };
                        let got = users(&engine, p, Tensor::Gradient(ParamId(p)));
                        let off = off(&got, &want);
                        assert!(off < 1e-7, "{name} {run_name} {cut:?}: gradient of {} is {off:.1e} off", param.name);
                    }
                    engine.update(keras_adam(i as u64 + 1)).unwrap();
                }
                for (p, param) in params.iter().enumerate() {
                    let want = r.of_param(&format!("{run_name}.end."), &param.name).unwrap();
                    let off = off(&users(&engine, p, Tensor::Weight(ParamId(p))), &want);
                    assert!(off < 1e-6, "{name} {run_name} {cut:?}: {} ends {off:.1e} off", param.name);
                }
                let clips: Vec<usize> =
                    run["inference_clips"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
                fill(&mut engine, &r, &clips, false);
                let (t, k, n) = (r.spec.frames, r.spec.classes, clips.len());
                let outcome = engine.evaluate(n).unwrap();
                let want = r.tensor(&format!("{run_name}.inference_logits")).unwrap();
                let got: Vec<f64> =
                    (0..n * t * k).map(|i| outcome.logits[((i / k % t) * n + i / (t * k)) * k + i % k]).collect();
                assert!(off(&got, &want) < 1e-6, "{name} {run_name} {cut:?}: inference");
            }
        }
    }
}

#[test]
fn single_precision_follows_on_every_instruction_set() {
    const RELATIVE: f64 = 1e-4;
    for name in ["filters_2", "filters_4"] {
        let r = reference(name);
        let run = &r.about["runs"][0];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for cut in [None, Some(Cut::exact(5, 1))] {
                let mut engine = engine::<f32>(&r, isa, 1, cut);
                for (i, want) in run["losses_f64"].as_array().unwrap().iter().enumerate() {
                    let (got, want) = (step(&mut engine, &r, &[0]), want.as_f64().unwrap());
                    assert!((got - want).abs() < RELATIVE * want, "{name} {isa:?} {cut:?} step {i}: {got}, not {want}");
                    engine.update(keras_adam(i as u64 + 1)).unwrap();
                }
            }
        }
    }
}

#[test]
fn parameter_counts_are_keras() {
    let file =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../reference/keras/second_seed/parameter_counts.json");
    let about: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for model in about["models"].as_array().unwrap() {
        let spec = ModelSpec {
            filters: model["filters"].as_u64().unwrap() as usize,
            frames: 600,
            height: 135,
            width: 240,
            channels: 1,
            classes: 9,
            ..ModelSpec::of(Family::ConvLstm)
        };
        let graph = spec.build().unwrap();
        assert_eq!(graph.param_count(), model["total"].as_u64().unwrap());
        assert_eq!(graph.trained_count(), model["trainable"].as_u64().unwrap());
        let layers: Vec<u64> = model["layers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["parameters"].as_u64().unwrap())
            .filter(|&n| n > 0)
            .collect();
        let ours: Vec<u64> = graph
            .nodes
            .iter()
            .map(|n| n.params.iter().map(|&p| graph.param(p).len() as u64).sum())
            .filter(|&n| n > 0)
            .collect();
        assert_eq!(ours, layers);
    }
}
