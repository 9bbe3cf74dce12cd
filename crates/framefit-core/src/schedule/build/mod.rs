//! From a graph to its schedule.
//!
//! The source frames are cut into segments. A segment is passed through (only what later segments need is
//! computed), or reversed (forward keeping what backward reads, then backward). Values made of the whole clip,
//! and all that follows from them, are computed once, in the last segment, between its forward and its backward.

mod backward;
mod forward;
mod norm;
mod recurrent;
mod states;

use super::revolve::{Turn, revolve};
use super::segments::Segments;
use super::{Access, Action, Buffer, BufferId, Cut, Mode, Part, ProgramId, Role, Schedule, Step, What};
use crate::axes::{DType, Shape, Window};
use crate::graph::{Graph, NodeId, ParamId, ValueId};
use crate::ops::Op;
use std::collections::HashMap;

/// What a schedule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Forward, loss, backward, optimizer.
    Training,
    /// Forward and loss. With `trained`, in an arena that also holds gradients and moments.
    Inference {
        /// Whether gradients and moments lie beside the weights.
        trained: bool,
    },
}

/// Which of a layer's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Pass {
    /// Output from input.
    Forward,
    /// Gradient of the input.
    InputGradient,
    /// Gradients of the parameters.
    WeightGradient,
    /// Gradients of a recurrent layer's gates and of the state before.
    State,
}

/// A kernel call as far as its scratch depends on it.
#[derive(Clone, Debug)]
pub struct KernelRequest<'a> {
    /// The layer's op.
    pub op: &'a Op,
    /// Which of its kernels.
    pub pass: Pass,
    /// N.
    pub clips: usize,
    /// Extents of the whole input clip.
    pub input: &'a Shape,
    /// Extents of the whole output clip.
    pub output: &'a Shape,
    /// Input frames held.
    pub read: Window,
    /// Output frames made.
    pub made: Window,
    /// The type of activations and weights.
    pub dtype: DType,
}

/// Says what kernels need besides their arguments; the engine that runs the schedule answers.
pub trait Workspaces {
    /// Scratch of one kernel call, in bytes.
    fn bytes(&self, request: &KernelRequest<'_>) -> usize;
}

/// The schedule of a micro-batch of `clips` clips, cut into segments.
pub fn build(graph: &Graph, kind: Kind, clips: usize, cut: Cut, dtype: DType, workspaces: &dyn Workspaces) -> Schedule {
    let mut builder = Builder::new(graph, kind, clips, cut, dtype, workspaces);
    builder.persistent();
    match kind {
        Kind::Training => builder.training(cut.checkpoints),
        Kind::Inference { .. } => builder.inference(),
    }
    builder.schedule
}

/// How a segment is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Going {
    /// Only what later segments need.
    Passing,
    /// What backward needs, and backward.
    Reversing,
    /// Everything, for the output alone.
    Predicting,
}

/// What a program is made for: equal keys have equal steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Load,
    Report,
    Segment { going: Going, segment: usize, first: bool },
    Keep { segment: usize, slot: usize },
    Restore { segment: usize, slot: Option<usize> },
}

struct Builder<'a> {
    graph: &'a Graph,
    kind: Kind,
    dtype: DType,
    workspaces: &'a dyn Workspaces,
    segments: Segments,
    /// For each value, whether a parameter comes before it.
    trained: Vec<bool>,
    found: HashMap<What, BufferId>,
    known: HashMap<Key, ProgramId>,
    /// Steps of the program at hand.
    steps: Vec<Step>,
    schedule: Schedule,
}

/// Places of steps: the same step of any two segments has the same place.
#[derive(Clone, Copy)]
struct Places {
    nodes: usize,
}

impl Places {
    const BEGIN: usize = 0;
    const LOAD: usize = 1;
    const STATES: usize = 2;
    const CARRY: usize = 3;
    const FORWARD: usize = 4;

    fn passing(self, node: usize) -> usize {
        Self::FORWARD + 1 + node
    }

    /// After the last forward step of a segment that is passed through.
    fn carry_out(self) -> usize {
        Self::FORWARD + 1 + self.nodes
    }

    /// Forward of a segment to be reversed, or to predict from, in two steps per node; the whole values' forward
    /// comes after it.
    fn forward(self, node: usize) -> usize {
        self.carry_out() + 2 + 2 * node
    }

