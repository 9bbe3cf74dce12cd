use super::checks::{epsilon, fraction, frames_only, video_only};
use super::{BackwardReads, Fold, Layer, Operations, features};
use crate::axes::{Dims3, Shape};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// x: `[T,N,H,W,C]`, γ, β, moving mean, moving variance: `[C]` -> y: `[T,N,1,1,C]`
///
/// Batch normalisation, then the mean over H and W, with the statistics of the whole micro-batch: Keras's
/// `BatchNormalization` and `AveragePooling3D` over the frame. Both are affine in x, so the mean of the
/// normalised frame is the normalised mean of the frame: only the means of frames and the moments of channels
/// are kept, and no frame is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormMean {
    /// Added to the variance.
    pub epsilon: f64,
    /// Share of the moving statistics that stays at each step, as Keras counts it.
    pub momentum: f64,
}

impl NormMean {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        Ok(input.resized(Dims3 { t: input.dims.t, h: 1, w: 1 }, input.channels))
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        let vector = |name, initial| ParamSpec::vector(name, input.channels, initial);
        let fixed = |spec: ParamSpec| ParamSpec { trained: false, ..spec };
        vec![
            vector("gamma", Initial::Ones),
            vector("beta", Initial::Zeros),
            fixed(vector("moving_mean", Initial::Zeros)),
            fixed(vector("moving_variance", Initial::Ones)),
        ]
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        Operations::pointwise(3, input)
    }
}

/// How moving statistics follow those of the batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Momentum {
    /// This share of the old stays.
    Keras(f64),
    /// This share of the new is taken.
    #[serde(rename = "pytorch")]
    PyTorch(f64),
    /// The mean of all batches so far: PyTorch's `momentum=None`.
    #[serde(rename = "pytorch_cumulative")]
    PyTorchCumulative,
}

/// Which statistics normalise while training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistics {
    /// Those of the micro-batch, over T, N, H and W.
    Batch,
    /// The moving ones, which stay as they are: a frozen layer.
    Moving,
}

/// How the user's framework names a norm's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormLayout {
    /// weight, bias, running_mean, running_var; the moving variance takes n/(n − 1) of a batch's.
    #[serde(rename = "pytorch")]
    PyTorch,
    /// gamma, beta, moving_mean, moving_variance; the moving variance takes a batch's as it is.
    Keras,
}

impl NormLayout {
    pub(super) const fn kind(self, pytorch: &'static str, keras: &'static str) -> &'static str {
        match self {
            NormLayout::PyTorch => pytorch,
            NormLayout::Keras => keras,
        }
    }

    const fn scale(self) -> &'static str {
        match self {
            NormLayout::PyTorch => "weight",
            NormLayout::Keras => "gamma",
        }
    }

    const fn center(self) -> &'static str {
        match self {
            NormLayout::PyTorch => "bias",
            NormLayout::Keras => "beta",
        }
    }

    const fn moving(self) -> (&'static str, &'static str) {
        match self {
            NormLayout::PyTorch => ("running_mean", "running_var"),
            NormLayout::Keras => ("moving_mean", "moving_variance"),
        }
    }
}

/// x: `[T,N,H,W,C]`, γ, β, moving mean, moving variance: `[C]` -> y: `[T,N,H,W,C]`; or, of one vector per frame,
/// x: `[T,N,D]`, the others `[D]` with D = H·W·C, stored `[H,W,C]`
///
/// y = (x − mean)/√(variance + ε) · γ + β per channel, as PyTorch's `BatchNorm3d` (and `2d` on every frame, `1d` on
/// vectors) and Keras's `BatchNormalization`. With the statistics of the batch it is a barrier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// ε, added to the variance.
    pub epsilon: f64,
    /// How the moving statistics follow.
    pub momentum: Momentum,
    /// Which statistics normalise while training.
    pub statistics: Statistics,
    /// Whether there is a γ.
    pub scale: bool,
    /// Whether there is a β.
    pub center: bool,
    /// Whether the optimizer changes γ and β.
    pub trained: bool,
    /// Names of the user's tensors.
    pub layout: NormLayout,
}

impl BatchNorm {
    /// The features that are normalised each by itself, innermost in memory: C of a video, H·W·C of one vector per
    /// frame.
    pub fn features(&self, input: &Shape) -> usize {
        features::count(input)
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        frames_only(input, at)?;
        epsilon(self.epsilon, at)?;
        if let Momentum::Keras(share) | Momentum::PyTorch(share) = self.momentum {
            fraction("momentum", "a number from 0 to 1", share, (0.0..=1.0).contains(&share), at)?;
        }
        Ok(*input)
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        let (mean, variance) = self.layout.moving();
        let affine = affine(self.layout, (self.scale, self.center), |name, initial| ParamSpec {
            trained: self.trained,
            ..features::vector(name, input, initial)
        });
        let fixed = [(mean, Initial::Zeros), (variance, Initial::Ones)]
            .map(|(name, initial)| ParamSpec { trained: false, ..features::vector(name, input, initial) });
        affine.into_iter().chain(fixed).collect()
    }

