use super::{BackwardReads, Layer, Operations, positive, video_only, windowed_extent};
use crate::axes::{Axis, Dims3, Shape};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec, StoredOrder};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// x: `[T,N,H,W,C]`, w: `[K,kT,kH,kW,C/groups]`, bias: `[K]` -> y: `[T',N,H',W',K]`
///
/// Cross-correlation with zero padding, as PyTorch's `Conv3d`. The user's weight is `[K,C/groups,kT,kH,kW]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv3d {
    /// C, the channels it was made for.
    pub in_channels: usize,
    /// K.
    pub out_channels: usize,
    /// kT, kH, kW.
    pub kernel: Dims3,
    /// Step between outputs.
    pub stride: Dims3,
    /// Zeros on either side.
    pub padding: Dims3,
    /// Step between the taps of the kernel.
    pub dilation: Dims3,
    /// Input and output channels are split into this many separate convolutions.
    pub groups: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Conv3d {
    /// Stride 1, no dilation, one group, bias; padded so that odd kernels keep T, H and W.
    pub const fn same(in_channels: usize, out_channels: usize, kernel: Dims3) -> Self {
        Self {
            in_channels,
            out_channels,
            kernel,
            stride: Dims3::cube(1),
            padding: Dims3 { t: kernel.t / 2, h: kernel.h / 2, w: kernel.w / 2 },
            dilation: Dims3::cube(1),
            groups: 1,
            bias: true,
        }
    }

    fn fan_in(&self) -> usize {
        self.in_channels / self.groups * self.kernel.volume()
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        let Self { kernel: k, stride: s, padding: p, dilation: d, .. } = *self;
        positive("the kernel", &[k.t, k.h, k.w], at)?;
        positive("the stride", &[s.t, s.h, s.w], at)?;
        positive("the dilation", &[d.t, d.h, d.w], at)?;
        positive("the number of channels", &[self.in_channels, self.out_channels, self.groups], at)?;
        for channels in [self.in_channels, self.out_channels] {
            if !channels.is_multiple_of(self.groups) {
                return Err(ShapeError::Invalid {
                    layer: at.name.to_owned(),
                    what: "the number of channels",
                    rule: format!("a multiple of its {} groups", self.groups),
                    got: channels,
                    origin: at.origin.clone(),
                });
            }
        }
        if input.channels != self.in_channels {
            return Err(ShapeError::Mismatch {
                layer: at.name.to_owned(),
                what: "channels",
                want: self.in_channels,
                got: input.channels,
                origin: at.origin.clone(),
            });
        }
        let dims = Dims3 {
            t: windowed_extent(Axis::Time, input.dims.t, (k.t, s.t, p.t, d.t), at)?,
            h: windowed_extent(Axis::Height, input.dims.h, (k.h, s.h, p.h, d.h), at)?,
            w: windowed_extent(Axis::Width, input.dims.w, (k.w, s.w, p.w, d.w), at)?,
        };
        Ok(Shape::video(dims, self.out_channels))
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        let initial = Initial::Uniform { fan_in: self.fan_in() };
        let weight = ParamSpec {
            name: "weight",
            dims: vec![self.out_channels, self.in_channels / self.groups, self.kernel.t, self.kernel.h, self.kernel.w],
            stored: StoredOrder::of(
                &[self.out_channels, self.in_channels / self.groups, self.kernel.t, self.kernel.h, self.kernel.w],
                &[0, 2, 3, 4, 1],
            ),
            initial,
            trained: true,
        };
        let mut params = vec![weight];
        if self.bias {
            params.push(ParamSpec::vector("bias", self.out_channels, initial));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        TimeMap {
            kernel: self.kernel.t,
            stride: self.stride.t,
            padding: self.padding.t,
            dilation: self.dilation.t,
            frames: input.dims.t,
            outputs: output.dims.t,
        }
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: true, output: false }
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        let one = 2 * (output.per_clip() as u64) * self.fan_in() as u64;
        Operations { forward: one, input_gradient: one, weight_gradient: one }
    }
}
