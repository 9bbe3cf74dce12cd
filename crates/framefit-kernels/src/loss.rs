//! Losses and their gradients.

use crate::isa::Isa;
use crate::real::Real;
use crate::table::{any, kernel_row, no_scratch};
use crate::threads::Pool;

/// How many clips (or labelled frames) and classes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LossShape {
    /// N.
    pub clips: usize,
    /// K.
    pub classes: usize,
}

/// What softmax cross-entropy reads and writes.
#[derive(Debug)]
pub struct CrossEntropyArgs<'a, E> {
    /// \[N, K\].
    pub logits: &'a [E],
    /// \[N\], each below K.
    pub labels: &'a [u32],
    /// \[K\]; 1 for every class when absent.
    pub class_weights: Option<&'a [E]>,
    /// What each clip's loss counts in the loss whose gradient is wanted: 1/N for the mean of N clips.
    pub scale: E,
    /// \[N\], overwritten with w\[label\] · (−log p\[label\]), without `scale`.
    pub losses: &'a mut [E],
    /// \[N, K\], overwritten with scale · w\[label\] · (p − onehot(label)).
    pub dlogits: &'a mut [E],
}

kernel_row! {
    /// Softmax cross-entropy per clip and its gradient by the logits, as PyTorch's `CrossEntropyLoss` with
    /// `reduction="none"`. p = softmax(logits), computed after subtracting the greatest logit.
    CrossEntropy, LossShape, CrossEntropyArgs
}

fn cross_entropy<E: Real>(s: &LossShape, args: CrossEntropyArgs<'_, E>, _: &Pool) {
    assert_eq!(args.logits.len(), s.clips * s.classes, "logits: {s:?}");
    assert_eq!(args.labels.len(), s.clips, "labels: {s:?}");
    assert_eq!(args.losses.len(), s.clips, "losses: {s:?}");
    assert_eq!(args.dlogits.len(), s.clips * s.classes, "dlogits: {s:?}");
    assert!(args.class_weights.is_none_or(|weights| weights.len() == s.classes), "class_weights: {s:?}");
    let outputs = args.losses.iter_mut().zip(args.dlogits.chunks_exact_mut(s.classes.max(1)));
    let inputs = args.labels.iter().zip(args.logits.chunks_exact(s.classes.max(1)));
    for ((label, logits), (loss, dlogits)) in inputs.zip(outputs) {
        let label = *label as usize;
        assert!(label < s.classes, "label {label} of {} classes", s.classes);
        let weight = args.class_weights.map_or(E::ONE, |weights| weights[label]);
        let greatest = logits.iter().fold(E::NEG_INFINITY, |a, b| a.max(*b));
        let mut sum = E::ZERO;
        for (d, logit) in dlogits.iter_mut().zip(logits) {
            *d = (*logit - greatest).exp();
            sum += *d;
        }
        *loss = weight * (sum.ln() - (logits[label] - greatest));
        let factor = args.scale * weight;
        for (k, d) in dlogits.iter_mut().enumerate() {
            let target = if k == label { E::ONE } else { E::ZERO };
            *d = factor * (*d / sum - target);
        }
    }
}

pub(crate) static CROSS_ENTROPY_F32: &[CrossEntropy<f32>] = &[CrossEntropy {
    name: "cross_entropy_f32__scalar",
    isa: Isa::Scalar,
    handles: any,
    scratch: no_scratch,
    run: cross_entropy,
}];
pub(crate) static CROSS_ENTROPY_F64: &[CrossEntropy<f64>] = &[CrossEntropy {
    name: "cross_entropy_f64__scalar",
    isa: Isa::Scalar,
    handles: any,
    scratch: no_scratch,
    run: cross_entropy,
}];
