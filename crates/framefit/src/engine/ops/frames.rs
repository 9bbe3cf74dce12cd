//! Frames in another order, or one of them.

use super::{Layer, OnKernels, window};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements};
use framefit_core::axes;
use framefit_core::ops::{LastFrame, Reverse};
use framefit_core::schedule::{Role, Step};
use framefit_kernels::conv::Window;
use framefit_kernels::elementwise::{FrameCopyArgs, FrameCopyShape, FrameReversalArgs, FrameReversalShape};
use framefit_kernels::{Arena, choose};

/// Turns round the frames of one role's window into another's: both are as far from the clip's two ends.
fn reverse<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    (from, to): (Role, Role),
    accumulate: bool,
    arena: &mut Arena,
) -> Option<()> {
    let [x, y] = elements::<E, 2>(call.placed, step, [from, to], arena)?;
    let layer = call.layer(step, from, to)?;
    let total = layer.input.dims.t;
    if layer.read.lo + layer.made.hi != total || layer.read.hi + layer.made.lo != total {
        return None;
    }
    let shape = FrameReversalShape { frame: layer.clips * layer.input.per_frame(), frames: layer.made.len() };
    let row = choose(E::frame_reversal(), call.kernels.isa, &shape);
    (row.run)(&shape, FrameReversalArgs { x, accumulate, y }, call.pool);
    Some(())
}

impl OnKernels for Reverse {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        reverse(call, step, (Role::Input, Role::Output), false, arena)
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        reverse(call, step, (Role::OutputGradient, Role::InputGradient), how.accumulate, arena)
    }
}

/// The last frame of the clip, from a value of which `x` is held to one of which `y` is.
fn last(layer: &Layer<'_>, x: Option<axes::Window>, y: Option<axes::Window>) -> FrameCopyShape {
    let total = layer.input.dims.t;
    let copied = Window { lo: total.saturating_sub(1), hi: total };
    let held = |of: Option<axes::Window>| of.map_or(copied, window);
    FrameCopyShape { frame: layer.clips * layer.input.per_frame(), x: held(x), y: held(y), copied }
}

impl OnKernels for LastFrame {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let [x, y] = elements::<E, 2>(call.placed, step, [Role::Input, Role::Output], arena)?;
        let layer = call.layer(step, Role::Input, Role::Output)?;
        let shape = last(&layer, Some(layer.read), None);
        let row = choose(E::frame_copy(), call.kernels.isa, &shape);
        (row.run)(&shape, FrameCopyArgs { x, accumulate: false, y }, call.pool);
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let [dy, dx] = elements::<E, 2>(call.placed, step, [Role::OutputGradient, Role::InputGradient], arena)?;
        let layer = call.layer(step, Role::InputGradient, Role::OutputGradient)?;
        if !how.accumulate {
            dx.fill(E::ZERO);
        }
        if layer.read.hi < layer.input.dims.t {
            return Some(());
        }
        let shape = last(&layer, None, Some(layer.read));
        let row = choose(E::frame_copy(), call.kernels.isa, &shape);
        (row.run)(&shape, FrameCopyArgs { x: dy, accumulate: how.accumulate, y: dx }, call.pool);
        Some(())
    }
}
