//! Random graphs of all ops: any cut into segments, any number of checkpoints and any split into micro-batches
//! gives the loss and every gradient of the whole clips, and those agree with central differences, in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../framefit-core/tests/random_graph/mod.rs"]
mod random_graph;

use framefit::core::ledger::Fixed;
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::{Cut, Keeping};
use framefit::core::stream::{StreamError, StreamPlan};
use framefit::core::{DType, Graph, Op, ParamId};
use framefit::engine::{Engine, IGNORED, Kernels, Made as Results, Normalisation, Stream, StreamFailed, Tensor};
use framefit::kernels::Isa;
use framefit::models;
use random_graph::{Allowed, CLASSES, Made, Random, random_graph};

const ALL: Allowed = Allowed { whole_clip: true, kinks: true };
const SMOOTH: Allowed = Allowed { whole_clip: true, kinks: false };
const STREAMED: Allowed = Allowed { whole_clip: false, kinks: true };

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
        keeping: cut.keeping,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with(&request, micro, cut);
    plan.check(&request).unwrap_or_else(|e| panic!("{e}: {cut:?} {}", brief(graph)));
    let channels = graph.shape(Graph::SOURCE).channels;
    let mut engine = Engine::new(graph.clone(), plan, kernels, &Normalisation::uniform(0.5, 0.3, channels)).unwrap();
    engine.keep_in(&std::env::temp_dir()).unwrap();
    models::initialise(&mut engine, 7).unwrap();
    // Statistics and scales that are not what they start as.
    for index in 0..graph.params.len() {
        for (at, value) in engine.tensor_mut(Tensor::Weight(ParamId(index))).unwrap().iter_mut().enumerate() {
            *value += 0.02 * ((index * 7 + at) % 5) as f64;
        }
    }
    engine
}

