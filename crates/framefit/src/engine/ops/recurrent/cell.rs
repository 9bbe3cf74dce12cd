//! One frame of a cell, forward and back: the products with the state and what lies between them.

use super::Work;
use crate::engine::Element;
use framefit_core::ops::{Cell, GateFunction, GateOrder, Recurrent, StateFunction};
use framefit_kernels::activation::Activation;
use framefit_kernels::choose;
use framefit_kernels::conv::{ConvForwardArgs, ConvInputGradientArgs};
use framefit_kernels::elementwise::AdditionArgs;
use framefit_kernels::mean::{MeanBackwardArgs, MeanShape};
use framefit_kernels::recurrent::{
    self as kernels, CellActivations, GruBackwardArgs, GruForwardArgs, GruGatesBackwardArgs, GruGatesForwardArgs,
    GruStateBackwardArgs, GruStateForwardArgs, LstmBackwardArgs, LstmForwardArgs,
};

/// What lies before a frame, at the clip's first one nothing.
#[derive(Clone, Copy)]
pub(super) struct Before<'a, E> {
    /// h: `[P,K]`
    pub(super) h: Option<&'a [E]>,
    /// c: `[P,K]`, of an LSTM.
    pub(super) c: Option<&'a [E]>,
}

/// A frame on its way forward.
pub(super) struct Forward<'a, E> {
    pub(super) before: Before<'a, E>,
    /// Products with the frame in, activated gates out; as [`super::parts`] has them.
    pub(super) gates: [&'a mut [E]; 2],
    /// Overwritten with what is kept of the products with the state: `[P,3,K]` of a GRU that resets after them,
    /// r∘h `[P,K]` of one that resets before.
    pub(super) hidden: &'a mut [E],
    /// Overwritten: `[P,K]`.
    pub(super) h: &'a mut [E],
    /// Overwritten: `[P,K]`, of an LSTM.
    pub(super) c: &'a mut [E],
    pub(super) scratch: &'a mut [E],
}

