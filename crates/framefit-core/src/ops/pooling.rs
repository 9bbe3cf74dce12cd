use super::{BackwardReads, Layer, Operations, positive, video_only, windowed_extent};
use crate::axes::{Axis, Dims3, Shape};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// x: `[T,N,H,W,C]` -> y: `[T',N,H',W',C]`
///
/// Maximum over each window; padding counts as −∞, as PyTorch's `MaxPool3d`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPool3d {
    /// kT, kH, kW.
    pub kernel: Dims3,
    /// Step between windows.
    pub stride: Dims3,
    /// Positions outside that a window may cover, at most half the kernel.
    pub padding: Dims3,
}

impl MaxPool3d {
    /// Windows side by side, without padding.
    pub const fn tiles(kernel: Dims3) -> Self {
        Self { kernel, stride: kernel, padding: Dims3::cube(0) }
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        let Self { kernel: k, stride: s, padding: p } = *self;
        positive("the kernel", &[k.t, k.h, k.w], at)?;
        positive("the stride", &[s.t, s.h, s.w], at)?;
        for ((axis, padding), (_, kernel)) in p.by_axis().into_iter().zip(k.by_axis()) {
            if padding > kernel / 2 {
                return Err(ShapeError::Invalid {
                    layer: at.name.to_owned(),
                    what: "the padding",
                    rule: format!("at most half the kernel ({}) along {axis}", kernel / 2),
                    got: padding,
                    origin: at.origin.clone(),
                });
            }
        }
        let dims = Dims3 {
            t: windowed_extent(Axis::Time, input.dims.t, (k.t, s.t, p.t, 1), at)?,
            h: windowed_extent(Axis::Height, input.dims.h, (k.h, s.h, p.h, 1), at)?,
            w: windowed_extent(Axis::Width, input.dims.w, (k.w, s.w, p.w, 1), at)?,
        };
        Ok(Shape::video(dims, input.channels))
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        TimeMap {
            kernel: self.kernel.t,
            stride: self.stride.t,
            padding: self.padding.t,
            dilation: 1,
            frames: input.dims.t,
            outputs: output.dims.t,
        }
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: true, output: false }
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        let comparisons = (output.per_clip() * self.kernel.volume()) as u64;
        Operations { forward: comparisons, input_gradient: comparisons, weight_gradient: 0 }
    }
}

/// x: `[T,N,H,W,C]` -> y: `[1,N,1,1,C]`
///
/// The mean over T, H and W: PyTorch's `AdaptiveAvgPool3d(1)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalAvgPool3d;

impl GlobalAvgPool3d {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        Ok(Shape::video(Dims3::cube(1), input.channels))
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::whole(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: false, output: false }
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        let adds = input.per_clip() as u64;
        Operations { forward: adds, input_gradient: adds, weight_gradient: 0 }
    }
}
