//! The forward steps of a segment, and the loss.

use super::{Builder, Going, Pass};
use crate::graph::NodeId;
use crate::ops::Op;
use crate::schedule::{Access, Action, Held, Kind, Mode, Part, Role, What};

impl Builder<'_> {
    /// Which values of a segment have to be made.
    pub(super) fn needed(&self, going: Going, segment: usize, first: bool) -> Vec<bool> {
        let graph = self.graph;
        let last = segment + 1 == self.segments.count;
        let mut needed = vec![false; graph.values.len()];
        if !last {
            for held in self.held() {
                match held {
                    Held::Window(value) => needed[value.0] = true,
                    Held::Hidden(node) | Held::Cell(node) => {
                        needed[graph.node(node).output.0] |= going != Going::Reversing
                    }
                }
            }
        }
        if going == Going::Reversing && !self.segments.whole[graph.output.0] {
            needed[graph.output.0] = true;
        }
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            let sums = node.op.sums_over_time() && !self.segments.whole[node.input.0];
            let wanted = match going {
                Going::Predicting => true,
                _ if self.segments.whole[node.output.0] => first && (sums || last),
                Going::Passing => false,
                Going::Reversing => {
                    let reads = node.op.backward_reads();
                    self.trained[node.output.0] && reads.output
                }
            };
            let whole_later = self.segments.whole[node.output.0] && !sums && !last;
            if wanted && !whole_later {
                needed[node.output.0] = true;
            }
            let root = self.segments.root[node.output.0];
            if needed[root.0] || needed[node.output.0] {
                // A value in another's bytes is made with it.
                needed[node.output.0] = true;
                needed[node.input.0] = true;
            }
            if going == Going::Reversing && self.trained[node.output.0] && !self.segments.whole[node.input.0] {
                let trains = !node.params.is_empty();
                if node.op.backward_reads().input && (trains || self.trained[node.input.0]) {
                    needed[node.input.0] = true;
                }
            }
        }
        needed
    }

    /// Whether the layer after this one is a ReLU that this one's kernel can apply.
    pub(super) fn fused_relu(&self, id: NodeId) -> bool {
        self.graph.node(id).op.has_relu_epilogue()
            && self.reader(self.graph.node(id).output).is_some_and(|op| matches!(op, Op::Relu(_)))
    }

    pub(super) fn forward(&mut self, id: NodeId, going: Going, segment: usize) {
        let node = self.graph.node(id);
        let (input, output) = (node.input, node.output);
        let place = match going {
            Going::Passing => self.places().passing(id.0),
            Going::Reversing | Going::Predicting => self.places().forward(id.0),
        };
        let made = self.made(id, segment);
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) if self.segments.in_place[id.0] => {
                let fused = self.maker(input).is_some_and(|before| self.fused_relu(before));
                if !fused && !made.is_empty() {
                    let (buffer, base) = self.value(output, false, going, segment);
                    let access = Access { role: Role::Output, buffer, window: made, base, mode: Mode::Update };
                    let action = Action::Forward { relu: true, part: Part::WHOLE };
                    self.step(place, action, Some(id), vec![access]);
                }
                return;
            }
            Op::NormMean(_) => return self.norm_forward(id, place, going, segment),
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::ConvLstm2d(_)
            | Op::Relu(_) => {}
        }
        let read = self.segments.reads(self.graph, id, segment);
        if made.is_empty() || (read.is_empty() && node.op.sums_over_time()) {
            return;
        }
        let part = self.part(id, segment);
        let (x, x_base) = self.value(input, false, going, segment);
        let (y, y_base) = self.value(output, false, going, segment);
        let mode = if part.first { Mode::Write } else { Mode::Update };
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window: read, base: x_base, mode: Mode::Read },
            Access { role: Role::Output, buffer: y, window: made, base: y_base, mode },
        ];
        accesses.extend(self.param_accesses(id, false, read));
        if node.op.is_recurrent() {
            let (cells, base) = self.cells(id, going, segment);
            accesses.push(Access { role: Role::Cells, buffer: cells, window: made, base, mode: Mode::Write });
            accesses.extend(self.state_before(id, made));
            if going == Going::Reversing {
                accesses.push(self.gates(id, segment, Role::Gates, Mode::Write));
            }
        }
        accesses.extend(self.workspace(id, Pass::Forward, read, made));
        let relu = self.fused_relu(id) && part.last;
        self.step(place, Action::Forward { relu, part }, Some(id), accesses);
    }

    /// The loss of the labels that the segment makes outputs for.
    pub(super) fn loss(&mut self, segment: usize) {
        let output = self.graph.output;
        let last = segment + 1 == self.segments.count;
        let window = match self.maker(output) {
            Some(maker) if !self.segments.whole[output.0] => self.made(maker, segment),
            _ if last => self.segments.present(output, segment),
            _ => return,
        };
        if window.is_empty() {
            return;
        }
        let going = if self.kind == Kind::Training { Going::Reversing } else { Going::Predicting };
        let (logits, base) = self.value(output, false, going, segment);
        let (gradient, gradient_base) = self.value(output, true, going, segment);
        let mut accesses = vec![
            Access { role: Role::Input, buffer: logits, window, base, mode: Mode::Read },
            Access { role: Role::InputGradient, buffer: gradient, window, base: gradient_base, mode: Mode::Write },
        ];
        for (role, what) in [(Role::Losses, What::Losses), (Role::LossWeights, What::LossWeights)] {
            let buffer = self.per_label(what, self.dtype);
            accesses.push(Access { role, buffer, window, base: 0, mode: Mode::Write });
        }
        if let Some(&labels) = self.found.get(&What::Labels) {
            accesses.push(Access { role: Role::Labels, buffer: labels, window, base: 0, mode: Mode::Read });
        }
        if let Some(&weights) = self.found.get(&What::ClassWeights) {
            accesses.push(self.all(Role::ClassWeights, weights, Mode::Read));
        }
        self.step(self.places().loss(), Action::Loss, None, accesses);
    }
}
