//! Binary cross-entropy of logits, with targets of their own or from labels.

use super::LossShape;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{kernel_row, scalar_tables};
use crate::threads::Pool;

/// What binary cross-entropy reads and writes.
#[derive(Debug)]
pub struct BinaryCrossEntropyArgs<'a, E> {
    /// x: \[M, K\].
    pub logits: &'a [E],
    /// t: \[M, K\], in 0..=1 or `ignored`.
    pub targets: &'a [E],
    /// Outputs with this target, which lies outside 0..=1, have no loss and no gradient.
    pub ignored: Option<E>,
    /// w: \[K\]; 1 for every output when absent. PyTorch's `weight`.
    pub weights: Option<&'a [E]>,
    /// p: \[K\]; 1 for every output when absent. PyTorch's `pos_weight`.
    pub positive_weights: Option<&'a [E]>,
    /// What each output's loss counts in the loss whose gradient is wanted: 1/Σ `counts` for PyTorch's mean.
    pub scale: E,
    /// \[M\], overwritten with the sum of the losses of the row's outputs, without `scale`.
    pub losses: &'a mut [E],
    /// \[M\], overwritten with the number of the row's outputs that are not ignored.
    pub counts: &'a mut [E],
    /// \[M, K\], overwritten with the gradient of scale · Σ losses.
    pub dlogits: &'a mut [E],
}

/// What binary cross-entropy of labelled rows reads and writes.
#[derive(Debug)]
pub struct LabelledBinaryCrossEntropyArgs<'a, E> {
    /// x: \[M, K\].
    pub logits: &'a [E],
    /// \[M\], each below K (below 2 of one logit) or `ignored`.
    pub labels: &'a [u32],
    /// Rows with this label have no loss, no weight and no gradient.
    pub ignored: Option<u32>,
    /// p: \[K\]; 1 for every output when absent. PyTorch's `pos_weight`.
    pub positive_weights: Option<&'a [E]>,
    /// ε in 0..=1: targets are drawn towards ½ by this share. Keras's `label_smoothing`.
    pub smoothing: f64,
    /// What each row's loss counts in the loss whose gradient is wanted: 1/Σ `weights` for PyTorch's mean.
    pub scale: E,
    /// \[M\], overwritten with the mean of the losses of the row's outputs, without `scale`.
    pub losses: &'a mut [E],
    /// \[M\], overwritten with 1, and 0 of rows that are ignored.
    pub weights: &'a mut [E],
    /// \[M, K\], overwritten with the gradient of scale · Σ losses.
    pub dlogits: &'a mut [E],
}

kernel_row! {
    /// Binary cross-entropy per row and its gradient by the logits, as PyTorch's `BCEWithLogitsLoss`:
    /// w · (p · t · softplus(−x) + (1−t) · softplus(x)).
    BinaryCrossEntropy, LossShape, BinaryCrossEntropyArgs
}

kernel_row! {
    /// Binary cross-entropy per row and its gradient by the logits, the targets being 1 at the label and 0 elsewhere;
    /// of one logit, the label itself. With ε they are t · (1−ε) + ε/2.
    LabelledBinaryCrossEntropy, LossShape, LabelledBinaryCrossEntropyArgs
}

/// Logits of one task.
const CHUNK: usize = 8 * 1024;

/// p · t · softplus(−x) + (1−t) · softplus(x), and its derivative by x.
#[inline(always)]
fn output<E: Real>(x: E, t: E, positive_weight: E) -> (E, E) {
    let (positive, negative) = (t * positive_weight, E::ONE - t);
    // Nothing times infinity would be NaN.
    let part = |share: E, loss: E| if share == E::ZERO { E::ZERO } else { share * loss };
    let loss = part(positive, (-x).softplus()) + part(negative, x.softplus());
    (loss, negative * x.sigmoid() - positive * (-x).sigmoid())
}

