//! Softmax cross-entropy.

use super::LossShape;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{kernel_row, scalar_tables};
use crate::threads::Pool;

/// What softmax cross-entropy of clips reads and writes.
#[derive(Debug)]
pub struct CrossEntropyArgs<'a, E> {
    /// \[M, K\].
    pub logits: &'a [E],
    /// \[M\], each below K.
    pub labels: &'a [u32],
    /// \[K\]; 1 for every class when absent.
    pub class_weights: Option<&'a [E]>,
    /// What each clip's loss counts in the loss whose gradient is wanted: 1/M for the mean of M clips.
    pub scale: E,
    /// \[M\], overwritten with w\[label\] · (−log p\[label\]), without `scale`.
    pub losses: &'a mut [E],
    /// \[M, K\], overwritten with scale · w\[label\] · (p − onehot(label)).
    pub dlogits: &'a mut [E],
}

/// What softmax cross-entropy of labelled rows reads and writes.
#[derive(Debug)]
pub struct SoftmaxCrossEntropyArgs<'a, E> {
    /// \[M, K\].
    pub logits: &'a [E],
    /// \[M\], each below K or `ignored`.
    pub labels: &'a [u32],
    /// Rows with this label have no loss, no weight and no gradient. PyTorch's `ignore_index`.
    pub ignored: Option<u32>,
    /// w: \[K\]; 1 for every class when absent.
    pub class_weights: Option<&'a [E]>,
    /// ε in 0..=1: the share of the target that is spread over all classes. PyTorch's `label_smoothing`.
    pub smoothing: f64,
    /// What each row's loss counts in the loss whose gradient is wanted: 1/Σ `weights` for PyTorch's mean.
    pub scale: E,
    /// \[M\], overwritten with the loss, class weights included, without `scale`.
    pub losses: &'a mut [E],
    /// \[M\], overwritten with w\[label\]: the row's share of the denominator of PyTorch's mean.
    pub weights: &'a mut [E],
    /// \[M, K\], overwritten with the gradient of scale · Σ losses.
    pub dlogits: &'a mut [E],
}

kernel_row! {
    /// Softmax cross-entropy per clip and its gradient by the logits, as PyTorch's `CrossEntropyLoss` with
    /// `reduction="none"`. p = softmax(logits), computed after subtracting the greatest logit.
    CrossEntropy, LossShape, CrossEntropyArgs
}
kernel_row! {
    /// Softmax cross-entropy per row and its gradient by the logits, as PyTorch's `CrossEntropyLoss` with
    /// `reduction="none"`: Σ over k of q\[k\] · (−log p\[k\]), where q = ε/K · w, and (1−ε) · w\[label\] more at
    /// the label.
    SoftmaxCrossEntropy, LossShape, SoftmaxCrossEntropyArgs
}

/// Logits of one task.
const CHUNK: usize = 8 * 1024;

/// What all rows share.
#[derive(Clone, Copy)]
struct Targets<'a, E> {
    class_weights: Option<&'a [E]>,
    smoothing: f64,
    scale: E,
}

/// One row; returns (loss, weight).
fn softmax_row<E: Real>(targets: Targets<'_, E>, logits: &[E], label: usize, dlogits: &mut [E]) -> (E, E) {
    let weight = targets.class_weights.map_or(E::ONE, |weights| weights[label]);
    let greatest = logits.iter().fold(E::NEG_INFINITY, |a, b| a.max(*b));
    let mut sum = E::ZERO;
    for (d, logit) in dlogits.iter_mut().zip(logits) {
        *d = (*logit - greatest).exp();
    }
    for d in dlogits.iter() {
        sum += *d;
    }
    let log_sum = sum.ln();
    let at_label = if targets.smoothing == 0.0 { weight } else { E::from_f64(1.0 - targets.smoothing) * weight };
    let mut loss = at_label * (log_sum - (logits[label] - greatest));
    if targets.smoothing == 0.0 {
        let factor = targets.scale * at_label;
        for (k, d) in dlogits.iter_mut().enumerate() {
            let target = if k == label { E::ONE } else { E::ZERO };
            *d = factor * (*d / sum - target);
        }
    } else {
        let share = E::from_f64(targets.smoothing / logits.len() as f64);
        let spread = |k: usize| share * targets.class_weights.map_or(E::ONE, |weights| weights[k]);
        let mut total = at_label;
        for (k, logit) in logits.iter().enumerate() {
            loss += spread(k) * (log_sum - (*logit - greatest));
            total += spread(k);
        }
        for (k, d) in dlogits.iter_mut().enumerate() {
            let target = spread(k) + if k == label { at_label } else { E::ZERO };
            *d = targets.scale * (total * (*d / sum) - target);
        }
    }
    (loss, weight)
}

