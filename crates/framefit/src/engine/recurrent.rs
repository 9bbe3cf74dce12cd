//! ConvLSTM steps: the frames of a segment one by one, forwards and backwards.

use super::Element;
use super::kernels::{aligned, cell_activations};
use super::run::{Call, elements, present};
use framefit_core::Op;
use framefit_core::schedule::{Role, Step};
use framefit_kernels::conv::{ConvForwardArgs, ConvInputGradientArgs, ConvWeightGradientArgs};
use framefit_kernels::elementwise::AdditionArgs;
use framefit_kernels::recurrent::{LstmBackwardArgs, LstmForwardArgs};
use framefit_kernels::{Arena, choose};

/// Splits what lies before frame `t` of `frames` from the frame itself.
fn before_and_at<E>(frames: &mut [E], t: usize, frame: usize) -> Option<(Option<&[E]>, &mut [E])> {
    let (before, rest) = frames.split_at_mut_checked(t * frame)?;
    let at = rest.get_mut(..frame)?;
    let before = t.checked_sub(1).and_then(|last| before.get(last * frame..));
    Some((before, at))
}

impl<E: Element> Call<'_, E> {
    pub(super) fn conv_lstm_forward(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::Input,
            Role::Weight,
            Role::RecurrentWeight,
            Role::Bias,
            Role::Output,
            Role::Cells,
            Role::Gates,
            Role::HiddenBefore,
            Role::CellBefore,
            Role::Workspace,
        ];
        let [x, w, u, bias, h, c, gates, h_before, c_before, scratch] =
            elements::<E, 10>(self.placed, step, roles, arena)?;
        let bias = present(bias).map(|b| &*b);
        let (h_before, c_before) = (present(h_before).map(|s| &*s), present(c_before).map(|s| &*s));
        let (op, layer) = self.layer(step, Role::Input, Role::Output)?;
        let Op::ConvLstm2d(op) = op else { return None };
        let isa = self.kernels.isa;
        let cell = layer.cell(op);
        let (state, gate) = (cell.len(), 4 * cell.len());
        let x_frame = x.len() / layer.read.len().max(1);
        let (passing, scratch) = scratch.split_at_mut_checked(aligned::<E>(gate))?;
        let (of_h, scratch) = scratch.split_at_mut_checked(aligned::<E>(gate))?;
        let kept = !gates.is_empty();
        let recurrence = layer.recurrence(op, 1);
        for t in 0..layer.made.len() {
            let gates = match kept {
                true => gates.get_mut(t * gate..(t + 1) * gate)?,
                false => passing.get_mut(..gate)?,
            };
            let (h_last, h) = before_and_at(h, t, state)?;
            let (c_last, c) = before_and_at(c, t, state)?;
            let (h_last, c_last) = (h_last.or(h_before), c_last.or(c_before));
            let shape = layer.frame(layer.made.lo + t).gates(op);
            let row = choose(E::conv_forward(), isa, &shape);
            let x = x.get(t * x_frame..(t + 1) * x_frame)?;
            (row.run)(&shape, ConvForwardArgs { x, w, bias, relu: false, y: gates, scratch }, self.pool);
            if let Some(x) = h_last {
                let of_h = of_h.get_mut(..gate)?;
                let row = choose(E::conv_forward(), isa, &recurrence);
                let args = ConvForwardArgs { x, w: u, bias: None, relu: false, y: of_h, scratch };
                (row.run)(&recurrence, args, self.pool);
                let row = choose(E::addition(), isa, &gate);
                (row.run)(&gate, AdditionArgs { a: None, b: of_h, y: gates }, self.pool);
            }
            let row = choose(E::lstm_forward(), isa, &cell);
            let activations = cell_activations(op);
            (row.run)(&cell, LstmForwardArgs { activations, gates, c_prev: c_last, c, h }, self.pool);
        }
        Some(())
    }

    /// Gates to their gradients before activation, in place, from the last frame to the first; the gradient of
    /// the state after the segment to that of the state before it.
    pub(super) fn cell_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::OutputGradient,
            Role::RecurrentWeight,
            Role::Cells,
            Role::Gates,
            Role::CellBefore,
            Role::HiddenGradient,
            Role::CellGradient,
            Role::Workspace,
        ];
        let [dy, u, c, gates, c_before, dh, dc, scratch] = elements::<E, 8>(self.placed, step, roles, arena)?;
        let c_before = present(c_before).map(|s| &*s);
        let (op, layer) = self.layer(step, Role::OutputGradient, Role::OutputGradient)?;
        let Op::ConvLstm2d(op) = op else { return None };
        let isa = self.kernels.isa;
        let cell = layer.cell(op);
        let (state, gate) = (cell.len(), 4 * cell.len());
        let (total, scratch) = scratch.split_at_mut_checked(aligned::<E>(state))?;
        let total = total.get_mut(..state)?;
        let recurrence = layer.recurrence(op, 1);
        for t in (0..layer.made.len()).rev() {
            let row = choose(E::addition(), isa, &state);
            let a = dy.get(t * state..(t + 1) * state)?;
            (row.run)(&state, AdditionArgs { a: Some(a), b: dh, y: total }, self.pool);
            let dgates = gates.get_mut(t * gate..(t + 1) * gate)?;
            let (c_last, c) = before_and_at(c, t, state)?;
            let c_prev = c_last.or(c_before);
            let row = choose(E::lstm_backward(), isa, &cell);
            let activations = cell_activations(op);
            let args = LstmBackwardArgs { activations, gates: None, c_prev, c, dh: total, dc, dgates };
            (row.run)(&cell, args, self.pool);
            let row = choose(E::conv_input_gradient(), isa, &recurrence);
            let args = ConvInputGradientArgs { dy: dgates, w: u, dx: dh, accumulate: false, scratch };
            (row.run)(&recurrence, args, self.pool);
        }
        Some(())
    }

    pub(super) fn conv_lstm_weight_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::Input,
            Role::OutputGradient,
            Role::Output,
            Role::HiddenBefore,
            Role::WeightGradient,
            Role::RecurrentWeightGradient,
            Role::BiasGradient,
            Role::Workspace,
        ];
        let [x, dgates, h, h_before, dw, du, db, scratch] = elements::<E, 8>(self.placed, step, roles, arena)?;
        let (op, layer) = self.layer(step, Role::Input, Role::OutputGradient)?;
        let Op::ConvLstm2d(op) = op else { return None };
        let isa = self.kernels.isa;
        let shape = layer.gates(op);
        let row = choose(E::conv_weight_gradient(), isa, &shape);
        let args = ConvWeightGradientArgs { x, dy: dgates, dw, db: present(db), scratch };
        (row.run)(&shape, args, self.pool);

        let cell = layer.cell(op);
        let (state, gate) = (cell.len(), 4 * cell.len());
        let frames = layer.made.len();
        // The state before the first frame, then those within the segment.
        let calls = [(0, 1, present(h_before).map(|s| &*s)), (1, frames - 1, h.get(..(frames - 1) * state))];
        for (first, count, x) in calls {
            let Some(x) = x.filter(|x| !x.is_empty()) else { continue };
            let shape = layer.recurrence(op, count);
            let row = choose(E::conv_weight_gradient(), isa, &shape);
            let dy = dgates.get(first * gate..(first + count) * gate)?;
            (row.run)(&shape, ConvWeightGradientArgs { x, dy, dw: du, db: None, scratch }, self.pool);
        }
        Some(())
    }
}
