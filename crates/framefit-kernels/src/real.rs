//! The element types of kernels, and the table of rows that each kernel has for them.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use crate::activation::{self, ActivationBackward, ActivationForward, ReluBackward, ReluForward};
use crate::conv::{self, ConvForward, ConvInputGradient, ConvWeightGradient};
use crate::dropout::{self, Dropout};
use crate::elementwise::{self, Addition, ChannelCopy, FrameCopy, FrameReversal};
use crate::frames::{self, FramesNormalize};
use crate::linear::{self, LinearForward, LinearInputGradient, LinearWeightGradient};
use crate::loss::{self, BinaryCrossEntropy, CrossEntropy, LabelledBinaryCrossEntropy, SoftmaxCrossEntropy};
use crate::math;
use crate::mean::{self, MeanBackward, MeanForward};
use crate::norm::{
    self, BatchNormInputGradient, BatchNormSums, ChannelMoments, GroupNormForward, GroupNormInputGradient,
    GroupNormStatistics, GroupNormWeightGradient, ScaleShift,
};
use crate::optimizer::{self, Adam};
use crate::pooling::{
    self, AdaptiveAvgPoolBackward, AdaptiveAvgPoolForward, AdaptiveMaxPoolBackward, AdaptiveMaxPoolForward,
    AvgPoolBackward, AvgPoolForward, MaxPoolBackward, MaxPoolForward,
};
use crate::recurrent::{
    self, GruBackward, GruForward, GruGatesBackward, GruGatesForward, GruStateBackward, GruStateForward, LstmBackward,
    LstmForward,
};

