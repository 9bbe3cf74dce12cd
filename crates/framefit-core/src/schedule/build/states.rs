//! What lives from one segment to the next: carried in, carried out, kept and restored.

use super::{Builder, Going, Places};
use crate::axes::Window;
use crate::graph::{Graph, NodeId, ValueId};
use crate::schedule::{Access, Action, Buffer, BufferId, Held, Kind, Mode, Role, What};

impl Builder<'_> {
    /// A buffer of a state, or of its gradient.
    pub(super) fn state(&mut self, what: What, held: Held) -> BufferId {
        let (value, frames) = match held {
            Held::Window(value) => (value, self.segments.most_held(value)),
            Held::Hidden(node) | Held::Cell(node) => (self.graph.node(node).output, 1),
        };
        let frame = self.graph.shape(value).per_frame() * self.schedule.clips;
        let lasting = !matches!(what, What::Handed(_));
        self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting })
    }

    /// Everything that is carried over some boundary. The source is not: it is normalised again instead.
    pub(super) fn held(&self) -> Vec<Held> {
        let windows = (1..self.graph.values.len())
            .map(ValueId)
            .filter(|&v| self.segments.root[v.0] == v && self.segments.most_held(v) > 0)
            .map(Held::Window);
        let recurrent = self.recurrent().flat_map(|n| [Held::Hidden(n), Held::Cell(n)]);
        windows.chain(recurrent).collect()
    }

    /// Recurrent layers that segments go through one after the other.
    pub(super) fn recurrent(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node_ids().filter(|&n| {
            let node = self.graph.node(n);
            node.op.is_recurrent() && !self.segments.whole[node.output.0] && self.segments.count > 1
        })
    }

    /// The frames of a state at the boundary before a segment.
    pub(super) fn held_window(&self, held: Held, segment: usize) -> Window {
        match held {
            Held::Window(value) => self.segments.held(value, segment),
            Held::Hidden(node) | Held::Cell(node) => self.segments.last_made(self.graph.node(node).output, segment),
        }
    }

    /// Values whose frames are carried over some boundary.
    pub(super) fn carried(&self) -> Vec<ValueId> {
        let windows = self.held().into_iter().filter_map(|held| match held {
            Held::Window(value) => Some(value),
            Held::Hidden(_) | Held::Cell(_) => None,
        });
        windows.collect()
    }

    /// Between the state at hand and a slot; from no slot, the empty state at the clip's start.
    pub(super) fn move_states(&mut self, segment: usize, slot: Option<usize>, keep: bool) {
        let Some(slot) = slot else { return };
        for held in self.held() {
            let window = self.held_window(held, segment);
            if window.is_empty() {
                continue;
            }
            let state = self.state(What::State(held), held);
            let kept = self.state(What::Checkpoint(held, slot), held);
            let (from, to) = if keep { (state, kept) } else { (kept, state) };
            self.copy(Places::STATES, (from, window.lo), (to, window.lo), window);
        }
    }

    pub(super) fn copy(&mut self, place: usize, from: (BufferId, usize), to: (BufferId, usize), window: Window) {
        self.copy_as(place, (from, window), (to, window));
    }

    /// Copies frames to others, as many.
    pub(super) fn copy_as(&mut self, place: usize, from: ((BufferId, usize), Window), to: ((BufferId, usize), Window)) {
        let ((from, from_base), read) = from;
        let ((to, to_base), written) = to;
        let accesses = vec![
            Access { role: Role::Input, buffer: from, window: read, base: from_base, mode: Mode::Read },
            Access { role: Role::Output, buffer: to, window: written, base: to_base, mode: Mode::Write },
        ];
        self.step(place, Action::Copy, None, accesses);
    }

    pub(super) fn carry_in(&mut self, going: Going, segment: usize, needed: &[bool]) {
        for value in self.carried() {
            let window = self.segments.held(value, segment);
            if window.is_empty() || !self.alias_needed(value, needed) {
                continue;
            }
            let held = Held::Window(value);
            let state = self.state(What::State(held), held);
            let to = self.value(value, false, going, segment);
            self.copy(self.carry_place(going), (state, window.lo), to, window);
        }
        let source = *self.graph.shape(Graph::SOURCE);
        let window = self.segments.present(Graph::SOURCE, segment);
        if !needed[Graph::SOURCE.0] || window.is_empty() {
            return;
        }
        let frames = self.found.get(&What::Frames).copied();
        let Some(frames) = frames else { return };
        debug_assert!(window.hi <= source.dims.t);
        let (to, base) = self.value(Graph::SOURCE, false, going, segment);
        let accesses = vec![
            Access { role: Role::Frames, buffer: frames, window, base: 0, mode: Mode::Read },
            Access { role: Role::Output, buffer: to, window, base, mode: Mode::Write },
        ];
        self.step(self.carry_place(going), Action::Normalise, None, accesses);
    }

    pub(super) fn carry_place(&self, going: Going) -> usize {
        match going {
            Going::Passing => Places::CARRY,
            Going::Reversing | Going::Predicting => self.places().carry_out() + 1,
        }
    }

    /// Whether a value, or one that lies in its bytes, is needed.
    pub(super) fn alias_needed(&self, root: ValueId, needed: &[bool]) -> bool {
        (0..needed.len()).any(|v| needed[v] && self.segments.root[v] == root)
    }

    pub(super) fn carry_out(&mut self, segment: usize) {
        if segment + 1 == self.segments.count {
            return;
        }
        let going = match self.kind {
            Kind::Training => Going::Passing,
            Kind::Inference { .. } => Going::Predicting,
        };
        let place = match going {
            Going::Passing => self.places().carry_out(),
            Going::Reversing | Going::Predicting => self.places().end() - 1,
        };
        for held in self.held() {
            let window = self.held_window(held, segment + 1);
            if window.is_empty() {
                continue;
            }
            let from = match held {
                Held::Window(value) => self.value(value, false, going, segment),
                Held::Hidden(_) | Held::Cell(_) if self.hands_nothing(held, segment) => continue,
                Held::Hidden(node) => self.value(self.graph.node(node).output, false, going, segment),
                Held::Cell(node) => self.cells(node, going, segment),
            };
            let state = self.state(What::State(held), held);
            self.copy(place, from, (state, window.lo), window);
        }
    }

    /// Whether a recurrent layer makes no frame in this segment, so that its state stays as it is.
    pub(super) fn hands_nothing(&self, held: Held, segment: usize) -> bool {
        match held {
            Held::Window(_) => false,
            Held::Hidden(node) | Held::Cell(node) => self.made(node, segment).is_empty(),
        }
    }
}
