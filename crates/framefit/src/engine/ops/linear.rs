//! Matrix products: with a vector per clip, per frame, and at every position.

use super::{Asked, Layer, OnKernels, conv, scratch_of};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements, present};
use framefit_core::ops::{Dense, Linear};
use framefit_core::schedule::{Pass, Role, Step};
use framefit_kernels::conv::{
    ConvForwardArgs, ConvInputGradientArgs, ConvShape, ConvWeightGradientArgs, Dims3, Window,
};
use framefit_kernels::linear::{LinearForwardArgs, LinearInputGradientArgs, LinearShape, LinearWeightGradientArgs};
use framefit_kernels::{Arena, choose};

fn linear(op: &Linear, layer: &Layer<'_>) -> LinearShape {
    LinearShape {
        clips: layer.clips,
        frames: layer.read.len(),
        features: layer.input.per_frame(),
        out_features: op.out_features,
    }
}

/// Rows that a convolution takes side by side.
const SIDE_BY_SIDE: usize = 32;

/// Fewer rows than this are quicker as a linear layer.
const FEW_ROWS: usize = 128;

/// The same matrix for every row of features: of as many as fill tiles a convolution with one tap, and of the rest a
/// linear layer.
struct Rows {
    tiled: ConvShape,
    rest: LinearShape,
}

impl Rows {
    fn new(op: &Dense, layer: &Layer<'_>) -> Self {
        let positions = layer.output.dims.h * layer.output.dims.w;
        let rows = layer.made.len() * layer.clips * positions;
        let height = if rows < FEW_ROWS { 0 } else { rows / SIDE_BY_SIDE };
        let extents = Dims3 { t: 1, h: height, w: SIDE_BY_SIDE };
        let tiled = ConvShape {
            clips: 1,
            channels: op.in_channels,
            out_channels: op.units,
            groups: 1,
            input: extents,
            output: extents,
            kernel: Dims3::cube(1),
            stride: Dims3::cube(1),
            padding: Dims3::cube(0),
            dilation: Dims3::cube(1),
            x: Window { lo: 0, hi: 1 },
            y: Window { lo: 0, hi: 1 },
        };
        let clips = rows - height * SIDE_BY_SIDE;
        Self { tiled, rest: LinearShape { clips, frames: 1, features: op.in_channels, out_features: op.units } }
    }

    /// Whether there are tiles, and a rest.
    fn parts(&self) -> (bool, bool) {
        (self.tiled.output.h > 0, self.rest.clips > 0)
    }
}

impl OnKernels for Linear {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::Weight, Role::Bias, Role::Output, Role::Workspace];
        let [x, w, bias, y, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let shape = linear(self, &call.layer(step, Role::Input, Role::Output)?);
        // The sum over the clip begins at zero or goes on, and gets its bias once.
        let bias = present(bias).map(|b| &*b).filter(|_| how.part.last);
        let (relu, accumulate) = (how.relu, !how.part.first);
        let row = choose(E::linear_forward(), call.kernels.isa, &shape);
        (row.run)(&shape, LinearForwardArgs { x, w, bias, relu, accumulate, y, scratch }, call.pool);
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let roles = [Role::OutputGradient, Role::Weight, Role::InputGradient, Role::Workspace];
        let [dy, w, dx, scratch] = elements::<E, 4>(call.placed, step, roles, arena)?;
        let shape = linear(self, &call.layer(step, Role::InputGradient, Role::OutputGradient)?);
        let row = choose(E::linear_input_gradient(), call.kernels.isa, &shape);
        let args = LinearInputGradientArgs { dy, w, dx, accumulate: how.accumulate, scratch };
        (row.run)(&shape, args, call.pool);
        Some(())
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::WeightGradient, Role::BiasGradient, Role::Workspace];
        let [x, dy, dw, db, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let shape = linear(self, &call.layer(step, Role::Input, Role::OutputGradient)?);
        let row = choose(E::linear_weight_gradient(), call.kernels.isa, &shape);
        (row.run)(&shape, LinearWeightGradientArgs { x, dy, dw, db: present(db), scratch }, call.pool);
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        scratch::<E>(asked, linear(self, &asked.layer))
    }
}