fn softmax_cross_entropy<E: Real>(s: &LossShape, args: SoftmaxCrossEntropyArgs<'_, E>, pool: &Pool) {
    let (rows, classes) = (s.clips, s.classes);
    assert_eq!(args.logits.len(), rows * classes, "logits: {s:?}");
    assert_eq!(args.labels.len(), rows, "labels: {s:?}");
    assert_eq!(args.losses.len(), rows, "losses: {s:?}");
    assert_eq!(args.weights.len(), rows, "weights: {s:?}");
    assert_eq!(args.dlogits.len(), rows * classes, "dlogits: {s:?}");
    assert!(args.class_weights.is_none_or(|weights| weights.len() == classes), "class_weights: {s:?}");
    assert!((0.0..=1.0).contains(&args.smoothing), "smoothing {}", args.smoothing);
    let targets = Targets { class_weights: args.class_weights, smoothing: args.smoothing, scale: args.scale };
    let (logits, labels, ignored) = (args.logits, args.labels, args.ignored);
    let (losses, weights) = (SharedMut::new(args.losses), SharedMut::new(args.weights));
    let step = (CHUNK / classes.max(1)).max(1);
    pool.chunks(args.dlogits, step * classes, &|task, dlogits| {
        let first = task.index * step;
        for (i, dlogits) in dlogits.chunks_exact_mut(classes.max(1)).enumerate() {
            let row = first + i;
            // SAFETY: each task takes its own rows, once.
            let (loss, weight) = unsafe { (losses.part(row..row + 1), weights.part(row..row + 1)) };
            if ignored == Some(labels[row]) {
                (loss[0], weight[0]) = (E::ZERO, E::ZERO);
                dlogits.fill(E::ZERO);
                continue;
            }
            let label = labels[row] as usize;
            assert!(label < classes, "label {label} of {classes} classes");
            (loss[0], weight[0]) = softmax_row(targets, &logits[row * classes..][..classes], label, dlogits);
        }
    });
}

/// The same without labels to ignore, without smoothing, and without the weights.
fn cross_entropy<E: Real>(s: &LossShape, args: CrossEntropyArgs<'_, E>, _: &Pool) {
    assert_eq!(args.logits.len(), s.clips * s.classes, "logits: {s:?}");
    assert_eq!(args.labels.len(), s.clips, "labels: {s:?}");
    assert_eq!(args.losses.len(), s.clips, "losses: {s:?}");
    assert_eq!(args.dlogits.len(), s.clips * s.classes, "dlogits: {s:?}");
    assert!(args.class_weights.is_none_or(|weights| weights.len() == s.classes), "class_weights: {s:?}");
    let targets = Targets { class_weights: args.class_weights, smoothing: 0.0, scale: args.scale };
    let outputs = args.losses.iter_mut().zip(args.dlogits.chunks_exact_mut(s.classes.max(1)));
    let inputs = args.labels.iter().zip(args.logits.chunks_exact(s.classes.max(1)));
    for ((label, logits), (loss, dlogits)) in inputs.zip(outputs) {
        let label = *label as usize;
        assert!(label < s.classes, "label {label} of {} classes", s.classes);
        *loss = softmax_row(targets, logits, label, dlogits).0;
    }
}

scalar_tables! {
    CROSS_ENTROPY_F32, CROSS_ENTROPY_F64: CrossEntropy,
    names: ["cross_entropy_f32__scalar", "cross_entropy_f64__scalar"], cross_entropy
}

scalar_tables! {
    SOFTMAX_CROSS_ENTROPY_F32, SOFTMAX_CROSS_ENTROPY_F64: SoftmaxCrossEntropy,
    names: ["softmax_cross_entropy_f32__scalar", "softmax_cross_entropy_f64__scalar"], softmax_cross_entropy
}
