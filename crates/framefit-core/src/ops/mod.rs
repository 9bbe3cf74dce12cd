//! The ops of a graph. One file per family; each holds, side by side, the output's shape, the parameters,
//! the time arithmetic, what backward reads, and the operations.

mod activation;
mod branches;
mod checks;
mod conv;
mod dropout;
mod features;
mod flatten;
mod frames;
mod group_norm;
mod linear;
mod norm;
mod pooling;
mod recurrent;
#[cfg(test)]
mod testing;

pub use activation::{Activation, Function, Relu};
pub use branches::{Add, Concat};
pub use conv::{Conv3d, ConvLayout};
pub use dropout::{Dropout, DropoutUnit};
pub use flatten::Flatten;
pub use frames::{LastFrame, Reverse};
pub use group_norm::{GroupNorm, LayerNorm, LayerNormOver};
pub use linear::{Dense, Linear, LinearLayout};
pub use norm::{BatchNorm, Momentum, NormLayout, NormMean, Statistics};
pub use pooling::{AdaptivePool3d, AvgPool3d, GlobalAvgPool3d, MaxPool3d, PoolKind};
pub use recurrent::{Cell, GateFunction, GateOrder, Recurrent, RecurrentLayout, StateFunction};

use crate::axes::Shape;
use crate::error::ShapeError;
use crate::graph::{Origin, ParamSpec};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// What a layer does. Closed: a new op makes the compiler list the places that must know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Convolution over time and space.
    Conv3d(Conv3d),
    /// Maximum over windows of time and space.
    MaxPool3d(MaxPool3d),
    /// Mean over windows of time and space.
    AvgPool3d(AvgPool3d),
    /// Mean or maximum over windows that give an output of one size.
    AdaptivePool3d(AdaptivePool3d),
    /// Mean over all of time and space.
    GlobalAvgPool3d(GlobalAvgPool3d),
    /// max(x, 0).
    Relu(Relu),
    /// Another function of each element.
    Activation(Activation),
    /// One vector per clip, or per frame.
    Flatten(Flatten),
    /// Matrix product with a vector per clip.
    Linear(Linear),
    /// Matrix product at every frame and position.
    Dense(Dense),
    /// LSTM or GRU over the frames, of features or convolutional.
    Recurrent(Recurrent),
    /// Batch normalisation and the mean of each frame.
    NormMean(NormMean),
    /// Batch normalisation.
    BatchNorm(BatchNorm),
    /// Normalisation of groups of a clip's or a frame's channels.
    GroupNorm(GroupNorm),
    /// Normalisation of each position or frame.
    LayerNorm(LayerNorm),
    /// Random zeros while training.
    Dropout(Dropout),
    /// The sum of values.
    Add(Add),
    /// Values side by side along the channels.
    Concat(Concat),
    /// The frames from last to first.
    Reverse(Reverse),
    /// The last frame.
    LastFrame(LastFrame),
}

/// How an op takes a clip that comes in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// It makes outputs as the frames of their windows come.
    Frames,
    /// It takes its share of every frame as it comes, holds no frame, and makes its output when the clip is over.
    Sum,
    /// It makes an output of every frame and a state, which it hands to the next.
    Recurrent,
    /// It needs the whole clip before it makes its first output.
    Barrier,
}

/// The layer that an error is about.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where the user wrote it.
    pub origin: &'a Origin,
    /// The name of the layer whose output it reads, of several the first.
    pub before: &'a str,
}

/// Which of a node's own values its backward reads, besides the gradient of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardReads {
    /// Its input.
    pub input: bool,
    /// Its output.
    pub output: bool,
}

impl BackwardReads {
    const NONE: Self = Self { input: false, output: false };
    const INPUT: Self = Self { input: true, output: false };
    const OUTPUT: Self = Self { input: false, output: true };
}

/// Floating-point operations of one clip (a multiply-add counts as two).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Output from input.
    pub forward: u64,
    /// Gradient of the input.
    pub input_gradient: u64,
    /// Gradients of the parameters.
    pub weight_gradient: u64,
}

impl Operations {
    /// A product with weights, whose two gradients cost as much again each.
    fn product(one: u64) -> Self {
        Self { forward: one, input_gradient: one, weight_gradient: one }
    }

    /// So many operations per element, forward and back.
    fn pointwise(each: u64, shape: &Shape) -> Self {
        let all = each * shape.per_clip() as u64;
        Self { forward: all, input_gradient: all, weight_gradient: 0 }
    }
}

