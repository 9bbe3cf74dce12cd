//! Batch normalisation before the mean of each frame.

use super::{Backward, Builder, Going, Pass};
use crate::axes::{DType, Window};
use crate::graph::NodeId;
use crate::schedule::{Access, Action, Buffer, Kind, Mode, Role, What};

impl Builder<'_> {
    /// The share of a segment in the statistics, and the output once they are complete.
    pub(super) fn norm_forward(&mut self, id: NodeId, place: usize, going: Going, segment: usize) {
        let node = self.graph.node(id);
        let part = self.part(id, segment);
        let read = self.segments.reads(self.graph, id, segment);
        let channels = self.graph.shape(node.output).channels;
        let frames = self.graph.shape(node.output).dims.t;
        let frame = channels * self.schedule.clips;
        let means = Buffer { what: What::Means(id), dtype: self.dtype, frames, frame, lasting: true };
        let means = self.buffer(means);
        let training = self.kind == Kind::Training;
        let moments = training.then(|| self.flat(What::Moments(id), DType::F64, 3 * channels, true));
        if !read.is_empty() {
            let (x, base) = self.value(node.input, false, going, segment);
            let mut accesses = vec![
                Access { role: Role::Input, buffer: x, window: read, base, mode: Mode::Read },
                Access { role: Role::Means, buffer: means, window: read, base: 0, mode: Mode::Write },
            ];
            let mode = if part.first { Mode::Write } else { Mode::Update };
            accesses.extend(moments.map(|moments| self.all(Role::Moments, moments, mode)));
            accesses.extend(self.workspace(id, Pass::Forward, read, read));
            self.step(place, Action::Forward { relu: false, part }, Some(id), accesses);
        }
        if !part.last {
            return;
        }
        let (y, _) = self.value(node.output, false, going, segment);
        let mut accesses = vec![self.all(Role::Means, means, Mode::Read), self.all(Role::Output, y, Mode::Write)];
        accesses.extend(self.param_accesses(id, false, read));
        let mode = if training { Mode::Update } else { Mode::Read };
        for (&param, role) in node.params.iter().skip(2).zip([Role::MovingMean, Role::MovingVariance]) {
            if let Some(&buffer) = self.found.get(&What::Weight(param)) {
                accesses.push(self.all(role, buffer, mode));
            }
        }
        accesses.extend(moments.map(|moments| self.all(Role::Moments, moments, Mode::Read)));
        self.step(place + 1, Action::Finish { training }, Some(id), accesses);
    }

    /// Once, the gradients of γ and β, and what the gradient of the input is made with; then, segment by segment,
    /// that gradient.
    pub(super) fn norm_backward(&mut self, id: NodeId, segment: usize) {
        let node = self.graph.node(id);
        let channels = self.graph.shape(node.output).channels;
        let coefficients = self.flat(What::Coefficients(id), self.dtype, 3 * channels, true);
        let (dy, _) = self.value(node.output, true, Going::Reversing, segment);
        if segment + 1 == self.segments.count {
            let mut accesses = vec![self.all(Role::OutputGradient, dy, Mode::Read)];
            for (role, what) in [(Role::Means, What::Means(id)), (Role::Moments, What::Moments(id))] {
                if let Some(&buffer) = self.found.get(&what) {
                    accesses.push(self.all(role, buffer, Mode::Read));
                }
            }
            accesses.extend(self.param_accesses(id, false, Window::whole(1)));
            accesses.extend(self.param_accesses(id, true, Window::whole(1)));
            accesses.push(self.all(Role::Coefficients, coefficients, Mode::Write));
            accesses.retain(|a| a.role != Role::Bias);
            let place = self.places().backward(id.0, Backward::Weights);
            self.step(place, Action::WeightGradient, Some(id), accesses);
        }
        let read = self.segments.reads(self.graph, id, segment);
        if read.is_empty() || !self.trained[node.input.0] {
            return;
        }
        let accumulate = self.gathers(node.input);
        let (x, base) = self.value(node.input, false, Going::Reversing, segment);
        let (dx, dx_base) = self.value(node.input, true, Going::Reversing, segment);
        let mode = if accumulate { Mode::Update } else { Mode::Write };
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window: read, base, mode: Mode::Read },
            Access { role: Role::OutputGradient, buffer: dy, window: read, base: 0, mode: Mode::Read },
            self.all(Role::Coefficients, coefficients, Mode::Read),
            Access { role: Role::InputGradient, buffer: dx, window: read, base: dx_base, mode },
        ];
        accesses.extend(self.workspace(id, Pass::InputGradient, read, read));
        let place = self.places().backward(id.0, Backward::Input);
        self.step(place, Action::InputGradient { relu: false, accumulate }, Some(id), accesses);
    }
}