/// A frame on its way back.
pub(super) struct Backward<'a, E> {
    pub(super) before: Before<'a, E>,
    /// Activated gates in, their gradients before activation out.
    pub(super) gates: [&'a mut [E]; 2],
    /// Products with the state in, their gradients out; r∘h stays.
    pub(super) hidden: &'a mut [E],
    /// c: `[P,K]`, of an LSTM.
    pub(super) c: &'a [E],
    /// The gradient of the output: `[P,K]`.
    pub(super) dy: &'a [E],
    /// What later frames give to the gradient of h in, what this one gives to the frame before out.
    pub(super) dh: &'a mut [E],
    /// The same of c.
    pub(super) dc: &'a mut [E],
    /// `[P,K]`, of a GRU; the second of one that resets before the product.
    pub(super) spare: [&'a mut [E]; 2],
    pub(super) scratch: &'a mut [E],
}

fn activations(op: &Recurrent) -> CellActivations {
    CellActivations {
        state: match op.activation {
            StateFunction::Tanh => Activation::Tanh,
            StateFunction::Relu => Activation::Relu,
        },
        gate: match op.recurrent_activation {
            GateFunction::Sigmoid => Activation::Sigmoid,
            GateFunction::HardSigmoid => Activation::HardSigmoid,
            GateFunction::HardSigmoidKeras2 => Activation::HardSigmoidKeras2,
        },
    }
}

/// Where r and z of a GRU lie.
fn order(op: &Recurrent) -> kernels::GateOrder {
    match op.gate_order() {
        GateOrder::ResetUpdateCandidate => kernels::GateOrder::ResetUpdate,
        GateOrder::UpdateResetCandidate | GateOrder::InputForgetCandidateOutput => kernels::GateOrder::UpdateReset,
    }
}

impl<E: Element> Work<'_, '_, E> {
    /// y: `[P,gK]` += the product of x: `[P,K]` with the weight of a part's gates.
    fn add_product(&self, part: usize, (w, x): (&[E], &[E]), y: &mut [E], scratch: &mut [E]) -> Option<()> {
        self.product(part, ConvForwardArgs { x, w, bias: None, relu: false, accumulate: true, y, scratch })
    }

    /// u: the weight of the state, recurrent_bias: that of a GRU's product with it.
    pub(super) fn frame_forward(&self, u: &[E], recurrent_bias: Option<&[E]>, frame: Forward<'_, E>) -> Option<()> {
        match self.op.cell {
            Cell::Lstm => self.lstm_forward(u, frame),
            Cell::GruResetAfter => self.gru_after_forward(u, recurrent_bias, frame),
            Cell::GruResetBefore => self.gru_before_forward(u, frame),
        }
    }

    pub(super) fn frame_backward(&self, u: &[E], frame: Backward<'_, E>) -> Option<()> {
        match self.op.cell {
            Cell::Lstm => self.lstm_backward(u, frame),
            Cell::GruResetAfter => self.gru_after_backward(u, frame),
            Cell::GruResetBefore => self.gru_before_backward(u, frame),
        }
    }

    fn lstm_forward(&self, u: &[E], frame: Forward<'_, E>) -> Option<()> {
        let Forward { before, gates: [gates, _], h, c, scratch, .. } = frame;
        if let Some(x) = before.h {
            self.add_product(0, (u, x), gates, scratch)?;
        }
        let row = choose(E::lstm_forward(), self.call.kernels.isa, &self.cell);
        let args = LstmForwardArgs { activations: activations(self.op), gates, c_prev: before.c, c, h };
        (row.run)(&self.cell, args, self.call.pool);
        Some(())
    }

    fn lstm_backward(&self, u: &[E], frame: Backward<'_, E>) -> Option<()> {
        let Backward { before, gates: [dgates, _], c, dy, dh, dc, scratch, .. } = frame;
        let (isa, pool, len) = (self.call.kernels.isa, self.call.pool, self.cell.len());
        (choose(E::addition(), isa, &len).run)(&len, AdditionArgs { a: None, b: dy, y: dh }, pool);
        let row = choose(E::lstm_backward(), isa, &self.cell);
        let activations = activations(self.op);
        let args = LstmBackwardArgs { activations, gates: None, c_prev: before.c, c, dh, dc, dgates };
        (row.run)(&self.cell, args, pool);
        self.product_gradient(0, ConvInputGradientArgs { dy: dgates, w: u, dx: dh, accumulate: false, scratch })
    }

    fn gru_after_forward(&self, u: &[E], bias: Option<&[E]>, frame: Forward<'_, E>) -> Option<()> {
        let Forward { before, gates: [x_gates, _], hidden, h, scratch, .. } = frame;
        let (isa, pool) = (self.call.kernels.isa, self.call.pool);
        match (before.h, bias) {
            (Some(x), bias) => {
                let args = ConvForwardArgs { x, w: u, bias, relu: false, accumulate: false, y: hidden, scratch };
                self.product(0, args)?;
            }
            // The product with no state is its bias, everywhere.
            (None, Some(bias)) => {
                let shape =
                    MeanShape { clips: 1, frames: 1, positions: self.cell.positions, channels: 3 * self.cell.units };
                let args = MeanBackwardArgs { dy: bias, scale: E::ONE, accumulate: false, dx: hidden };
                (choose(E::mean_backward(), isa, &shape).run)(&shape, args, pool);
            }
            (None, None) => hidden.fill(E::ZERO),
        }
        let row = choose(E::gru_forward(), isa, &self.cell);
        let (activations, order) = (activations(self.op), order(self.op));
        let args = GruForwardArgs { activations, order, x_gates, h_gates: hidden, h_prev: before.h, h };
        (row.run)(&self.cell, args, pool);
        Some(())
    }

    fn gru_after_backward(&self, u: &[E], frame: Backward<'_, E>) -> Option<()> {
        let Backward { before, gates: [x_gates, _], hidden, dy, dh, spare: [total, _], scratch, .. } = frame;
        let (isa, pool, len) = (self.call.kernels.isa, self.call.pool, self.cell.len());
        (choose(E::addition(), isa, &len).run)(&len, AdditionArgs { a: Some(dy), b: dh, y: total }, pool);
        let row = choose(E::gru_backward(), isa, &self.cell);
        let (activations, order) = (activations(self.op), order(self.op));
        let (h_gates, h_prev, dh_prev) = (&mut *hidden, before.h, &mut *dh);
        let args = GruBackwardArgs { activations, order, x_gates, h_gates, h_prev, dh: total, dh_prev };
        (row.run)(&self.cell, args, pool);
        self.product_gradient(0, ConvInputGradientArgs { dy: hidden, w: u, dx: dh, accumulate: true, scratch })
    }

    /// The rows of r and z, and those of the candidate.
    fn halves<'a>(&self, u: &'a [E]) -> Option<(&'a [E], &'a [E])> {
        u.split_at_checked(u.len() / 3 * 2)
    }

    fn gru_before_forward(&self, u: &[E], frame: Forward<'_, E>) -> Option<()> {
        let Forward { before, gates: [gates, candidate], hidden: reset, h, scratch, .. } = frame;
        let (isa, pool) = (self.call.kernels.isa, self.call.pool);
        let (u, u_candidate) = self.halves(u)?;
        let (activations, order, h_prev) = (activations(self.op), order(self.op), before.h);
        if let Some(x) = h_prev {
            self.add_product(0, (u, x), gates, scratch)?;
        }
        let row = choose(E::gru_gates_forward(), isa, &self.cell);
        let args = GruGatesForwardArgs { activations, order, gates: &mut *gates, h_prev, reset: &mut *reset };
        (row.run)(&self.cell, args, pool);
        if h_prev.is_some() {
            self.add_product(1, (u_candidate, reset), candidate, scratch)?;
        }
        let row = choose(E::gru_state_forward(), isa, &self.cell);
        (row.run)(&self.cell, GruStateForwardArgs { activations, order, gates, candidate, h_prev, h }, pool);
        Some(())
    }

    fn gru_before_backward(&self, u: &[E], frame: Backward<'_, E>) -> Option<()> {
        let Backward { before, gates: [gates, candidate], dy, dh, spare: [total, dreset], scratch, .. } = frame;
        let (isa, pool, len) = (self.call.kernels.isa, self.call.pool, self.cell.len());
        let (u, u_candidate) = self.halves(u)?;
        let (activations, order, h_prev) = (activations(self.op), order(self.op), before.h);
        (choose(E::addition(), isa, &len).run)(&len, AdditionArgs { a: Some(dy), b: dh, y: total }, pool);
        let row = choose(E::gru_state_backward(), isa, &self.cell);
        let args = GruStateBackwardArgs {
            activations,
            order,
            gates: &mut *gates,
            candidate: &mut *candidate,
            h_prev,
            dh: total,
            dh_prev: &mut *dh,
        };
        (row.run)(&self.cell, args, pool);
        let args = ConvInputGradientArgs {
            dy: candidate,
            w: u_candidate,
            dx: dreset,
            accumulate: false,
            scratch: &mut *scratch,
        };
        self.product_gradient(1, args)?;
        let row = choose(E::gru_gates_backward(), isa, &self.cell);
        let args = GruGatesBackwardArgs { activations, order, gates: &mut *gates, h_prev, dreset, dh_prev: &mut *dh };
        (row.run)(&self.cell, args, pool);
        self.product_gradient(0, ConvInputGradientArgs { dy: gates, w: u, dx: dh, accumulate: true, scratch })
    }
}
