//! The backward steps of a segment.

use super::{Backward, Builder, Going, Pass};
use crate::axes::Window;
use crate::graph::{NodeId, ValueId};
use crate::ops::Op;
use crate::schedule::{Access, Action, Held, Mode, Role, What};

impl Builder<'_> {
    /// Whether a node is a ReLU in place whose gradient the max pooling after it takes, too.
    pub(super) fn masks_in_pool(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        matches!(node.op, Op::Relu(_))
            && self.segments.in_place[id.0]
            && matches!(self.reader(node.output), Some(Op::MaxPool3d(_)))
    }

    /// Whether the gradient of a value is added up from several places (later segments, and this one), or from
    /// none at all.
    pub(super) fn gathers(&self, value: ValueId) -> bool {
        self.segments.most_held(value) > 0 || self.segments.unread(self.graph, value)
    }

    /// Sets up a gradient that later segments contribute to: theirs where frames were held, else zero.
    pub(super) fn gradient_in(&mut self, value: ValueId, segment: usize, place: usize) {
        if !self.trained[value.0] || !self.gathers(value) {
            return;
        }
        let last = segment + 1 == self.segments.count;
        let present = self.segments.present(value, segment);
        let end = Window { lo: present.hi, hi: present.hi };
        let carried = if last { end } else { self.segments.held(value, segment + 1) };
        let (gradient, base) = self.value(value, true, Going::Reversing, segment);
        let fresh = Window { lo: present.lo, hi: carried.lo.clamp(present.lo, present.hi) };
        if !fresh.is_empty() {
            let access = Access { role: Role::Output, buffer: gradient, window: fresh, base, mode: Mode::Write };
            self.step(place, Action::Clear, None, vec![access]);
        }
        if !carried.is_empty() {
            let held = Held::Window(value);
            let from = self.state(What::StateGradient(held), held);
            self.copy(place, (from, carried.lo), (gradient, base), carried);
        }
    }

    /// Hands the gradients of frames that earlier segments made to them.
    pub(super) fn gradients_out(&mut self, segment: usize, place: usize) {
        for value in self.carried() {
            let window = self.segments.held(value, segment);
            if window.is_empty() || !self.trained[value.0] {
                continue;
            }
            let from = self.value(value, true, Going::Reversing, segment);
            let held = Held::Window(value);
            let to = self.state(What::StateGradient(held), held);
            self.copy(place, from, (to, window.lo), window);
        }
    }

    pub(super) fn backward(&mut self, id: NodeId, segment: usize) {
        let node = self.graph.node(id);
        let (input, output) = (node.input, node.output);
        let going = Going::Reversing;
        let made = self.made(id, segment);
        if !self.trained[output.0] || made.is_empty() {
            return;
        }
        let place = |step| self.places().backward(id.0, step);
        let (inner_place, weight_place, input_place) =
            (place(Backward::Inner), place(Backward::Weights), place(Backward::Input));
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) if self.segments.in_place[id.0] => {
                if !self.masks_in_pool(id) {
                    let (y, base) = self.value(output, false, going, segment);
                    let (dy, dy_base) = self.value(output, true, going, segment);
                    let accesses = vec![
                        Access { role: Role::Output, buffer: y, window: made, base, mode: Mode::Read },
                        Access {
                            role: Role::OutputGradient,
                            buffer: dy,
                            window: made,
                            base: dy_base,
                            mode: Mode::Update,
                        },
                    ];
                    self.step(inner_place, Action::ReluGradient, Some(id), accesses);
                }
                return;
            }
            Op::NormMean(_) => return self.norm_backward(id, segment),
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::ConvLstm2d(_)
            | Op::Relu(_) => {}
        }
        let read = self.segments.reads(self.graph, id, segment);
        if read.is_empty() && node.op.sums_over_time() {
            return;
        }
        let (dy, dy_base) = self.value(output, true, going, segment);
        let mut dy_access =
            Access { role: Role::OutputGradient, buffer: dy, window: made, base: dy_base, mode: Mode::Read };
        if node.op.is_recurrent() {
            self.cell_gradient(id, segment, dy_access);
            dy_access = self.gates(id, segment, Role::OutputGradient, Mode::Read);
        }
        // The weights' gradient comes first: after it the input is dead, and the input's gradient may take
        // its bytes.
        if !node.params.is_empty() {
            let (x, base) = self.value(input, false, going, segment);
            let mut accesses =
                vec![Access { role: Role::Input, buffer: x, window: read, base, mode: Mode::Read }, dy_access];
            accesses.extend(self.param_accesses(id, true, read));
            if node.op.is_recurrent() {
                let (h, base) = self.value(output, false, going, segment);
                accesses.push(Access { role: Role::Output, buffer: h, window: made, base, mode: Mode::Read });
                accesses.extend(self.state_before(id, made).into_iter().filter(|a| a.role == Role::HiddenBefore));
            }
            accesses.extend(self.workspace(id, Pass::WeightGradient, read, made));
            if !self.part(id, segment).last {
                // A summing layer's bias is added once.
                accesses.retain(|a| a.role != Role::BiasGradient);
            }
            self.step(weight_place, Action::WeightGradient, Some(id), accesses);
        }
        if self.trained[input.0] {
            let accumulate = self.gathers(input);
            let (dx, base) = self.value(input, true, going, segment);
            let window = if accumulate { read } else { self.segments.present(input, segment) };
            let mode = if accumulate { Mode::Update } else { Mode::Write };
            let mut accesses = vec![dy_access, Access { role: Role::InputGradient, buffer: dx, window, base, mode }];
            if node.params.is_empty() && node.op.backward_reads().input {
                let (x, base) = self.value(input, false, going, segment);
                accesses.push(Access { role: Role::Input, buffer: x, window, base, mode: Mode::Read });
            }
            if matches!(node.op, Op::Relu(_)) {
                let (y, base) = self.value(output, false, going, segment);
                accesses.push(Access { role: Role::Output, buffer: y, window: made, base, mode: Mode::Read });
            }
            let weights = self.param_accesses(id, false, read);
            accesses.extend(weights.into_iter().filter(|a| a.role == Role::Weight));
            accesses.extend(self.workspace(id, Pass::InputGradient, window, made));
            let relu = matches!(node.op, Op::MaxPool3d(_))
                && self.maker(input).is_some_and(|before| self.masks_in_pool(before));
            let action = Action::InputGradient { relu, accumulate };
            self.step(input_place, action, Some(id), accesses);
        }
    }
}
