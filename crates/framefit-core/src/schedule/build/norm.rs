//! Normalisation with statistics of the clip: by itself, or before the mean of each frame.
//!
//! Where a clip is cut, the statistics are complete when the stage of the input is; the output is made, frame by
//! frame, in the next stage. Backward, the sums over the gradient are complete when that stage is reversed; the
//! gradient of the input is made in the stage of the input.

use super::{Backward, Builder, Pass, Turning};
use crate::axes::{DType, Window};
use crate::graph::NodeId;
use crate::ops::Op;
use crate::schedule::{Access, Action, Buffer, BufferId, Kind, Mode, Part, Role, What};

impl Builder<'_> {
    /// Rows of statistics: a channel, or a feature of a flattened frame, over all clips; or a channel of one clip.
    fn rows(&self, id: NodeId) -> usize {
        let node = self.graph.node(id);
        let input = self.graph.shape(node.input());
        match &node.op {
            Op::BatchNorm(op) => op.features(input),
            _ => input.channels * self.schedule.clips,
        }
    }

    /// Whether a node's statistics are made in a stage, for the next one.
    pub(super) fn gives_moments(&self, id: NodeId, stage: usize) -> bool {
        let node = self.graph.node(id);
        matches!(node.op, Op::BatchNorm(_) | Op::GroupNorm(_))
            && self.segments.stands_between(self.graph, id)
            && self.segments.stage_of(node.input()) == stage
    }

    fn norm_buffer(&mut self, what: What, id: NodeId, per_row: usize) -> BufferId {
        let dtype = if matches!(what, What::Moments(_) | What::Sums(_)) { DType::F64 } else { self.dtype };
        self.flat(what, dtype, per_row * self.rows(id), true)
    }

    /// A segment's share in the statistics, and the statistics once they are complete.
    pub(super) fn moments(&mut self, id: NodeId, turning: Turning) {
        let node = self.graph.node(id);
        let between = self.segments.stands_between(self.graph, id);
        let (window, part) = match between {
            true => {
                let input = node.input();
                (self.segments.made(input, turning.segment), self.part_of(input, turning.segment))
            }
            false => (self.segments.reads(self.graph, id, 0, turning.segment), Part::WHOLE),
        };
        if window.is_empty() {
            return;
        }
        let place = self.forward_place(id, turning);
        let (x, base) = self.value(node.input(), turning);
        let moments = self.norm_buffer(What::Moments(id), id, 3);
        let mode = if part.first { Mode::Write } else { Mode::Update };
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window, base, mode: Mode::Read },
            self.all(Role::Moments, moments, mode),
        ];
        accesses.extend(self.workspace(id, Pass::Moments, window, window));
        self.step(place, Action::Moments { part }, Some(id), accesses);
        if part.last {
            let moments = self.all(Role::Moments, moments, Mode::Read);
            let moving = if self.kind == Kind::Training { Mode::Update } else { Mode::Read };
            self.statistics(id, place + 1, vec![moments], moving);
        }
    }

    /// From moments, or from the moving statistics, to what the frames are normalised with.
    fn statistics(&mut self, id: NodeId, place: usize, mut accesses: Vec<Access>, moving: Mode) {
        let training = !accesses.is_empty();
        let statistics = self.norm_buffer(What::Statistics(id), id, 2);
        accesses.push(self.all(Role::Statistics, statistics, Mode::Write));
        for mut access in self.param_accesses(id, false, Window::whole(1)) {
            if matches!(access.role, Role::MovingMean | Role::MovingVariance) {
                access.mode = moving;
                accesses.push(access);
            }
        }
        self.step(place, Action::Finish { training }, Some(id), accesses);
    }

    pub(super) fn norm_forward(&mut self, id: NodeId, turning: Turning) {
        let node = self.graph.node(id);
        let made = self.made(id, turning.segment);
        if made.is_empty() {
            return;
        }
        let place = self.forward_place(id, turning);
        if !self.segments.is_barrier(id) {
            self.statistics(id, place + 1, Vec::new(), Mode::Read);
        } else if !self.segments.stands_between(self.graph, id) {
            self.moments(id, turning);
        }
        let statistics = self.norm_buffer(What::Statistics(id), id, 2);
        let (x, x_base) = self.value(node.input(), turning);
        let (y, y_base) = self.value(node.output, turning);
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window: made, base: x_base, mode: Mode::Read },
            self.all(Role::Statistics, statistics, Mode::Read),
            Access { role: Role::Output, buffer: y, window: made, base: y_base, mode: Mode::Write },
        ];
        let params = self.param_accesses(id, false, made).into_iter();
        accesses.extend(params.filter(|a| matches!(a.role, Role::Weight | Role::Bias)));
        accesses.extend(self.workspace(id, Pass::Forward, made, made));
        let action = Action::Forward { relu: self.fused_relu(id), part: Part::WHOLE, input: 0 };
        self.step(place + 2, action, Some(id), accesses);
    }

    pub(super) fn norm_backward(&mut self, id: NodeId, turning: Turning) {
        let node = self.graph.node(id);
        let between = self.segments.stands_between(self.graph, id);
        if !between || self.segments.stage_of(node.output) == turning.stage {
            self.norm_sums(id, turning);
        }
        if !self.trained[node.input().0] {
            return;
        }
        let window = match between {
            true if self.segments.stage_of(node.input()) != turning.stage => return,
            true => self.segments.made(node.input(), turning.segment),
            false => self.made(id, turning.segment),
        };
        if window.is_empty() {
            return;
        }
        let accumulate = self.accumulates(node.input());
        let coefficients = self.norm_buffer(What::Coefficients(id), id, 3);
        let (dy, dy_base) = self.kept_gradient(id, turning.segment, window);
        let (dx, dx_base) = self.gradient(node.input(), turning.segment);
        let mode = if accumulate { Mode::Update } else { Mode::Write };
        let mut accesses = vec![
            Access { role: Role::OutputGradient, buffer: dy, window, base: dy_base, mode: Mode::Read },
            self.all(Role::Coefficients, coefficients, Mode::Read),
            Access { role: Role::InputGradient, buffer: dx, window, base: dx_base, mode },
        ];
        if self.segments.is_barrier(id) {
            let (x, base) = self.value(node.input(), turning);
            accesses.push(Access { role: Role::Input, buffer: x, window, base, mode: Mode::Read });
        }
        accesses.extend(self.workspace(id, Pass::InputGradient, window, window));
        let place = self.places.backward(id.0, Backward::Input);
        self.step(place, Action::InputGradient { relu: false, accumulate, input: 0 }, Some(id), accesses);
    }

    /// A segment's share in the sums over the gradient; once they are complete, the gradients of γ and β, and what
    /// the gradient of the input is made with.
    fn norm_sums(&mut self, id: NodeId, turning: Turning) {
        let made = self.made(id, turning.segment);
        if made.is_empty() {
            return;
        }
        let part = match self.segments.stands_between(self.graph, id) {
            // The last segment comes first.
            true => {
                let Part { first, last } = self.part_of(self.graph.node(id).output, turning.segment);
                Part { first: last, last: first }
            }
            false => Part::WHOLE,
        };
        let statistics = self.norm_buffer(What::Statistics(id), id, 2);
        let statistics = self.all(Role::Statistics, statistics, Mode::Read);
        let mut accesses = vec![statistics];
        if !self.is_frozen(id) {
            let sums = self.add_to_sums(id, turning, part, statistics);
            accesses.push(self.all(Role::Sums, sums, Mode::Read));
        }
        if !part.last {
            return;
        }
        let coefficients = self.norm_buffer(What::Coefficients(id), id, 3);
        accesses.push(self.all(Role::Coefficients, coefficients, Mode::Write));
        // How many values the sums are over.
        accesses.extend(self.found.get(&What::Moments(id)).map(|&m| self.all(Role::Moments, m, Mode::Read)));
        let weight = self.param_accesses(id, false, Window::whole(1));
        accesses.extend(weight.into_iter().filter(|a| a.role == Role::Weight));
        accesses.extend(self.param_accesses(id, true, Window::whole(1)));
        let place = self.places.backward(id.0, Backward::Weights);
        self.step(place, Action::WeightGradient, Some(id), accesses);
    }

    /// Whether the gradient of the input is no more than a multiple of the output's, and there is no other.
    fn is_frozen(&self, id: NodeId) -> bool {
        let trains = self.graph.node(id).params.iter().any(|&p| self.graph.param(p).trained);
        !self.segments.is_barrier(id) && !trains
    }

    fn add_to_sums(&mut self, id: NodeId, turning: Turning, part: Part, statistics: Access) -> BufferId {
        let node = self.graph.node(id);
        let window = self.made(id, turning.segment);
        let sums = self.norm_buffer(What::Sums(id), id, 2);
        let (x, x_base) = self.value(node.input(), turning);
        let (dy, dy_base) = self.gradient(node.output, turning.segment);
        let mode = if part.first { Mode::Write } else { Mode::Update };
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window, base: x_base, mode: Mode::Read },
            Access { role: Role::OutputGradient, buffer: dy, window, base: dy_base, mode: Mode::Read },
            statistics,
            self.all(Role::Sums, sums, mode),
        ];
        accesses.extend(self.workspace(id, Pass::Sums, window, window));
        let place = self.places.backward(id.0, Backward::Inner);
        self.step(place, Action::Sums { part }, Some(id), accesses);
        sums
    }

    /// The mean of every frame and the share of a segment in the statistics, and the output once they are complete.
    pub(super) fn norm_mean_forward(&mut self, id: NodeId, turning: Turning) {
        let node = self.graph.node(id);
        let part = self.part(id, turning.segment);
        let read = self.segments.reads(self.graph, id, 0, turning.segment);
        if read.is_empty() {
            return;
        }
        let place = self.forward_place(id, turning);
        let channels = self.graph.shape(node.output).channels;
        let (means, base) = self.means(id, turning.segment);
        let training = self.kind == Kind::Training;
        let moments = training.then(|| self.flat(What::Moments(id), DType::F64, 3 * channels, true));
        let (x, x_base) = self.value(node.input(), turning);
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window: read, base: x_base, mode: Mode::Read },
            Access { role: Role::Means, buffer: means, window: read, base, mode: Mode::Write },
        ];
        let mode = if part.first { Mode::Write } else { Mode::Update };
        accesses.extend(moments.map(|moments| self.all(Role::Moments, moments, mode)));
        accesses.extend(self.workspace(id, Pass::Forward, read, read));
        self.step(place, Action::Forward { relu: false, part, input: 0 }, Some(id), accesses);
        if !part.last {
            return;
        }
        let made = self.made(id, turning.segment);
        let (y, y_base) = self.value(node.output, turning);
        let mut accesses = vec![
            Access { role: Role::Means, buffer: means, window: made, base, mode: Mode::Read },
            Access { role: Role::Output, buffer: y, window: made, base: y_base, mode: Mode::Write },
        ];
        for mut access in self.param_accesses(id, false, read) {
            if training && matches!(access.role, Role::MovingMean | Role::MovingVariance) {
                access.mode = Mode::Update;
            }
            accesses.push(access);
        }
        accesses.extend(moments.map(|moments| self.all(Role::Moments, moments, Mode::Read)));
        self.step(place + 1, Action::Finish { training }, Some(id), accesses);
    }

    /// Means of frames: of the whole clip, or of a segment that stands alone.
    fn means(&mut self, id: NodeId, segment: usize) -> (BufferId, usize) {
        let output = self.graph.node(id).output;
        let shape = self.graph.shape(output);
        let frame = shape.channels * self.schedule.clips;
        if self.segments.whole[output.0] {
            let frames = shape.dims.t;
            let means = Buffer { what: What::Means(id), dtype: self.dtype, frames, frame, lasting: true };
            return (self.buffer(means), 0);
        }
        self.of_node(What::Means(id), id, segment, frame)
    }

    /// Once, the gradients of γ and β, and what the gradient of the input is made with; then, segment by segment,
    /// that gradient.
    pub(super) fn norm_mean_backward(&mut self, id: NodeId, turning: Turning) {
        let node = self.graph.node(id);
        let segment = turning.segment;
        let made = self.made(id, segment);
        let read = self.segments.reads(self.graph, id, 0, segment);
        let channels = self.graph.shape(node.output).channels;
        let coefficients = self.flat(What::Coefficients(id), self.dtype, 3 * channels, true);
        let (dy, dy_base) = self.gradient(node.output, segment);
        if made.is_empty() {
            return;
        }
        if segment + 1 == self.segments.count || self.segments.alone {
            let (means, base) = self.means(id, segment);
            let mut accesses = vec![
                Access { role: Role::OutputGradient, buffer: dy, window: made, base: dy_base, mode: Mode::Read },
                Access { role: Role::Means, buffer: means, window: made, base, mode: Mode::Read },
            ];
            accesses.extend(self.found.get(&What::Moments(id)).map(|&m| self.all(Role::Moments, m, Mode::Read)));
            let weight = self.param_accesses(id, false, Window::whole(1));
            accesses.extend(weight.into_iter().filter(|a| a.role == Role::Weight));
            accesses.extend(self.param_accesses(id, true, Window::whole(1)));
            accesses.push(self.all(Role::Coefficients, coefficients, Mode::Write));
            let place = self.places.backward(id.0, Backward::Weights);
            self.step(place, Action::WeightGradient, Some(id), accesses);
        }
        if read.is_empty() || !self.trained[node.input().0] {
            return;
        }
        let accumulate = self.accumulates(node.input());
        let (x, base) = self.value(node.input(), turning);
        let (dx, dx_base) = self.gradient(node.input(), segment);
        let mode = if accumulate { Mode::Update } else { Mode::Write };
        let mut accesses = vec![
            Access { role: Role::Input, buffer: x, window: read, base, mode: Mode::Read },
            Access { role: Role::OutputGradient, buffer: dy, window: read, base: dy_base, mode: Mode::Read },
            self.all(Role::Coefficients, coefficients, Mode::Read),
            Access { role: Role::InputGradient, buffer: dx, window: read, base: dx_base, mode },
        ];
        accesses.extend(self.workspace(id, Pass::InputGradient, read, read));
        let place = self.places.backward(id.0, Backward::Input);
        self.step(place, Action::InputGradient { relu: false, accumulate, input: 0 }, Some(id), accesses);
    }
}
