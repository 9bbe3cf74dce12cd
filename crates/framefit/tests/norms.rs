//! Norms through the engine in f64: any cut gives the statistics and gradients of the whole clips, which agree with
//! central differences; segments that stand alone have their own statistics; streams take the moving ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::ledger::Fixed;
use framefit::core::ops::{BatchNorm, Conv3d, Flatten, GroupNorm, Momentum, NormLayout, NormMean, Relu, Statistics};
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::{Action, Cut, Keeping};
use framefit::core::stream::StreamPlan;
use framefit::core::{DType, Dims3, Graph, GraphBuilder, Op, Order, Origin, ParamId, Shape};
use framefit::engine::probe::{self, Given, Seen};
use framefit::engine::{Engine, Kernels, Made, Normalisation, Stream, Tensor};
use framefit::kernels::Isa;

const KERNELS: Kernels = Kernels { isa: Isa::Scalar, threads: 2 };

/// Numbers around `middle`, the same for the same seed.
fn numbers(seed: u64, middle: f64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..count).map(|_| middle + 2.0 * unit() - 1.0).collect()
}

fn batch_norm() -> BatchNorm {
    BatchNorm {
        epsilon: 1e-3,
        momentum: Momentum::PyTorch(0.3),
        statistics: Statistics::Batch,
        scale: true,
        center: true,
        trained: true,
        layout: NormLayout::PyTorch,
    }
}

fn group_norm(groups: usize) -> Op {
    Op::GroupNorm(GroupNorm { groups, epsilon: 1e-3, affine: true, per_frame: false })
}

fn conv(b: &GraphBuilder, out_channels: usize, kernel: Dims3) -> Op {
    Op::Conv3d(Conv3d::same(b.shape().channels, out_channels, kernel))
}

fn graph(dims: Dims3, channels: usize, layers: &[&dyn Fn(&GraphBuilder) -> Op]) -> Graph {
    let mut b = probe::builder(Shape::video(dims, channels)).unwrap();
    for (index, layer) in layers.iter().enumerate() {
        let op = layer(&b);
        b.layer(&format!("layer{index}"), op, &Origin::BuiltIn).unwrap();
    }
    b.finish().unwrap()
}

/// What a run is given, of some clips.
struct Values {
    source: Vec<f64>,
    output_gradient: Vec<f64>,
    params: Vec<(String, Vec<f64>)>,
}

impl Values {
    fn of(graph: &Graph, clips: usize) -> Self {
        let count = |shape: &Shape| shape.per_clip() * clips;
        let own = graph.params.iter().filter(|p| !p.name.starts_with("probe."));
        let params = own.enumerate().map(|(seed, p)| {
            let middle = if p.name.ends_with("var") || p.name.ends_with("variance") { 2.0 } else { 0.25 };
            (p.name.clone(), numbers(10 + seed as u64, middle, p.len()))
        });
        Self {
            source: numbers(1, 1.0, count(graph.shape(Graph::SOURCE))),
            output_gradient: numbers(2, 0.0, count(graph.shape(graph.output))),
            params: params.collect(),
        }
    }

    fn train(&self, graph: &Graph, cut: Cut) -> Seen<f64> {
        let given = Given { source: &self.source, output_gradient: &self.output_gradient, params: &self.params };
        probe::train(graph, KERNELS, cut, &given).unwrap()
    }

    /// Σ y · dy.
    fn value(&self, graph: &Graph) -> f64 {
        self.train(graph, Cut::WHOLE).output.iter().zip(&self.output_gradient).map(|(y, dy)| y * dy).sum()
    }
}

#[track_caller]
fn assert_close(what: &str, got: &[f64], want: &[f64], relative: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= relative * largest, "{what} at {i}: {got}, not {want}");
    }
}

#[track_caller]
fn assert_same(what: &str, got: &Seen<f64>, want: &Seen<f64>, relative: f64) {
    assert_close(&format!("{what}: output"), &got.output, &want.output, relative);
    assert_close(&format!("{what}: source"), &got.source_gradient, &want.source_gradient, relative);
    for ((name, got), (_, want)) in got.gradients.iter().zip(&want.gradients) {
        assert_close(&format!("{what}: gradient of {name}"), got, want, relative);
    }
    for ((name, got), (_, want)) in got.params.iter().zip(&want.params) {
        assert_close(&format!("{what}: {name}"), got, want, relative);
    }
}

