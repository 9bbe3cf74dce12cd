//! From a layer to the kernels that compute it: their shapes, their rows, their scratch.

use super::Element;
use framefit_core::ops::{Conv3d, ConvLstm2d, Dense, GateFunction, Linear, MaxPool3d, StateFunction};
use framefit_core::schedule::{KernelRequest, Pass, Workspaces};
use framefit_core::{DType, Op, Shape, axes};
use framefit_kernels::activation::Activation;
use framefit_kernels::conv::{ConvShape, Dims3, Window};
use framefit_kernels::linear::LinearShape;
use framefit_kernels::mean::MeanShape;
use framefit_kernels::norm::ChannelShape;
use framefit_kernels::pooling::PoolShape;
use framefit_kernels::recurrent::{CellActivations, CellShape};
use framefit_kernels::{Isa, choose};

/// Which rows of the kernel tables are used, and on how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The most recent instruction set that may be used.
    pub isa: Isa,
    /// Threads, the caller's among them.
    pub threads: usize,
}

impl Kernels {
    /// Everything this machine has.
    pub fn best() -> Self {
        Self { isa: Isa::best(), threads: std::thread::available_parallelism().map_or(1, usize::from) }
    }
}

/// A layer at work: its op, the clips and the windows.
pub(super) struct Layer<'a> {
    pub(super) clips: usize,
    pub(super) input: &'a Shape,
    pub(super) output: &'a Shape,
    pub(super) read: axes::Window,
    pub(super) made: axes::Window,
}

fn dims(d: axes::Dims3) -> Dims3 {
    Dims3 { t: d.t, h: d.h, w: d.w }
}

fn window(w: axes::Window) -> Window {
    Window { lo: w.lo, hi: w.hi }
}

impl Layer<'_> {
    pub(super) fn conv(&self, op: &Conv3d) -> ConvShape {
        ConvShape {
            clips: self.clips,
            channels: op.in_channels,
            out_channels: op.out_channels,
            groups: op.groups,
            input: dims(self.input.dims),
            output: dims(self.output.dims),
            kernel: dims(op.kernel),
            stride: dims(op.stride),
            padding: dims(op.padding),
            dilation: dims(op.dilation),
            x: window(self.read),
            y: window(self.made),
        }
    }

    pub(super) fn pool(&self, op: &MaxPool3d) -> PoolShape {
        PoolShape {
            clips: self.clips,
            channels: self.input.channels,
            input: dims(self.input.dims),
            output: dims(self.output.dims),
            kernel: dims(op.kernel),
            stride: dims(op.stride),
            padding: dims(op.padding),
            x: window(self.read),
            y: window(self.made),
        }
    }

    pub(super) fn mean(&self) -> MeanShape {
        MeanShape {
            clips: self.clips,
            frames: self.read.len(),
            positions: self.input.dims.h * self.input.dims.w,
            channels: self.input.channels,
        }
    }

    /// The convolution of the frames, one by one or all of a window, to the gates.
    pub(super) fn gates(&self, op: &ConvLstm2d) -> ConvShape {
        ConvShape {
            clips: self.clips,
            channels: op.in_channels,
            out_channels: op.gates(),
            groups: 1,
            input: dims(self.input.dims),
            output: Dims3 { t: self.input.dims.t, ..dims(self.output.dims) },
            kernel: dims(op.kernel),
            stride: dims(op.stride),
            padding: dims(op.padding),
            dilation: Dims3::cube(1),
            x: window(self.read),
            y: window(self.made),
        }
    }

    /// The convolution of the states `h` to the gates of the frames after them: frame t of the gates reads
    /// frame t of h, which is the state before it.
    pub(super) fn recurrence(&self, op: &ConvLstm2d, frames: usize) -> ConvShape {
        let extents = Dims3 { t: frames, ..dims(self.output.dims) };
        ConvShape {
            clips: self.clips,
            channels: op.filters,
            out_channels: op.gates(),
            groups: 1,
            input: extents,
            output: extents,
            kernel: dims(op.kernel),
            stride: Dims3::cube(1),
            padding: dims(op.recurrent_padding()),
            dilation: Dims3::cube(1),
            x: Window { lo: 0, hi: frames },
            y: Window { lo: 0, hi: frames },
        }
    }

    /// One frame of the same window.
    pub(super) fn frame(&self, t: usize) -> Layer<'_> {
        let one = axes::Window { lo: t, hi: t + 1 };
        Layer { clips: self.clips, input: self.input, output: self.output, read: one, made: one }
    }

    /// The pointwise part of a recurrent layer for one frame.
    pub(super) fn cell(&self, op: &ConvLstm2d) -> CellShape {
        CellShape { positions: self.clips * self.output.dims.h * self.output.dims.w, units: op.filters }
    }

    /// The same matrix at every position of the window: a convolution with one tap.
    pub(super) fn dense(&self, op: &Dense) -> ConvShape {
        ConvShape {
            clips: self.clips,
            channels: op.in_channels,
            out_channels: op.units,
            groups: 1,
            input: dims(self.input.dims),
            output: dims(self.output.dims),
            kernel: Dims3::cube(1),
            stride: Dims3::cube(1),
            padding: Dims3::cube(0),
            dilation: Dims3::cube(1),
            x: window(self.read),
            y: window(self.made),
        }
    }

    /// The mean of one frame.
    pub(super) fn frame_mean(&self) -> MeanShape {
        MeanShape { frames: 1, ..self.mean() }
    }

    /// Channels over the window.
    pub(super) fn channels(&self) -> ChannelShape {
        let positions = self.input.dims.h * self.input.dims.w;
        ChannelShape { rows: self.read.len() * self.clips * positions, channels: self.input.channels }
    }

    pub(super) fn linear(&self, op: &Linear) -> LinearShape {
        LinearShape {
            clips: self.clips,
            frames: self.read.len(),
            features: self.input.per_frame(),
            out_features: op.out_features,
        }
    }
}

