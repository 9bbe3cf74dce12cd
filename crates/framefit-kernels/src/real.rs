//! The element types of kernels, and the table of rows that each kernel has for them.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use crate::activation::{self, ReluBackward, ReluForward};
use crate::conv::{self, ConvForward, ConvInputGradient, ConvWeightGradient};
use crate::frames::{self, FramesNormalize};
use crate::linear::{self, LinearForward, LinearInputGradient, LinearWeightGradient};
use crate::loss::{self, CrossEntropy};
use crate::mean::{self, MeanBackward, MeanForward};
use crate::optimizer::{self, Adam};
use crate::pooling::{self, MaxPoolBackward, MaxPoolForward};

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
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// |x|.
    fn abs(self) -> Self;
    /// The greater of the two; the other one when one is NaN.
    fn max(self, other: Self) -> Self;
    /// Whether it is not a number.
    fn is_nan(self) -> bool;
    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;

    /// y = relu?(conv(x, w) + bias).
    fn conv_forward() -> &'static [ConvForward<Self>];
    /// The gradient of a convolution by its input.
    fn conv_input_gradient() -> &'static [ConvInputGradient<Self>];
    /// The gradient of a convolution by its weights and bias.
    fn conv_weight_gradient() -> &'static [ConvWeightGradient<Self>];
    /// Maximum over windows.
    fn max_pool_forward() -> &'static [MaxPoolForward<Self>];
    /// The gradient of the maximum over windows.
    fn max_pool_backward() -> &'static [MaxPoolBackward<Self>];
    /// Mean over frames and positions.
    fn mean_forward() -> &'static [MeanForward<Self>];
    /// The gradient of the mean.
    fn mean_backward() -> &'static [MeanBackward<Self>];
    /// y = relu?(x · wᵀ + bias).
    fn linear_forward() -> &'static [LinearForward<Self>];
    /// The gradient of a linear layer by its input.
    fn linear_input_gradient() -> &'static [LinearInputGradient<Self>];
    /// The gradient of a linear layer by its weights and bias.
    fn linear_weight_gradient() -> &'static [LinearWeightGradient<Self>];
    /// y = max(0, y).
    fn relu_forward() -> &'static [ReluForward<Self>];
    /// dy = y > 0 ? dy : 0.
    fn relu_backward() -> &'static [ReluBackward<Self>];
    /// Softmax cross-entropy and its gradient.
    fn cross_entropy() -> &'static [CrossEntropy<Self>];
    /// One step of Adam.
    fn adam() -> &'static [Adam<Self>];
    /// Bytes of frames to normalised values.
    fn frames_normalize() -> &'static [FramesNormalize<Self>];
}

macro_rules! real {
    (
        $element:ident, $forward:ident, $backward:ident, $input_gradient:ident, $weight_gradient:ident,
        $cross_entropy:ident, $adam:ident, $normalize:ident
    ) => {
        impl Real for $element {
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
            fn exp(self) -> Self {
                $element::exp(self)
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
            fn tanh(self) -> Self {
                $element::tanh(self)
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

            fn conv_forward() -> &'static [ConvForward<Self>] {
                conv::$forward
            }
            fn conv_input_gradient() -> &'static [ConvInputGradient<Self>] {
                conv::$input_gradient
            }
            fn conv_weight_gradient() -> &'static [ConvWeightGradient<Self>] {
                conv::$weight_gradient
            }
            fn max_pool_forward() -> &'static [MaxPoolForward<Self>] {
                pooling::$forward
            }
            fn max_pool_backward() -> &'static [MaxPoolBackward<Self>] {
                pooling::$backward
            }
            fn mean_forward() -> &'static [MeanForward<Self>] {
                mean::$forward
            }
            fn mean_backward() -> &'static [MeanBackward<Self>] {
                mean::$backward
            }
            fn linear_forward() -> &'static [LinearForward<Self>] {
                linear::$forward
            }
            fn linear_input_gradient() -> &'static [LinearInputGradient<Self>] {
                linear::$input_gradient
            }
            fn linear_weight_gradient() -> &'static [LinearWeightGradient<Self>] {
                linear::$weight_gradient
            }
            fn relu_forward() -> &'static [ReluForward<Self>] {
                activation::$forward
            }
            fn relu_backward() -> &'static [ReluBackward<Self>] {
                activation::$backward
            }
            fn cross_entropy() -> &'static [CrossEntropy<Self>] {
                loss::$cross_entropy
            }
            fn adam() -> &'static [Adam<Self>] {
                optimizer::$adam
            }
            fn frames_normalize() -> &'static [FramesNormalize<Self>] {
                frames::$normalize
            }
        }
    };
}

real!(
    f32,
    FORWARD_F32,
    BACKWARD_F32,
    INPUT_GRADIENT_F32,
    WEIGHT_GRADIENT_F32,
    CROSS_ENTROPY_F32,
    ADAM_F32,
    NORMALIZE_F32
);
real!(
    f64,
    FORWARD_F64,
    BACKWARD_F64,
    INPUT_GRADIENT_F64,
    WEIGHT_GRADIENT_F64,
    CROSS_ENTROPY_F64,
    ADAM_F64,
    NORMALIZE_F64
);
