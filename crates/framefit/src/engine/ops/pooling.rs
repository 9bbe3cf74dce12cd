//! Poolings.

use super::{Asked, Layer, OnKernels, dims, scratch_of, window};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements};
use framefit_core::axes;
use framefit_core::ops::{AdaptivePool3d, AvgPool3d, GlobalAvgPool3d, MaxPool3d, PoolKind};
use framefit_core::schedule::{Pass, Role, Step};
use framefit_kernels::mean::{MeanBackwardArgs, MeanForwardArgs, MeanShape};
use framefit_kernels::pooling::{
    AdaptiveShape, AvgPoolBackwardArgs, AvgPoolForwardArgs, AvgPoolShape, Divisor, MaxPoolBackwardArgs,
    MaxPoolForwardArgs, PoolShape,
};
use framefit_kernels::{Arena, choose};

/// What lies beyond the padding at the end follows from the extents of the output.
fn windows(layer: &Layer<'_>, [kernel, stride, padding]: [axes::Dims3; 3]) -> PoolShape {
    PoolShape {
        clips: layer.clips,
        channels: layer.input.channels,
        input: dims(layer.input.dims),
        output: dims(layer.output.dims),
        kernel: dims(kernel),
        stride: dims(stride),
        padding: dims(padding),
        x: window(layer.read),
        y: window(layer.made),
    }
}

fn max(op: &MaxPool3d, layer: &Layer<'_>) -> PoolShape {
    windows(layer, [op.kernel, op.stride, op.padding])
}

fn average(op: &AvgPool3d, layer: &Layer<'_>) -> AvgPoolShape {
    let divisor = if op.count_include_pad { Divisor::WithPadding } else { Divisor::Inputs };
    AvgPoolShape { pool: windows(layer, [op.kernel, op.stride, op.padding]), divisor }
}

fn adaptive(layer: &Layer<'_>) -> AdaptiveShape {
    AdaptiveShape {
        clips: layer.clips,
        channels: layer.input.channels,
        input: dims(layer.input.dims),
        output: dims(layer.output.dims),
        x: window(layer.read),
        y: window(layer.made),
    }
}

/// The mean over the frames read.
pub(super) fn mean(layer: &Layer<'_>) -> MeanShape {
    MeanShape {
        clips: layer.clips,
        frames: layer.read.len(),
        positions: layer.positions(),
        channels: layer.input.channels,
    }
}

impl OnKernels for MaxPool3d {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let [x, y] = elements::<E, 2>(call.placed, step, [Role::Input, Role::Output], arena)?;
        let shape = max(self, &call.layer(step, Role::Input, Role::Output)?);
        let row = choose(E::max_pool_forward(), call.kernels.isa, &shape);
        (row.run)(&shape, MaxPoolForwardArgs { x, y }, call.pool);
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::InputGradient];
        let [x, dy, dx] = elements::<E, 3>(call.placed, step, roles, arena)?;
        let shape = max(self, &call.layer(step, Role::InputGradient, Role::OutputGradient)?);
        let InputGradient { relu, accumulate } = how;
        let row = choose(E::max_pool_backward(), call.kernels.isa, &shape);
        (row.run)(&shape, MaxPoolBackwardArgs { x, dy, relu, accumulate, dx }, call.pool);
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let shape = max(self, &asked.layer);
        match asked.pass {
            Pass::Forward => scratch_of!(asked, E::max_pool_forward(), shape),
            Pass::InputGradient => scratch_of!(asked, E::max_pool_backward(), shape),
            Pass::WeightGradient | Pass::State | Pass::Moments | Pass::Sums => 0,
        }
    }
}

