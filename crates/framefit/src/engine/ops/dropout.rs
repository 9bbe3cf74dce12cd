//! Dropout, in place or from one buffer to another. Backward is the same map as forward.

use super::{Layer, OnKernels};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements};
use framefit_core::ops::{Dropout, DropoutUnit};
use framefit_core::schedule::{Role, Step};
use framefit_kernels::dropout::{DropoutArgs, DropoutShape, DropoutUnit as Kernel};
use framefit_kernels::{Arena, choose};

fn shape(op: &Dropout, layer: &Layer<'_>) -> DropoutShape {
    DropoutShape {
        clips: layer.clips,
        frames: layer.made.len(),
        positions: layer.positions(),
        channels: layer.input.channels,
        unit: match op.unit {
            DropoutUnit::Element => Kernel::Element,
            DropoutUnit::Channel => Kernel::FrameChannel,
            DropoutUnit::ClipChannel => Kernel::ClipChannel,
            DropoutUnit::ElementOfEveryFrame => Kernel::ElementOfEveryFrame,
        },
    }
}

/// From the buffer of one role to that of another, or in place.
fn apply<E: Element>(
    op: &Dropout,
    call: &Call<'_, E>,
    step: &Step,
    (from, to): (Option<Role>, Role),
    accumulate: bool,
    arena: &mut Arena,
) -> Option<()> {
    let (x, y) = match from {
        Some(from) => {
            let [x, y] = elements::<E, 2>(call.placed, step, [from, to], arena)?;
            (Some(&*x), y)
        }
        None => {
            let [y] = elements::<E, 1>(call.placed, step, [to], arena)?;
            (None, y)
        }
    };
    let layer = call.layer(step, to, to)?;
    let shape = shape(op, &layer);
    let args = DropoutArgs {
        keys: call.numbers.keys?.get(..layer.clips)?,
        layer: step.node?.0 as u64,
        first_frame: layer.made.lo,
        p: op.p,
        x,
        accumulate,
        y,
    };
    let row = choose(E::dropout(), call.kernels.isa, &shape);
    (row.run)(&shape, args, call.pool);
    Some(())
}

impl OnKernels for Dropout {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let from = step.access(Role::Input).map(|_| Role::Input);
        apply(self, call, step, (from, Role::Output), false, arena)
    }

    fn in_place_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        apply(self, call, step, (None, Role::OutputGradient), false, arena)
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        apply(self, call, step, (Some(Role::OutputGradient), Role::InputGradient), how.accumulate, arena)
    }
}
