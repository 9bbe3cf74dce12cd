//! The losses as the engine has them: against PyTorch (`reference/pytorch/more_ops.py`), and by definition.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::ledger::Fixed;
use framefit::core::ops::{Dense, LinearLayout};
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::{Cut, Keeping};
use framefit::core::{DType, Dims3, Graph, GraphBuilder, Op, Origin, ParamId, Shape};
use framefit::engine::{Engine, IGNORED, Kernels, Loss, LossKind, Normalisation, Tensor};
use framefit::kernels::Isa;
use reference::{Array, Case, Cases, assert_close};

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

/// An engine whose logits of frame t are row t of a matrix: its frames are the rows of the identity.
struct Rows {
    engine: Engine<f64>,
    rows: usize,
    classes: usize,
}

/// What a batch gave.
struct Seen {
    /// The sum over labels of loss times scale.
    loss: f64,
    /// `[M,K]`
    gradient: Vec<f64>,
    /// `[M]`
    weights: Vec<f64>,
}

impl Rows {
    fn new(rows: usize, classes: usize, cut: Cut) -> Self {
        let mut b = GraphBuilder::new(Shape::video(Dims3 { t: rows, h: 1, w: 1 }, rows));
        let dense = Dense { in_channels: rows, units: classes, bias: false, layout: LinearLayout::PyTorch };
        b.layer("logits", Op::Dense(dense), &Origin::BuiltIn).unwrap();
        let graph: Graph = b.finish().unwrap();
        let kernels = Kernels { isa: Isa::Scalar, threads: 1 };
        let request = Request {
            graph: &graph,
            dtype: DType::F64,
            batch: 1,
            training: true,
            cut: Some(cut),
            keeping: Keeping::Memory,
            workspaces: &kernels,
            fixed: &no_fixed,
        };
        let plan = Plan::with(&request, 1, cut);
        plan.check(&request).unwrap();
        let normalisation = Normalisation::uniform(0.0, 1.0, rows);
        Self { engine: Engine::new(graph, plan, kernels, &normalisation).unwrap(), rows, classes }
    }

    /// Of logits `[M,K]`, with labels `[M]`; each label's loss counts `scale`, or what makes their mean.
    fn run(&mut self, logits: &[f64], labels: &[u32], class_weights: &[f64], loss: Loss, scale: Option<f64>) -> Seen {
        let (rows, classes) = (self.rows, self.classes);
        let weight = Tensor::Weight(ParamId(0));
        for (k, of_class) in self.engine.tensor_mut(weight).unwrap().chunks_exact_mut(rows).enumerate() {
            for (m, weight) in of_class.iter_mut().enumerate() {
                *weight = logits[m * classes + k];
            }
        }
        self.engine.set_class_weights(Some(class_weights)).unwrap();
        self.engine.set_loss(loss);
        self.engine.begin_step().unwrap();
        let slots = self.engine.training_slots(1).unwrap();
        for (t, frame) in slots.frames.chunks_exact_mut(rows).enumerate() {
            frame.fill(0);
            frame[t] = 255;
        }
        slots.labels.copy_from_slice(labels);
        let total: f64 = labels.iter().map(|&label| loss.weight(class_weights, label)).sum();
        let scale = scale.unwrap_or(1.0 / total);
        let outcome = self.engine.accumulate(1, scale).unwrap();
        let (loss, weights) = (outcome.losses.iter().sum::<f64>() * scale, outcome.weights.to_vec());
        let gradient = self.engine.tensor(Tensor::Gradient(ParamId(0))).unwrap();
        let at = |m: usize, k: usize| gradient[k * rows + m];
        Seen { loss, gradient: (0..rows * classes).map(|i| at(i / classes, i % classes)).collect(), weights }
    }
}

const CUTS: [Cut; 2] = [Cut::WHOLE, Cut::exact(5, 1)];

/// `[M,K]` of PyTorch's `[N,K]` or `[N,K,T]`.
fn labelled_rows(logits: &Array) -> Array {
    match logits.dims[..] {
        [_, _] => logits.clone(),
        _ => {
            let laid_out = logits.permuted(&[0, 2, 1]);
            let [n, t, k] = laid_out.dims[..] else { panic!("{:?}", laid_out.dims) };
            Array { dims: vec![n * t, k], values: laid_out.values }
        }
    }
}