macro_rules! each_op {
    ($self:expr, $op:ident => $one:expr, several $several:expr) => {
        match $self {
            Op::Conv3d($op) => $one,
            Op::MaxPool3d($op) => $one,
            Op::AvgPool3d($op) => $one,
            Op::AdaptivePool3d($op) => $one,
            Op::GlobalAvgPool3d($op) => $one,
            Op::Relu($op) => $one,
            Op::Activation($op) => $one,
            Op::Flatten($op) => $one,
            Op::Linear($op) => $one,
            Op::Dense($op) => $one,
            Op::Recurrent($op) => $one,
            Op::NormMean($op) => $one,
            Op::BatchNorm($op) => $one,
            Op::GroupNorm($op) => $one,
            Op::LayerNorm($op) => $one,
            Op::Dropout($op) => $one,
            Op::Reverse($op) => $one,
            Op::LastFrame($op) => $one,
            Op::Add($op) => $several,
            Op::Concat($op) => $several,
        }
    };
    ($self:expr, $op:ident => $body:expr) => {
        each_op!($self, $op => $body, several $body)
    };
}

impl Op {
    /// The op's name, as the framework of its layout calls it, PyTorch where it has none.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Conv3d(op) => op.kind(),
            Op::MaxPool3d(_) => "MaxPool3d",
            Op::AvgPool3d(_) => "AvgPool3d",
            Op::AdaptivePool3d(op) => op.kind(),
            Op::GlobalAvgPool3d(_) => "AdaptiveAvgPool3d",
            Op::Relu(_) => "ReLU",
            Op::Activation(op) => op.function.kind(),
            Op::Flatten(_) => "Flatten",
            Op::Linear(op) => op.kind(),
            Op::Dense(op) => op.kind(),
            Op::Recurrent(op) => op.kind(),
            Op::NormMean(_) => "BatchNormalization, AveragePooling3D",
            Op::BatchNorm(op) => op.kind(),
            Op::GroupNorm(_) => "GroupNorm",
            Op::LayerNorm(op) => op.kind(),
            Op::Dropout(op) => op.kind(),
            Op::Add(_) => "Add",
            Op::Concat(_) => "Concat",
            Op::Reverse(_) => "Reverse",
            Op::LastFrame(_) => "LastFrame",
        }
    }

    /// How many values it reads.
    pub fn arity(&self) -> RangeInclusive<usize> {
        each_op!(self, _op => 1..=1, several 2..=usize::MAX)
    }

    /// The shape of the output of as many inputs as [`Op::arity`] allows.
    ///
    /// # Errors
    /// When the inputs do not fit the op.
    pub fn output(&self, inputs: &[Shape], at: Layer<'_>) -> Result<Shape, ShapeError> {
        each_op!(self, op => op.output(&inputs[0], at), several op.output(inputs, at))
    }

    /// The parameters, given the first input: weight, recurrent weight, bias, recurrent bias; of norms scale,
    /// center, mean, variance.
    pub fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        each_op!(self, op => op.params(input))
    }

    /// Which frames the op reads and when it can emit.
    pub fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        each_op!(self, op => op.time(input, output))
    }

    /// What backward reads.
    pub fn backward_reads(&self) -> BackwardReads {
        each_op!(self, op => op.backward_reads())
    }

    /// Operations for one clip.
    pub fn operations(&self, input: &Shape, output: &Shape) -> Operations {
        each_op!(self, op => op.operations(input, output))
    }

    /// How it takes a clip that comes in segments.
    pub fn fold(&self) -> Fold {
        match self {
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::AvgPool3d(_)
            | Op::AdaptivePool3d(_)
            | Op::Relu(_)
            | Op::Activation(_)
            | Op::Flatten(_)
            | Op::Dense(_)
            | Op::LayerNorm(_)
            | Op::Dropout(_)
            | Op::Add(_)
            | Op::Concat(_) => Fold::Frames,
            Op::GlobalAvgPool3d(_) | Op::Linear(_) | Op::NormMean(_) | Op::LastFrame(_) => Fold::Sum,
            Op::Recurrent(_) => Fold::Recurrent,
            Op::Reverse(_) => Fold::Barrier,
            Op::BatchNorm(op) => op.fold(),
            Op::GroupNorm(op) => op.fold(),
        }
    }

    /// Whether it takes its share of every frame as it comes, holds no frame, and makes its output when the clip
    /// is over.
    pub fn sums_over_time(&self) -> bool {
        self.fold() == Fold::Sum
    }

    /// Whether it hands a state from frame to frame.
    pub fn is_recurrent(&self) -> bool {
        self.fold() == Fold::Recurrent
    }

    /// Whether its kernel can apply the ReLU after it.
    pub fn has_relu_epilogue(&self) -> bool {
        match self {
            Op::Conv3d(_) | Op::Linear(_) | Op::BatchNorm(_) => true,
            Op::GroupNorm(op) => !op.per_frame,
            Op::MaxPool3d(_)
            | Op::AvgPool3d(_)
            | Op::AdaptivePool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Activation(_)
            | Op::Flatten(_)
            | Op::Dense(_)
            | Op::Recurrent(_)
            | Op::NormMean(_)
            | Op::LayerNorm(_)
            | Op::Dropout(_)
            | Op::Add(_)
            | Op::Concat(_)
            | Op::Reverse(_)
            | Op::LastFrame(_) => false,
        }
    }

    /// Whether the output can lie in the input's own bytes.
    pub fn in_place(&self) -> bool {
        match self {
            Op::Relu(_) | Op::Flatten(_) | Op::Dropout(_) => true,
            Op::Activation(op) => !op.function.reads_input(),
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::AvgPool3d(_)
            | Op::AdaptivePool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::Recurrent(_)
            | Op::NormMean(_)
            | Op::BatchNorm(_)
            | Op::GroupNorm(_)
            | Op::LayerNorm(_)
            | Op::Add(_)
            | Op::Concat(_)
            | Op::Reverse(_)
            | Op::LastFrame(_) => false,
        }
    }
}

