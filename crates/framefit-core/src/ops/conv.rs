use super::checks::{Windows, exactly, made_for, positive, splits_into, video_only};
use super::{BackwardReads, Layer, Operations};
use crate::axes::{Dims3, Shape};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec, StoredOrder};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// How the user's framework names and lays out a convolution's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvLayout {
    /// PyTorch's `Conv3d`: weight `[K,C/groups,kT,kH,kW]`.
    Conv3d,
    /// PyTorch's `Conv2d` on every frame: weight `[K,C/groups,kH,kW]`, kT = 1.
    Conv2d,
    /// Keras's `Conv3D`: kernel `[kT,kH,kW,C/groups,K]`.
    KerasConv3d,
    /// Keras's `Conv2D` on every frame: kernel `[kH,kW,C/groups,K]`, kT = 1.
    KerasConv2d,
}

impl ConvLayout {
    const fn of_frames(self) -> bool {
        match self {
            ConvLayout::Conv2d | ConvLayout::KerasConv2d => true,
            ConvLayout::Conv3d | ConvLayout::KerasConv3d => false,
        }
    }
}

/// x: `[T,N,H,W,C]`, w: `[K,kT,kH,kW,C/groups]`, bias: `[K]` -> y: `[T',N,H',W',K]`
///
/// Cross-correlation with zero padding, as PyTorch's `Conv3d` and Keras's `Conv3D`, or the two-dimensional ones on
/// every frame. Weights start as the framework of the layout has it: PyTorch U(−1/√fan_in, 1/√fan_in), Keras Glorot
/// uniform and a bias of zeros.
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
    /// Zeros before the first input.
    pub padding: Dims3,
    /// Zeros after the last input.
    pub padding_end: Dims3,
    /// Step between the taps of the kernel.
    pub dilation: Dims3,
    /// Input and output channels are split into this many separate convolutions.
    pub groups: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Names and extents of the user's tensors.
    pub layout: ConvLayout,
}

impl Conv3d {
    /// Stride 1, no dilation, one group, bias; padded so that odd kernels keep T, H and W.
    pub const fn same(in_channels: usize, out_channels: usize, kernel: Dims3) -> Self {
        let padding = Dims3 { t: kernel.t / 2, h: kernel.h / 2, w: kernel.w / 2 };
        Self {
            in_channels,
            out_channels,
            kernel,
            stride: Dims3::cube(1),
            padding,
            padding_end: padding,
            dilation: Dims3::cube(1),
            groups: 1,
            bias: true,
            layout: ConvLayout::Conv3d,
        }
    }

    /// PyTorch's `Conv2d` on every frame, without dilation, in one group, with bias. `kernel`, `stride` and
    /// `padding` are (height, width).
    pub const fn frames(
        in_channels: usize,
        out_channels: usize,
        kernel: (usize, usize),
        stride: (usize, usize),
        padding: (usize, usize),
    ) -> Self {
        let padding = Dims3 { t: 0, h: padding.0, w: padding.1 };
        Self {
            in_channels,
            out_channels,
            kernel: Dims3 { t: 1, h: kernel.0, w: kernel.1 },
            stride: Dims3 { t: 1, h: stride.0, w: stride.1 },
            padding,
            padding_end: padding,
            dilation: Dims3::cube(1),
            groups: 1,
            bias: true,
            layout: ConvLayout::Conv2d,
        }
    }

    fn group_channels(&self) -> usize {
        self.in_channels / self.groups
    }

    fn fan_in(&self) -> usize {
        self.group_channels().saturating_mul(self.kernel.volume())
    }

