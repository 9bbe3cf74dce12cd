//! Norms through the engine, whole and in any cut, against PyTorch (`reference/pytorch/more_ops.py`) and Keras
//! (`reference/keras/norms.py`): outputs, gradients and moving statistics.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::ops::{Add, BatchNorm, Conv3d, GroupNorm, Momentum, NormLayout, Relu, Statistics};
use framefit::core::schedule::Cut;
use framefit::core::{Dims3, Graph, Op, Origin, Shape, ValueId};
use framefit::engine::probe::{self, Given, Seen};
use framefit::engine::{self, Kernels};
use framefit::kernels::Isa;
use reference::{Array, Case, Cases, Element, THREADS, assert_close};

/// A graph with the values of a case, laid out as `[T,N,H,W,C]`.
struct Run<'a> {
    case: &'a Case<'a>,
    graph: Graph,
    /// Names in the graph, and in the case.
    params: Vec<(String, String)>,
    source: Array,
    output: Array,
    output_gradient: Array,
    source_gradient: Array,
    /// Whether the moving statistics are those that the case has afterwards.
    moves: bool,
    batches_before: u64,
}

fn shape(source: &Array) -> Shape {
    match source.dims[..] {
        [t, _, h, w, c] => Shape::video(Dims3 { t, h, w }, c),
        _ => panic!("{:?}", source.dims),
    }
}

fn cuts(frames: usize) -> Vec<Cut> {
    let cut = [(1, 0), (1, 2), (2, 1), (3, 0)].map(|(segment, checkpoints)| Cut::exact(segment, checkpoints));
    [Cut::WHOLE].into_iter().chain(cut.into_iter().filter(|cut| cut.segment < frames)).collect()
}

impl Run<'_> {
    /// On every instruction set, in both element types, in any cut.
    fn check(&self) {
        for cut in cuts(self.graph.shape(Graph::SOURCE).dims.t) {
            self.check_on::<f64>(Isa::Scalar, cut);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                self.check_on::<f32>(isa, cut);
            }
        }
    }

    fn given_params(&self) -> Vec<(String, Vec<f64>)> {
        let absent = |name: &str, len: usize| match name {
            "running_mean" => vec![0.0; len],
            "running_var" => vec![1.0; len],
            _ => panic!("{} has no {name}", self.case.name),
        };
        let channels = *self.source.dims.last().unwrap();
        let of = |name: &String| self.case.get(name).map_or_else(|| absent(name, channels), |v| v.values.clone());
        self.params.iter().map(|(ours, theirs)| (ours.clone(), of(theirs))).collect()
    }

    /// Forward alone, as when evaluating; moving statistics stay.
    fn check_prediction(&self) {
        let params = self.given_params();
        let given = Given { source: &self.source.values, output_gradient: &[], params: &params };
        for cut in cuts(self.source.dims[0]) {
            let kernels = Kernels { isa: Isa::Scalar, threads: THREADS };
            let seen: Seen<f64> = probe::predict(&self.graph, kernels, cut, &given).unwrap();
            assert_close(&format!("{} {cut:?}", self.case.name), &seen.output, &self.output);
            for (name, before) in &params {
                assert_eq!(seen.param(name).unwrap(), before);
            }
        }
    }

    fn check_on<E: Element + engine::Element>(&self, isa: Isa, cut: Cut) {
        let what = |of: &str| format!("{} {} {isa} {cut:?}: {of}", self.case.name, E::NAME);
        let params = self.given_params();
        let given =
            Given { source: &self.source.values, output_gradient: &self.output_gradient.values, params: &params };
        let kernels = Kernels { isa, threads: THREADS };
        let seen: Seen<E> = probe::train_after(self.batches_before, &self.graph, kernels, cut, &given).unwrap();
        assert_close(&what("output"), &seen.output, &self.output);
        assert_close(&what("grad_input"), &seen.source_gradient, &self.source_gradient);
        for (ours, theirs) in &self.params {
            let trained = self.graph.params.iter().any(|p| p.name == *ours && p.trained);
            assert_eq!(seen.gradient(ours).is_some(), trained, "{}", what(ours));
            match seen.gradient(ours) {
                Some(got) => assert_close(&what(ours), got, self.case.tensor(&gradient_name(theirs))),
                None if self.moves => {
                    let want = self.case.tensor(&format!("{theirs}_after"));
                    assert_close(&what(ours), seen.param(ours).unwrap(), want);
                }
                None => {}
            }
        }
    }
}

/// What a case calls the gradient of a tensor.
fn gradient_name(tensor: &str) -> String {
    format!("grad_{tensor}")
}

