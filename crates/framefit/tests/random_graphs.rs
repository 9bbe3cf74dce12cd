//! Random graphs of all ops: any cut into segments, any number of checkpoints and any split into micro-batches
//! gives the loss and every gradient of the whole clips, and those agree with central differences, in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::ledger::Fixed;
use framefit::core::ops::{
    Conv3d, ConvLstm2d, Dense, Flatten, GateFunction, GlobalAvgPool3d, Linear, MaxPool3d, NormMean, Relu, StateFunction,
};
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::Cut;
use framefit::core::{DType, Dims3, Graph, GraphBuilder, Op, Origin, ParamId, Shape};
use framefit::engine::{Engine, IGNORED, Kernels, Normalisation, Tensor};
use framefit::kernels::Isa;
use framefit::models;

const CLASSES: usize = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

fn conv(random: &mut Random, shape: &Shape) -> Op {
    let fits = |extent: usize, kernel: usize| extent >= kernel;
    let kernel = Dims3 {
        t: if fits(shape.dims.t, 3) { 1 + 2 * random.below(2) } else { 1 },
        h: if fits(shape.dims.h, 3) { 1 + random.below(3) } else { 1 },
        w: 1,
    };
    let groups = if random.below(4) == 0 { shape.channels } else { 1 };
    Op::Conv3d(Conv3d {
        in_channels: shape.channels,
        out_channels: groups * (1 + random.below(3)),
        kernel,
        stride: Dims3 { t: 1 + random.below(2), h: 1 + random.below(2), w: 1 },
        padding: Dims3 { t: random.below(kernel.t + 1), h: kernel.h / 2, w: 0 },
        dilation: Dims3 { t: if kernel.t == 3 && shape.dims.t > 5 { 1 + random.below(2) } else { 1 }, h: 1, w: 1 },
        groups,
        bias: random.coin(),
    })
}

fn layer(random: &mut Random, shape: &Shape) -> Op {
    match random.below(6) {
        0 => Op::Relu(Relu),
        1 if shape.dims.t > 2 && shape.dims.h > 1 => {
            let kernel = Dims3 { t: 2 + random.below(2), h: 2, w: 1 };
            let kernel = if kernel.t > shape.dims.t { Dims3 { t: 2, ..kernel } } else { kernel };
            let stride = Dims3 { t: 1 + random.below(3), h: 2, w: 1 };
            let padding = Dims3 { t: random.below(2), h: 0, w: 0 };
            Op::MaxPool3d(MaxPool3d { kernel, stride, padding })
        }
        2 => Op::ConvLstm2d(ConvLstm2d {
            in_channels: shape.channels,
            filters: 1 + random.below(3),
            kernel: Dims3 { t: 1, h: 3, w: 1 },
            stride: Dims3::cube(1),
            padding: Dims3 { t: 0, h: 1, w: 0 },
            activation: StateFunction::Tanh,
            recurrent_activation: if random.coin() { GateFunction::Sigmoid } else { GateFunction::HardSigmoid },
            bias: random.coin(),
            unit_forget_bias: true,
        }),
        3 => Op::Dense(Dense { in_channels: shape.channels, units: 1 + random.below(3), bias: random.coin() }),
        _ => conv(random, shape),
    }
}

/// What a graph needs to be compared over micro-batches, too: batch statistics depend on the split.
struct Made {
    graph: Graph,
    batch_statistics: bool,
}

