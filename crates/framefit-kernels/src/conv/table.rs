//! The tables of the convolutions.

#[cfg(target_arch = "x86_64")]
use super::depthwise;
use super::{ConvForward, ConvInputGradient, ConvWeightGradient, scalar};
use crate::isa::Isa;
use crate::real::Real;
use crate::table::{any, no_scratch};

const fn forward_scalar<E: Real>(name: &'static str) -> ConvForward<E> {
    ConvForward { name, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: scalar::forward }
}

const fn input_gradient_scalar<E: Real>(name: &'static str) -> ConvInputGradient<E> {
    ConvInputGradient { name, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: scalar::input_gradient }
}

const fn weight_gradient_scalar<E: Real>(name: &'static str) -> ConvWeightGradient<E> {
    ConvWeightGradient { name, isa: Isa::Scalar, handles: any, scratch: no_scratch, run: scalar::weight_gradient }
}

/// A row whose kernel module takes the instruction set as its first argument.
#[cfg(target_arch = "x86_64")]
macro_rules! vector_row {
    ($row:ident, $name:literal, $isa:expr, $handles:path, $module:ident::$run:ident, $scratch:ident) => {
        $row {
            name: $name,
            isa: $isa,
            handles: $handles,
            scratch: |shape, threads| super::$module::$scratch($isa, shape, threads),
            run: |shape, args, pool| super::$module::$run($isa, shape, args, pool),
        }
    };
}

pub(crate) static FORWARD_F32: &[ConvForward<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvForward,
        "conv_forward_f32__avx512_depthwise",
        Isa::Avx512,
        depthwise::handles,
        depthwise::forward,
        forward_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvForward,
        "conv_forward_f32__avx2_depthwise",
        Isa::Avx2,
        depthwise::handles,
        depthwise::forward,
        forward_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(ConvForward, "conv_forward_f32__avx512_14x32", Isa::Avx512, any, dense::forward, forward_scratch),
    #[cfg(target_arch = "x86_64")]
    vector_row!(ConvForward, "conv_forward_f32__avx2_6x16", Isa::Avx2, any, dense::forward, forward_scratch),
    forward_scalar("conv_forward_f32__scalar"),
];
pub(crate) static FORWARD_F64: &[ConvForward<f64>] = &[forward_scalar("conv_forward_f64__scalar")];

pub(crate) static INPUT_GRADIENT_F32: &[ConvInputGradient<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvInputGradient,
        "conv_input_gradient_f32__avx512_depthwise",
        Isa::Avx512,
        depthwise::handles,
        depthwise::input_gradient,
        input_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvInputGradient,
        "conv_input_gradient_f32__avx2_depthwise",
        Isa::Avx2,
        depthwise::handles,
        depthwise::input_gradient,
        input_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvInputGradient,
        "conv_input_gradient_f32__avx512_14x32",
        Isa::Avx512,
        any,
        dense::input_gradient,
        input_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvInputGradient,
        "conv_input_gradient_f32__avx2_6x16",
        Isa::Avx2,
        any,
        dense::input_gradient,
        input_gradient_scratch
    ),
    input_gradient_scalar("conv_input_gradient_f32__scalar"),
];
pub(crate) static INPUT_GRADIENT_F64: &[ConvInputGradient<f64>] =
    &[input_gradient_scalar("conv_input_gradient_f64__scalar")];

pub(crate) static WEIGHT_GRADIENT_F32: &[ConvWeightGradient<f32>] = &[
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvWeightGradient,
        "conv_weight_gradient_f32__avx512_depthwise",
        Isa::Avx512,
        depthwise::handles,
        depthwise::weight_gradient,
        weight_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvWeightGradient,
        "conv_weight_gradient_f32__avx2_depthwise",
        Isa::Avx2,
        depthwise::handles,
        depthwise::weight_gradient,
        weight_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvWeightGradient,
        "conv_weight_gradient_f32__avx512_14x32",
        Isa::Avx512,
        any,
        dense::weight_gradient,
        weight_gradient_scratch
    ),
    #[cfg(target_arch = "x86_64")]
    vector_row!(
        ConvWeightGradient,
        "conv_weight_gradient_f32__avx2_6x16",
        Isa::Avx2,
        any,
        dense::weight_gradient,
        weight_gradient_scratch
    ),
    weight_gradient_scalar("conv_weight_gradient_f32__scalar"),
];
pub(crate) static WEIGHT_GRADIENT_F64: &[ConvWeightGradient<f64>] =
    &[weight_gradient_scalar("conv_weight_gradient_f64__scalar")];
