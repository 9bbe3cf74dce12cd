use crate::engine::{Loss, Normalisation};
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
    /// How the clip's gradient is cut.
    #[serde(default)]
    pub cutting: Cutting,
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
    /// The loss of a label.
    #[serde(default)]
    pub loss: Loss,
    /// What is drawn for each training clip.
    pub augmentation: Augmentation,
    /// Everything random depends on it.
    pub seed: u64,
}

/// Most clips of one optimizer step. A model is refused whose values, of this many clips, cannot be addressed.
pub const MOST_CLIPS: usize = 1 << 16;

impl Settings {
    /// What no run can have, in words: a record that was changed may say anything.
    pub(super) fn fault(&self) -> Option<String> {
        let Self { model, normalisation, .. } = self;
        let (mean, std) = (&normalisation.mean, &normalisation.std);
        let per_channel = |values: &[f64]| values.len() == model.channels;
        let rules = [
            ("frames, height, width, channels and classes of at least 1", {
                ![model.frames, model.height, model.width, model.channels, model.classes].contains(&0)
            }),
            ("a mean, and a standard deviation above 0, for each channel", {
                let numbers = mean.iter().chain(std).all(|v| v.is_finite());
                per_channel(mean) && per_channel(std) && numbers && std.iter().all(|&s| s > 0.0)
            }),
            ("a batch of 1 to 65,536 clips", (1..=MOST_CLIPS).contains(&self.batch)),
            ("a learning rate above 0", self.learning_rate.is_finite() && self.learning_rate > 0.0),
            ("a label smoothing of 0 to 1", (0.0..=1.0).contains(&self.loss.smoothing)),
            ("segments of at least 1 frame", !matches!(self.cutting, Cutting::Truncated(0) | Cutting::Independent(0))),
            ("a weight decay of at least 0", self.weight_decay.is_finite() && self.weight_decay >= 0.0),
        ];
        rules.iter().find(|(_, kept)| !kept).map(|(rule, _)| (*rule).to_owned())
    }

    pub(super) fn adam(&self, step: u64) -> AdamStep {
        AdamStep { lr: self.learning_rate, weight_decay: self.weight_decay, step, ..AdamStep::DEFAULT }
    }
}

/// What happens to the gradient where a video is cut. Only the first is that of the whole video.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cutting {
    /// The gradient of the whole clip, however it is cut to fit the memory.
    #[default]
    Exact,
    /// Segments of so many frames: the state goes on from one to the next, its gradient does not.
    Truncated(usize),
    /// Clips of so many frames, the last of a video with those that are left: each starts from nothing.
    Independent(usize),
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
    use crate::models::Family;

    #[test]
    fn settings_that_no_run_has_are_named() {
        let good = Settings {
            manifests: vec![PathBuf::from("clips.csv")],
            model: ModelSpec::of(Family::Cnn3d),
            whole_videos: false,
            cutting: Cutting::Exact,
            resized: false,
            normalisation: Normalisation::uniform(0.5, 0.5, 1),
            epochs: 1,
            batch: 1,
            learning_rate: 1e-3,
            weight_decay: 0.0,
            class_weights: ClassWeights::None,
            loss: Loss::default(),
            augmentation: Augmentation::default(),
            seed: 0,
        };
        assert_eq!(good.fault(), None);
        let spoilt = |spoil: &dyn Fn(&mut Settings)| {
            let mut settings = good.clone();
            spoil(&mut settings);
            settings.fault().unwrap()
        };
        assert!(spoilt(&|s| s.model.frames = 0).contains("frames"));
        assert!(spoilt(&|s| s.normalisation.std = vec![0.0]).contains("above 0, for each channel"));
        assert!(spoilt(&|s| s.normalisation.mean = vec![]).contains("for each channel"));
        assert!(spoilt(&|s| s.batch = 0).contains("65,536 clips"));
        assert!(spoilt(&|s| s.learning_rate = -1.0).contains("learning rate"));
        assert!(spoilt(&|s| s.weight_decay = f64::INFINITY).contains("weight decay"));
    }

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