fn random_graph(random: &mut Random) -> Made {
    let at = Origin::BuiltIn;
    let dims = Dims3 { t: 3 + random.below(10), h: 2 + random.below(5), w: 1 + random.below(2) };
    let mut b = GraphBuilder::new(Shape::video(dims, 1 + random.below(2)));
    for i in 0..1 + random.below(5) {
        let op = layer(random, &b.shape().clone());
        // A draw that does not fit is passed over.
        let _ = b.layer(&format!("layer{i}"), op, &at);
    }
    let batch_statistics = random.below(3) == 0;
    if batch_statistics {
        b.layer("norm", Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.9 }), &at).unwrap();
    }
    if random.coin() {
        let in_channels = b.shape().channels;
        if b.shape().dims.h * b.shape().dims.w == 1 {
            b.layer("dense", Op::Dense(Dense { in_channels, units: CLASSES, bias: true }), &at).unwrap();
            return Made { graph: b.finish().unwrap(), batch_statistics };
        }
        b.layer("mean", Op::GlobalAvgPool3d(GlobalAvgPool3d), &at).unwrap();
    }
    b.layer("flatten", Op::Flatten(Flatten), &at).unwrap();
    if random.coin() {
        let in_features = b.shape().per_clip();
        b.layer("fc1", Op::Linear(Linear { in_features, out_features: 4, bias: true }), &at).unwrap();
        b.layer("relu_fc1", Op::Relu(Relu), &at).unwrap();
    }
    let in_features = b.shape().per_clip();
    b.layer("fc2", Op::Linear(Linear { in_features, out_features: CLASSES, bias: random.coin() }), &at).unwrap();
    Made { graph: b.finish().unwrap(), batch_statistics }
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn engine(graph: &Graph, micro: usize, cut: Cut) -> Engine<f64> {
    let kernels = Kernels { isa: Isa::Scalar, threads: 1 };
    let request = Request {
        graph,
        dtype: DType::F64,
        batch: micro,
        training: true,
        cut: Some(cut),
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with(&request, micro, cut);
    plan.check(&request).unwrap_or_else(|e| panic!("{e}: {cut:?} {graph:#?}"));
    let channels = graph.shape(Graph::SOURCE).channels;
    let mut engine = Engine::new(graph.clone(), plan, kernels, &Normalisation::uniform(0.5, 0.3, channels)).unwrap();
    models::initialise(&mut engine, 7).unwrap();
    engine
}

const CLIPS: usize = 2;

/// The loss of two clips of noise, micro-batches of `micro`; gradients are left in the engine.
fn accumulate(engine: &mut Engine<f64>, micro: usize) -> f64 {
    let graph = engine.graph().clone();
    let source = *graph.shape(Graph::SOURCE);
    let (t, frame, labelled) = (source.dims.t, source.per_frame(), graph.labelled_frames());
    let pixel = |clip: usize, at: usize| {
        let mixed = ((clip * 1_000_003 + at) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56
    };
    // Some frames have no label.
    let label =
        |clip: usize, t: usize| if labelled > 2 && t % 4 == 3 { IGNORED } else { ((clip + t) % CLASSES) as u32 };
    let count =
        (0..CLIPS).flat_map(|c| (0..labelled).map(move |t| (c, t))).filter(|&(c, t)| label(c, t) != IGNORED).count();
    engine.begin_step().unwrap();
    let mut loss = 0.0;
    for from in (0..CLIPS).step_by(micro) {
        let slots = engine.training_slots(micro).unwrap();
        for time in 0..t {
            for n in 0..micro {
                for i in 0..frame {
                    slots.frames[(time * micro + n) * frame + i] = pixel(from + n, time * frame + i) as u8;
                }
            }
        }
        for time in 0..labelled {
            for n in 0..micro {
                slots.labels[time * micro + n] = label(from + n, time);
            }
        }
        let outcome = engine.accumulate(micro, 1.0 / count as f64).unwrap();
        loss += outcome.losses.iter().sum::<f64>() / count as f64;
    }
    loss
}

fn gradients(engine: &Engine<f64>) -> Vec<Vec<f64>> {
    let params = engine.graph().params.iter().enumerate().filter(|(_, p)| p.trained);
    params.map(|(i, _)| engine.tensor(Tensor::Gradient(ParamId(i))).unwrap().to_vec()).collect()
}

#[test]
fn any_cut_and_any_split_give_the_gradient_of_the_whole_clips() {
    const RELATIVE: f64 = 1e-10;
    let mut random = Random(41);
    let mut cuts_compared = 0;
    for trial in 0..250 {
        let Made { graph, batch_statistics } = random_graph(&mut random);
        let mut whole = engine(&graph, CLIPS, Cut::WHOLE);
        let loss = accumulate(&mut whole, CLIPS);
        let want = gradients(&whole);
        let largest = want.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        let t = graph.shape(Graph::SOURCE).dims.t;
        for _ in 0..4 {
            let cut = Cut { segment: 1 + random.below(t), checkpoints: random.below(4) };
            let micro = if batch_statistics { CLIPS } else { 1 + random.below(2) };
            let mut other = engine(&graph, micro, cut);
            let got = accumulate(&mut other, micro);
            let context = || format!("trial {trial}, {cut:?}, {micro} at a time: {graph:#?}");
            assert!((got - loss).abs() < RELATIVE, "loss {got}, not {loss}: {}", context());
            for (a, b) in gradients(&other).iter().zip(&want) {
                let off = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                assert!(off <= RELATIVE * largest.max(1e-3), "{off:.1e} off: {}", context());
            }
            cuts_compared += 1;
        }
    }
    assert_eq!(cuts_compared, 1000);
}

#[test]
fn gradients_agree_with_central_differences() {
    // A step that moves a value over a kink says nothing; a shorter one stays clear of it.
    const STEPS: [f64; 3] = [1e-5, 1e-6, 1e-7];
    let mut random = Random(97);
    for trial in 0..80 {
        let Made { graph, .. } = random_graph(&mut random);
        let t = graph.shape(Graph::SOURCE).dims.t;
        let cut = Cut { segment: 1 + random.below(t), checkpoints: random.below(3) };
        let mut engine = engine(&graph, CLIPS, cut);
        accumulate(&mut engine, CLIPS);
        let largest = gradients(&engine).iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        for index in 0..graph.params.len() {
            if !graph.params[index].trained {
                continue;
            }
            accumulate(&mut engine, CLIPS);
            let gradient = engine.tensor(Tensor::Gradient(ParamId(index))).unwrap().to_vec();
            let at = random.below(gradient.len());
            let weight = Tensor::Weight(ParamId(index));
            let mut loss_with = |delta: f64| {
                let before = engine.tensor(weight).unwrap()[at];
                engine.tensor_mut(weight).unwrap()[at] = before + delta;
                let loss = accumulate(&mut engine, CLIPS);
                engine.tensor_mut(weight).unwrap()[at] = before;
                loss
            };
            let numeric = STEPS.map(|step| (loss_with(step) - loss_with(-step)) / (2.0 * step));
            let off = numeric.map(|n| (n - gradient[at]).abs()).into_iter().fold(f64::INFINITY, f64::min);
            let param = &graph.params[index].name;
            let allowed = 1e-6 * largest.max(1e-3);
            assert!(off <= allowed, "trial {trial} {param}[{at}]: {} instead of {numeric:?}: {graph:#?}", gradient[at]);
        }
    }
}