/// Graphs with norms of every kind.
fn graphs() -> Vec<(&'static str, Graph)> {
    let video = Dims3 { t: 7, h: 3, w: 2 };
    let along_time = Dims3 { t: 3, h: 1, w: 1 };
    let halved = |b: &GraphBuilder| {
        let stride = Dims3 { t: 2, h: 1, w: 1 };
        Op::Conv3d(Conv3d { stride, ..Conv3d::same(b.shape().channels, 4, along_time) })
    };
    let wide = |b: &GraphBuilder| conv(b, 4, along_time);
    let batch = |_: &GraphBuilder| Op::BatchNorm(batch_norm());
    let moving = |_: &GraphBuilder| {
        Op::BatchNorm(BatchNorm { statistics: Statistics::Moving, layout: NormLayout::Keras, ..batch_norm() })
    };
    let frozen =
        |_: &GraphBuilder| Op::BatchNorm(BatchNorm { statistics: Statistics::Moving, trained: false, ..batch_norm() });
    let plain = |_: &GraphBuilder| Op::BatchNorm(BatchNorm { scale: false, center: false, ..batch_norm() });
    let fixed = |_: &GraphBuilder| Op::BatchNorm(BatchNorm { trained: false, ..batch_norm() });
    let group = |_: &GraphBuilder| group_norm(2);
    let relu = |_: &GraphBuilder| Op::Relu(Relu);
    let flatten = |_: &GraphBuilder| Op::Flatten(Flatten { per_frame: true, order: Order::PyTorch });
    let mean = |_: &GraphBuilder| Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.9 });
    vec![
        ("batch norms", graph(video, 2, &[&batch, &wide, &batch, &relu, &halved, &batch])),
        ("a source that no parameter comes before", graph(video, 2, &[&plain, &wide, &relu, &plain])),
        ("groups", graph(video, 2, &[&wide, &group, &relu, &halved, &group])),
        ("groups of one position", graph(Dims3 { h: 1, w: 1, ..video }, 2, &[&wide, &group, &relu, &wide, &group])),
        ("moving statistics", graph(video, 2, &[&wide, &moving, &relu, &wide, &frozen, &relu])),
        ("a frozen one before others", graph(video, 2, &[&wide, &frozen, &batch, &relu, &fixed])),
        ("features of frames", graph(video, 2, &[&wide, &flatten, &batch])),
        ("features of frames, moving", graph(video, 2, &[&wide, &flatten, &moving])),
        ("means of frames", graph(video, 2, &[&wide, &batch, &relu, &wide, &mean])),
    ]
}

fn cuts() -> impl Iterator<Item = Cut> {
    [(1, 0), (1, 2), (2, 1), (3, 0), (4, 1), (6, 0)].into_iter().map(|(segment, slots)| Cut::exact(segment, slots))
}

#[test]
fn any_cut_gives_the_statistics_and_the_gradients_of_the_whole() {
    for (name, graph) in graphs() {
        for clips in [1, 2, 3] {
            let values = Values::of(&graph, clips);
            let whole = values.train(&graph, Cut::WHOLE);
            for cut in cuts() {
                let other = values.train(&graph, cut);
                assert_same(&format!("{name}, {clips} clips, {cut:?}"), &other, &whole, 1e-10);
            }
        }
    }
}

