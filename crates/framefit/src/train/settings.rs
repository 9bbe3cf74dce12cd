use crate::engine::Normalisation;
use crate::models::ModelSpec;
use framefit_kernels::optimizer::AdamStep;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Everything that decides what a run computes. A run is repeated, and resumed, from its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The manifest, or the training and the validation manifest.
    pub manifests: Vec<PathBuf>,
    /// The model, and the extents of its clips.
    pub model: ModelSpec,
    /// Whether each video is one clip, of its own length; else clips have the model's frames.
    #[serde(default)]
    pub whole_videos: bool,
    /// Whether frames are resized to the model's height and width.
    pub resized: bool,
    /// From pixels to values.
    pub normalisation: Normalisation,
    /// Passes over the training clips.
    pub epochs: usize,
    /// Clips of one optimizer step.
    pub batch: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Adam's weight decay, added to the gradient.
    pub weight_decay: f64,
    /// How classes are weighted in the loss.
    pub class_weights: ClassWeights,
    /// What is drawn for each training clip.
    pub augmentation: Augmentation,
    /// Everything random depends on it.
    pub seed: u64,
}

impl Settings {
    pub(super) fn adam(&self, step: u64) -> AdamStep {
        AdamStep { lr: self.learning_rate, weight_decay: self.weight_decay, step, ..AdamStep::DEFAULT }
    }
}

/// Changes drawn per clip and epoch, the same for all frames of a clip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Augmentation {
    /// Left and right swapped, half of the time.
    pub flip_horizontal: bool,
    /// Top and bottom swapped, half of the time.
    pub flip_vertical: bool,
}

/// How classes are weighted in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassWeights {
    /// All one.
    #[default]
    None,
    /// n/(K·n_k) for n clips, n_k of them of class k, of K classes: each class counts the same in all.
    Balanced,
}

impl ClassWeights {
    /// The weights for these numbers of training clips by class; a class without clips weighs nothing.
    pub fn of(self, counts: &[usize]) -> Vec<f64> {
        let all: usize = counts.iter().sum();
        match self {
            ClassWeights::None => vec![1.0; counts.len()],
            ClassWeights::Balanced => counts
                .iter()
                .map(|&n| if n == 0 { 0.0 } else { all as f64 / (counts.len() as f64 * n as f64) })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_classes_weigh_the_same_in_all() {
        let counts = [554, 59];
        let weights = ClassWeights::Balanced.of(&counts);
        let sums: Vec<f64> = weights.iter().zip(counts).map(|(w, n)| w * n as f64).collect();
        assert!((sums[0] - sums[1]).abs() < 1e-9);
        assert!((sums[0] + sums[1] - 613.0).abs() < 1e-9);
        assert_eq!(ClassWeights::Balanced.of(&[3, 0]), [0.5, 0.0]);
    }
}
