//! The loss of each label, and the gradient of the logits.

use crate::engine::run::{Call, bytes, cast};
use crate::engine::{Element, IGNORED};
use framefit_core::schedule::{Role, Step};
use framefit_kernels::loss::{LabelledBinaryCrossEntropyArgs, LossShape, SoftmaxCrossEntropyArgs};
use framefit_kernels::{Arena, choose};
use serde::{Deserialize, Serialize};

/// Which cross-entropy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// Of the softmax of the logits: one class of several. PyTorch's `CrossEntropyLoss`; its mean divides by the
    /// class weights of the labels.
    #[default]
    Softmax,
    /// Of the sigmoid of each logit: is it this class or not. Of one logit, the label itself is the target, 0 or 1.
    /// PyTorch's `BCEWithLogitsLoss`, class weights being its `pos_weight`; its mean divides by the number of labels.
    Binary,
}

/// The loss of a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Which cross-entropy.
    pub kind: LossKind,
    /// ε in 0..=1. Softmax: this share of the target is spread over all classes, as PyTorch's `label_smoothing`.
    /// Binary: targets are drawn towards ½ by this share, as Keras's.
    pub smoothing: f64,
}

impl Loss {
    /// What a label counts in the mean over labels, whose reciprocal sum is the scale of a batch.
    pub fn weight(self, class_weights: &[f64], label: u32) -> f64 {
        match self.kind {
            _ if label == IGNORED => 0.0,
            LossKind::Softmax => class_weights.get(label as usize).copied().unwrap_or(0.0),
            LossKind::Binary => 1.0,
        }
    }
}

impl<E: Element> Call<'_, E> {
    pub(in crate::engine) fn loss(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles =
            [Role::Input, Role::Labels, Role::ClassWeights, Role::Losses, Role::LossWeights, Role::InputGradient];
        let [logits, labels, class_weights, losses, weights, dlogits] = bytes(self.placed, step, roles, arena)?;
        let (logits, labels, class_weights): (&[E], &[u32], &[E]) =
            (cast(logits)?, cast(labels)?, cast(class_weights)?);
        let (losses, weights, dlogits): (&mut [E], &mut [E], &mut [E]) =
            (cast(losses)?, cast(weights)?, cast(dlogits)?);
        let shape = LossShape { clips: labels.len(), classes: self.graph.classes() };
        let (isa, ignored, scale) = (self.kernels.isa, Some(IGNORED), E::from_f64(self.numbers.scale));
        let Loss { kind, smoothing } = self.numbers.loss;
        match kind {
            LossKind::Softmax => {
                let row = choose(E::softmax_cross_entropy(), isa, &shape);
                let class_weights = Some(class_weights);
                let args = SoftmaxCrossEntropyArgs {
                    logits,
                    labels,
                    ignored,
                    class_weights,
                    smoothing,
                    scale,
                    losses,
                    weights,
                    dlogits,
                };
                (row.run)(&shape, args, self.pool);
            }
            LossKind::Binary => {
                let row = choose(E::labelled_binary_cross_entropy(), isa, &shape);
                let positive_weights = Some(class_weights);
                let args = LabelledBinaryCrossEntropyArgs {
                    logits,
                    labels,
                    ignored,
                    positive_weights,
                    smoothing,
                    scale,
                    losses,
                    weights,
                    dlogits,
                };
                (row.run)(&shape, args, self.pool);
            }
        }
        Some(())
    }
}