/// A mean and a variance of numbers far from zero beside their spread.
#[test]
fn statistics_of_a_cut_clip_are_those_of_the_whole() {
    let dims = Dims3 { t: 23, h: 5, w: 3 };
    let batch = |momentum| move |_: &GraphBuilder| Op::BatchNorm(BatchNorm { momentum, ..batch_norm() });
    let graph = graph(dims, 3, &[&batch(Momentum::PyTorch(1.0)), &batch(Momentum::Keras(0.0))]);
    let mut values = Values::of(&graph, 2);
    values.source.iter_mut().enumerate().for_each(|(i, v)| *v += 1000.0 * (i % 3) as f64);
    let whole = values.train(&graph, Cut::WHOLE);
    let rows = values.source.len() / 3;
    for c in 0..3 {
        let of = || values.source.iter().skip(c).step_by(3);
        let mean = of().sum::<f64>() / rows as f64;
        let squares = of().map(|x| (x - mean).powi(2)).sum::<f64>();
        let seen = |name: &str| whole.param(name).unwrap()[c];
        assert!((seen("layer0.running_mean") - mean).abs() <= 1e-12 * mean.abs());
        let variance = squares / (rows as f64 - 1.0);
        assert!((seen("layer0.running_var") - variance).abs() <= 1e-11 * variance);
    }
    for cut in (1..23).map(|segment| Cut::exact(segment, 2)) {
        let other = values.train(&graph, cut);
        for (name, want) in whole.params.iter().filter(|(name, _)| name.contains("running")) {
            let got = other.param(name).unwrap();
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "{name} {cut:?}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    const STEP: f64 = 1e-5;
    for (name, graph) in graphs() {
        let mut values = Values::of(&graph, 2);
        let seen = values.train(&graph, Cut::exact(2, 1));
        let mut check = |what: &str, gradient: &[f64], every: usize, slot: &dyn Fn(&mut Values) -> &mut Vec<f64>| {
            for i in (0..gradient.len()).step_by(every) {
                let before = slot(&mut values)[i];
                let mut at = |x: f64| {
                    slot(&mut values)[i] = x;
                    values.value(&graph)
                };
                let numeric = (at(before + STEP) - at(before - STEP)) / (2.0 * STEP);
                at(before);
                assert!((gradient[i] - numeric).abs() < 1e-6, "{name}: {what} at {i}: {}, not {numeric}", gradient[i]);
            }
        };
        check("source", &seen.source_gradient, 5, &|values| &mut values.source);
        for (index, param) in graph.params.iter().filter(|p| !p.name.starts_with("probe.")).enumerate() {
            if let Some(gradient) = seen.gradient(&param.name) {
                check(&param.name, gradient, 3, &|values| &mut values.params[index].1);
            }
        }
    }
}

/// A batch of one vector per frame has a γ and a β in the user's order: C, H, W.
#[test]
fn features_of_a_frame_are_in_the_users_order() {
    let Dims3 { h, w, .. } = Dims3 { t: 4, h: 2, w: 3 };
    let channels = 2;
    let batch = |_: &GraphBuilder| Op::BatchNorm(batch_norm());
    let flatten = |_: &GraphBuilder| Op::Flatten(Flatten { per_frame: true, order: Order::PyTorch });
    let frames = graph(Dims3 { t: 4, h, w }, channels, &[&flatten, &batch]);
    let vectors = graph(Dims3 { t: 4, h: 1, w: 1 }, h * w * channels, &[&flatten, &batch]);
    let values = Values::of(&frames, 2);
    let stored = |user: &[f64]| -> Vec<f64> {
        let at = |i: usize| user[i % channels * h * w + i / channels];
        (0..user.len()).map(at).collect()
    };
    let params = values.params.iter().map(|(name, user)| (name.clone(), stored(user))).collect();
    let (source, output_gradient) = (values.source.clone(), values.output_gradient.clone());
    let want = Values { source, output_gradient, params }.train(&vectors, Cut::WHOLE);
    let got = values.train(&frames, Cut::exact(3, 0));
    assert_close("output", &got.output, &want.output, 1e-12);
    assert_close("source", &got.source_gradient, &want.source_gradient, 1e-12);
    let own = |of: &Seen<f64>| -> Vec<(String, Vec<f64>)> {
        let all = of.gradients.iter().chain(&of.params);
        all.filter(|(name, _)| !name.starts_with("probe.")).cloned().collect()
    };
    for ((name, got), (_, want)) in own(&got).iter().zip(own(&want)) {
        assert_close(name, &stored(got), &want, 1e-12);
    }
}

/// Segments with a gradient of their own are trained like clips that come one after the other.
#[test]
fn segments_that_stand_alone_have_their_own_statistics() {
    let dims = Dims3 { t: 7, h: 3, w: 2 };
    let point = |b: &GraphBuilder| conv(b, 3, Dims3::cube(1));
    let relu = |_: &GraphBuilder| Op::Relu(Relu);
    let batch = |_: &GraphBuilder| Op::BatchNorm(BatchNorm { momentum: Momentum::PyTorchCumulative, ..batch_norm() });
    let mean = |_: &GraphBuilder| Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.9 });
    let graph = graph(dims, 2, &[&point, &batch, &relu, &point, &mean]);
    for (clips, segment) in [(1, 3), (2, 3), (2, 2), (1, 1)] {
        let values = Values::of(&graph, clips);
        let got = values.train(&graph, Cut::truncated(segment));
        let (frame_in, frame_out) = (values.source.len() / 7, values.output_gradient.len() / 7);
        let mut params = values.params.clone();
        let mut sums: Vec<Vec<f64>> = got.gradients.iter().map(|(_, g)| vec![0.0; g.len()]).collect();
        for (index, lo) in (0..7).step_by(segment).enumerate() {
            let hi = (lo + segment).min(7);
            let alone = graph.with_frames(hi - lo).unwrap();
            let (source, output_gradient) =
                (&values.source[lo * frame_in..hi * frame_in], &values.output_gradient[lo * frame_out..hi * frame_out]);
            let given = Given { source, output_gradient, params: &params };
            let seen: Seen<f64> = probe::train_after(index as u64, &alone, KERNELS, Cut::WHOLE, &given).unwrap();
            let what = format!("{clips} clips, frames {lo}..{hi}");
            assert_close(&what, &got.output[lo * frame_out..hi * frame_out], &seen.output, 1e-12);
            for (sum, (_, gradient)) in sums.iter_mut().zip(&seen.gradients) {
                sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            }
            params = seen.params;
        }
        for ((name, got), want) in got.gradients.iter().zip(&sums) {
            assert_close(&format!("{clips} clips: gradient of {name}"), got, want, 1e-12);
        }
        for ((name, got), (_, want)) in got.params.iter().zip(&params) {
            assert_close(&format!("{clips} clips: {name}"), got, want, 1e-12);
        }
    }
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn request<'a>(graph: &'a Graph, training: bool) -> Request<'a> {
    let (batch, cut) = (1, None);
    Request {
        graph,
        dtype: DType::F64,
        batch,
        training,
        cut,
        keeping: Keeping::Memory,
        workspaces: &KERNELS,
        fixed: &no_fixed,
    }
}

