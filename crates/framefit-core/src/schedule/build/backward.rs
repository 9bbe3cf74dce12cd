//! The backward steps of a segment.

use super::{Backward, Builder, Going, Pass, Turning};
use crate::axes::Window;
use crate::graph::{NodeId, ValueId};
use crate::ops::Op;
use crate::schedule::{Access, Action, Held, Mode, Role, What};

impl Builder<'_> {
    /// Whether a node is a ReLU in place whose gradient the max pooling after it takes, too.
    pub(super) fn masks_in_pool(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        matches!(node.op, Op::Relu(_))
            && self.segments.shared[id.0].is_some()
            && self.reader(node.output).is_some_and(|n| matches!(self.graph.node(n).op, Op::MaxPool3d(_)))
    }

    /// Whether the gradient of a value is set to zero before anything is added: it comes from several segments or
    /// several layers of a cut clip, or from none at all.
    pub(super) fn gathers(&self, value: ValueId) -> bool {
        let segments = &self.segments;
        if segments.whole[value.0] || segments.count == 1 {
            return false;
        }
        segments.gradient_lasts(value)
            || segments.most_held(value) > 0
            || segments.unread(value)
            || segments.readers(value) > 1
    }

    /// Whether the next gradient of a value is added to what is there. The first layer that writes a gradient
    /// overwrites all of it, unless it was set to zero.
    pub(super) fn accumulates(&mut self, value: ValueId) -> bool {
        let root = self.segments.root[value.0];
        let written = std::mem::replace(&mut self.written[root.0], true);
        written || self.gathers(root)
    }

    /// The last stage in which a layer adds to the gradient of a value.
    fn last_reader(&self, value: ValueId) -> usize {
        let segments = &self.segments;
        let readers = self.graph.node_ids().filter(|&id| {
            let inputs = &self.graph.node(id).inputs;
            let read = inputs
                .iter()
                .enumerate()
                .any(|(at, v)| segments.root[v.0] == value && segments.shared[id.0] != Some(at));
            read && !segments.stands_between(self.graph, id)
        });
        let homes = readers.map(|id| segments.home(self.graph, id));
        homes.max().unwrap_or(0).max(segments.stage_of(value))
    }

    /// Sets up a gradient that later segments contribute to: theirs where frames were held, else zero.
    pub(super) fn gradient_in(&mut self, value: ValueId, stage: usize, segment: usize, place: usize) {
        if !self.trained[value.0] || !self.gathers(value) {
            return;
        }
        let last = segment + 1 == self.segments.count;
        let present = self.segments.gradient_present(value, segment);
        let (gradient, base) = self.gradient(value, segment);
        if self.segments.gradient_lasts(value) {
            if last && stage == self.last_reader(value) {
                let access = Access { role: Role::Output, buffer: gradient, window: present, base, mode: Mode::Write };
                self.step(place, Action::Clear, self.graph.values[value.0].made_by, vec![access]);
            }
            return;
        }
        let end = Window { lo: present.hi, hi: present.hi };
        let carried = if last || self.segments.alone { end } else { self.segments.held(value, segment + 1) };
        let fresh = Window { lo: present.lo, hi: carried.lo.clamp(present.lo, present.hi) };
        if !fresh.is_empty() {
            let access = Access { role: Role::Output, buffer: gradient, window: fresh, base, mode: Mode::Write };
            self.step(place, Action::Clear, self.graph.values[value.0].made_by, vec![access]);
        }
        if !carried.is_empty() {
            let held = Held::Window(value);
            let from = self.state(What::StateGradient(held), held);
            self.copy(place, (from, carried.lo), (gradient, base), carried);
        }
    }

    /// Hands the gradients of frames that earlier segments made to them.
    pub(super) fn gradients_out(&mut self, stage: usize, segment: usize) {
        for value in self.carried(stage) {
            let window = self.segments.held(value, segment);
            if window.is_empty() || !self.trained[value.0] {
                continue;
            }
            let from = self.gradient(value, segment);
            let held = Held::Window(value);
            let to = self.state(What::StateGradient(held), held);
            self.copy(self.places.last(), from, (to, window.lo), window);
        }
    }

    pub(super) fn backward(&mut self, id: NodeId, stage: usize, segment: usize) {
        let node = self.graph.node(id);
        let (input, output) = (node.input(), node.output);
        let turning = Turning { stage, segment, going: Going::Reversing, first: false };
        let made = self.made(id, segment);
        if !self.trained[output.0] {
            return;
        }
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) | Op::Activation(_) | Op::Dropout(_) if self.segments.shared[id.0].is_some() => {
                if !made.is_empty() && !self.masks_in_pool(id) {
                    self.in_place_gradient(id, turning);
                }
                return;
            }
            Op::NormMean(_) => return self.norm_mean_backward(id, turning),
            Op::BatchNorm(_) => return self.norm_backward(id, turning),
            Op::GroupNorm(_) if self.segments.is_barrier(id) => return self.norm_backward(id, turning),
            Op::Reverse(_) => return self.input_gradient(id, 0, turning, None),
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::AvgPool3d(_)
            | Op::AdaptivePool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::Recurrent(_)
            | Op::GroupNorm(_)
            | Op::LayerNorm(_)
            | Op::Relu(_)
            | Op::Activation(_)
            | Op::Dropout(_)
            | Op::Add(_)
            | Op::Concat(_)
            | Op::LastFrame(_) => {}
        }
        let read = self.segments.reads(self.graph, id, 0, segment);
        if made.is_empty() || (read.is_empty() && self.segments.sums(id)) {
            return;
        }
        let mut from_gates = None;
        if node.op.is_recurrent() {
            let (dy, base) = self.gradient(output, segment);
            let dy = Access { role: Role::OutputGradient, buffer: dy, window: made, base, mode: Mode::Read };
            self.cell_gradient(id, turning, dy);
            from_gates = Some(self.gates(id, segment, Role::OutputGradient, Mode::Read));
        }
        // The weights' gradient comes first: after it the input is dead, and the input's gradient may take
        // its bytes.
        if node.params.iter().any(|&p| self.graph.param(p).trained) {
            let (x, base) = self.value(input, turning);
            let mut accesses = vec![Access { role: Role::Input, buffer: x, window: read, base, mode: Mode::Read }];
            match from_gates {
                Some(gates) => accesses.push(gates),
                None => {
                    let (dy, base) = self.gradient(output, segment);
                    let role = Role::OutputGradient;
                    accesses.push(Access { role, buffer: dy, window: made, base, mode: Mode::Read });
                }
            }
            accesses.extend(self.param_accesses(id, true, read));
            if node.op.is_recurrent() {
                let (h, base) = self.value(output, turning);
                accesses.push(Access { role: Role::Output, buffer: h, window: made, base, mode: Mode::Read });
                accesses.extend(self.state_before(id, made).into_iter().filter(|a| a.role == Role::HiddenBefore));
                accesses.extend(self.hidden_gates(id, segment, Mode::Read));
            }
            accesses.extend(self.workspace(id, Pass::WeightGradient, read, made));
            if !self.part(id, segment).last {
                // A summing layer's bias is added once.
                accesses.retain(|a| a.role != Role::BiasGradient);
            }
            let place = self.places.backward(id.0, Backward::Weights);
            self.step(place, Action::WeightGradient, Some(id), accesses);
        }
        for at in 0..node.inputs.len() {
            if self.segments.shared[id.0] != Some(at) {
                self.input_gradient(id, at, turning, from_gates);
            }
        }
    }

    fn in_place_gradient(&mut self, id: NodeId, turning: Turning) {
        let node = self.graph.node(id);
        let made = self.made(id, turning.segment);
        let mut accesses = Vec::new();
        if node.op.backward_reads().output {
            let (y, base) = self.value(node.output, turning);
            accesses.push(Access { role: Role::Output, buffer: y, window: made, base, mode: Mode::Read });
        }
        let (dy, base) = self.gradient(node.output, turning.segment);
        accesses.push(Access { role: Role::OutputGradient, buffer: dy, window: made, base, mode: Mode::Update });
        let place = self.places.backward(id.0, Backward::Inner);
        self.step(place, Action::InPlaceGradient, Some(id), accesses);
    }

    /// The gradient of one of a node's inputs, from that of its output, or of its gates.
    fn input_gradient(&mut self, id: NodeId, at: usize, turning: Turning, gates: Option<Access>) {
        let Turning { stage, segment, .. } = turning;
        let node = self.graph.node(id);
        let (input, output) = (node.inputs[at], node.output);
        if !self.trained[input.0] {
            return;
        }
        let between = self.segments.stands_between(self.graph, id);
        if between && self.segments.stage_of(input) != stage {
            // The gradient of the output is kept until the stage of the input is reversed.
            return;
        }
        let (mut read, mut made) = (self.segments.reads(self.graph, id, at, segment), self.made(id, segment));
        if between {
            let total = self.graph.shape(output).dims.t;
            read = self.segments.made(input, segment);
            made = Window { lo: total - read.hi, hi: total - read.lo };
        }
        if made.is_empty() || (between && read.is_empty()) {
            return;
        }
        let accumulate = self.accumulates(input);
        let (dx, base) = self.gradient(input, segment);
        let window = if accumulate { read } else { self.segments.gradient_present(input, segment) };
        let mode = if accumulate { Mode::Update } else { Mode::Write };
        let dy = match gates {
            Some(gates) => gates,
            None => {
                let (dy, base) = self.kept_gradient(id, segment, made);
                Access { role: Role::OutputGradient, buffer: dy, window: made, base, mode: Mode::Read }
            }
        };
        let mut accesses = vec![dy, Access { role: Role::InputGradient, buffer: dx, window, base, mode }];
        if reads_input(&node.op) {
            let (x, base) = self.value(input, turning);
            accesses.push(Access { role: Role::Input, buffer: x, window, base, mode: Mode::Read });
        }
        if node.op.backward_reads().output && !node.op.is_recurrent() {
            let (y, base) = self.value(output, turning);
            accesses.push(Access { role: Role::Output, buffer: y, window: made, base, mode: Mode::Read });
        }
        let weights = self.param_accesses(id, false, read);
        accesses.extend(weights.into_iter().filter(|a| a.role == Role::Weight));
        accesses.extend(self.workspace(id, Pass::InputGradient, window, made));
        let relu = matches!(node.op, Op::MaxPool3d(_))
            && self.graph.values[input.0].made_by.is_some_and(|before| self.masks_in_pool(before));
        let action = Action::InputGradient { relu, accumulate, input: at };
        let place = self.places.backward(id.0, Backward::Input);
        self.step(place, action, Some(id), accesses);
    }
}

/// Whether the gradient of the input depends on the input.
fn reads_input(op: &Op) -> bool {
    match op {
        Op::MaxPool3d(_)
        | Op::AvgPool3d(_)
        | Op::AdaptivePool3d(_)
        | Op::GlobalAvgPool3d(_)
        | Op::GroupNorm(_)
        | Op::LayerNorm(_)
        | Op::Relu(_)
        | Op::Activation(_)
        | Op::Flatten(_)
        | Op::Dropout(_)
        | Op::Add(_)
        | Op::Concat(_)
        | Op::Reverse(_)
        | Op::LastFrame(_) => op.backward_reads().input,
        // Products with a weight are linear in their input; normalised values have steps of their own.
        Op::Conv3d(_) | Op::Linear(_) | Op::Dense(_) | Op::Recurrent(_) | Op::NormMean(_) | Op::BatchNorm(_) => false,
    }
}
