//! The forward steps of a segment, and the loss.

use super::{Builder, Going, Pass, Turning};
use crate::graph::{Graph, NodeId};
use crate::ops::Op;
use crate::schedule::{Access, Action, Held, Kind, Mode, Part, Role, What};

impl Builder<'_> {
    /// Which values of a segment have to be made in a turn through it.
    pub(super) fn needed(&self, turning: Turning) -> Vec<bool> {
        let Turning { stage, segment, going, first } = turning;
        let (graph, segments) = (self.graph, &self.segments);
        let last = segment + 1 == segments.count;
        let mut needed = vec![false; graph.values.len()];
        if !last {
            for held in self.held(stage) {
                match held {
                    Held::Window(value) => needed[value.0] = true,
                    Held::Hidden(node) | Held::Cell(node) => {
                        needed[graph.node(node).output.0] |= going != Going::Reversing
                    }
                }
            }
        }
        if going == Going::Reversing && !segments.whole[graph.output.0] && segments.stage_of(graph.output) == stage {
            needed[graph.output.0] = true;
        }
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            let output = node.output;
            if first && self.gives_moments(id, stage) {
                needed[node.input().0] |= !segments.is_there(graph, node.input(), stage, first);
            }
            let late = segments.whole[output.0] && !segments.sums(id);
            // The backward of a layer between two stages is in both; in the stage of its input it reads what is kept.
            if segments.home(graph, id) != stage || (late && !last) {
                continue;
            }
            let wanted = match going {
                Going::Predicting => true,
                _ if segments.whole[output.0] => first,
                Going::Passing => first && segments.is_kept(graph, output),
                Going::Reversing => {
                    (first && segments.is_kept(graph, output))
                        || (self.trained[output.0] && node.op.backward_reads().output)
                }
            };
            let root = segments.root[output.0];
            // A recurrent layer's cells and gates are made anew, even where its output is kept.
            let there =
                !segments.whole[output.0] && !node.op.is_recurrent() && segments.is_there(graph, output, stage, first);
            // A value in another's bytes is made with it.
            needed[output.0] = (needed[output.0] || needed[root.0] || wanted) && !there;
            let reads = node.op.backward_reads().input && going == Going::Reversing && self.trained[output.0];
            for &input in &node.inputs {
                let trains = !node.params.is_empty() || self.trained[input.0];
                let whole = segments.whole[input.0];
                if needed[output.0] || (reads && trains && !whole) {
                    needed[input.0] |= whole || !segments.is_there(graph, input, stage, first);
                    // A view of the source may be of an earlier stage.
                    needed[Graph::SOURCE.0] |= segments.root[input.0] == Graph::SOURCE;
                }
            }
        }
        needed
    }

    /// Whether the layer after this one is a ReLU that this one's kernel can apply.
    pub(super) fn fused_relu(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        node.op.has_relu_epilogue()
            && self.reader(node.output).is_some_and(|reader| {
                matches!(self.graph.node(reader).op, Op::Relu(_)) && self.segments.shared[reader.0].is_some()
            })
    }

    pub(super) fn forward(&mut self, id: NodeId, turning: Turning) {
        let segment = turning.segment;
        let node = self.graph.node(id);
        let (input, output) = (node.input(), node.output);
        let place = self.forward_place(id, turning);
        let made = self.made(id, segment);
        let shared = self.segments.shared[id.0];
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) | Op::Activation(_) | Op::Dropout(_) if shared.is_some() => {
                let fused = self.graph.values[input.0].made_by.is_some_and(|before| self.fused_relu(before));
                let passes = matches!(node.op, Op::Dropout(_)) && self.kind != Kind::Training;
                if !fused && !passes && !made.is_empty() {
                    let (buffer, base) = self.value(output, turning);
                    let access = Access { role: Role::Output, buffer, window: made, base, mode: Mode::Update };
                    let action = Action::Forward { relu: true, part: Part::WHOLE, input: 0 };
                    self.step(place, action, Some(id), vec![access]);
                }
                return;
            }
            Op::NormMean(_) => return self.norm_mean_forward(id, turning),
            Op::BatchNorm(_) => return self.norm_forward(id, turning),
            Op::GroupNorm(_) if self.segments.is_barrier(id) => return self.norm_forward(id, turning),
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
            | Op::Reverse(_)
            | Op::LastFrame(_) => {}
        }
        for at in 0..node.inputs.len() {
            if shared != Some(at) {
                self.forward_of(id, at, turning);
            }
        }
    }

    pub(super) fn forward_place(&self, id: NodeId, turning: Turning) -> usize {
        match turning.going {
            Going::Passing => self.places.passing(id.0),
            Going::Reversing | Going::Predicting => self.places.forward(id.0),
        }
    }

    /// The forward step of one of a node's inputs; most nodes have one.
    fn forward_of(&mut self, id: NodeId, at: usize, turning: Turning) {
        let segment = turning.segment;
        let node = self.graph.node(id);
        let (input, output) = (node.inputs[at], node.output);
        let made = self.made(id, segment);
        let mut read = self.segments.reads(self.graph, id, at, segment);
        if made.is_empty() || (read.is_empty() && self.segments.sums(id)) {
            return;
        }
        let part = self.part(id, segment);
        if let Op::LastFrame(_) = node.op {
            if !part.last {
                return;
            }
            read.lo = read.hi - 1;
        }
        let (x, x_base) = self.value(input, turning);
        let (y, y_base) = self.value(output, turning);
        let writes = match node.op {
            Op::LastFrame(_) => true,
            _ => part.first && at == 0 && self.segments.shared[id.0].is_none(),
        };
        let mode = if writes { Mode::Write } else { Mode::Update };
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window: read, base: x_base, mode: Mode::Read },
            Access { role: Role::Output, buffer: y, window: made, base: y_base, mode },
        ];
        accesses.extend(self.param_accesses(id, false, read));
        if node.op.is_recurrent() {
            accesses.extend(self.recurrent_forward(id, turning));
        }
        accesses.extend(self.workspace(id, Pass::Forward, read, made));
        let relu = self.fused_relu(id) && part.last;
        let place = self.forward_place(id, turning) + at.min(2);
        self.step(place, Action::Forward { relu, part, input: at }, Some(id), accesses);
    }

    /// The loss of the labels that the segment makes outputs for.
    pub(super) fn loss(&mut self, turning: Turning) {
        let segment = turning.segment;
        let output = self.graph.output;
        let last = segment + 1 == self.segments.count;
        if self.segments.stage_of(output) != turning.stage {
            return;
        }
        let window = match self.graph.values[output.0].made_by {
            Some(maker) if !self.segments.whole[output.0] => self.made(maker, segment),
            _ if last => self.segments.present(output, turning.stage, segment),
            _ => return,
        };
        if window.is_empty() {
            return;
        }
        let (logits, base) = self.value(output, turning);
        let (gradient, gradient_base) = self.gradient(output, segment);
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
        self.step(self.places.loss(), Action::Loss, None, accesses);
    }

    /// The outputs of a segment go to the host.
    pub(super) fn hand_out(&mut self, turning: Turning) {
        let output = self.graph.output;
        let window = self.segments.made(output, turning.segment);
        let (logits, base) = self.value(output, turning);
        let access = Access { role: Role::Input, buffer: logits, window, base, mode: Mode::Read };
        self.step(self.places.loss(), Action::Report, None, vec![access]);
    }
}