/// Frame after frame, with the moving statistics.
#[test]
fn a_stream_predicts_what_the_whole_clip_does() {
    let along_time = Dims3 { t: 3, h: 1, w: 1 };
    let wide = |b: &GraphBuilder| conv(b, 4, along_time);
    let batch = |_: &GraphBuilder| Op::BatchNorm(batch_norm());
    let relu = |_: &GraphBuilder| Op::Relu(Relu);
    let mean = |_: &GraphBuilder| Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.9 });
    let graph = graph(Dims3 { t: 11, h: 3, w: 2 }, 2, &[&wide, &batch, &relu, &wide, &mean]);
    let weights: Vec<Vec<f64>> =
        graph.params.iter().enumerate().map(|(seed, p)| numbers(seed as u64, 1.5, p.len())).collect();
    let normalisation = Normalisation::uniform(0.5, 0.25, 2);
    let frame = graph.shape(Graph::SOURCE).per_frame();
    let pixels: Vec<u8> = numbers(77, 0.0, 11 * frame).into_iter().map(|v| (127.0 * (v + 1.0)) as u8).collect();

    let plan = Plan::with(&request(&graph, false), 1, Cut::WHOLE);
    let mut engine = Engine::<f64>::new(graph.clone(), plan, KERNELS, &normalisation).unwrap();
    for (index, weights) in weights.iter().enumerate() {
        engine.tensor_mut(Tensor::Weight(ParamId(index))).unwrap().copy_from_slice(weights);
    }
    let slots = engine.evaluation_slots(1).unwrap();
    slots.frames.copy_from_slice(&pixels);
    slots.labels.fill(0);
    let want = engine.evaluate(1).unwrap().logits.to_vec();

    for segment in [1, 2, 4] {
        let plan = StreamPlan::new(&request(&graph, false), segment).unwrap();
        let mut stream = Stream::<f64>::new(plan, KERNELS, &normalisation).unwrap();
        for (index, weights) in weights.iter().enumerate() {
            stream.weight_mut(ParamId(index)).unwrap().copy_from_slice(weights);
        }
        let mut got = Vec::new();
        let mut results = |made: Made<'_, f64>| got.extend_from_slice(made.logits);
        for frame in pixels.chunks_exact(frame) {
            stream.push(frame, &mut results).unwrap();
        }
        stream.finish(&mut results).unwrap();
        assert_close(&format!("segments of {segment}"), &got, &want, 1e-12);
    }
}

#[test]
fn a_norm_and_its_relu_are_one_step() {
    let point = |b: &GraphBuilder| conv(b, 3, Dims3::cube(1));
    let relu = |_: &GraphBuilder| Op::Relu(Relu);
    let batch = |_: &GraphBuilder| Op::BatchNorm(batch_norm());
    let group = |_: &GraphBuilder| group_norm(3);
    let graph = graph(Dims3 { t: 6, h: 2, w: 2 }, 2, &[&point, &batch, &relu, &point, &group, &relu]);
    for cut in [Cut::WHOLE, Cut::exact(2, 1)] {
        let plan = Plan::with(&request(&graph, true), 1, cut);
        let schedule = &plan.training_step().unwrap().schedule;
        let of_relu = schedule.distinct_steps().filter(|step| {
            let forward = matches!(step.action, Action::Forward { .. });
            forward && step.node.is_some_and(|id| matches!(graph.node(id).op, Op::Relu(_)))
        });
        assert_eq!(of_relu.count(), 0);
    }
}
