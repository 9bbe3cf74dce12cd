//! Recurrent layers: their cells and gates in a segment, and the gradient handed back through them.

use super::{Backward, Builder, Going, Pass, Turning};
use crate::axes::Window;
use crate::graph::NodeId;
use crate::ops::{Op, Recurrent};
use crate::schedule::{Access, Action, Buffer, BufferId, Held, Mode, Role, What};

impl Builder<'_> {
    pub(super) fn recurrent_op(&self, id: NodeId) -> Option<&Recurrent> {
        match &self.graph.node(id).op {
            Op::Recurrent(op) => Some(op),
            _ => None,
        }
    }

    /// Values of one frame of a recurrent layer's state.
    fn state_frame(&self, id: NodeId) -> usize {
        self.graph.shape(self.graph.node(id).output).per_frame() * self.schedule.clips
    }

    /// The buffer of a recurrent layer's c in a segment, and the frame that lies first in it.
    pub(super) fn cells(&mut self, node: NodeId, turning: Turning) -> (BufferId, usize) {
        let what = match turning.going {
            Going::Reversing => What::Cells(node),
            Going::Passing | Going::Predicting => What::PassingCells(node),
        };
        self.of_node(what, node, turning.segment, self.state_frame(node))
    }

    /// A buffer with as many frames as a node makes in a segment.
    pub(super) fn of_node(&mut self, what: What, node: NodeId, segment: usize, frame: usize) -> (BufferId, usize) {
        let frames = (0..self.segments.count).map(|s| self.made(node, s).len()).max().unwrap_or(0);
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: false });
        (buffer, self.made(node, segment).lo)
    }

    /// The state before the first frame of a window; nothing before the clip's first frame.
    pub(super) fn state_before(&mut self, id: NodeId, made: Window) -> Vec<Access> {
        if made.lo == 0 {
            return Vec::new();
        }
        let window = Window { lo: made.lo - 1, hi: made.lo };
        let mut accesses = Vec::new();
        for held in self.states_of(id) {
            let role = if matches!(held, Held::Cell(_)) { Role::CellBefore } else { Role::HiddenBefore };
            let buffer = self.state(What::State(held), held);
            accesses.push(Access { role, buffer, window, base: window.lo, mode: Mode::Read });
        }
        accesses
    }

    /// All gates of a recurrent layer in a segment.
    pub(super) fn gates(&mut self, id: NodeId, segment: usize, role: Role, mode: Mode) -> Access {
        let gates = self.recurrent_op(id).map_or(0, |op| op.gates() / op.filters.max(1));
        let frame = gates * self.state_frame(id);
        let (buffer, base) = self.of_node(What::Gates(id), id, segment, frame);
        Access { role, buffer, window: self.made(id, segment), base, mode }
    }

    /// What it keeps of the products with the state.
    pub(super) fn hidden_gates(&mut self, id: NodeId, segment: usize, mode: Mode) -> Option<Access> {
        let kept = self.recurrent_op(id).map_or(0, Recurrent::hidden_per_unit);
        if kept == 0 {
            return None;
        }
        let frame = kept * self.state_frame(id);
        let (buffer, base) = self.of_node(What::HiddenGates(id), id, segment, frame);
        Some(Access { role: Role::HiddenGates, buffer, window: self.made(id, segment), base, mode })
    }

    /// What a recurrent layer's forward writes and reads besides its output.
    pub(super) fn recurrent_forward(&mut self, id: NodeId, turning: Turning) -> Vec<Access> {
        let made = self.made(id, turning.segment);
        let mut accesses = self.state_before(id, made);
        if self.recurrent_op(id).is_some_and(Recurrent::has_cell) {
            let (cells, base) = self.cells(id, turning);
            accesses.push(Access { role: Role::Cells, buffer: cells, window: made, base, mode: Mode::Write });
        }
        if turning.going == Going::Reversing {
            accesses.push(self.gates(id, turning.segment, Role::Gates, Mode::Write));
            accesses.extend(self.hidden_gates(id, turning.segment, Mode::Write));
        }
        accesses
    }

    /// From the last frame of the segment to the first: the gradient of the gates, and of the state before.
    pub(super) fn cell_gradient(&mut self, id: NodeId, turning: Turning, dy: Access) {
        let segment = turning.segment;
        let made = self.made(id, segment);
        let place = |step| self.places.backward(id.0, step);
        let (into, inner, out) = (place(Backward::In), place(Backward::Inner), place(Backward::Out));
        let end = Window { lo: made.hi - 1, hi: made.hi };
        let output = self.graph.node(id).output;
        let total = self.graph.shape(output).dims.t;
        let mut accesses = vec![dy];
        for held in self.states_of(id) {
            let role = if matches!(held, Held::Cell(_)) { Role::CellGradient } else { Role::HiddenGradient };
            let handed = self.state(What::Handed(held), held);
            if made.hi < total && !self.segments.alone {
                let later = self.state(What::StateGradient(held), held);
                self.copy(into, (later, end.lo), (handed, end.lo), end);
            } else {
                let access =
                    Access { role: Role::Output, buffer: handed, window: end, base: end.lo, mode: Mode::Write };
                self.step(into, Action::Clear, Some(id), vec![access]);
            }
            accesses.push(Access { role, buffer: handed, window: end, base: end.lo, mode: Mode::Update });
        }
        if self.recurrent_op(id).is_some_and(Recurrent::has_cell) {
            let (cells, base) = self.cells(id, turning);
            accesses.push(Access { role: Role::Cells, buffer: cells, window: made, base, mode: Mode::Read });
        }
        accesses.extend(self.state_before(id, made));
        accesses.push(self.gates(id, segment, Role::Gates, Mode::Update));
        accesses.extend(self.hidden_gates(id, segment, Mode::Update));
        let (h, base) = self.value(output, turning);
        accesses.push(Access { role: Role::Output, buffer: h, window: made, base, mode: Mode::Read });
        let weights = self.param_accesses(id, false, made);
        accesses.extend(weights.into_iter().filter(|a| a.role == Role::RecurrentWeight));
        accesses.extend(self.workspace(id, Pass::State, made, made));
        self.step(inner, Action::CellGradient, Some(id), accesses);
        if made.lo > 0 && !self.segments.alone {
            let before = Window { lo: made.lo - 1, hi: made.lo };
            for held in self.states_of(id) {
                let handed = self.state(What::Handed(held), held);
                let earlier = self.state(What::StateGradient(held), held);
                self.copy_as(out, ((handed, end.lo), end), ((earlier, before.lo), before));
            }
        }
    }
}
