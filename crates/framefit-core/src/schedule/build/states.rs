//! What lives from one segment to the next: carried in, carried out, kept and restored.

use super::{Builder, Going, Turning};
use crate::axes::Window;
use crate::graph::{Graph, NodeId, ValueId};
use crate::ops::Op;
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

    /// Everything of a stage that is carried over some boundary. The source is not: it is normalised again
    /// instead.
    pub(super) fn held(&self, stage: usize) -> Vec<Held> {
        let windows = self.carried(stage).into_iter().map(Held::Window);
        windows.chain(self.recurrent(stage).into_iter().flat_map(|id| self.states_of(id))).collect()
    }

    /// The states of a recurrent layer.
    pub(super) fn states_of(&self, id: NodeId) -> Vec<Held> {
        match &self.graph.node(id).op {
            Op::Recurrent(op) if op.has_cell() => vec![Held::Hidden(id), Held::Cell(id)],
            _ => vec![Held::Hidden(id)],
        }
    }

    /// Recurrent layers of a stage that segments go through one after the other.
    fn recurrent(&self, stage: usize) -> Vec<NodeId> {
        let goes_on = |&id: &NodeId| {
            let node = self.graph.node(id);
            node.op.is_recurrent()
                && !self.segments.whole[node.output.0]
                && self.segments.count > 1
                && self.segments.home(self.graph, id) == stage
        };
        self.graph.node_ids().filter(goes_on).collect()
    }

    /// The frames of a state at the boundary before a segment.
    pub(super) fn held_window(&self, held: Held, segment: usize) -> Window {
        match held {
            Held::Window(value) => self.segments.held(value, segment),
            Held::Hidden(node) | Held::Cell(node) => self.segments.last_made(self.graph.node(node).output, segment),
        }
    }

    /// Values of a stage whose frames are carried over some boundary.
    pub(super) fn carried(&self, stage: usize) -> Vec<ValueId> {
        let held = |&v: &ValueId| {
            self.segments.root[v.0] == v && self.segments.stage_of(v) == stage && self.segments.most_held(v) > 0
        };
        (1..self.graph.values.len()).map(ValueId).filter(held).collect()
    }

    /// Between the state at hand and a slot; from no slot, the empty state at the clip's start.
    pub(super) fn move_states(&mut self, stage: usize, segment: usize, slot: Option<usize>, keep: bool) {
        let Some(slot) = slot else { return };
        for held in self.held(stage) {
            let window = self.held_window(held, segment);
            if window.is_empty() {
                continue;
            }
            let state = self.state(What::State(held), held);
            let kept = self.state(What::Checkpoint(held, slot), held);
            let (from, to) = if keep { (state, kept) } else { (kept, state) };
            self.copy(self.places.states(), (from, window.lo), (to, window.lo), window);
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

    /// The frames that the segment before left, and those of the source.
    pub(super) fn carry_in(&mut self, turning: Turning, needed: &[bool]) {
        let Turning { stage, segment, .. } = turning;
        let place = match turning.going {
            Going::Passing => self.places.carry(),
            Going::Reversing | Going::Predicting => self.places.carry_out() + 1,
        };
        for value in self.carried(stage) {
            let window = self.segments.held(value, segment);
            if window.is_empty() || !self.alias_needed(value, needed) {
                continue;
            }
            let held = Held::Window(value);
            let state = self.state(What::State(held), held);
            let to = self.value(value, turning);
            self.copy(place, (state, window.lo), to, window);
        }
        self.fetch(turning, place, needed);
        let window = self.segments.present(Graph::SOURCE, stage, segment);
        let mut from = 0;
        if self.kind == Kind::Stream {
            let frames = self.frames();
            from = window.lo;
            let access = Access { role: Role::Frames, buffer: frames, window, base: from, mode: Mode::Write };
            self.step(place - 1, Action::Load, None, vec![access]);
        }
        if !needed[Graph::SOURCE.0] || window.is_empty() {
            return;
        }
        let frames = self.frames();
        let (to, base) = self.value(Graph::SOURCE, turning);
        let accesses = vec![
            Access { role: Role::Frames, buffer: frames, window, base: from, mode: Mode::Read },
            Access { role: Role::Output, buffer: to, window, base, mode: Mode::Write },
        ];
        self.step(place, Action::Normalise, None, accesses);
    }

    /// Values in the file.
    fn filed(&self) -> Vec<ValueId> {
        let filed = |&v: &ValueId| self.segments.root[v.0] == v && self.segments.filed(v);
        (1..self.graph.values.len()).map(ValueId).filter(filed).collect()
    }

    /// The buffer in the file that holds all of a value, or of its gradient.
    fn file(&mut self, what: What, value: ValueId) -> BufferId {
        let shape = self.graph.shape(value);
        let (frames, frame) = (shape.dims.t, shape.per_frame() * self.schedule.clips);
        self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: true })
    }

    /// What the segment reads of values in the file.
    fn fetch(&mut self, turning: Turning, place: usize, needed: &[bool]) {
        let Turning { stage, segment, going, first } = turning;
        for value in self.filed() {
            let segments = &self.segments;
            let own = segments.stage_of(value) == stage;
            let mut window = segments.present(value, stage, segment);
            if segments.is_there(self.graph, value, stage, first) {
                let read_on = self.graph.node_ids().any(|id| {
                    let node = self.graph.node(id);
                    let reads = node.inputs.iter().any(|v| segments.root[v.0] == value);
                    reads && segments.home(self.graph, id) == stage && !segments.stands_between(self.graph, id)
                });
                if own && going == Going::Passing && !read_on {
                    continue;
                }
            } else if own && self.alias_needed(value, needed) {
                window = segments.held(value, segment);
            } else {
                continue;
            }
            if !window.is_empty() {
                let file = self.file(What::Filed(value), value);
                let to = self.value(value, turning);
                self.copy(place, (file, 0), to, window);
            }
        }
    }

    /// What the segment makes of values in the file, the first time.
    pub(super) fn store(&mut self, turning: Turning) {
        let Turning { stage, segment, first, .. } = turning;
        for value in self.filed() {
            let window = self.segments.made(value, segment);
            if first && self.segments.stage_of(value) == stage && !window.is_empty() {
                let from = self.value(value, turning);
                let file = self.file(What::Filed(value), value);
                self.copy(self.forward_end(turning), from, (file, 0), window);
            }
        }
    }

    /// Gradients of barriers' outputs that are complete, for the stages before.
    pub(super) fn store_gradients(&mut self, stage: usize, segment: usize) {
        for value in (1..self.graph.values.len()).map(ValueId) {
            let segments = &self.segments;
            let filed = segments.root[value.0] == value && segments.gradient_filed(value);
            let window = segments.made(value, segment);
            if filed && segments.stage_of(value) == stage && self.trained[value.0] && !window.is_empty() {
                let from = self.gradient(value, segment);
                let file = self.file(What::FiledGradient(value), value);
                self.copy(self.places.last(), from, (file, 0), window);
            }
        }
    }

    /// Frames of the gradient of a barrier's output, in the stage of its input.
    pub(super) fn kept_gradient(&mut self, id: NodeId, segment: usize, window: Window) -> (BufferId, usize) {
        let node = self.graph.node(id);
        let root = self.segments.root[node.output.0];
        if !self.segments.stands_between(self.graph, id) || !self.segments.gradient_filed(root) {
            return self.gradient(root, segment);
        }
        let frames = (0..self.segments.count).map(|s| self.segments.made(node.input(), s).len()).max().unwrap_or(0);
        let frame = self.graph.shape(root).per_frame() * self.schedule.clips;
        let what = What::FetchedGradient(root);
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: false });
        let file = self.file(What::FiledGradient(root), root);
        let place = self.places.backward(id.0, super::Backward::In);
        self.copy(place, (file, 0), (buffer, window.lo), window);
        (buffer, window.lo)
    }

    /// The place after the last forward step of a turn.
    fn forward_end(&self, turning: Turning) -> usize {
        match turning.going {
            Going::Passing => self.places.carry_out(),
            Going::Reversing | Going::Predicting => self.places.loss(),
        }
    }

    /// Whether a value, or one that lies in its bytes, is needed.
    fn alias_needed(&self, root: ValueId, needed: &[bool]) -> bool {
        (0..needed.len()).any(|v| needed[v] && self.segments.root[v] == root)
    }

    /// What the segment to come reads of this one.
    pub(super) fn carry_out(&mut self, turning: Turning) {
        let Turning { stage, segment, going, .. } = turning;
        if segment + 1 == self.segments.count {
            return;
        }
        let place = match going {
            Going::Passing => self.places.carry_out(),
            Going::Reversing | Going::Predicting => self.places.last() + 1,
        };
        for held in self.held(stage) {
            let window = self.held_window(held, segment + 1);
            if window.is_empty() {
                continue;
            }
            let from = match held {
                Held::Window(value) => self.value(value, turning),
                Held::Hidden(node) | Held::Cell(node) if self.made(node, segment).is_empty() => continue,
                Held::Hidden(node) => self.value(self.graph.node(node).output, turning),
                Held::Cell(node) => self.cells(node, turning),
            };
            let state = self.state(What::State(held), held);
            self.copy(place, from, (state, window.lo), window);
        }
    }
}
