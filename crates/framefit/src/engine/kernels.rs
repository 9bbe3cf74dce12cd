//! From a layer to the kernels that compute it: their shapes, their rows, their scratch.

use super::Element;
use framefit_core::ops::{Conv3d, Linear, MaxPool3d};
use framefit_core::schedule::{KernelRequest, Pass, Workspaces};
use framefit_core::{DType, Op, Shape, axes};
use framefit_kernels::conv::{ConvShape, Dims3, Window};
use framefit_kernels::linear::LinearShape;
use framefit_kernels::mean::MeanShape;
use framefit_kernels::pooling::PoolShape;
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

    pub(super) fn linear(&self, op: &Linear) -> LinearShape {
        LinearShape {
            clips: self.clips,
            frames: self.read.len(),
            features: self.input.per_frame(),
            out_features: op.out_features,
        }
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
            (Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_), Pass::WeightGradient) | (Op::Relu(_) | Op::Flatten(_), _) => 0,
        }
    }
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
