//! Every row of the losses against PyTorch (`reference/pytorch/more_ops.py`, and the cross-entropies of `ops.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::kernels::loss::*;
use reference::{Array, Case, Cases, Element, assert_close, nan, pool, rows};

/// The label that stands for PyTorch's −100.
const IGNORED: u32 = u32::MAX;

/// The axes of logits as the kernels lay them out, [T,N,K] or [N,K]; with `classes` the place of the axis K.
fn frames_first(array: &Array, classes: usize) -> Array {
    match array.dims.len() {
        3 if classes == 1 => array.permuted(&[2, 0, 1]),
        3 => array.permuted(&[1, 0, 2]),
        _ => array.clone(),
    }
}

fn cross_entropy<E: Element>(case: &Case<'_>) {
    let input = case.tensor("input");
    let logits: Vec<E> = frames_first(input, 1).to();
    let target = case.tensor("target");
    let target = if target.dims.len() == 2 { target.permuted(&[1, 0]) } else { target.clone() };
    let labels: Vec<u32> =
        target.values.iter().map(|&label| if label < 0.0 { IGNORED } else { label as u32 }).collect();
    // The single ops have neither of these options.
    let ignored = match case.attribute("ignore_index").as_i64() {
        Some(index) if index >= 0 => index as u32,
        _ => IGNORED,
    };
    let smoothing = case.attribute("label_smoothing").as_f64().unwrap_or(0.0);
    let weights: Option<Vec<E>> = case.get("weight").map(Array::to);
    assert_eq!(weights.is_some(), case.flag("weighted"));
    let s = LossShape { clips: labels.len(), classes: input.dims[1] };
    for row in rows(E::softmax_cross_entropy(), &s) {
        let run = |scale: E| {
            let (mut losses, mut counted, mut dlogits) = (nan::<E>(s.clips), nan::<E>(s.clips), nan(logits.len()));
            let args = SoftmaxCrossEntropyArgs {
                logits: &logits,
                labels: &labels,
                ignored: Some(ignored),
                class_weights: weights.as_deref(),
                smoothing,
                scale,
                losses: &mut losses,
                weights: &mut counted,
                dlogits: &mut dlogits,
            };
            (row.run)(&s, args, &pool());
            (losses.into_iter().sum::<E>(), counted.into_iter().sum::<E>(), dlogits)
        };
        // The mean divides by what a first pass says.
        let scale = if case.attribute("reduction") == "sum" { E::ONE } else { E::ONE / run(E::ONE).1 };
        let (loss, _, dlogits) = run(scale);
        let what = format!("{} {}", case.name, row.name);
        assert_close(&what, &[loss * scale], case.tensor("output"));
        assert_close(&what, &dlogits, &frames_first(case.tensor("grad_input"), 1));
    }
}

fn binary_cross_entropy<E: Element>(case: &Case<'_>) {
    let input = case.tensor("input");
    let classes = *input.dims.last().unwrap();
    let logits: Vec<E> = frames_first(input, 2).to();
    let targets: Vec<E> = frames_first(case.tensor("target"), 2).to();
    let s = LossShape { clips: logits.len() / classes, classes };
    let weights: Option<Vec<E>> = case.get("weight").map(Array::to);
    let positive_weights: Option<Vec<E>> = case.get("pos_weight").map(Array::to);
    for row in rows(E::binary_cross_entropy(), &s) {
        let mean = case.attribute("reduction") == "mean";
        let scale = if mean { E::from_f64(1.0 / logits.len() as f64) } else { E::ONE };
        let (mut losses, mut counts, mut dlogits) = (nan::<E>(s.clips), nan::<E>(s.clips), nan(logits.len()));
        let args = BinaryCrossEntropyArgs {
            logits: &logits,
            targets: &targets,
            ignored: None,
            weights: weights.as_deref(),
            positive_weights: positive_weights.as_deref(),
            scale,
            losses: &mut losses,
            counts: &mut counts,
            dlogits: &mut dlogits,
        };
        (row.run)(&s, args, &pool());
        let what = format!("{} {}", case.name, row.name);
        assert!(counts.iter().all(|&count| count == E::from_f64(classes as f64)), "{what}: {counts:?}");
        assert_close(&what, &[losses.into_iter().sum::<E>() * scale], case.tensor("output"));
        assert_close(&what, &dlogits, &frames_first(case.tensor("grad_input"), 2));
    }
}

#[test]
fn the_softmax_cross_entropy_is_pytorchs() {
    for (file, count) in [("pytorch/ops", 4), ("pytorch/losses", 10)] {
        Cases::of(file).check("cross_entropy", count, &[], |case| {
            cross_entropy::<f64>(case);
            cross_entropy::<f32>(case);
        });
    }
}

#[test]
fn the_binary_cross_entropy_is_pytorchs() {
    Cases::of("pytorch/losses").check("bce_with_logits", 9, &[], |case| {
        binary_cross_entropy::<f64>(case);
        binary_cross_entropy::<f32>(case);
    });
}

#[test]
fn every_op_has_a_test() {
    let cases = Cases::of("pytorch/losses");
    cases.assert_ops(&["cross_entropy", "bce_with_logits"]);
    assert_eq!(cases.all().len(), 19);
}