    fn loss(self) -> usize {
        self.forward(self.nodes)
    }

    /// Backward in five steps per node, the last node first.
    fn backward(self, node: usize, step: Backward) -> usize {
        self.loss() + 1 + (self.nodes - 1 - node) * 5 + step as usize
    }

    fn end(self) -> usize {
        self.loss() + 2 + self.nodes * 5
    }
}

/// The steps of a node's backward, in order.
#[derive(Clone, Copy)]
enum Backward {
    /// What later segments hand over.
    In,
    /// The gradient of a recurrent layer's gates, of a ReLU's input.
    Inner,
    /// The gradients of parameters.
    Weights,
    /// The gradient of the input.
    Input,
    /// What is handed to earlier segments.
    Out,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, kind: Kind, clips: usize, cut: Cut, dtype: DType, workspaces: &'a dyn Workspaces) -> Self {
        let mut trained = vec![false; graph.values.len()];
        for node in &graph.nodes {
            trained[node.output.0] = trained[node.input.0] || !node.params.is_empty();
        }
        let segments = Segments::new(graph, cut);
        let schedule = Schedule {
            clips,
            segments: segments.count,
            buffers: Vec::new(),
            begin: Vec::new(),
            programs: Vec::new(),
            micro: Vec::new(),
            update: Vec::new(),
        };
        let (found, known, steps) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { graph, kind, dtype, workspaces, segments, trained, found, known, steps, schedule }
    }

    fn places(&self) -> Places {
        Places { nodes: self.graph.nodes.len() }
    }

    fn training(&mut self, checkpoints: usize) {
        self.program(Key::Load);
        let mut visited = vec![false; self.segments.count];
        for turn in revolve(self.segments.count, checkpoints) {
            match turn {
                Turn::Advance(segment) => {
                    let first = !std::mem::replace(&mut visited[segment], true);
                    self.program(Key::Segment { going: Going::Passing, segment, first });
                }
                Turn::Reverse(segment) => {
                    let first = !std::mem::replace(&mut visited[segment], true);
                    self.program(Key::Segment { going: Going::Reversing, segment, first });
                }
                Turn::Keep { segment, slot } => self.program(Key::Keep { segment, slot }),
                Turn::Restore { segment, slot } => self.program(Key::Restore { segment, slot }),
            }
        }
        self.program(Key::Report);
        self.optimizer();
    }

    fn inference(&mut self) {
        self.program(Key::Load);
        self.program(Key::Restore { segment: 0, slot: None });
        for segment in 0..self.segments.count {
            self.program(Key::Segment { going: Going::Predicting, segment, first: true });
        }
        self.program(Key::Report);
    }

    /// Appends a program to the micro-batch, making it if there is none with this key.
    fn program(&mut self, key: Key) {
        if let Some(&id) = self.known.get(&key) {
            self.schedule.micro.push(id);
            return;
        }
        match key {
            Key::Load => self.load(),
            Key::Report => self.report(),
            Key::Segment { going, segment, first } => self.segment(going, segment, first),
            Key::Keep { segment, slot } => self.move_states(segment, Some(slot), true),
            Key::Restore { segment, slot } => self.move_states(segment, slot, false),
        }
        let id = ProgramId(self.schedule.programs.len());
        self.schedule.programs.push(std::mem::take(&mut self.steps));
        self.known.insert(key, id);
        self.schedule.micro.push(id);
    }

    fn step(&mut self, place: usize, action: Action, node: Option<NodeId>, accesses: Vec<Access>) {
        self.steps.push(Step { action, node, accesses, place });
    }

    fn buffer(&mut self, buffer: Buffer) -> BufferId {
        if let Some(&id) = self.found.get(&buffer.what) {
            let known = &mut self.schedule.buffers[id.0];
            // Scratch is as large as the largest of its calls.
            known.frame = known.frame.max(buffer.frame);
            known.frames = known.frames.max(buffer.frames);
            return id;
        }
        let id = BufferId(self.schedule.buffers.len());
        self.found.insert(buffer.what, id);
        self.schedule.buffers.push(buffer);
        id
    }

    /// A buffer without a time axis.
    fn flat(&mut self, what: What, dtype: DType, elements: usize, lasting: bool) -> BufferId {
        self.buffer(Buffer { what, dtype, frames: 1, frame: elements, lasting })
    }

    /// All of a buffer without a time axis.
    fn all(&self, role: Role, buffer: BufferId, mode: Mode) -> Access {
        let frames = self.schedule.buffer(buffer).frames;
        Access { role, buffer, window: Window::whole(frames), base: 0, mode }
    }

    fn persistent(&mut self) {
        let params = || (0..self.graph.params.len()).map(ParamId);
        let mut all: Vec<(ParamId, What)> = params().map(|p| (p, What::Weight(p))).collect();
        if matches!(self.kind, Kind::Training | Kind::Inference { trained: true }) {
            let trained = || params().filter(|&p| self.graph.param(p).trained);
            all.extend(trained().map(|p| (p, What::Gradient(p))));
            all.extend(trained().map(|p| (p, What::FirstMoment(p))));
            all.extend(trained().map(|p| (p, What::SecondMoment(p))));
        }
        for (param, what) in all {
            let frames = self.slices(param);
            let frame = self.graph.param(param).len() / frames;
            self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: true });
        }
        self.flat(What::ClassWeights, self.dtype, self.graph.classes(), true);
    }

    /// Slices of a parameter that frames meet one by one.
    fn slices(&self, param: ParamId) -> usize {
        let node = self.graph.node(self.graph.param(param).node);
        match node.op {
            Op::Linear(_) if node.params.first() == Some(&param) => self.graph.shape(node.input).dims.t,
            _ => 1,
        }
    }

    /// The buffer that holds a value, or its gradient, in a segment; and the frame that lies first in it.
    fn value(&mut self, value: ValueId, gradient: bool, going: Going, segment: usize) -> (BufferId, usize) {
        let root = self.segments.root[value.0];
        let shape = *self.graph.shape(root);
        let whole = self.segments.lasts(root);
        let what = match (gradient, going) {
            (true, _) => What::ValueGradient(root),
            (false, Going::Passing) if !whole => What::Passing(root),
            (false, _) => What::Value(root),
        };
        let frames = self.segments.most_present(root);
        let frame = shape.per_frame() * self.schedule.clips;
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: whole });
        (buffer, self.segments.present(root, segment).lo)
    }

    fn load(&mut self) {
        let source = *self.graph.shape(Graph::SOURCE);
        let clips = self.schedule.clips;
        let frames = self.buffer(Buffer {
            what: What::Frames,
            dtype: DType::U8,
            frames: source.dims.t,
            frame: source.per_frame() * clips,
            lasting: true,
        });
        let labels = self.per_label(What::Labels, DType::U32);
        let accesses = vec![self.all(Role::Frames, frames, Mode::Write), self.all(Role::Labels, labels, Mode::Write)];
        self.step(Places::LOAD, Action::Load, None, accesses);
    }

    fn report(&mut self) {
        let last = self.segments.count - 1;
        let (logits, _) = self.value(self.graph.output, false, Going::Predicting, last);
        let mut accesses = vec![self.all(Role::Input, logits, Mode::Read)];
        for (role, what) in [(Role::Losses, What::Losses), (Role::LossWeights, What::LossWeights)] {
            if let Some(&buffer) = self.found.get(&what) {
                accesses.push(self.all(role, buffer, Mode::Read));
            }
        }
        self.step(self.places().end(), Action::Report, None, accesses);
    }

    /// A buffer with an element for each label: per clip, or per frame of the output.
    fn per_label(&mut self, what: What, dtype: DType) -> BufferId {
        let (frames, frame) = (self.graph.labelled_frames(), self.schedule.clips);
        self.buffer(Buffer { what, dtype, frames, frame, lasting: true })
    }

    fn segment(&mut self, going: Going, segment: usize, first: bool) {
        let last = segment + 1 == self.segments.count;
        let places = self.places();
        let needed = self.needed(going, segment, first);
        self.carry_in(going, segment, &needed);
        for id in self.graph.node_ids() {
            if needed[self.graph.node(id).output.0] {
                self.forward(id, going, segment);
            }
        }
        match going {
            Going::Passing => self.carry_out(segment),
            Going::Predicting => {
                self.loss(segment);
                self.carry_out(segment);
            }
            Going::Reversing => {
                self.loss(segment);
                let mut begun = vec![false; self.graph.values.len()];
                for id in self.graph.node_ids().rev() {
                    let node = self.graph.node(id);
                    let root = self.segments.root[node.input.0];
                    if !self.segments.in_place[id.0] && !std::mem::replace(&mut begun[root.0], true) {
                        self.gradient_in(root, segment, self.places().backward(id.0, Backward::In));
                    }
                    if last || !self.segments.whole[self.graph.node(id).input.0] {
                        self.backward(id, segment);
                    }
                }
                self.gradients_out(segment, places.end() - 1);
            }
        }
    }

    fn reader(&self, value: ValueId) -> Option<&Op> {
        self.graph.nodes.iter().find(|n| n.input == value).map(|n| &n.op)
    }

    fn maker(&self, value: ValueId) -> Option<NodeId> {
        self.graph.values[value.0].made_by
    }

    /// Frames that a node makes in a segment: of what is made of the whole clip, all that there is.
    fn made(&self, id: NodeId, segment: usize) -> Window {
        let output = self.graph.node(id).output;
        if self.segments.whole[output.0] {
            return Window::whole(self.graph.shape(output).dims.t);
        }
        self.segments.made(output, segment)
    }

    /// Which part of the clip a node sums up in this segment.
    fn part(&self, id: NodeId, segment: usize) -> Part {
        let node = self.graph.node(id);
        if !node.op.sums_over_time() || self.segments.whole[node.input.0] {
            return Part::WHOLE;
        }
        let made = |s| self.segments.made(node.input, s);
        let total = self.graph.shape(node.input).dims.t;
        Part { first: made(segment).lo == 0, last: made(segment).hi == total }
    }

    fn param_accesses(&self, id: NodeId, gradients: bool, read: Window) -> Vec<Access> {
        let node = self.graph.node(id);
        let all: &[(Role, Role)] = match node.op {
            Op::ConvLstm2d(_) => &[
                (Role::Weight, Role::WeightGradient),
                (Role::RecurrentWeight, Role::RecurrentWeightGradient),
                (Role::Bias, Role::BiasGradient),
            ],
            Op::Conv3d(_)
            | Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Flatten(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::NormMean(_) => &[(Role::Weight, Role::WeightGradient), (Role::Bias, Role::BiasGradient)],
        };
        let mode = if gradients { Mode::Update } else { Mode::Read };
        let mut accesses = Vec::new();
        for (&param, &(weight, gradient)) in node.params.iter().zip(all) {
            let what = if gradients { What::Gradient(param) } else { What::Weight(param) };
            if let Some(&buffer) = self.found.get(&what) {
                let whole = self.all(if gradients { gradient } else { weight }, buffer, mode);
                let sliced = self.slices(param) > 1;
                accesses.push(if sliced { Access { window: read, ..whole } } else { whole });
            }
        }
        accesses
    }

    fn workspace(&mut self, id: NodeId, pass: Pass, read: Window, made: Window) -> Option<Access> {
        let node = self.graph.node(id);
        let bytes = self.workspaces.bytes(&KernelRequest {
            op: &node.op,
            pass,
            clips: self.schedule.clips,
            input: self.graph.shape(node.input),
            output: self.graph.shape(node.output),
            read,
            made,
            dtype: self.dtype,
        });
        if bytes == 0 {
            return None;
        }
        let elements = bytes.div_ceil(self.dtype.bytes());
        let buffer = self.flat(What::Workspace(id, pass), self.dtype, elements, false);
        Some(self.all(Role::Workspace, buffer, Mode::Write))
    }

    fn optimizer(&mut self) {
        for index in 0..self.graph.params.len() {
            let param = ParamId(index);
            let node = Some(self.graph.param(param).node);
            let whats =
                [What::Weight(param), What::Gradient(param), What::FirstMoment(param), What::SecondMoment(param)];
            let [Some(weight), Some(gradient), Some(first), Some(second)] = whats.map(|w| self.found.get(&w).copied())
            else {
                continue;
            };
            let clear = vec![self.all(Role::Output, gradient, Mode::Write)];
            let place = Places::BEGIN;
            self.schedule.begin.push(Step { action: Action::Clear, node, accesses: clear, place });
            let accesses = vec![
                self.all(Role::Weight, weight, Mode::Update),
                self.all(Role::WeightGradient, gradient, Mode::Read),
                self.all(Role::FirstMoment, first, Mode::Update),
                self.all(Role::SecondMoment, second, Mode::Update),
            ];
            let place = self.places().end() + 1;
            self.schedule.update.push(Step { action: Action::Update, node, accesses, place });
        }
    }
}