    pub(super) fn fold(&self) -> Fold {
        match self.statistics {
            Statistics::Batch => Fold::Barrier,
            Statistics::Moving => Fold::Frames,
        }
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        match self.statistics {
            Statistics::Batch => TimeMap::barrier(input.dims.t),
            Statistics::Moving => TimeMap::identity(input.dims.t),
        }
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        let trains = self.trained && (self.scale || self.center);
        match self.statistics {
            Statistics::Moving if !trains => BackwardReads::NONE,
            Statistics::Batch | Statistics::Moving => BackwardReads::INPUT,
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.layout.kind("BatchNorm", "BatchNormalization")
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        // Each pass is a multiply-add; the gradient's statistics are a pass more.
        let passes = match self.statistics {
            Statistics::Batch => 4,
            Statistics::Moving => 2,
        };
        Operations::pointwise(passes, input)
    }
}

/// γ of ones and β of zeros, those that there are.
pub(super) fn affine(
    layout: NormLayout,
    (scale, center): (bool, bool),
    spec: impl Fn(&'static str, Initial) -> ParamSpec,
) -> Vec<ParamSpec> {
    let scale = scale.then(|| spec(layout.scale(), Initial::Ones));
    let center = center.then(|| spec(layout.center(), Initial::Zeros));
    scale.into_iter().chain(center).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{at, flat, flat_frames, message, output, stored, tensors, values, video};
    use super::*;
    use crate::axes::Order;

    fn batch_norm(layout: NormLayout) -> BatchNorm {
        BatchNorm {
            epsilon: 1e-3,
            momentum: Momentum::Keras(0.99),
            statistics: Statistics::Batch,
            scale: true,
            center: true,
            trained: true,
            layout,
        }
    }

    fn names(op: BatchNorm) -> Vec<String> {
        tensors(&Op::BatchNorm(op), video(2, 3, 3, 4)).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn half_of_keras_s_160_values_are_not_trained() {
        let specs = batch_norm(NormLayout::Keras).params(&video(12, 135, 240, 40));
        assert_eq!(values(&specs), 160);
        let (trained, fixed): (Vec<_>, Vec<_>) = specs.into_iter().partition(|spec| spec.trained);
        assert_eq!((values(&trained), values(&fixed)), (80, 80));
        let frozen = BatchNorm { trained: false, ..batch_norm(NormLayout::Keras) };
        assert!(frozen.params(&video(1, 1, 1, 4)).iter().all(|spec| !spec.trained));
    }

    #[test]
    fn tensors_have_the_user_s_names() {
        let pytorch = batch_norm(NormLayout::PyTorch);
        assert_eq!(names(pytorch.clone()), ["weight", "bias", "running_mean", "running_var"]);
        assert_eq!(names(batch_norm(NormLayout::Keras)), ["gamma", "beta", "moving_mean", "moving_variance"]);
        let plain = BatchNorm { scale: false, center: false, ..pytorch };
        assert_eq!(names(plain), ["running_mean", "running_var"]);
    }

    #[test]
    fn vectors_are_normalised_feature_by_feature() {
        let norm = batch_norm(NormLayout::PyTorch);
        let vectors = flat_frames(Order::PyTorch, video(6, 2, 3, 4));
        assert_eq!(norm.features(&vectors), 24);
        let weight = &norm.params(&vectors)[0];
        assert_eq!(weight.dims, [24]);
        assert_eq!(stored(weight, at(&[4, 2, 3], &[3, 1, 2])), at(&[2, 3, 4], &[1, 2, 3]));
        let op = Op::BatchNorm(norm);
        assert_eq!(output(&op, vectors), vectors);
        assert_eq!(output(&op, flat(Order::PyTorch, video(1, 1, 1, 9))).per_clip(), 9);
        let text = message(&op, &[flat(Order::PyTorch, video(6, 2, 3, 4))]);
        assert_eq!(text, "layer works on frames, but before has flattened its input (built-in model)");
    }

    #[test]
    fn shares_and_epsilons_that_no_norm_can_have_are_errors() {
        let of = |momentum, epsilon| Op::BatchNorm(BatchNorm { momentum, epsilon, ..batch_norm(NormLayout::PyTorch) });
        let input = [video(2, 3, 3, 4)];
        let text = message(&of(Momentum::PyTorch(1.5), 1e-5), &input);
        assert_eq!(text, "layer: momentum must be a number from 0 to 1, but is 1.5 (built-in model)");
        let text = message(&of(Momentum::PyTorchCumulative, f64::NAN), &input);
        assert_eq!(text, "layer: epsilon must be a number from 0 on, but is NaN (built-in model)");
    }

    #[test]
    fn batch_statistics_wait_for_the_whole_clip() {
        let input = video(5, 2, 2, 1);
        let time = |statistics| BatchNorm { statistics, ..batch_norm(NormLayout::Keras) }.time(&input, &input);
        assert_eq!(time(Statistics::Batch).emit(4), 0);
        assert_eq!(time(Statistics::Moving).emit(4), 4);
    }
}