pub(super) fn cell_activations(op: &ConvLstm2d) -> CellActivations {
    CellActivations {
        state: match op.activation {
            StateFunction::Tanh => Activation::Tanh,
            StateFunction::Relu => Activation::Relu,
        },
        gate: match op.recurrent_activation {
            GateFunction::Sigmoid => Activation::Sigmoid,
            GateFunction::HardSigmoid => Activation::HardSigmoid,
            GateFunction::HardSigmoidKeras2 => Activation::HardSigmoidKeras2,
        },
    }
}

impl Kernels {
    /// Scratch of one call, in elements.
    fn scratch<E: Element>(&self, request: &KernelRequest<'_>) -> usize {
        let layer = Layer {
            clips: request.clips,
            input: request.input,
            output: request.output,
            read: request.read,
            made: request.made,
        };
        let (isa, threads) = (self.isa, self.threads);
        macro_rules! scratch {
            ($shape:expr, $table:ident) => {{
                let shape = $shape;
                (choose(E::$table(), isa, &shape).scratch)(&shape, threads)
            }};
        }
        match (request.op, request.pass) {
            (Op::Conv3d(op), Pass::Forward) => scratch!(layer.conv(op), conv_forward),
            (Op::Conv3d(op), Pass::InputGradient) => scratch!(layer.conv(op), conv_input_gradient),
            (Op::Conv3d(op), Pass::WeightGradient) => scratch!(layer.conv(op), conv_weight_gradient),
            (Op::MaxPool3d(op), Pass::Forward) => scratch!(layer.pool(op), max_pool_forward),
            (Op::MaxPool3d(op), Pass::InputGradient) => scratch!(layer.pool(op), max_pool_backward),
            (Op::GlobalAvgPool3d(_), Pass::Forward) => scratch!(layer.mean(), mean_forward),
            (Op::GlobalAvgPool3d(_), Pass::InputGradient) => scratch!(layer.mean(), mean_backward),
            (Op::Linear(op), Pass::Forward) => scratch!(layer.linear(op), linear_forward),
            (Op::Linear(op), Pass::InputGradient) => scratch!(layer.linear(op), linear_input_gradient),
            (Op::Linear(op), Pass::WeightGradient) => scratch!(layer.linear(op), linear_weight_gradient),
            (Op::Dense(op), Pass::Forward) => scratch!(layer.dense(op), conv_forward),
            (Op::Dense(op), Pass::InputGradient) => scratch!(layer.dense(op), conv_input_gradient),
            (Op::Dense(op), Pass::WeightGradient) => scratch!(layer.dense(op), conv_weight_gradient),
            (Op::ConvLstm2d(op), Pass::Forward) => {
                // A frame's gates where they are not kept, the state's share of them, and the convolutions'.
                let of_x = scratch!(layer.frame(request.made.lo).gates(op), conv_forward);
                let of_h = scratch!(layer.recurrence(op, 1), conv_forward);
                2 * aligned::<E>(4 * layer.cell(op).len()) + of_x.max(of_h)
            }
            (Op::ConvLstm2d(op), Pass::State) => {
                let of_h = scratch!(layer.recurrence(op, 1), conv_input_gradient);
                aligned::<E>(layer.cell(op).len()) + of_h
            }
            (Op::ConvLstm2d(op), Pass::InputGradient) => scratch!(layer.gates(op), conv_input_gradient),
            (Op::ConvLstm2d(op), Pass::WeightGradient) => {
                let of_x = scratch!(layer.gates(op), conv_weight_gradient);
                let of_one = scratch!(layer.recurrence(op, 1), conv_weight_gradient);
                let rest = request.made.len().max(2) - 1;
                of_x.max(of_one).max(scratch!(layer.recurrence(op, rest), conv_weight_gradient))
            }
            (Op::NormMean(_), Pass::Forward) => {
                let means = scratch!(layer.frame_mean(), mean_forward);
                means.max(scratch!(layer.channels(), channel_moments))
            }
            (Op::NormMean(_), Pass::InputGradient) => layer.input.channels,
            (Op::Relu(_) | Op::Flatten(_), _)
            | (Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::NormMean(_), Pass::WeightGradient | Pass::State)
            | (Op::Conv3d(_) | Op::Linear(_) | Op::Dense(_), Pass::State) => 0,
        }
    }
}

/// Elements rounded up to a cache line.
pub(super) fn aligned<E>(elements: usize) -> usize {
    elements.next_multiple_of(64 / size_of::<E>())
}

impl Workspaces for Kernels {
    fn bytes(&self, request: &KernelRequest<'_>) -> usize {
        match request.dtype {
            DType::F64 => self.scratch::<f64>(request) * DType::F64.bytes(),
            DType::F32 => self.scratch::<f32>(request) * DType::F32.bytes(),
            DType::U8 | DType::U32 => 0,
        }
    }
}
