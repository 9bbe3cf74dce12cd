//! The ops of a graph. One file per family; each holds, side by side, the output's shape, the parameters,
//! the time arithmetic, what backward reads, and the operations and bytes.

mod activation;
mod conv;
mod linear;
mod norm;
mod pooling;
mod recurrent;
mod view;

pub use activation::Relu;
pub use conv::Conv3d;
pub use linear::{Dense, Linear};
pub use norm::NormMean;
pub use pooling::{GlobalAvgPool3d, MaxPool3d};
pub use recurrent::{ConvLstm2d, GateFunction, StateFunction};
pub use view::Flatten;

use crate::axes::Shape;
use crate::error::ShapeError;
use crate::graph::{Origin, ParamSpec};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// What a layer does. Closed: a new op makes the compiler list the places that must know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Convolution over time and space.
    Conv3d(Conv3d),
    /// Maximum over windows of time and space.
    MaxPool3d(MaxPool3d),
    /// Mean over all of time and space.
    GlobalAvgPool3d(GlobalAvgPool3d),
    /// max(x, 0).
    Relu(Relu),
    /// One vector per clip.
    Flatten(Flatten),
    /// Matrix product with a vector per clip.
    Linear(Linear),
    /// Matrix product at every frame and position.
    Dense(Dense),
    /// Convolutional LSTM over the frames.
    ConvLstm2d(ConvLstm2d),
    /// Batch normalisation and the mean of each frame.
    NormMean(NormMean),
}

/// The layer that an error is about.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where the user wrote it.
    pub origin: &'a Origin,
    /// The name of the layer whose output it reads.
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

macro_rules! each_op {
    ($self:expr, $op:ident => $body:expr) => {
        match $self {
            Op::Conv3d($op) => $body,
            Op::MaxPool3d($op) => $body,
            Op::GlobalAvgPool3d($op) => $body,
            Op::Relu($op) => $body,
            Op::Flatten($op) => $body,
            Op::Linear($op) => $body,
            Op::Dense($op) => $body,
            Op::ConvLstm2d($op) => $body,
            Op::NormMean($op) => $body,
        }
    };
}

impl Op {
    /// The op's name, as PyTorch calls it.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Conv3d(_) => "Conv3d",
            Op::MaxPool3d(_) => "MaxPool3d",
            Op::GlobalAvgPool3d(_) => "AdaptiveAvgPool3d",
            Op::Relu(_) => "ReLU",
            Op::Flatten(_) => "Flatten",
            Op::Linear(_) => "Linear",
            Op::Dense(_) => "Dense",
            Op::ConvLstm2d(_) => "ConvLSTM2D",
            Op::NormMean(_) => "BatchNormalization, AveragePooling3D",
        }
    }

    /// The shape of the output.
    ///
    /// # Errors
    /// When the input does not fit the op.
    pub fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        each_op!(self, op => op.output(input, at))
    }

    /// The parameters, `weight` before `bias`.
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

    /// Whether it takes its share of every frame as it comes, holds no frame, and makes its output when the clip
    /// is over.
    pub fn sums_over_time(&self) -> bool {
        match self {
            Op::GlobalAvgPool3d(_) | Op::Linear(_) | Op::NormMean(_) => true,
            Op::Conv3d(_) | Op::MaxPool3d(_) | Op::Relu(_) | Op::Flatten(_) | Op::Dense(_) | Op::ConvLstm2d(_) => false,
        }
    }

    /// Whether its kernel can apply the ReLU after it.
    pub fn has_relu_epilogue(&self) -> bool {
        match self {
            Op::Conv3d(_) | Op::Linear(_) => true,
            Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Flatten(_)
            | Op::Dense(_)
            | Op::ConvLstm2d(_)
            | Op::NormMean(_) => false,
        }
    }

    /// Whether it hands (h, c) from frame to frame.
    pub fn is_recurrent(&self) -> bool {
        match self {
            Op::ConvLstm2d(_) => true,
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Flatten(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::NormMean(_) => false,
        }
    }

    /// Whether the output lies in the input's own bytes.
    pub fn in_place(&self) -> bool {
        match self {
            Op::Relu(_) | Op::Flatten(_) => true,
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::ConvLstm2d(_)
            | Op::NormMean(_) => false,
        }
    }
}

/// The last of `need` positions of a padded input, or the error that names the axis.
fn windowed_extent(
    axis: crate::axes::Axis,
    got: usize,
    (kernel, stride, padding, dilation): (usize, usize, usize, usize),
    at: Layer<'_>,
) -> Result<usize, ShapeError> {
    let span = dilation * (kernel - 1) + 1;
    let padded = got + 2 * padding;
    match padded.checked_sub(span) {
        Some(room) if got > 0 => Ok(room / stride + 1),
        _ => Err(ShapeError::TooSmall {
            layer: at.name.to_owned(),
            axis,
            need: span.saturating_sub(2 * padding).max(1),
            got,
            origin: at.origin.clone(),
        }),
    }
}

fn positive(what: &'static str, values: &[usize], at: Layer<'_>) -> Result<(), ShapeError> {
    match values.iter().find(|&&v| v == 0) {
        None => Ok(()),
        Some(&got) => Err(ShapeError::Invalid {
            layer: at.name.to_owned(),
            what,
            rule: "at least 1".to_owned(),
            got,
            origin: at.origin.clone(),
        }),
    }
}

fn video_only(input: &Shape, at: Layer<'_>) -> Result<(), ShapeError> {
    match input.view {
        crate::axes::View::Video => Ok(()),
        crate::axes::View::Flat => Err(ShapeError::Flattened {
            layer: at.name.to_owned(),
            before: at.before.to_owned(),
            origin: at.origin.clone(),
        }),
    }
}
