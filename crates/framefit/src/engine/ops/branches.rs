//! Where branches meet: one step for each input.

use super::{Layer, OnKernels};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements};
use framefit_core::ops::{Add, Concat};
use framefit_core::schedule::{Mode, Role, Step};
use framefit_kernels::elementwise::{AdditionArgs, ChannelCopyArgs, ChannelCopyShape};
use framefit_kernels::{Arena, choose};

impl OnKernels for Add {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let accumulate = step.access(Role::Output)?.mode == Mode::Update;
        add(call, step, (Role::Input, Role::Output), accumulate, arena)
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        add(call, step, (Role::OutputGradient, Role::InputGradient), how.accumulate, arena)
    }
}

fn add<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    (from, to): (Role, Role),
    accumulate: bool,
    arena: &mut Arena,
) -> Option<()> {
    let [b, y] = elements::<E, 2>(call.placed, step, [from, to], arena)?;
    if !accumulate {
        return (b.len() == y.len()).then(|| y.copy_from_slice(b));
    }
    let len = y.len();
    let row = choose(E::addition(), call.kernels.isa, &len);
    (row.run)(&len, AdditionArgs { a: None, b, y }, call.pool);
    Some(())
}

/// Into the output, the channels of an input after those of the inputs before it.
fn into_output(layer: &Layer<'_>) -> ChannelCopyShape {
    let channels = layer.input.channels;
    ChannelCopyShape {
        rows: layer.made.len() * layer.clips * layer.positions(),
        channels,
        x_channels: channels,
        x_first: 0,
        y_channels: layer.output.channels,
        y_first: layer.channels_before,
    }
}

impl OnKernels for Concat {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let [x, y] = elements::<E, 2>(call.placed, step, [Role::Input, Role::Output], arena)?;
        let shape = into_output(&call.layer(step, Role::Input, Role::Output)?);
        let row = choose(E::channel_copy(), call.kernels.isa, &shape);
        (row.run)(&shape, ChannelCopyArgs { x, accumulate: false, y }, call.pool);
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
        let into = into_output(&call.layer(step, Role::InputGradient, Role::OutputGradient)?);
        let shape = ChannelCopyShape {
            x_channels: into.y_channels,
            x_first: into.y_first,
            y_channels: into.x_channels,
            y_first: into.x_first,
            ..into
        };
        let row = choose(E::channel_copy(), call.kernels.isa, &shape);
        (row.run)(&shape, ChannelCopyArgs { x: dy, accumulate: how.accumulate, y: dx }, call.pool);
        Some(())
    }
}
