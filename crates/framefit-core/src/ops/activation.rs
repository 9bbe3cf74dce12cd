use super::{BackwardReads, Layer, Operations};
use crate::axes::Shape;
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// y = max(x, 0), in x's own bytes. Its gradient is that of y where y > 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relu;

impl Relu {
    pub(super) fn output(&self, input: &Shape, _at: Layer<'_>) -> Result<Shape, ShapeError> {
        Ok(*input)
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::OUTPUT
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        Operations::pointwise(1, input)
    }
}

/// A function of one number. NaN gives NaN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// x > 0 ? x : slope · x.
    LeakyRelu {
        /// The slope below zero.
        slope: f64,
    },
    /// x > 0 ? x : alpha · (eˣ − 1).
    Elu {
        /// Minus the limit far below zero.
        alpha: f64,
    },
    /// λ · (x > 0 ? x : α · (eˣ − 1)) with the constants of Klambauer et al. (2017).
    Selu,
    /// min(max(0, x), 6).
    Relu6,
    /// x · Φ(x), Φ being the normal distribution function; PyTorch's and Keras's default.
    Gelu,
    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715x³))); PyTorch's and Keras's `tanh` approximation.
    GeluTanh,
    /// x · sigmoid(x), also named swish.
    Silu,
    /// 1/(1 + e⁻ˣ).
    Sigmoid,
    /// min(max(0, x + 3), 6)/6, as PyTorch and Keras 3.
    HardSigmoid,
    /// min(max(0, 0.2x + 0.5), 1), as Keras 2.
    HardSigmoidKeras2,
    /// x · min(max(0, x + 3), 6)/6.
    HardSwish,
    /// tanh x.
    Tanh,
    /// ln(1 + eˣ). PyTorch's returns x itself above its threshold of 20.
    Softplus,
    /// x.
    Identity,
}

impl Function {
    /// Whether the backward reads x; otherwise the slope follows from y.
    pub fn reads_input(self) -> bool {
        match self {
            Function::LeakyRelu { slope } => slope < 0.0,
            Function::Elu { alpha } => alpha < 0.0,
            Function::Gelu | Function::GeluTanh | Function::Silu | Function::HardSwish => true,
            Function::Selu
            | Function::Relu6
            | Function::Sigmoid
            | Function::HardSigmoid
            | Function::HardSigmoidKeras2
            | Function::Tanh
            | Function::Softplus
            | Function::Identity => false,
        }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Function::LeakyRelu { .. } => "LeakyReLU",
            Function::Elu { .. } => "ELU",
            Function::Selu => "SELU",
            Function::Relu6 => "ReLU6",
            Function::Gelu | Function::GeluTanh => "GELU",
            Function::Silu => "SiLU",
            Function::Sigmoid => "Sigmoid",
            Function::HardSigmoid | Function::HardSigmoidKeras2 => "Hardsigmoid",
            Function::HardSwish => "Hardswish",
            Function::Tanh => "Tanh",
            Function::Softplus => "Softplus",
            Function::Identity => "Identity",
        }
    }
}

/// x: `[T,N,H,W,C]` -> y: `[T,N,H,W,C]`, y = f(x) element by element; in x's own bytes where the backward does not
/// read x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activation {
    /// f.
    pub function: Function,
}

impl Activation {
    pub(super) fn output(&self, input: &Shape, _at: Layer<'_>) -> Result<Shape, ShapeError> {
        Ok(*input)
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        if self.function.reads_input() { BackwardReads::INPUT } else { BackwardReads::OUTPUT }
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        // An exponential is a polynomial of about this many terms.
        Operations::pointwise(10, input)
    }
}