impl OnKernels for AvgPool3d {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let [x, y] = elements::<E, 2>(call.placed, step, [Role::Input, Role::Output], arena)?;
        let shape = average(self, &call.layer(step, Role::Input, Role::Output)?);
        let row = choose(E::avg_pool_forward(), call.kernels.isa, &shape);
        (row.run)(&shape, AvgPoolForwardArgs { x, y }, call.pool);
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
        let shape = average(self, &call.layer(step, Role::InputGradient, Role::OutputGradient)?);
        let row = choose(E::avg_pool_backward(), call.kernels.isa, &shape);
        (row.run)(&shape, AvgPoolBackwardArgs { dy, accumulate: how.accumulate, dx }, call.pool);
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let shape = average(self, &asked.layer);
        match asked.pass {
            Pass::Forward => scratch_of!(asked, E::avg_pool_forward(), shape),
            Pass::InputGradient => scratch_of!(asked, E::avg_pool_backward(), shape),
            Pass::WeightGradient | Pass::State | Pass::Moments | Pass::Sums => 0,
        }
    }
}

impl OnKernels for AdaptivePool3d {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let [x, y] = elements::<E, 2>(call.placed, step, [Role::Input, Role::Output], arena)?;
        let shape = adaptive(&call.layer(step, Role::Input, Role::Output)?);
        let isa = call.kernels.isa;
        match self.kind {
            PoolKind::Average => {
                let row = choose(E::adaptive_avg_pool_forward(), isa, &shape);
                (row.run)(&shape, AvgPoolForwardArgs { x, y }, call.pool);
            }
            PoolKind::Maximum => {
                let row = choose(E::adaptive_max_pool_forward(), isa, &shape);
                (row.run)(&shape, MaxPoolForwardArgs { x, y }, call.pool);
            }
        }
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::InputGradient];
        let [x, dy, dx] = elements::<E, 3>(call.placed, step, roles, arena)?;
        let shape = adaptive(&call.layer(step, Role::InputGradient, Role::OutputGradient)?);
        let InputGradient { relu, accumulate } = how;
        let isa = call.kernels.isa;
        match self.kind {
            PoolKind::Average => {
                let row = choose(E::adaptive_avg_pool_backward(), isa, &shape);
                (row.run)(&shape, AvgPoolBackwardArgs { dy, accumulate, dx }, call.pool);
            }
            PoolKind::Maximum => {
                let row = choose(E::adaptive_max_pool_backward(), isa, &shape);
                (row.run)(&shape, MaxPoolBackwardArgs { x, dy, relu, accumulate, dx }, call.pool);
            }
        }
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let shape = adaptive(&asked.layer);
        match (asked.pass, self.kind) {
            (Pass::Forward, PoolKind::Average) => scratch_of!(asked, E::adaptive_avg_pool_forward(), shape),
            (Pass::Forward, PoolKind::Maximum) => scratch_of!(asked, E::adaptive_max_pool_forward(), shape),
            (Pass::InputGradient, PoolKind::Average) => scratch_of!(asked, E::adaptive_avg_pool_backward(), shape),
            (Pass::InputGradient, PoolKind::Maximum) => scratch_of!(asked, E::adaptive_max_pool_backward(), shape),
            (Pass::WeightGradient | Pass::State | Pass::Moments | Pass::Sums, _) => 0,
        }
    }
}

impl OnKernels for GlobalAvgPool3d {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::Output, Role::Workspace];
        let [x, y, scratch] = elements::<E, 3>(call.placed, step, roles, arena)?;
        let layer = call.layer(step, Role::Input, Role::Output)?;
        let shape = mean(&layer);
        let scale = E::from_f64(1.0 / layer.input.dims.volume() as f64);
        let row = choose(E::mean_forward(), call.kernels.isa, &shape);
        let args = MeanForwardArgs { x, scale, accumulate: !how.part.first, y, scratch };
        (row.run)(&shape, args, call.pool);
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
        let shape = mean(&layer);
        let scale = E::from_f64(1.0 / layer.input.dims.volume() as f64);
        let row = choose(E::mean_backward(), call.kernels.isa, &shape);
        (row.run)(&shape, MeanBackwardArgs { dy, scale, accumulate: how.accumulate, dx }, call.pool);
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let shape = mean(&asked.layer);
        match asked.pass {
            Pass::Forward => scratch_of!(asked, E::mean_forward(), shape),
            Pass::InputGradient => scratch_of!(asked, E::mean_backward(), shape),
            Pass::WeightGradient | Pass::State | Pass::Moments | Pass::Sums => 0,
        }
    }
}
