use super::{BackwardReads, Layer, Operations, positive, video_only, windowed_extent};
use crate::axes::{Axis, Dims3, Shape};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec, StoredOrder};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// The function of a cell's gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateFunction {
    /// 1/(1 + e⁻ˣ).
    Sigmoid,
    /// relu6(x + 3)/6: Keras 3's and PyTorch's.
    HardSigmoid,
    /// min(max(0.2x + 0.5, 0), 1): Keras 2's.
    HardSigmoidKeras2,
}

/// The function of a cell's candidate and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateFunction {
    /// tanh x.
    Tanh,
    /// max(x, 0).
    Relu,
}

/// x: `[T,N,H,W,C]`, kernel: `[4K,1,kH,kW,C]`, recurrent kernel: `[4K,1,kH,kW,K]`, bias: `[4K]` -> y: `[T,N,H',W',K]`
///
/// Keras's `ConvLSTM2D` with `return_sequences=True`: gates in the order i, f, g, o by a convolution of the
/// frame and one of the state before, which is padded to keep its extents. The user's kernels are
/// `[kH,kW,C,4K]` and `[kH,kW,K,4K]`. State: (h, c).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvLstm2d {
    /// C, the channels it was made for.
    pub in_channels: usize,
    /// K.
    pub filters: usize,
    /// kH and kW; the extent along time is 1.
    pub kernel: Dims3,
    /// Step between outputs of the frame's convolution.
    pub stride: Dims3,
    /// Zeros on either side of the frame; (k−1)/2 is Keras's `same` for odd kernels and stride 1, 0 is `valid`.
    pub padding: Dims3,
    /// Of the candidate and the state.
    pub activation: StateFunction,
    /// Of the gates.
    pub recurrent_activation: GateFunction,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the bias of the forget gate starts at one.
    pub unit_forget_bias: bool,
}

impl ConvLstm2d {
    /// 4K.
    pub fn gates(&self) -> usize {
        4 * self.filters
    }

    /// The padding of the state's convolution, which keeps its extents.
    pub fn recurrent_padding(&self) -> Dims3 {
        Dims3 { t: 0, h: self.kernel.h / 2, w: self.kernel.w / 2 }
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        let Self { kernel: k, stride: s, padding: p, .. } = *self;
        positive("the kernel", &[k.h, k.w], at)?;
        positive("the stride", &[s.h, s.w], at)?;
        positive("the number of filters", &[self.filters, self.in_channels], at)?;
        for extent in [k.h, k.w] {
            if extent % 2 == 0 {
                return Err(ShapeError::Invalid {
                    layer: at.name.to_owned(),
                    what: "the kernel",
                    rule: "odd".to_owned(),
                    got: extent,
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
            t: input.dims.t,
            h: windowed_extent(Axis::Height, input.dims.h, (k.h, s.h, p.h, 1), at)?,
            w: windowed_extent(Axis::Width, input.dims.w, (k.w, s.w, p.w, 1), at)?,
        };
        Ok(Shape::video(dims, self.filters))
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        let (h, w, gates) = (self.kernel.h, self.kernel.w, self.gates());
        let kernel = |name, channels: usize, initial| {
            let dims = vec![h, w, channels, gates];
            let stored = StoredOrder::of(&dims, &[3, 0, 1, 2]);
            ParamSpec { name, dims, stored, initial, trained: true }
        };
        let glorot = Initial::GlorotUniform { fan_in: h * w * self.in_channels, fan_out: h * w * gates };
        let orthogonal = Initial::Orthogonal { columns: gates };
        let mut params =
            vec![kernel("kernel", self.in_channels, glorot), kernel("recurrent_kernel", self.filters, orthogonal)];
        if self.bias {
            let initial = match self.unit_forget_bias {
                true => Initial::OnesWithin { from: self.filters, to: 2 * self.filters },
                false => Initial::Zeros,
            };
            params.push(ParamSpec::vector("bias", gates, initial));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: true, output: true }
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        let taps = self.kernel.volume() * (self.in_channels + self.filters);
        let one = 2 * (output.per_clip() as u64) * 4 * taps as u64;
        Operations { forward: one, input_gradient: one, weight_gradient: one }
    }
}
