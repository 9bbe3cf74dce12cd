//! Recurrent dropout: the products with states that each gate sees in its own random zeros.
//!
//! The states lie side by side, `[P,g,K]`, one for each gate of a part, so that their product is a convolution in as
//! many groups with the very weight that the plain product has.

use super::product::{Product, of_vectors};
use super::{Work, cell_of, parts, take};
use crate::engine::Element;
use crate::engine::ops::{Asked, Layer, aligned, dims};
use crate::engine::run::Call;
use framefit_core::ops::Recurrent;
use framefit_core::schedule::{Pass, Step};
use framefit_kernels::choose;
use framefit_kernels::conv::{
    ConvForwardArgs, ConvInputGradientArgs, ConvShape, ConvWeightGradientArgs, Dims3, Window,
};
use framefit_kernels::dropout::{DropoutArgs, DropoutShape, DropoutUnit};
use framefit_kernels::elementwise::{ChannelCopyArgs, ChannelCopyShape};

/// Sets the draws of recurrent dropout apart from those of layers that drop their input.
const RECURRENT: u64 = 0x7265_6375_7272_656e;

/// Whose zeros the states of a call have: the same for all frames of a clip.
#[derive(Clone, Copy)]
pub(super) struct Zeros<'a> {
    p: f64,
    /// `[N]`
    keys: &'a [u64],
    layer: u64,
}

impl<'a> Zeros<'a> {
    /// None where nothing is dropped.
    pub(super) fn of<E>(op: &Recurrent, call: &Call<'a, E>, step: &Step, clips: usize) -> Option<Self> {
        if op.recurrent_dropout == 0.0 {
            return None;
        }
        let keys = call.numbers.keys?.get(..clips)?;
        Some(Self { p: op.recurrent_dropout, keys, layer: RECURRENT.wrapping_add(2 * step.node?.0 as u64) })
    }
}

/// The product of the states of one frame, side by side, with the weight of so many gates.
fn side_by_side(op: &Recurrent, layer: &Layer<'_>, gates: usize) -> ConvShape {
    let maps = dims(layer.output.dims);
    let (clips, extents) = match of_vectors(op, layer) {
        true => (1, Dims3 { w: layer.clips, ..Dims3::cube(1) }),
        false => (layer.clips, Dims3 { t: 1, ..maps }),
    };
    let window = Window { lo: 0, hi: 1 };
    ConvShape {
        clips,
        channels: gates * op.filters,
        out_channels: gates * op.filters,
        groups: gates,
        input: extents,
        output: extents,
        kernel: dims(op.kernel),
        stride: Dims3::cube(1),
        padding: dims(op.recurrent_padding()),
        dilation: Dims3::cube(1),
        x: window,
        y: window,
    }
}

/// Scratch of a call of a frame's product with dropped states, in elements.
pub(super) fn scratch<E: Element>(op: &Recurrent, asked: &Asked<'_>, gates: usize) -> usize {
    if op.recurrent_dropout == 0.0 || !asked.training {
        return 0;
    }
    let product = Product::Maps(side_by_side(op, &asked.layer, gates));
    let of_product = match asked.pass {
        Pass::Forward => product.forward_scratch::<E>(asked),
        Pass::State => product.input_gradient_scratch::<E>(asked),
        Pass::WeightGradient => product.weight_gradient_scratch::<E>(asked),
        Pass::InputGradient | Pass::Moments | Pass::Sums => return 0,
    };
    aligned::<E>(gates * cell_of(op, &asked.layer).len()) + of_product
}

impl<E: Element> Work<'_, '_, E> {
    /// y (+)= the product of one state x: `[P,K]` with the weight of a part's gates, and the bias.
    pub(super) fn product(&self, part: usize, args: ConvForwardArgs<'_, E>) -> Option<()> {
        let Some(zeros) = self.zeros else {
            self.of_state(part).forward(self.call, args);
            return Some(());
        };
        let ConvForwardArgs { x, w, bias, relu, accumulate, y, mut scratch } = args;
        let states = self.dropped(zeros, part, x, &mut scratch)?;
        let args = ConvForwardArgs { x: states, w, bias, relu, accumulate, y, scratch };
        self.of_dropped(part).forward(self.call, args);
        Some(())
    }

