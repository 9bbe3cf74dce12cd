//! The products of a recurrent layer: with its frames, and with its states.

use super::super::rows::Rows;
use super::super::{Asked, Layer, dims, scratch_of};
use crate::engine::Element;
use crate::engine::run::Call;
use framefit_core::ops::Recurrent;
use framefit_kernels::choose;
use framefit_kernels::conv::{
    ConvForwardArgs, ConvInputGradientArgs, ConvShape, ConvWeightGradientArgs, Dims3, Window,
};

/// A weight at the positions of some frames.
pub(super) enum Product {
    /// x: `[T,N,H,W,C]`, w: `[K,kH,kW,C]` -> y: `[T,N,H',W',K]`
    Maps(ConvShape),
    /// x: `[T·N,D]`, w: `[K,D]` -> y: `[T·N,K]`, one vector per frame of each clip.
    Vectors(Rows),
}

/// Whether each frame of a layer, and each of its states, is one vector that meets a matrix.
pub(super) fn of_vectors(op: &Recurrent, layer: &Layer<'_>) -> bool {
    let one_position = layer.output.dims.h * layer.output.dims.w == 1 && op.kernel.volume() == 1;
    one_position && layer.input.per_frame() == op.in_channels
}

impl Product {
    /// With frames, to some gates of each unit.
    pub(super) fn of_frames(op: &Recurrent, layer: &Layer<'_>, frames: usize, gates: usize) -> Self {
        let outputs = gates * op.filters;
        if of_vectors(op, layer) {
            return Self::Vectors(Rows { count: frames * layer.clips, features: op.in_channels, outputs });
        }
        let window = Window { lo: 0, hi: frames };
        Self::Maps(ConvShape {
            clips: layer.clips,
            channels: op.in_channels,
            out_channels: outputs,
            groups: 1,
            input: Dims3 { t: frames, ..dims(layer.input.dims) },
            output: Dims3 { t: frames, ..dims(layer.output.dims) },
            kernel: dims(op.kernel),
            stride: Dims3 { t: 1, ..dims(op.stride) },
            padding: Dims3 { t: 0, ..dims(op.padding) },
            dilation: Dims3 { t: 1, ..dims(op.dilation) },
            x: window,
            y: window,
        })
    }

    /// With the states before frames, to some gates of each unit: frame t of the gates reads frame t of x.
    pub(super) fn of_states(op: &Recurrent, layer: &Layer<'_>, frames: usize, gates: usize) -> Self {
        let outputs = gates * op.filters;
        if of_vectors(op, layer) {
            return Self::Vectors(Rows { count: frames * layer.clips, features: op.filters, outputs });
        }
        let extents = Dims3 { t: frames, ..dims(layer.output.dims) };
        let window = Window { lo: 0, hi: frames };
        Self::Maps(ConvShape {
            clips: layer.clips,
            channels: op.filters,
            out_channels: outputs,
            groups: 1,
            input: extents,
            output: extents,
            kernel: dims(op.kernel),
            stride: Dims3::cube(1),
            padding: dims(op.recurrent_padding()),
            dilation: Dims3::cube(1),
            x: window,
            y: window,
        })
    }

    /// y (+)= the product, and the bias.
    pub(super) fn forward<E: Element>(&self, call: &Call<'_, E>, args: ConvForwardArgs<'_, E>) {
        match self {
            Self::Maps(shape) => (choose(E::conv_forward(), call.kernels.isa, shape).run)(shape, args, call.pool),
            Self::Vectors(rows) => rows.forward(call, args),
        }
    }

    /// dx (+)= the transposed product with dy.
    pub(super) fn input_gradient<E: Element>(&self, call: &Call<'_, E>, args: ConvInputGradientArgs<'_, E>) {
        match self {
            Self::Maps(shape) => {
                (choose(E::conv_input_gradient(), call.kernels.isa, shape).run)(shape, args, call.pool);
            }
            Self::Vectors(rows) => rows.input_gradient(call, args),
        }
    }

    /// dw and db, added to what is there.
    pub(super) fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, args: ConvWeightGradientArgs<'_, E>) {
        match self {
            Self::Maps(shape) => {
                (choose(E::conv_weight_gradient(), call.kernels.isa, shape).run)(shape, args, call.pool);
            }
            Self::Vectors(rows) => rows.weight_gradient(call, args),
        }
    }

    /// Scratch of [`Product::forward`], in elements.
    pub(super) fn forward_scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        match self {
            Self::Maps(shape) => scratch_of!(asked, E::conv_forward(), shape.clone()),
            Self::Vectors(rows) => rows.forward_scratch::<E>(asked),
        }
    }

    /// Scratch of [`Product::input_gradient`], in elements.
    pub(super) fn input_gradient_scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        match self {
            Self::Maps(shape) => scratch_of!(asked, E::conv_input_gradient(), shape.clone()),
            Self::Vectors(rows) => rows.input_gradient_scratch::<E>(asked),
        }
    }

    /// Scratch of [`Product::weight_gradient`], in elements.
    pub(super) fn weight_gradient_scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        match self {
            Self::Maps(shape) => scratch_of!(asked, E::conv_weight_gradient(), shape.clone()),
            Self::Vectors(rows) => rows.weight_gradient_scratch::<E>(asked),
        }
    }
}