fn pixel(clip: usize, at: usize) -> u8 {
    let mixed = ((clip * 1_000_003 + at) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
}

/// A line for each layer.
fn brief(graph: &Graph) -> String {
    let line = |n: &framefit::core::graph::Node| {
        let shape = graph.shape(n.output);
        format!("\n{:?} = {:?} of {:?}: {:?}", n.output, n.op, n.inputs, shape.dims)
    };
    graph.nodes.iter().map(line).collect()
}

const CLIPS: usize = 2;

/// Some frames of clips with `labelled` of them have no label.
fn label(labelled: usize, clip: usize, t: usize) -> u32 {
    if labelled > 2 && t % 4 == 3 { IGNORED } else { ((clip + t) % CLASSES) as u32 }
}

/// Labels of all clips.
fn labels(labelled: usize) -> usize {
    (0..CLIPS).map(|c| (0..labelled).filter(|&t| label(labelled, c, t) != IGNORED).count()).sum()
}

/// The loss of two clips of noise, micro-batches of `micro`; gradients are left in the engine.
fn accumulate(engine: &mut Engine<f64>, micro: usize) -> f64 {
    let graph = engine.graph().clone();
    let source = *graph.shape(Graph::SOURCE);
    let (t, frame, labelled) = (source.dims.t, source.per_frame(), graph.labelled_frames());
    let label = |clip: usize, t: usize| label(labelled, clip, t);
    let count = labels(labelled);
    engine.begin_step().unwrap();
    let mut loss = 0.0;
    for from in (0..CLIPS).step_by(micro) {
        let slots = engine.training_slots(micro).unwrap();
        for time in 0..t {
            for n in 0..micro {
                for i in 0..frame {
                    slots.frames[(time * micro + n) * frame + i] = pixel(from + n, time * frame + i);
                }
            }
        }
        for (n, key) in slots.keys.iter_mut().enumerate() {
            *key = 77 + (from + n) as u64;
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
        let Made { graph, batch_statistics, .. } = random_graph(&mut random, ALL);
        let mut whole = engine(&graph, CLIPS, Cut::WHOLE);
        let loss = accumulate(&mut whole, CLIPS);
        let want = gradients(&whole);
        let largest = want.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        let t = graph.shape(Graph::SOURCE).dims.t;
        for _ in 0..4 {
            let cut = Cut::exact(1 + random.below(t), random.below(4));
            let cut = if random.coin() { cut.in_file() } else { cut };
            let micro = if batch_statistics { CLIPS } else { 1 + random.below(2) };
            let mut other = engine(&graph, micro, cut);
            let got = accumulate(&mut other, micro);
            let context = || format!("trial {trial}, {cut:?}, {micro} at a time: {}", brief(&graph));
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

/// How a loss answers to a change of one weight.
struct Slope {
    /// A step that moves a value over a kink says nothing; a shorter one stays clear of it.
    central: [f64; 3],
    /// Upwards and downwards.
    sides: [f64; 2],
}

impl Slope {
    const STEPS: [f64; 3] = [1e-5, 1e-6, 1e-7];

    fn of(loss_with: &mut dyn FnMut(f64) -> f64) -> Self {
        let central = Self::STEPS.map(|step| (loss_with(step) - loss_with(-step)) / (2.0 * step));
        let here = loss_with(0.0);
        let sides = [1e-6, -1e-6].map(|step| (loss_with(step) - here) / step);
        Self { central, sides }
    }

    fn off(&self, gradient: f64) -> f64 {
        self.central.map(|n| (n - gradient).abs()).into_iter().fold(f64::INFINITY, f64::min)
    }

    /// Frames of nothing but padding tie in a maximum: there, a side's slope is as good as the other's.
    fn is_between_sides(&self, gradient: f64) -> bool {
        let [up, down] = self.sides;
        (up - down).abs() > 1e-4 && up.min(down) - 1e-5 <= gradient && gradient <= up.max(down) + 1e-5
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    let mut random = Random(97);
    let (mut compared, mut ties) = (0, 0);
    for trial in 0..160 {
        let Made { graph, .. } = random_graph(&mut random, if trial % 2 == 0 { SMOOTH } else { ALL });
        let t = graph.shape(Graph::SOURCE).dims.t;
        let cut = Cut::exact(1 + random.below(t), random.below(3));
        let cut = if random.coin() { cut.in_file() } else { cut };
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
            let slope = Slope::of(&mut loss_with);
            let tied = trial % 2 == 1 && slope.is_between_sides(gradient[at]);
            ties += usize::from(tied);
            let off = if tied { 0.0 } else { slope.off(gradient[at]) };
            let numeric = slope.central;
            let param = &graph.params[index].name;
            let allowed = 1e-6 * largest.max(1e-3);
            compared += 1;
            assert!(
                off <= allowed,
                "trial {trial} {param}[{at}]: {} instead of {numeric:?}: {}",
                gradient[at],
                brief(&graph)
            );
        }
    }
    assert!(ties * 50 < compared, "{ties} ties of {compared}");
}

/// A stream through the same weights, and its results as they come.
fn stream(graph: &Graph, segment: usize, weights: &Engine<f64>) -> Option<Stream<f64>> {
    let kernels = Kernels { isa: Isa::Scalar, threads: 1 };
    let request = Request {
        graph,
        dtype: DType::F64,
        batch: 1,
        training: false,
        cut: None,
        keeping: Keeping::Memory,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = match StreamPlan::new(&request, segment) {
        Ok(plan) => plan,
        Err(StreamError::Uneven { .. }) => return None,
        Err(error) => panic!("{error}: {}", brief(graph)),
    };
    let channels = graph.shape(Graph::SOURCE).channels;
    let mut stream = Stream::new(plan, kernels, &Normalisation::uniform(0.5, 0.3, channels)).unwrap();
    for index in 0..graph.params.len() {
        let from = weights.tensor(Tensor::Weight(ParamId(index))).unwrap();
        stream.weight_mut(ParamId(index)).unwrap().copy_from_slice(from);
    }
    Some(stream)
}

#[test]
fn a_stream_of_any_length_gives_what_the_whole_clip_gives() {
    let mut random = Random(59);
    let mut compared = 0;
    for trial in 0..600 {
        let Made { graph, .. } = random_graph(&mut random, STREAMED);
        let segment = 1 + random.below(9);
        let weights = engine(&graph, 1, Cut::WHOLE);
        let Some(mut stream) = stream(&graph, segment, &weights) else { continue };
        for frames in [1 + random.below(8), 10 + random.below(40)] {
            let Ok(whole) = graph.with_frames(frames) else { continue };
            let mut engine = engine(&whole, 1, Cut::WHOLE);
            let frame = whole.shape(Graph::SOURCE).per_frame();
            let slots = engine.evaluation_slots(1).unwrap();
            (0..frames * frame).for_each(|at| slots.frames[at] = pixel(0, at));
            slots.labels.fill(0);
            let want = engine.evaluate(1).unwrap().logits.to_vec();
            let mut got = Vec::new();
            stream.restart();
            for t in 0..frames {
                let bytes: Vec<u8> = (0..frame).map(|i| pixel(0, t * frame + i)).collect();
                stream
                    .push(&bytes, &mut |made| {
                        assert_eq!(made.first * CLASSES, got.len());
                        got.extend_from_slice(made.logits);
                    })
                    .unwrap();
            }
            stream.finish(&mut |made| got.extend_from_slice(made.logits)).unwrap();
            assert_eq!(got.len(), want.len(), "trial {trial}, {frames} in segments of {segment}: {}", brief(&graph));
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(off < 1e-12, "trial {trial}, {frames} in segments of {segment}: {off:.1e} off: {}", brief(&graph));
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn a_stream_that_is_too_short_says_what_it_needs() {
    let mut random = Random(5);
    let mut refused = 0;
    for _ in 0..200 {
        let Made { graph, .. } = random_graph(&mut random, STREAMED);
        if graph.with_frames(1).is_ok() {
            continue;
        }
        let weights = engine(&graph, 1, Cut::WHOLE);
        let Some(mut stream) = stream(&graph, 4, &weights) else { continue };
        let frame = vec![0; graph.shape(Graph::SOURCE).per_frame()];
        stream.push(&frame, &mut |_| panic!("nothing is ready")).unwrap();
        let error = stream.finish(&mut |_| panic!("nothing is ready")).unwrap_err();
        assert!(matches!(error, StreamFailed::Stream(StreamError::Shape(_))), "{error}");
        assert!(error.to_string().contains("at least"), "{error}");
        refused += 1;
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn a_truncated_segment_as_long_as_the_clip_is_exact() {
    let mut random = Random(71);
    for trial in 0..120 {
        let Made { graph, .. } = random_graph(&mut random, STREAMED);
        let t = graph.shape(Graph::SOURCE).dims.t;
        let mut whole = engine(&graph, CLIPS, Cut::WHOLE);
        let mut truncated = engine(&graph, CLIPS, Cut::truncated(t + random.below(3)));
        let losses = [&mut whole, &mut truncated].map(|engine| accumulate(engine, CLIPS));
        assert_eq!(losses[0], losses[1], "trial {trial}: {}", brief(&graph));
        assert_eq!(gradients(&whole), gradients(&truncated), "trial {trial}: {}", brief(&graph));
    }
}

#[test]
fn truncating_changes_gradients_and_no_losses() {
    let mut random = Random(73);
    let mut differing = 0;
    let mut compared = 0;
    for trial in 0..300 {
        let Made { graph, batch_statistics } = random_graph(&mut random, STREAMED);
        if batch_statistics {
            continue;
        }
        let t = graph.shape(Graph::SOURCE).dims.t;
        let micro = 1 + random.below(2);
        let mut exact = engine(&graph, CLIPS, Cut::WHOLE);
        let mut truncated = engine(&graph, micro, Cut::truncated(1 + random.below(t)));
        let want = accumulate(&mut exact, CLIPS);
        let got = accumulate(&mut truncated, micro);
        assert!((got - want).abs() < 1e-12, "trial {trial}: {got} instead of {want}: {}", brief(&graph));
        let (a, b) = (gradients(&exact), gradients(&truncated));
        let off = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        differing += usize::from(off > 1e-6);
        compared += 1;
    }
    assert!(compared > 150 && differing > compared / 3, "{differing} of {compared}");
}

/// The loss of a logits' row.
fn cross_entropy(logits: &[f64], label: u32) -> f64 {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - highest).exp()).sum();
    highest + sum.ln() - logits[label as usize]
}

/// Frames of each value that exist once `frames` of the source have come, where it is known that the clip ends and
/// where it is not.
fn made(graph: &Graph, frames: usize, goes_on: bool) -> Vec<usize> {
    let mut now = vec![0; graph.values.len()];
    now[Graph::SOURCE.0] = frames;
    for node in &graph.nodes {
        let emitted = node.inputs.iter().map(|v| {
            let time = node.op.time(graph.shape(*v), graph.shape(node.output));
            if goes_on { time.emit_going_on(now[v.0]) } else { time.emit(now[v.0]) }
        });
        now[node.output.0] = emitted.min().unwrap();
    }
    now
}

/// Whether a stream makes each frame in the segment in which training does. It makes the last frames of a value
/// later where trailing frames of the source are read by nothing.
fn makes_alike(graph: &Graph, segment: usize) -> bool {
    let t = graph.shape(Graph::SOURCE).dims.t;
    (segment..t).step_by(segment).all(|frames| made(graph, frames, true) == made(graph, frames, false))
}

/// The loss of what segment `number` hands out, for a weight that changes by `delta` when that segment runs.
fn loss_of_segment(stream: &mut Stream<f64>, graph: &Graph, number: usize, change: (ParamId, usize, f64)) -> f64 {
    let source = *graph.shape(Graph::SOURCE);
    let (t, frame, labelled) = (source.dims.t, source.per_frame(), graph.labelled_frames());
    let end = ((number + 1) * stream.plan().segment).min(t);
    let (param, at, delta) = change;
    let mut loss = 0.0;
    for clip in 0..CLIPS {
        let bytes = |t: usize| (0..frame).map(|i| pixel(clip, t * frame + i)).collect::<Vec<u8>>();
        let mut take = |made: Results<'_, f64>| {
            for (t, logits) in (made.first..).zip(made.logits.chunks_exact(CLASSES)) {
                let label = label(labelled, clip, t);
                if label != IGNORED {
                    loss += cross_entropy(logits, label);
                }
            }
        };
        stream.restart();
        for t in 0..end {
            stream.push(&bytes(t), &mut |_| {}).unwrap();
        }
        let before = stream.weight_mut(param).unwrap()[at];
        stream.weight_mut(param).unwrap()[at] = before + delta;
        if end == t {
            stream.finish(&mut take).unwrap();
        } else {
            stream.push(&bytes(end), &mut take).unwrap();
        }
        stream.weight_mut(param).unwrap()[at] = before;
    }
    loss / labels(labelled) as f64
}

/// The gradient of a truncated segment is that of its own loss, with the state before it held fixed. A stream runs
/// segment after segment, so a weight can be another one in a single segment.
#[test]
fn truncated_gradients_agree_with_central_differences_segment_by_segment() {
    let mut random = Random(83);
    let (mut compared, mut ties, mut several) = (0, 0, 0);
    for trial in 0..800 {
        let allowed = Allowed { kinks: trial % 2 == 1, ..STREAMED };
        let Made { graph, batch_statistics } = random_graph(&mut random, allowed);
        // A stream predicts: it drops nothing.
        let drops = graph.nodes.iter().any(|node| match &node.op {
            Op::Dropout(_) => true,
            Op::Recurrent(op) => op.recurrent_dropout > 0.0,
            _ => false,
        });
        let t = graph.shape(Graph::SOURCE).dims.t;
        let segment = 1 + random.below(t);
        if batch_statistics || drops || !makes_alike(&graph, segment) {
            continue;
        }
        let micro = 1 + random.below(2);
        let mut truncated = engine(&graph, micro, Cut::truncated(segment));
        let Some(mut stream) = stream(&graph, segment, &truncated) else { continue };
        accumulate(&mut truncated, micro);
        let largest = gradients(&truncated).iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        let segments = t.div_ceil(segment);
        several += usize::from(segments > 1);
        let trained: Vec<usize> = (0..graph.params.len()).filter(|&i| graph.params[i].trained).collect();
        for _ in 0..3 {
            let index = trained[random.below(trained.len())];
            let gradient = truncated.tensor(Tensor::Gradient(ParamId(index))).unwrap();
            let at = random.below(gradient.len());
            let gradient = gradient[at];
            let slope = Slope::of(&mut |delta| {
                (0..segments).map(|k| loss_of_segment(&mut stream, &graph, k, (ParamId(index), at, delta))).sum()
            });
            let tied = trial % 2 == 1 && slope.is_between_sides(gradient);
            ties += usize::from(tied);
            compared += 1;
            let off = if tied { 0.0 } else { slope.off(gradient) };
            let param = &graph.params[index].name;
            let numeric = slope.central;
            assert!(
                off <= 1e-6 * largest.max(1e-3),
                "trial {trial} {param}[{at}], segments of {segment}: {gradient} instead of {numeric:?}: {}",
                brief(&graph)
            );
        }
    }
    println!("{compared} compared, {ties} ties, {several} graphs of several segments");
    assert!(compared > 300 && several > 80, "{compared} compared, {several} graphs of several segments");
    assert!(ties * 50 < compared, "{ties} ties of {compared}");
}