/// A case of a graph whose layers have the case's names behind a prefix.
fn of_graph<'a>(case: &'a Case<'a>, graph: Graph, prefix: &str, layout: impl Fn(&Array) -> Array) -> Run<'a> {
    let own = graph.params.iter().filter(|p| !p.name.starts_with("probe."));
    let named = |name: &str| name.strip_prefix(prefix).unwrap().to_owned();
    let params: Vec<(String, String)> = own.map(|p| (p.name.clone(), named(&p.name))).collect();
    Run {
        moves: params.iter().any(|(_, theirs)| case.get(&format!("{theirs}_after")).is_some()),
        batches_before: case.attribute("call").as_u64().map_or(0, |call| call - 1),
        source: layout(case.tensor("input")),
        output: layout(case.tensor("output")),
        output_gradient: layout(case.tensor("grad_output")),
        source_gradient: layout(case.tensor("grad_input")),
        case,
        graph,
        params,
    }
}

/// A case of one op.
fn of_case<'a>(case: &'a Case<'a>, op: Op, layout: impl Fn(&Array) -> Array) -> Run<'a> {
    let mut b = probe::builder(shape(&layout(case.tensor("input")))).unwrap();
    b.layer("norm", op, &Origin::BuiltIn).unwrap();
    of_graph(case, b.finish().unwrap(), "norm.", layout)
}

fn pytorch_batch_norm(case: &Case<'_>) -> BatchNorm {
    let affine = case.flag("affine");
    BatchNorm {
        epsilon: case.number("eps"),
        momentum: case.attribute("momentum").as_f64().map_or(Momentum::PyTorchCumulative, Momentum::PyTorch),
        statistics: if case.flag("training") { Statistics::Batch } else { Statistics::Moving },
        scale: affine,
        center: affine,
        trained: true,
        layout: NormLayout::PyTorch,
    }
}

fn keras_batch_norm(case: &Case<'_>) -> BatchNorm {
    BatchNorm {
        epsilon: case.number("epsilon"),
        momentum: Momentum::Keras(case.number("momentum")),
        statistics: if case.flag("training") { Statistics::Batch } else { Statistics::Moving },
        scale: case.flag("scale"),
        center: case.flag("center"),
        trained: true,
        layout: NormLayout::Keras,
    }
}

/// Keras's `[N,T,H,W,C]`, `[N,H,W,C]` or `[N,C]`.
fn keras_frames(array: &Array) -> Array {
    let dims = match array.dims[..] {
        [n, t, h, w, c] => vec![n, t, h, w, c],
        [n, h, w, c] => vec![n, 1, h, w, c],
        [n, c] => vec![n, 1, 1, 1, c],
        _ => panic!("{:?}", array.dims),
    };
    Array { dims, values: array.values.clone() }.permuted(&[1, 0, 2, 3, 4])
}

/// What has no frames as the frames of one clip: the statistics are the same.
fn as_frames(array: &Array) -> Array {
    match array.dims[..] {
        [1, n, h, w, c] => Array { dims: vec![n, 1, h, w, c], values: array.values.clone() },
        _ => array.clone(),
    }
}

#[test]
fn batch_norm_is_pytorchs() {
    for (op, count) in [("batch_norm3d", 11), ("batch_norm2d", 2), ("batch_norm1d", 2)] {
        Cases::of("pytorch/norms").check(op, count, &[], |case| {
            let norm = || Op::BatchNorm(pytorch_batch_norm(case));
            of_case(case, norm(), Array::frames).check();
            of_case(case, norm(), |array| as_frames(&array.frames())).check();
        });
    }
}

#[test]
fn batch_norm_is_keras() {
    Cases::of("keras/norms").check("batch_norm", 11, &[], |case| {
        let norm = || Op::BatchNorm(keras_batch_norm(case));
        of_case(case, norm(), keras_frames).check();
        of_case(case, norm(), |array| as_frames(&keras_frames(array))).check();
    });
}