    /// dx: `[P,K]` (+)= its gradient.
    pub(super) fn product_gradient(&self, part: usize, args: ConvInputGradientArgs<'_, E>) -> Option<()> {
        let Some(zeros) = self.zeros else {
            self.of_state(part).input_gradient(self.call, args);
            return Some(());
        };
        let ConvInputGradientArgs { dy, w, dx, accumulate, mut scratch } = args;
        let states = self.states(part, &mut scratch)?;
        let args = ConvInputGradientArgs { dy, w, dx: &mut *states, accumulate: false, scratch };
        self.of_dropped(part).input_gradient(self.call, args);
        self.drop(zeros, part, states);
        for gate in 0..parts(self.op.cell)[part] {
            let shape = self.beside(part, gate);
            let back = ChannelCopyShape {
                x_channels: shape.y_channels,
                x_first: shape.y_first,
                y_channels: shape.x_channels,
                y_first: shape.x_first,
                ..shape
            };
            let row = choose(E::channel_copy(), self.call.kernels.isa, &back);
            let args = ChannelCopyArgs { x: states, accumulate: accumulate || gate > 0, y: &mut *dx };
            (row.run)(&back, args, self.call.pool);
        }
        Some(())
    }

    /// Adds to dw what one frame gives: x: `[P,K]`, dy: `[P,gK]`.
    pub(super) fn add_dropped_gradient(
        &self,
        zeros: Zeros<'_>,
        part: usize,
        args: ConvWeightGradientArgs<'_, E>,
    ) -> Option<()> {
        let ConvWeightGradientArgs { x, dy, dw, db, mut scratch } = args;
        let states = self.dropped(zeros, part, x, &mut scratch)?;
        self.of_dropped(part).weight_gradient(self.call, ConvWeightGradientArgs { x: states, dy, dw, db, scratch });
        Some(())
    }

    /// The product with one state.
    fn of_state(&self, part: usize) -> Product {
        Product::of_states(self.op, &self.layer, 1, parts(self.op.cell)[part])
    }

    fn of_dropped(&self, part: usize) -> Product {
        Product::Maps(side_by_side(self.op, &self.layer, parts(self.op.cell)[part]))
    }

    /// From scratch: `[P,g,K]`.
    fn states<'s>(&self, part: usize, scratch: &mut &'s mut [E]) -> Option<&'s mut [E]> {
        let len = parts(self.op.cell)[part] * self.cell.len();
        take(scratch, aligned::<E>(len))?.get_mut(..len)
    }

    /// A state once for each gate, each with its zeros.
    fn dropped<'s>(&self, zeros: Zeros<'_>, part: usize, x: &[E], scratch: &mut &'s mut [E]) -> Option<&'s [E]> {
        let states = self.states(part, scratch)?;
        for gate in 0..parts(self.op.cell)[part] {
            let shape = self.beside(part, gate);
            let row = choose(E::channel_copy(), self.call.kernels.isa, &shape);
            (row.run)(&shape, ChannelCopyArgs { x, accumulate: false, y: &mut *states }, self.call.pool);
        }
        self.drop(zeros, part, states);
        Some(states)
    }

    /// From one state to that of a gate among those side by side.
    fn beside(&self, part: usize, gate: usize) -> ChannelCopyShape {
        let units = self.cell.units;
        ChannelCopyShape {
            rows: self.cell.positions,
            channels: units,
            x_channels: units,
            x_first: 0,
            y_channels: parts(self.op.cell)[part] * units,
            y_first: gate * units,
        }
    }

    /// Sets the zeros of states side by side, or of their gradient.
    fn drop(&self, zeros: Zeros<'_>, part: usize, states: &mut [E]) {
        let shape = DropoutShape {
            clips: self.layer.clips,
            frames: 1,
            positions: self.cell.positions / self.layer.clips.max(1),
            channels: parts(self.op.cell)[part] * self.cell.units,
            unit: DropoutUnit::ElementOfEveryFrame,
        };
        let args = DropoutArgs {
            keys: zeros.keys,
            layer: zeros.layer.wrapping_add(part as u64),
            first_frame: 0,
            p: zeros.p,
            x: None,
            accumulate: false,
            y: states,
        };
        (choose(E::dropout(), self.call.kernels.isa, &shape).run)(&shape, args, self.call.pool);
    }
}