fn scratch<E: Element>(asked: &Asked<'_>, shape: LinearShape) -> usize {
    match asked.pass {
        Pass::Forward => scratch_of!(asked, E::linear_forward(), shape),
        Pass::InputGradient => scratch_of!(asked, E::linear_input_gradient(), shape),
        Pass::WeightGradient => scratch_of!(asked, E::linear_weight_gradient(), shape),
        Pass::State | Pass::Moments | Pass::Sums => 0,
    }
}

impl OnKernels for Dense {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::Weight, Role::Bias, Role::Output, Role::Workspace];
        let [x, w, bias, y, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let (bias, relu) = (present(bias).map(|b| &*b), how.relu);
        let rows = Rows::new(self, &call.layer(step, Role::Input, Role::Output)?);
        let (tiled, rest) = rows.parts();
        let (x, x_rest) = x.split_at_checked(rows.tiled.x_len())?;
        let (y, y_rest) = y.split_at_mut_checked(rows.tiled.y_len())?;
        if tiled {
            let row = choose(E::conv_forward(), call.kernels.isa, &rows.tiled);
            let args = ConvForwardArgs { x, w, bias, relu, accumulate: false, y, scratch: &mut *scratch };
            (row.run)(&rows.tiled, args, call.pool);
        }
        if rest {
            let row = choose(E::linear_forward(), call.kernels.isa, &rows.rest);
            let args = LinearForwardArgs { x: x_rest, w, bias, relu, accumulate: false, y: y_rest, scratch };
            (row.run)(&rows.rest, args, call.pool);
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
        let roles = [Role::OutputGradient, Role::Weight, Role::InputGradient, Role::Workspace];
        let [dy, w, dx, scratch] = elements::<E, 4>(call.placed, step, roles, arena)?;
        let accumulate = how.accumulate;
        let rows = Rows::new(self, &call.layer(step, Role::InputGradient, Role::OutputGradient)?);
        let (tiled, rest) = rows.parts();
        let (dy, dy_rest) = dy.split_at_checked(rows.tiled.y_len())?;
        let (dx, dx_rest) = dx.split_at_mut_checked(rows.tiled.x_len())?;
        if tiled {
            let row = choose(E::conv_input_gradient(), call.kernels.isa, &rows.tiled);
            let args = ConvInputGradientArgs { dy, w, dx, accumulate, scratch: &mut *scratch };
            (row.run)(&rows.tiled, args, call.pool);
        }
        if rest {
            let row = choose(E::linear_input_gradient(), call.kernels.isa, &rows.rest);
            let args = LinearInputGradientArgs { dy: dy_rest, w, dx: dx_rest, accumulate, scratch };
            (row.run)(&rows.rest, args, call.pool);
        }
        Some(())
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::WeightGradient, Role::BiasGradient, Role::Workspace];
        let [x, dy, dw, db, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let mut db = present(db);
        let rows = Rows::new(self, &call.layer(step, Role::Input, Role::OutputGradient)?);
        let (tiled, rest) = rows.parts();
        let (x, x_rest) = x.split_at_checked(rows.tiled.x_len())?;
        let (dy, dy_rest) = dy.split_at_checked(rows.tiled.y_len())?;
        if tiled {
            let row = choose(E::conv_weight_gradient(), call.kernels.isa, &rows.tiled);
            let (dw, db, scratch) = (&mut *dw, db.as_deref_mut(), &mut *scratch);
            (row.run)(&rows.tiled, ConvWeightGradientArgs { x, dy, dw, db, scratch }, call.pool);
        }
        if rest {
            let row = choose(E::linear_weight_gradient(), call.kernels.isa, &rows.rest);
            let args = LinearWeightGradientArgs { x: x_rest, dy: dy_rest, dw, db, scratch };
            (row.run)(&rows.rest, args, call.pool);
        }
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let rows = Rows::new(self, &asked.layer);
        let (tiled, rest) = rows.parts();
        let tiled = if tiled { conv::scratch::<E>(asked, rows.tiled) } else { 0 };
        tiled.max(if rest { scratch::<E>(asked, rows.rest) } else { 0 })
    }
}
