//! Recurrent layers: their cells and gates in a segment, and the gradient handed back through them.

use super::{Backward, Builder, Going, Pass};
use crate::axes::Window;
use crate::graph::NodeId;
use crate::schedule::{Access, Action, Buffer, BufferId, Held, Mode, Role, What};

impl Builder<'_> {
    /// The buffer of a recurrent layer's c in a segment, and the frame that lies first in it.
    pub(super) fn cells(&mut self, node: NodeId, going: Going, segment: usize) -> (BufferId, usize) {
        let what = match going {
            Going::Reversing => What::Cells(node),
            Going::Passing | Going::Predicting => What::PassingCells(node),
        };
        let frame = self.graph.shape(self.graph.node(node).output).per_frame() * self.schedule.clips;
        self.of_node(what, node, segment, frame)
    }

    /// A buffer with as many frames as a node makes in a segment.
    pub(super) fn of_node(&mut self, what: What, node: NodeId, segment: usize, frame: usize) -> (BufferId, usize) {
        let frames = (0..self.segments.count).map(|s| self.made(node, s).len()).max().unwrap_or(0);
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: false });
        (buffer, self.made(node, segment).lo)
    }

    /// (h, c) before the first frame of a window; nothing before the clip's first frame.
    pub(super) fn state_before(&mut self, id: NodeId, made: Window) -> Vec<Access> {
        if made.lo == 0 {
            return Vec::new();
        }
        let window = Window { lo: made.lo - 1, hi: made.lo };
        let states = [(Role::HiddenBefore, Held::Hidden(id)), (Role::CellBefore, Held::Cell(id))];
        states
            .map(|(role, held)| {
                let buffer = self.state(What::State(held), held);
                Access { role, buffer, window, base: window.lo, mode: Mode::Read }
            })
            .to_vec()
    }

    /// All gates of a recurrent layer in a segment.
    pub(super) fn gates(&mut self, id: NodeId, segment: usize, role: Role, mode: Mode) -> Access {
        let output = self.graph.node(id).output;
        let frame = 4 * self.graph.shape(output).per_frame() * self.schedule.clips;
        let (buffer, base) = self.of_node(What::Gates(id), id, segment, frame);
        Access { role, buffer, window: self.made(id, segment), base, mode }
    }

    /// From the last frame of the segment to the first: the gradient of the gates, and of the state before.
    pub(super) fn cell_gradient(&mut self, id: NodeId, segment: usize, dy: Access) {
        let made = self.made(id, segment);
        let place = |step| self.places().backward(id.0, step);
        let (into, inner, out) = (place(Backward::In), place(Backward::Inner), place(Backward::Out));
        let end = Window { lo: made.hi - 1, hi: made.hi };
        let total = self.graph.shape(self.graph.node(id).output).dims.t;
        let mut accesses = vec![dy];
        for (role, held) in [(Role::HiddenGradient, Held::Hidden(id)), (Role::CellGradient, Held::Cell(id))] {
            let handed = self.state(What::Handed(held), held);
            if made.hi < total {
                let later = self.state(What::StateGradient(held), held);
                self.copy(into, (later, end.lo), (handed, end.lo), end);
            } else {
                let access =
                    Access { role: Role::Output, buffer: handed, window: end, base: end.lo, mode: Mode::Write };
                self.step(into, Action::Clear, None, vec![access]);
            }
            accesses.push(Access { role, buffer: handed, window: end, base: end.lo, mode: Mode::Update });
        }
        let (cells, base) = self.cells(id, Going::Reversing, segment);
        accesses.push(Access { role: Role::Cells, buffer: cells, window: made, base, mode: Mode::Read });
        accesses.extend(self.state_before(id, made).into_iter().filter(|a| a.role == Role::CellBefore));
        accesses.push(self.gates(id, segment, Role::Gates, Mode::Update));
        let weights = self.param_accesses(id, false, made);
        accesses.extend(weights.into_iter().filter(|a| a.role == Role::RecurrentWeight));
        accesses.extend(self.workspace(id, Pass::State, made, made));
        self.step(inner, Action::CellGradient, Some(id), accesses);
        if made.lo > 0 {
            let before = Window { lo: made.lo - 1, hi: made.lo };
            for held in [Held::Hidden(id), Held::Cell(id)] {
                let handed = self.state(What::Handed(held), held);
                let earlier = self.state(What::StateGradient(held), held);
                self.copy_as(out, ((handed, end.lo), end), ((earlier, before.lo), before));
            }
        }
    }
}
