use super::{BackwardReads, Layer, Operations, video_only};
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
        Ok(Shape::video(Dims3 { t: input.dims.t, h: 1, w: 1 }, input.channels))
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
        BackwardReads { input: true, output: false }
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        let each = 3 * input.per_clip() as u64;
        Operations { forward: each, input_gradient: each, weight_gradient: 0 }
    }
}
