//! Activations, element by element.

mod apply;
mod kernels;
mod relu;

pub(crate) use apply::{apply, times_slope};
pub use kernels::{ActivationBackward, ActivationBackwardArgs, ActivationForward, ActivationForwardArgs};
pub(crate) use kernels::{
    BACKWARD_F32 as ACTIVATION_BACKWARD_F32, BACKWARD_F64 as ACTIVATION_BACKWARD_F64,
    FORWARD_F32 as ACTIVATION_FORWARD_F32, FORWARD_F64 as ACTIVATION_FORWARD_F64,
};
pub(crate) use relu::{BACKWARD_F32, BACKWARD_F64, FORWARD_F32, FORWARD_F64};
pub use relu::{ReluBackward, ReluBackwardArgs, ReluForward, ReluForwardArgs};

/// A function of one number, applied to each element. NaN gives NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// max(0, x).
    Relu,
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

impl Activation {
    /// Whether the backward reads x.
    pub fn reads_input(self) -> bool {
        match self {
            Activation::LeakyRelu { slope } => slope < 0.0,
            Activation::Elu { alpha } => alpha < 0.0,
            Activation::Gelu | Activation::GeluTanh | Activation::Silu | Activation::HardSwish => true,
            Activation::Relu
            | Activation::Selu
            | Activation::Relu6
            | Activation::Sigmoid
            | Activation::HardSigmoid
            | Activation::HardSigmoidKeras2
            | Activation::Tanh
            | Activation::Softplus
            | Activation::Identity => false,
        }
    }

    /// Whether the backward reads y. None reads both x and y.
    pub fn reads_output(self) -> bool {
        self != Activation::Identity && !self.reads_input()
    }
}