/// No gradient of its own, and that of its input; the moving statistics stay.
#[test]
fn a_frozen_batch_norm_hands_its_gradient_on() {
    for (file, ops) in [("pytorch/norms", &["batch_norm3d", "batch_norm2d"][..]), ("keras/norms", &["batch_norm"])] {
        let cases = Cases::of(file);
        let all = cases.all();
        let fixed = all.iter().filter(|case| ops.contains(&case.op) && !case.flag("training"));
        let keras = file.starts_with("keras");
        let mut checked = 0;
        for case in fixed {
            let op = if keras { keras_batch_norm(case) } else { pytorch_batch_norm(case) };
            let op = Op::BatchNorm(BatchNorm { trained: false, ..op });
            let run = of_case(case, op, if keras { keras_frames } else { Array::frames });
            run.check();
            for cut in cuts(run.source.dims[0]) {
                let params = run.given_params();
                let given =
                    Given { source: &run.source.values, output_gradient: &run.output_gradient.values, params: &params };
                let kernels = Kernels { isa: Isa::Scalar, threads: THREADS };
                let seen: Seen<f64> = probe::train(&run.graph, kernels, cut, &given).unwrap();
                for (name, before) in &params {
                    assert_eq!(seen.gradient(name), None);
                    assert_eq!(seen.param(name).unwrap(), before);
                }
            }
            checked += 1;
        }
        assert_eq!(checked, ops.len(), "{file}");
    }
}

/// What was trained with the statistics of batches predicts with the moving ones.
#[test]
fn prediction_takes_the_moving_statistics() {
    for (file, op) in [("pytorch/norms", "batch_norm3d"), ("keras/norms", "batch_norm")] {
        let cases = Cases::of(file);
        let all = cases.all();
        let case = all.iter().find(|case| case.op == op && !case.flag("training")).unwrap();
        let keras = file.starts_with("keras");
        let op = if keras { keras_batch_norm(case) } else { pytorch_batch_norm(case) };
        let op = Op::BatchNorm(BatchNorm { statistics: Statistics::Batch, ..op });
        of_case(case, op, if keras { keras_frames } else { Array::frames }).check_prediction();
    }
}

#[test]
fn group_norm_and_instance_norm_are_pytorchs() {
    for (op, count) in [("group_norm", 5), ("instance_norm3d", 1)] {
        Cases::of("pytorch/norms").check(op, count, &[], |case| {
            let channels = case.tensor("input").dims[1];
            let groups = if op == "group_norm" { case.size("num_groups") } else { channels };
            let (epsilon, affine) = (case.number("eps"), case.flag("affine"));
            let norm = GroupNorm { groups, epsilon, affine, per_frame: false };
            let run = of_case(case, Op::GroupNorm(norm), Array::frames);
            run.check();
            run.check_prediction();
        });
    }
}

/// ResNet's basic block: conv-bn-relu-conv-bn, plus the input or its strided projection, relu.
fn residual(case: &Case<'_>, source: Shape) -> Graph {
    let at = Origin::BuiltIn;
    let (arrive, leave) = (case.size("arrive"), case.size("leave"));
    let stride = match case.attribute("stride").as_u64() {
        Some(stride) => Dims3::cube(stride as usize),
        None => {
            let framefit::kernels::conv::Dims3 { t, h, w } = case.dims("stride", 1);
            Dims3 { t, h, w }
        }
    };
    let conv = |from, kernel, stride| {
        Op::Conv3d(Conv3d { stride, bias: false, ..Conv3d::same(from, leave, Dims3::cube(kernel)) })
    };
    let norm = || {
        Op::BatchNorm(BatchNorm {
            epsilon: 1e-5,
            momentum: Momentum::PyTorch(0.1),
            statistics: if case.flag("training") { Statistics::Batch } else { Statistics::Moving },
            scale: true,
            center: true,
            trained: true,
            layout: NormLayout::PyTorch,
        })
    };
    let mut b = probe::builder(source).unwrap();
    let x = b.last();
    b.layer("conv1", conv(arrive, 3, stride), &at).unwrap();
    b.layer("bn1", norm(), &at).unwrap();
    b.layer("relu1", Op::Relu(Relu), &at).unwrap();
    b.layer("conv2", conv(leave, 3, Dims3::cube(1)), &at).unwrap();
    let y: ValueId = b.layer("bn2", norm(), &at).unwrap();
    let beside = if case.get("downsample.0.weight").is_some() {
        b.layer_on(&[x], "downsample.0", conv(arrive, 1, stride), &at).unwrap();
        b.layer("downsample.1", norm(), &at).unwrap()
    } else {
        x
    };
    b.layer_on(&[y, beside], "add", Op::Add(Add), &at).unwrap();
    b.layer("relu2", Op::Relu(Relu), &at).unwrap();
    b.finish().unwrap()
}

#[test]
fn residual_blocks_are_pytorchs() {
    Cases::of("pytorch/blocks").check("residual", 5, &[], |case| {
        let graph = residual(case, shape(&case.tensor("input").frames()));
        of_graph(case, graph, "", Array::frames).check();
    });
}
