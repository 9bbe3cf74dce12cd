//! Binary cross-entropy of logits.

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

kernel_row! {
    /// Binary cross-entropy per row and its gradient by the logits, as PyTorch's `BCEWithLogitsLoss`:
    /// w · (p · t · softplus(−x) + (1−t) · softplus(x)).
    BinaryCrossEntropy, LossShape, BinaryCrossEntropyArgs
}

/// Logits of one task.
const CHUNK: usize = 8 * 1024;

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
                let positive = t * positive_weights.map_or(E::ONE, |weights| weights[k]);
                let negative = E::ONE - t;
                // Nothing times infinity would be NaN.
                let part = |share: E, loss: E| if share == E::ZERO { E::ZERO } else { share * loss };
                loss += weight * (part(positive, (-x).softplus()) + part(negative, x.softplus()));
                count += E::ONE;
                *d = scale * weight * (negative * x.sigmoid() - positive * (-x).sigmoid());
            }
            // SAFETY: each task takes its own rows, once.
            let (loss_of, count_of) = unsafe { (losses.part(row..row + 1), counts.part(row..row + 1)) };
            (loss_of[0], count_of[0]) = (loss, count);
        }
    });
}

scalar_tables! {
    BINARY_CROSS_ENTROPY_F32, BINARY_CROSS_ENTROPY_F64: BinaryCrossEntropy,
    names: ["binary_cross_entropy_f32__scalar", "binary_cross_entropy_f64__scalar"], binary_cross_entropy
}