fn check(case: &Case<'_>, rows: fn(&Array) -> Array, labels: &[u32], class_weights: &str, loss: Loss) {
    let logits = rows(case.tensor("input"));
    let (m, k) = (logits.dims[0], logits.dims[1]);
    let class_weights = case.get(class_weights).map_or(vec![1.0; k], |weights| weights.values.clone());
    let scale = (case.attribute("reduction") == "sum").then_some(1.0);
    for cut in CUTS {
        let seen = Rows::new(m, k, cut).run(&logits.values, labels, &class_weights, loss, scale);
        let what = format!("{} {cut:?}", case.name);
        assert_close(&what, &[seen.loss], case.tensor("output"));
        assert_close(&what, &seen.gradient, &rows(case.tensor("grad_input")));
        let weights: Vec<f64> = labels.iter().map(|&label| loss.weight(&class_weights, label)).collect();
        assert_eq!(seen.weights, weights, "{what}");
    }
}

#[test]
fn softmax_cross_entropy_is_pytorchs() {
    Cases::of("pytorch/losses").check("cross_entropy", 10, &[], |case| {
        let ignored = case.number("ignore_index");
        let label = |&target: &f64| if target == ignored { IGNORED } else { target as u32 };
        let labels: Vec<u32> = case.tensor("target").values.iter().map(label).collect();
        let loss = Loss { kind: LossKind::Softmax, smoothing: case.number("label_smoothing") };
        check(case, labelled_rows, &labels, "weight", loss);
    });
}

#[test]
fn binary_cross_entropy_of_one_logit_is_pytorchs() {
    let cases = Cases::of("pytorch/losses");
    let case = cases.all().into_iter().find(|case| case.name == "bce_with_logits_one_class_frames").unwrap();
    let targets = &case.tensor("target").values;
    assert!(targets.iter().all(|t| [0.0, 1.0].contains(t)));
    let labels: Vec<u32> = targets.iter().map(|&t| t as u32).collect();
    let in_rows = |x: &Array| Array { dims: vec![x.values.len(), 1], values: x.values.clone() };
    check(&case, in_rows, &labels, "pos_weight", Loss { kind: LossKind::Binary, smoothing: 0.0 });
}

/// ln(1 + eˣ).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[test]
fn binary_cross_entropy_of_classes_is_the_mean_over_their_outputs() {
    let (logits, labels) = ([0.3, -1.2, 2.0, 0.7, 0.1, -0.4, 1.5, -2.2, 0.9], [2, IGNORED, 0]);
    let (positive, smoothing) = ([0.5, 1.0, 2.0], 0.2);
    let loss_of = |logits: &[f64]| {
        let outputs = (0..9).filter(|i| labels[i / 3] != IGNORED).map(|i| {
            let (x, hit) = (logits[i], labels[i / 3] as usize == i % 3);
            let t = f64::from(u8::from(hit)) * (1.0 - smoothing) + smoothing / 2.0;
            positive[i % 3] * t * softplus(-x) + (1.0 - t) * softplus(x)
        });
        outputs.sum::<f64>() / 6.0
    };
    let loss = Loss { kind: LossKind::Binary, smoothing };
    let seen = Rows::new(3, 3, Cut::WHOLE).run(&logits, &labels, &positive, loss, None);
    assert_eq!(seen.weights, [1.0, 0.0, 1.0]);
    assert!((seen.loss - loss_of(&logits)).abs() < 1e-12, "{} instead of {}", seen.loss, loss_of(&logits));
    for (i, got) in seen.gradient.iter().enumerate() {
        let (mut above, mut below) = (logits, logits);
        (above[i], below[i]) = (logits[i] + 1e-5, logits[i] - 1e-5);
        let want = (loss_of(&above) - loss_of(&below)) / 2e-5;
        assert!((got - want).abs() < 1e-9, "{i}: {got} instead of {want}");
    }
}
