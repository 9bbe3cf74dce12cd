//! Convolutions.

use super::{Asked, Layer, OnKernels, dims, scratch_of, window};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements, present};
use framefit_core::ops::Conv3d;
use framefit_core::schedule::{Pass, Role, Step};
use framefit_kernels::conv::{ConvForwardArgs, ConvInputGradientArgs, ConvShape, ConvWeightGradientArgs};
use framefit_kernels::{Arena, choose};

fn shape(op: &Conv3d, layer: &Layer<'_>) -> ConvShape {
    ConvShape {
        clips: layer.clips,
        channels: op.in_channels,
        out_channels: op.out_channels,
        groups: op.groups,
        input: dims(layer.input.dims),
        output: dims(layer.output.dims),
        kernel: dims(op.kernel),
        stride: dims(op.stride),
        padding: dims(op.padding),
        dilation: dims(op.dilation),
        x: window(layer.read),
        y: window(layer.made),
    }
}

impl OnKernels for Conv3d {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        forward(call, step, how.relu, arena, |layer| shape(self, layer))
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        input_gradient(call, step, how.accumulate, arena, |layer| shape(self, layer))
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        weight_gradient(call, step, arena, |layer| shape(self, layer))
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        scratch::<E>(asked, shape(self, &asked.layer))
    }
}

/// y of anything that is a convolution of some shape.
pub(super) fn forward<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    relu: bool,
    arena: &mut Arena,
    shape: impl FnOnce(&Layer<'_>) -> ConvShape,
) -> Option<()> {
    let roles = [Role::Input, Role::Weight, Role::Bias, Role::Output, Role::Workspace];
    let [x, w, bias, y, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
    let shape = shape(&call.layer(step, Role::Input, Role::Output)?);
    let bias = present(bias).map(|b| &*b);
    let row = choose(E::conv_forward(), call.kernels.isa, &shape);
    (row.run)(&shape, ConvForwardArgs { x, w, bias, relu, accumulate: false, y, scratch }, call.pool);
    Some(())
}

/// dx of anything that is a convolution of some shape.
pub(super) fn input_gradient<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    accumulate: bool,
    arena: &mut Arena,
    shape: impl FnOnce(&Layer<'_>) -> ConvShape,
) -> Option<()> {
    let roles = [Role::OutputGradient, Role::Weight, Role::InputGradient, Role::Workspace];
    let [dy, w, dx, scratch] = elements::<E, 4>(call.placed, step, roles, arena)?;
    let shape = shape(&call.layer(step, Role::InputGradient, Role::OutputGradient)?);
    let row = choose(E::conv_input_gradient(), call.kernels.isa, &shape);
    (row.run)(&shape, ConvInputGradientArgs { dy, w, dx, accumulate, scratch }, call.pool);
    Some(())
}

/// dw and db of anything that is a convolution of some shape.
pub(super) fn weight_gradient<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    arena: &mut Arena,
    shape: impl FnOnce(&Layer<'_>) -> ConvShape,
) -> Option<()> {
    let roles = [Role::Input, Role::OutputGradient, Role::WeightGradient, Role::BiasGradient, Role::Workspace];
    let [x, dy, dw, db, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
    let shape = shape(&call.layer(step, Role::Input, Role::OutputGradient)?);
    let row = choose(E::conv_weight_gradient(), call.kernels.isa, &shape);
    (row.run)(&shape, ConvWeightGradientArgs { x, dy, dw, db: present(db), scratch }, call.pool);
    Some(())
}

pub(super) fn scratch<E: Element>(asked: &Asked<'_>, shape: ConvShape) -> usize {
    match asked.pass {
        Pass::Forward => scratch_of!(asked, E::conv_forward(), shape),
        Pass::InputGradient => scratch_of!(asked, E::conv_input_gradient(), shape),
        Pass::WeightGradient => scratch_of!(asked, E::conv_weight_gradient(), shape),
        Pass::State | Pass::Moments | Pass::Sums => 0,
    }
}