fn binary_cross_entropy<E: Real>(s: &LossShape, args: BinaryCrossEntropyArgs<'_, E>, pool: &Pool) {
    let (rows, classes) = (s.clips, s.classes);
    assert_eq!(args.logits.len(), rows * classes, "logits: {s:?}");
    assert_eq!(args.targets.len(), rows * classes, "targets: {s:?}");
    assert_eq!(args.losses.len(), rows, "losses: {s:?}");
    assert_eq!(args.counts.len(), rows, "counts: {s:?}");
    assert_eq!(args.dlogits.len(), rows * classes, "dlogits: {s:?}");
    assert!(args.weights.is_none_or(|weights| weights.len() == classes), "weights: {s:?}");
    assert!(args.positive_weights.is_none_or(|weights| weights.len() == classes), "positive_weights: {s:?}");
    let (logits, targets, ignored, scale) = (args.logits, args.targets, args.ignored, args.scale);
    let (weights, positive_weights) = (args.weights, args.positive_weights);
    let (losses, counts) = (SharedMut::new(args.losses), SharedMut::new(args.counts));
    if classes == 0 {
        return;
    }
    let step = (CHUNK / classes).max(1);
    pool.chunks(args.dlogits, step * classes, &|task, dlogits| {
        for (i, dlogits) in dlogits.chunks_exact_mut(classes).enumerate() {
            let row = task.index * step + i;
            let (mut loss, mut count) = (E::ZERO, E::ZERO);
            for (k, d) in dlogits.iter_mut().enumerate() {
                let (x, t) = (logits[row * classes + k], targets[row * classes + k]);
                if ignored == Some(t) {
                    *d = E::ZERO;
                    continue;
                }
                let weight = weights.map_or(E::ONE, |weights| weights[k]);
                let (of_output, slope) = output(x, t, positive_weights.map_or(E::ONE, |weights| weights[k]));
                loss += weight * of_output;
                count += E::ONE;
                *d = scale * weight * slope;
            }
            // SAFETY: each task takes its own rows, once.
            let (loss_of, count_of) = unsafe { (losses.part(row..row + 1), counts.part(row..row + 1)) };
            (loss_of[0], count_of[0]) = (loss, count);
        }
    });
}

fn labelled_binary_cross_entropy<E: Real>(s: &LossShape, args: LabelledBinaryCrossEntropyArgs<'_, E>, pool: &Pool) {
    let (rows, classes) = (s.clips, s.classes);
    assert_eq!(args.logits.len(), rows * classes, "logits: {s:?}");
    assert_eq!(args.labels.len(), rows, "labels: {s:?}");
    assert_eq!(args.losses.len(), rows, "losses: {s:?}");
    assert_eq!(args.weights.len(), rows, "weights: {s:?}");
    assert_eq!(args.dlogits.len(), rows * classes, "dlogits: {s:?}");
    assert!(args.positive_weights.is_none_or(|weights| weights.len() == classes), "positive_weights: {s:?}");
    assert!((0.0..=1.0).contains(&args.smoothing), "smoothing {}", args.smoothing);
    let (logits, labels, ignored, positive_weights) = (args.logits, args.labels, args.ignored, args.positive_weights);
    let (losses, weights) = (SharedMut::new(args.losses), SharedMut::new(args.weights));
    if classes == 0 {
        return;
    }
    let share = E::from_f64(1.0 / classes as f64);
    let [absent, present] = [0.0, 1.0].map(|t| E::from_f64(t * (1.0 - args.smoothing) + args.smoothing / 2.0));
    let step = (CHUNK / classes).max(1);
    pool.chunks(args.dlogits, step * classes, &|task, dlogits| {
        for (i, dlogits) in dlogits.chunks_exact_mut(classes).enumerate() {
            let row = task.index * step + i;
            // SAFETY: each task takes its own rows, once.
            let (loss, weight) = unsafe { (losses.part(row..row + 1), weights.part(row..row + 1)) };
            if ignored == Some(labels[row]) {
                (loss[0], weight[0]) = (E::ZERO, E::ZERO);
                dlogits.fill(E::ZERO);
                continue;
            }
            let label = labels[row] as usize;
            assert!(label < classes.max(2), "label {label} of {classes} outputs");
            let at = if classes == 1 { usize::from(label == 0) } else { label };
            let mut total = E::ZERO;
            for (k, (d, x)) in dlogits.iter_mut().zip(&logits[row * classes..]).enumerate() {
                let t = if k == at { present } else { absent };
                let (of_output, slope) = output(*x, t, positive_weights.map_or(E::ONE, |weights| weights[k]));
                total += of_output;
                *d = args.scale * share * slope;
            }
            (loss[0], weight[0]) = (share * total, E::ONE);
        }
    });
}

scalar_tables! {
    BINARY_CROSS_ENTROPY_F32, BINARY_CROSS_ENTROPY_F64: BinaryCrossEntropy,
    names: ["binary_cross_entropy_f32__scalar", "binary_cross_entropy_f64__scalar"], binary_cross_entropy
}

scalar_tables! {
    LABELLED_BINARY_CROSS_ENTROPY_F32, LABELLED_BINARY_CROSS_ENTROPY_F64: LabelledBinaryCrossEntropy,
    names: ["labelled_binary_cross_entropy_f32__scalar", "labelled_binary_cross_entropy_f64__scalar"], labelled_binary_cross_entropy
}