/// Keras's `same` along one axis: how many zeros (before, after) make ⌈input/stride⌉ outputs, the odd one after.
///
/// Source: `padding="same"` of Keras's convolutions and pools.
pub const fn same(input: usize, kernel: usize, stride: usize, dilation: usize) -> (usize, usize) {
    let outputs = input.div_ceil(if stride == 0 { 1 } else { stride });
    let reached = (outputs.saturating_sub(1) * stride)
        .saturating_add(kernel.saturating_sub(1).saturating_mul(dilation))
        .saturating_add(1);
    let zeros = reached.saturating_sub(input);
    (zeros / 2, zeros - zeros / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keras_same_puts_the_odd_zero_after() {
        for (case, zeros) in [
            ((8, 3, 1, 1), (1, 1)),
            ((8, 2, 1, 1), (0, 1)),
            ((4, 4, 1, 1), (1, 2)),
            // As reference/README.md says of stride 2: an even extent after its end only, an odd one on both sides.
            ((6, 3, 2, 1), (0, 1)),
            ((5, 3, 2, 1), (1, 1)),
            ((6, 3, 1, 2), (2, 2)),
            ((7, 1, 3, 1), (0, 0)),
            ((1, 5, 2, 1), (2, 2)),
        ] {
            let (input, kernel, stride, dilation) = case;
            assert_eq!(same(input, kernel, stride, dilation), zeros, "{case:?}");
        }
    }

    #[test]
    fn folds_say_which_layers_wait_for_the_clip() {
        let batch = |statistics| {
            Op::BatchNorm(BatchNorm {
                epsilon: 1e-3,
                momentum: Momentum::Keras(0.99),
                statistics,
                scale: true,
                center: true,
                trained: true,
                layout: NormLayout::Keras,
            })
        };
        let group = |per_frame| Op::GroupNorm(GroupNorm { groups: 1, epsilon: 1e-5, affine: true, per_frame });
        for (op, fold) in [
            (batch(Statistics::Batch), Fold::Barrier),
            (batch(Statistics::Moving), Fold::Frames),
            (group(false), Fold::Barrier),
            (group(true), Fold::Frames),
            (Op::Reverse(Reverse), Fold::Barrier),
            (Op::LastFrame(LastFrame), Fold::Sum),
            (Op::Add(Add), Fold::Frames),
        ] {
            assert_eq!(op.fold(), fold, "{op:?}");
            assert_eq!((op.sums_over_time(), op.is_recurrent()), (fold == Fold::Sum, fold == Fold::Recurrent));
        }
        let lstm = Recurrent::features(Cell::Lstm, 1, 1, RecurrentLayout::Keras);
        assert!(Op::Recurrent(lstm).is_recurrent());
    }

    #[test]
    fn an_activation_is_in_place_where_its_slope_follows_from_its_output() {
        let op = |function| Op::Activation(Activation { function });
        let leaky = |slope| op(Function::LeakyRelu { slope });
        for (op, reads_input) in [
            (op(Function::Gelu), true),
            (op(Function::Silu), true),
            (leaky(-0.1), true),
            (leaky(0.1), false),
            (op(Function::Elu { alpha: 1.0 }), false),
            (op(Function::Sigmoid), false),
            (op(Function::Tanh), false),
        ] {
            assert_eq!(op.in_place(), !reads_input, "{op:?}");
            assert_eq!(op.backward_reads(), BackwardReads { input: reads_input, output: !reads_input });
        }
    }

    #[test]
    fn only_branches_read_several_values() {
        assert_eq!(Op::Relu(Relu).arity(), 1..=1);
        assert_eq!(Op::Add(Add).arity(), 2..=usize::MAX);
        assert_eq!(Op::Concat(Concat).arity(), 2..=usize::MAX);
    }
}