    fn windows(&self) -> Windows {
        Windows {
            kernel: self.kernel,
            stride: self.stride,
            before: self.padding,
            after: self.padding_end,
            dilation: self.dilation,
            ceil: false,
        }
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        if self.layout.of_frames() {
            exactly("the kernel of a convolution of frames along time", 1, self.kernel.t, at)?;
            exactly("the stride of a convolution of frames along time", 1, self.stride.t, at)?;
            exactly("the padding of a convolution of frames along time", 0, self.padding.t, at)?;
            exactly("the padding of a convolution of frames along time", 0, self.padding_end.t, at)?;
        }
        positive("the number of channels", &[self.in_channels, self.out_channels, self.groups], at)?;
        splits_into(self.in_channels, self.groups, at)?;
        splits_into(self.out_channels, self.groups, at)?;
        made_for("channels", self.in_channels, input.channels, at)?;
        Ok(input.resized(self.windows().output(input.dims, at)?, self.out_channels))
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        let (k, c, Dims3 { t, h, w }) = (self.out_channels, self.group_channels(), self.kernel);
        let torch = Initial::Uniform { fan_in: self.fan_in() };
        let glorot = Initial::GlorotUniform { fan_in: self.fan_in(), fan_out: k.saturating_mul(self.kernel.volume()) };
        let rows_first = || StoredOrder::of(&[k, c, t, h, w], &[0, 2, 3, 4, 1]);
        let rows_last = || StoredOrder::of(&[t, h, w, c, k], &[4, 0, 1, 2, 3]);
        let (name, dims, stored, initial, bias) = match self.layout {
            ConvLayout::Conv3d => ("weight", vec![k, c, t, h, w], rows_first(), torch, torch),
            ConvLayout::Conv2d => ("weight", vec![k, c, h, w], rows_first(), torch, torch),
            ConvLayout::KerasConv3d => ("kernel", vec![t, h, w, c, k], rows_last(), glorot, Initial::Zeros),
            ConvLayout::KerasConv2d => ("kernel", vec![h, w, c, k], rows_last(), glorot, Initial::Zeros),
        };
        let mut params = vec![ParamSpec { name: name.into(), dims, stored, initial, trained: true }];
        if self.bias {
            params.push(ParamSpec::vector("bias", k, bias));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        self.windows().time(input.dims.t, output.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        Operations::product(2 * (output.per_clip() as u64) * self.fan_in() as u64)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.layout {
            ConvLayout::Conv3d => "Conv3d",
            ConvLayout::Conv2d => "Conv2d",
            ConvLayout::KerasConv3d => "Conv3D",
            ConvLayout::KerasConv2d => "Conv2D",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{at, dims, message, output, stored, tensors, video};
    use super::super::{Op, same};
    use super::*;

    #[test]
    fn keras_same_gives_as_many_outputs_as_strides_start_in_the_input() {
        for input in 1..9usize {
            for kernel in 1..5 {
                for stride in 1..4 {
                    for dilation in 1..3 {
                        let (before, after) = same(input, kernel, stride, dilation);
                        let op = Op::Conv3d(Conv3d {
                            kernel: dims(kernel, kernel, 1),
                            stride: dims(stride, stride, 1),
                            padding: dims(before, before, 0),
                            padding_end: dims(after, after, 0),
                            dilation: dims(dilation, dilation, 1),
                            layout: ConvLayout::KerasConv3d,
                            ..Conv3d::same(2, 3, Dims3::cube(1))
                        });
                        let outputs = input.div_ceil(stride);
                        let case = (input, kernel, stride, dilation);
                        assert_eq!(output(&op, video(input, input, 5, 2)), video(outputs, outputs, 5, 3), "{case:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_layout_is_stored_alike() {
        let (k, c, kernel) = (4, 3, dims(1, 2, 5));
        for (layout, name, extents) in [
            (ConvLayout::Conv3d, "weight", vec![k, c, 1, 2, 5]),
            (ConvLayout::Conv2d, "weight", vec![k, c, 2, 5]),
            (ConvLayout::KerasConv3d, "kernel", vec![1, 2, 5, c, k]),
            (ConvLayout::KerasConv2d, "kernel", vec![2, 5, c, k]),
        ] {
            let op = Op::Conv3d(Conv3d { layout, ..Conv3d::same(c, k, kernel) });
            let input = video(6, 8, 8, c);
            assert_eq!(tensors(&op, input), [(name.to_owned(), extents.clone()), ("bias".to_owned(), vec![k])]);
            let specs = op.params(&input);
            assert_eq!(specs[0].stored.dims(), [k, 1, 2, 5, c]);
            let (of_k, of_c, of_h, of_w) = (3, 1, 1, 4);
            let user = match layout {
                ConvLayout::Conv3d => vec![of_k, of_c, 0, of_h, of_w],
                ConvLayout::Conv2d => vec![of_k, of_c, of_h, of_w],
                ConvLayout::KerasConv3d => vec![0, of_h, of_w, of_c, of_k],
                ConvLayout::KerasConv2d => vec![of_h, of_w, of_c, of_k],
            };
            let place = at(&[k, 1, 2, 5, c], &[of_k, 0, of_h, of_w, of_c]);
            assert_eq!(stored(&specs[0], at(&extents, &user)), place, "{layout:?}");
        }
    }

    #[test]
    fn weights_start_as_in_the_framework() {
        let specs = |layout| {
            let conv = Conv3d { layout, groups: 2, ..Conv3d::same(4, 6, Dims3::cube(3)) };
            conv.params(&video(1, 1, 1, 4))
        };
        let torch = specs(ConvLayout::Conv3d);
        assert_eq!(torch[0].initial, Initial::Uniform { fan_in: 2 * 27 });
        assert_eq!(torch[1].initial, Initial::Uniform { fan_in: 2 * 27 });
        let keras = specs(ConvLayout::KerasConv3d);
        assert_eq!(keras[0].initial, Initial::GlorotUniform { fan_in: 27 * 2, fan_out: 27 * 6 });
        assert_eq!(keras[1].initial, Initial::Zeros);
    }

    #[test]
    fn a_convolution_of_frames_leaves_time_alone() {
        let frames = Conv3d::frames(3, 8, (3, 5), (2, 1), (1, 2));
        let op = Op::Conv3d(frames.clone());
        let input = video(7, 9, 9, 3);
        let made = output(&op, input);
        assert_eq!(made, video(7, 5, 9, 8));
        assert_eq!(op.time(&input, &made), TimeMap::identity(7));
        let deep = Op::Conv3d(Conv3d { kernel: dims(3, 3, 5), ..frames });
        let text = message(&deep, &[input]);
        assert_eq!(
            text,
            "layer: the kernel of a convolution of frames along time must be 1, but is 3 (built-in model)"
        );
    }

    #[test]
    fn settings_beyond_counting_are_errors_not_overflows() {
        let huge = usize::MAX / 2;
        let conv =
            Conv3d { kernel: Dims3::cube(huge), dilation: Dims3::cube(huge), ..Conv3d::same(3, 4, Dims3::cube(3)) };
        assert!(message(&Op::Conv3d(conv.clone()), &[video(4, 4, 4, 3)]).starts_with("layer needs at least"));
        assert_eq!(conv.fan_in(), usize::MAX);
    }
}