/// Declares [`Real`] with one accessor per kernel, and implements it; each line names the kernel's tables.
macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident: $row:ident = $f32:path, $f64:path;)*) => {
        /// An element type: `f32` or `f64`.
        ///
        /// Each kernel's table is ordered fastest first and ends with the scalar row; `f64` has the scalar row alone,
        /// to check gradients with.
        pub trait Real:
            bytemuck::Pod
            + Copy
            + Default
            + PartialOrd
            + Send
            + Sync
            + Debug
            + Display
            + Add<Output = Self>
            + Sub<Output = Self>
            + Mul<Output = Self>
            + Div<Output = Self>
            + Neg<Output = Self>
            + AddAssign
            + SubAssign
            + MulAssign
            + DivAssign
            + Sum
            + 'static
        {
            /// 0.
            const ZERO: Self;
            /// 1.
            const ONE: Self;
            /// −∞.
            const NEG_INFINITY: Self;
            /// The name in kernel names and reports: `f32`, `f64`.
            const NAME: &'static str;

            /// The nearest value to `value`.
            fn from_f64(value: f64) -> Self;
            /// The value itself.
            fn from_f32(value: f32) -> Self;
            /// The value itself.
            fn from_u8(value: u8) -> Self;
            /// The value itself.
            fn to_f64(self) -> f64;
            /// The nearest `f32`.
            fn to_f32(self) -> f32;
            /// eˣ.
            fn exp(self) -> Self;
            /// eˣ − 1.
            fn exp_m1(self) -> Self;
            /// The natural logarithm.
            fn ln(self) -> Self;
            /// The square root.
            fn sqrt(self) -> Self;
            /// The hyperbolic tangent.
            fn tanh(self) -> Self;
            /// 1/(1 + e⁻ˣ).
            fn sigmoid(self) -> Self;
            /// ln(1 + eˣ).
            fn softplus(self) -> Self;
            /// The error function.
            fn erf(self) -> Self;
            /// |x|.
            fn abs(self) -> Self;
            /// The greater of the two; the other one when one is NaN.
            fn max(self, other: Self) -> Self;
            /// Whether it is not a number.
            fn is_nan(self) -> bool;
            /// Whether it is neither infinite nor NaN.
            fn is_finite(self) -> bool;

            $($(#[$doc])* fn $kernel() -> &'static [$row<Self>];)*
        }

        impl Real for f32 {
            numbers!(f32);
            #[inline(always)]
            fn exp(self) -> Self {
                math::exp(self)
            }
            #[inline(always)]
            fn exp_m1(self) -> Self {
                math::exp_m1(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                math::tanh(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                math::sigmoid(self)
            }
            #[inline(always)]
            fn softplus(self) -> Self {
                math::softplus(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                math::erf(self)
            }

            $(fn $kernel() -> &'static [$row<Self>] {
                $f32
            })*
        }

        impl Real for f64 {
            numbers!(f64);
            fn exp(self) -> Self {
                f64::exp(self)
            }
            fn exp_m1(self) -> Self {
                f64::exp_m1(self)
            }
            fn tanh(self) -> Self {
                f64::tanh(self)
            }
            fn sigmoid(self) -> Self {
                let e = f64::exp(-f64::abs(self));
                (if self < 0.0 { e } else { 1.0 }) / (1.0 + e)
            }
            fn softplus(self) -> Self {
                let tail = f64::exp(-f64::abs(self)).ln_1p();
                (if self < 0.0 { 0.0 } else { self }) + tail
            }
            fn erf(self) -> Self {
                math::erf_f64(self)
            }

            $(fn $kernel() -> &'static [$row<Self>] {
                $f64
            })*
        }
    };
}

/// What `f32` and `f64` have from the standard library.
macro_rules! numbers {
    ($element:ident) => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        const NEG_INFINITY: Self = $element::NEG_INFINITY;
        const NAME: &'static str = stringify!($element);

        #[inline(always)]
        fn from_f64(value: f64) -> Self {
            value as $element
        }
        #[inline(always)]
        fn from_f32(value: f32) -> Self {
            value as $element
        }
        #[inline(always)]
        fn from_u8(value: u8) -> Self {
            $element::from(value)
        }
        #[inline(always)]
        fn to_f64(self) -> f64 {
            self as f64
        }
        #[inline(always)]
        fn to_f32(self) -> f32 {
            self as f32
        }
        #[inline(always)]
        fn ln(self) -> Self {
            $element::ln(self)
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            $element::sqrt(self)
        }
        #[inline(always)]
        fn abs(self) -> Self {
            $element::abs(self)
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            $element::max(self, other)
        }
        #[inline(always)]
        fn is_nan(self) -> bool {
            $element::is_nan(self)
        }
        #[inline(always)]
        fn is_finite(self) -> bool {
            $element::is_finite(self)
        }
    };
}

kernels! {
    /// y = relu?(y? + conv(x, w) + bias).
    conv_forward: ConvForward = conv::FORWARD_F32, conv::FORWARD_F64;
    /// The gradient of a convolution by its input.
    conv_input_gradient: ConvInputGradient = conv::INPUT_GRADIENT_F32, conv::INPUT_GRADIENT_F64;
    /// The gradient of a convolution by its weights and bias.
    conv_weight_gradient: ConvWeightGradient = conv::WEIGHT_GRADIENT_F32, conv::WEIGHT_GRADIENT_F64;
    /// Maximum over windows.
    max_pool_forward: MaxPoolForward = pooling::FORWARD_F32, pooling::FORWARD_F64;
    /// The gradient of the maximum over windows.
    max_pool_backward: MaxPoolBackward = pooling::BACKWARD_F32, pooling::BACKWARD_F64;
    /// Mean over windows.
    avg_pool_forward: AvgPoolForward = pooling::AVG_FORWARD_F32, pooling::AVG_FORWARD_F64;
    /// The gradient of the mean over windows.
    avg_pool_backward: AvgPoolBackward = pooling::AVG_BACKWARD_F32, pooling::AVG_BACKWARD_F64;
    /// Maximum over adaptive windows.
    adaptive_max_pool_forward: AdaptiveMaxPoolForward = pooling::ADAPTIVE_MAX_FORWARD_F32, pooling::ADAPTIVE_MAX_FORWARD_F64;
    /// The gradient of the maximum over adaptive windows.
    adaptive_max_pool_backward: AdaptiveMaxPoolBackward = pooling::ADAPTIVE_MAX_BACKWARD_F32, pooling::ADAPTIVE_MAX_BACKWARD_F64;
    /// Mean over adaptive windows.
    adaptive_avg_pool_forward: AdaptiveAvgPoolForward = pooling::ADAPTIVE_AVG_FORWARD_F32, pooling::ADAPTIVE_AVG_FORWARD_F64;
    /// The gradient of the mean over adaptive windows.
    adaptive_avg_pool_backward: AdaptiveAvgPoolBackward = pooling::ADAPTIVE_AVG_BACKWARD_F32, pooling::ADAPTIVE_AVG_BACKWARD_F64;
    /// Mean over frames and positions.
    mean_forward: MeanForward = mean::FORWARD_F32, mean::FORWARD_F64;
    /// The gradient of the mean.
    mean_backward: MeanBackward = mean::BACKWARD_F32, mean::BACKWARD_F64;
    /// y = relu?(x · wᵀ + bias).
    linear_forward: LinearForward = linear::FORWARD_F32, linear::FORWARD_F64;
    /// The gradient of a linear layer by its input.
    linear_input_gradient: LinearInputGradient = linear::INPUT_GRADIENT_F32, linear::INPUT_GRADIENT_F64;
    /// The gradient of a linear layer by its weights and bias.
    linear_weight_gradient: LinearWeightGradient = linear::WEIGHT_GRADIENT_F32, linear::WEIGHT_GRADIENT_F64;
    /// y = max(0, y).
    relu_forward: ReluForward = activation::FORWARD_F32, activation::FORWARD_F64;
    /// dy = y > 0 ? dy : 0.
    relu_backward: ReluBackward = activation::BACKWARD_F32, activation::BACKWARD_F64;
    /// y = f(x) for any activation f.
    activation_forward: ActivationForward = activation::ACTIVATION_FORWARD_F32, activation::ACTIVATION_FORWARD_F64;
    /// The gradient of any activation.
    activation_backward: ActivationBackward = activation::ACTIVATION_BACKWARD_F32, activation::ACTIVATION_BACKWARD_F64;
    /// Count, mean and squared deviations of each channel.
    channel_moments: ChannelMoments = norm::MOMENTS_F32, norm::MOMENTS_F64;
    /// y = relu?(x · a\[c\] + b\[c\]).
    scale_shift: ScaleShift = norm::SCALE_SHIFT_F32, norm::SCALE_SHIFT_F64;
    /// Σ dy and Σ dy · x̂ of each channel.
    batch_norm_sums: BatchNormSums = norm::BATCH_SUMS_F32, norm::BATCH_SUMS_F64;
    /// The gradient of BatchNorm by its input.
    batch_norm_input_gradient: BatchNormInputGradient = norm::BATCH_INPUT_GRADIENT_F32, norm::BATCH_INPUT_GRADIENT_F64;
    /// Normalisation over groups of channels, or over a layer.
    group_norm_forward: GroupNormForward = norm::GROUP_FORWARD_F32, norm::GROUP_FORWARD_F64;
    /// Mean and inv_std of groups of channels, or of a layer.
    group_norm_statistics: GroupNormStatistics = norm::GROUP_STATISTICS_F32, norm::GROUP_STATISTICS_F64;
    /// The gradient of a group norm by its input.
    group_norm_input_gradient: GroupNormInputGradient = norm::GROUP_INPUT_GRADIENT_F32, norm::GROUP_INPUT_GRADIENT_F64;
    /// The gradient of a group norm by γ and β.
    group_norm_weight_gradient: GroupNormWeightGradient = norm::GROUP_WEIGHT_GRADIENT_F32, norm::GROUP_WEIGHT_GRADIENT_F64;
    /// Elements or channels dropped at random.
    dropout: Dropout = dropout::DROPOUT_F32, dropout::DROPOUT_F64;
    /// y = a + b.
    addition: Addition = elementwise::ADDITION_F32, elementwise::ADDITION_F64;
    /// Channels copied between tensors.
    channel_copy: ChannelCopy = elementwise::CHANNEL_COPY_F32, elementwise::CHANNEL_COPY_F64;
    /// Frames copied between windows.
    frame_copy: FrameCopy = elementwise::FRAME_COPY_F32, elementwise::FRAME_COPY_F64;
    /// Frames from last to first.
    frame_reversal: FrameReversal = elementwise::FRAME_REVERSAL_F32, elementwise::FRAME_REVERSAL_F64;
    /// The gates of an LSTM and its new state.
    lstm_forward: LstmForward = recurrent::LSTM_FORWARD_F32, recurrent::LSTM_FORWARD_F64;
    /// The gradient of an LSTM's gates and state.
    lstm_backward: LstmBackward = recurrent::LSTM_BACKWARD_F32, recurrent::LSTM_BACKWARD_F64;
    /// A GRU that resets after the product.
    gru_forward: GruForward = recurrent::GRU_FORWARD_F32, recurrent::GRU_FORWARD_F64;
    /// The gradient of a GRU that resets after the product.
    gru_backward: GruBackward = recurrent::GRU_BACKWARD_F32, recurrent::GRU_BACKWARD_F64;
    /// The gates of a GRU that resets before the product.
    gru_gates_forward: GruGatesForward = recurrent::GRU_GATES_FORWARD_F32, recurrent::GRU_GATES_FORWARD_F64;
    /// The gradient of a GRU's gates, where it resets before the product.
    gru_gates_backward: GruGatesBackward = recurrent::GRU_GATES_BACKWARD_F32, recurrent::GRU_GATES_BACKWARD_F64;
    /// The new state of a GRU that resets before the product.
    gru_state_forward: GruStateForward = recurrent::GRU_STATE_FORWARD_F32, recurrent::GRU_STATE_FORWARD_F64;
    /// The gradient of a GRU's new state, where it resets before the product.
    gru_state_backward: GruStateBackward = recurrent::GRU_STATE_BACKWARD_F32, recurrent::GRU_STATE_BACKWARD_F64;
    /// Softmax cross-entropy and its gradient.
    cross_entropy: CrossEntropy = loss::CROSS_ENTROPY_F32, loss::CROSS_ENTROPY_F64;
    /// Softmax cross-entropy of labelled rows, with smoothing and labels to ignore.
    softmax_cross_entropy: SoftmaxCrossEntropy = loss::SOFTMAX_CROSS_ENTROPY_F32, loss::SOFTMAX_CROSS_ENTROPY_F64;
    /// Binary cross-entropy of logits and its gradient.
    binary_cross_entropy: BinaryCrossEntropy = loss::BINARY_CROSS_ENTROPY_F32, loss::BINARY_CROSS_ENTROPY_F64;
    /// Binary cross-entropy of labelled rows, with smoothing and labels to ignore.
    labelled_binary_cross_entropy: LabelledBinaryCrossEntropy = loss::LABELLED_BINARY_CROSS_ENTROPY_F32, loss::LABELLED_BINARY_CROSS_ENTROPY_F64;
    /// One step of Adam.
    adam: Adam = optimizer::ADAM_F32, optimizer::ADAM_F64;
    /// Bytes of frames to normalised values.
    frames_normalize: FramesNormalize = frames::NORMALIZE_F32, frames::NORMALIZE_F64;
}
