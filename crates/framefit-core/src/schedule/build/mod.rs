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
    /// Forward of one segment after the other, each with its own frames in and its own outputs out: a program for
    /// each, and no more than a segment is ever held.
    Stream,
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
    /// Statistics that a layer normalises with.
    Moments,
    /// Sums that the gradient of a normalised value is made with.
    Sums,
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
    /// Whether the call is one of training.
    pub training: bool,
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
        Kind::Stream => builder.stream(),
    }
    builder.schedule
}

/// How a segment is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Going {
    /// Only what later segments and stages need.
    Passing,
    /// What backward needs, and backward.
    Reversing,
    /// Everything, for the output alone.
    Predicting,
}

/// One way through one segment of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Turning {
    stage: usize,
    segment: usize,
    going: Going,
    /// Whether no turn through this segment of this stage came before.
    first: bool,
}

/// What a program is made for: equal keys have equal steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Load,
    Report,
    Segment(Turning),
    Keep { stage: usize, segment: usize, slot: usize },
    Restore { stage: usize, segment: usize, slot: Option<usize> },
}

struct Builder<'a> {
    graph: &'a Graph,
    kind: Kind,
    dtype: DType,
    workspaces: &'a dyn Workspaces,
    segments: Segments,
    /// For each value, whether a trained parameter comes before it.
    trained: Vec<bool>,
    found: HashMap<What, BufferId>,
    known: HashMap<Key, ProgramId>,
    /// Steps of the program at hand.
    steps: Vec<Step>,
    /// Where the program at hand has its places.
    places: Places,
    /// For each root, whether the program at hand has written its gradient.
    written: Vec<bool>,
    schedule: Schedule,
}

/// Places of steps: the same step of any two segments in the same pass through a stage has the same place.
#[derive(Clone, Copy)]
struct Places {
    nodes: usize,
    /// The place before the first of the pass.
    base: usize,
}

impl Places {
    const BEGIN: usize = 0;
    const LOAD: usize = 1;
    const PASSES: usize = 2;

    fn of_pass(nodes: usize, pass: usize) -> Self {
        let span = Self { nodes, base: 0 }.span();
        Self { nodes, base: Self::PASSES + pass * span }
    }

    fn states(self) -> usize {
        self.base
    }

    fn carry(self) -> usize {
        self.base + 1
    }

    /// Forward of a segment that is passed through, in three steps per node.
    fn passing(self, node: usize) -> usize {
        self.base + 2 + 3 * node
    }

    /// After the last forward step of a segment that is passed through.
    fn carry_out(self) -> usize {
        self.passing(self.nodes)
    }

    /// Forward of a segment to be reversed, or to predict from, in three steps per node.
    fn forward(self, node: usize) -> usize {
        self.carry_out() + 2 + 3 * node
    }

    fn loss(self) -> usize {
        self.forward(self.nodes)
    }

    /// Backward in five steps per node, the last node first.
    fn backward(self, node: usize, step: Backward) -> usize {
        self.loss() + 1 + (self.nodes - 1 - node) * 5 + step as usize
    }

    /// What is handed over when all else is done.
    fn last(self) -> usize {
        self.loss() + 1 + self.nodes * 5
    }

    /// Number of places of a pass.
    fn span(self) -> usize {
        self.last() + 2 - self.base
    }
}

/// The steps of a node's backward, in order.
#[derive(Clone, Copy)]
enum Backward {
    /// What later segments hand over.
    In,
    /// The gradient of a recurrent layer's gates, of an activation's input, the sums of a normalised gradient.
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
            let own = node.params.iter().any(|&p| graph.param(p).trained);
            trained[node.output.0] = own || node.inputs.iter().any(|v| trained[v.0]);
        }
        let segments = Segments::new(graph, cut, kind, cut.keeping);
        let nodes = graph.nodes.len();
        let passes = match kind {
            Kind::Training => 2 * segments.stages - 1,
            Kind::Inference { .. } | Kind::Stream => segments.stages,
        };
        let span = Places::of_pass(nodes, 0).span();
        let of_pass = |pass: usize| Places::of_pass(nodes, pass).base;
        let schedule = Schedule {
            clips,
            segments: segments.count,
            buffers: Vec::new(),
            begin: Vec::new(),
            programs: Vec::new(),
            micro: Vec::new(),
            update: Vec::new(),
            passes: (0..passes).map(|pass| of_pass(pass)..of_pass(pass) + span).collect(),
        };
        Self {
            graph,
            kind,
            dtype,
            workspaces,
            trained,
            found: HashMap::new(),
            known: HashMap::new(),
            steps: Vec::new(),
            places: Places::of_pass(nodes, 0),
            written: vec![false; graph.values.len()],
            segments,
            schedule,
        }
    }

    /// The place after all passes.
    fn end(&self) -> usize {
        self.schedule.passes.last().map_or(Places::PASSES, |p| p.end)
    }

    /// The pass in which a segment of a stage is gone through.
    fn pass(&self, stage: usize, going: Going) -> usize {
        let last = self.segments.stages - 1;
        match (self.kind, going) {
            (Kind::Inference { .. } | Kind::Stream, _) => stage,
            (Kind::Training, Going::Passing) if stage < last => stage,
            (Kind::Training, _) => 2 * last - stage,
        }
    }

    fn training(&mut self, checkpoints: usize) {
        self.program(Key::Load);
        let (stages, count) = (self.segments.stages, self.segments.count);
        let turn = |stage, segment, going, first| Key::Segment(Turning { stage, segment, going, first });
        if self.segments.alone {
            (0..count).for_each(|segment| self.program(turn(0, segment, Going::Reversing, true)));
        } else {
            for stage in 0..stages - 1 {
                for segment in 0..count {
                    self.places = Places::of_pass(self.graph.nodes.len(), stage);
                    self.program(turn(stage, segment, Going::Passing, true));
                }
            }
            for stage in (0..stages).rev() {
                self.reverse_stage(stage, checkpoints);
            }
        }
        self.program(Key::Report);
        self.optimizer();
    }

    fn reverse_stage(&mut self, stage: usize, checkpoints: usize) {
        self.places = Places::of_pass(self.graph.nodes.len(), self.pass(stage, Going::Reversing));
        let mut visited = vec![stage + 1 < self.segments.stages; self.segments.count];
        for turn in revolve(self.segments.count, checkpoints) {
            let key = match turn {
                Turn::Advance(segment) | Turn::Reverse(segment) => {
                    let first = !std::mem::replace(&mut visited[segment], true);
                    let going = if matches!(turn, Turn::Advance(_)) { Going::Passing } else { Going::Reversing };
                    Key::Segment(Turning { stage, segment, going, first })
                }
                Turn::Keep { segment, slot } => Key::Keep { stage, segment, slot },
                Turn::Restore { segment, slot } => Key::Restore { stage, segment, slot },
            };
            self.program(key);
        }
    }

    fn inference(&mut self) {
        self.program(Key::Load);
        for stage in 0..self.segments.stages {
            self.places = Places::of_pass(self.graph.nodes.len(), stage);
            self.program(Key::Restore { stage, segment: 0, slot: None });
            for segment in 0..self.segments.count {
                let going = Going::Predicting;
                self.program(Key::Segment(Turning { stage, segment, going, first: true }));
            }
        }
        self.program(Key::Report);
    }

    fn stream(&mut self) {
        for segment in 0..self.segments.count {
            let going = Going::Predicting;
            self.program(Key::Segment(Turning { stage: 0, segment, going, first: true }));
        }
    }

    /// Appends a program to the micro-batch, making it if there is none with this key. The first pass through a
    /// stage and its reversal have places of their own.
    fn program(&mut self, key: Key) {
        if let Some(&id) = self.known.get(&key) {
            self.schedule.micro.push(id);
            return;
        }
        match key {
            Key::Load => self.load(),
            Key::Report => self.report(),
            Key::Segment(turning) => self.segment(turning),
            Key::Keep { stage, segment, slot } => self.move_states(stage, segment, Some(slot), true),
            Key::Restore { stage, segment, slot } => self.move_states(stage, segment, slot, false),
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
            Op::Linear(_) if node.params.first() == Some(&param) => self.graph.shape(node.input()).dims.t,
            _ => 1,
        }
    }

    /// The buffer that holds a value in a segment; and the frame that lies first in it.
    fn value(&mut self, value: ValueId, turning: Turning) -> (BufferId, usize) {
        let root = self.segments.root[value.0];
        let lasting = self.segments.lasts(root);
        let what = match turning.going {
            Going::Passing if !lasting => What::Passing(root),
            Going::Passing | Going::Reversing | Going::Predicting => What::Value(root),
        };
        let frames = self.segments.most_present(root);
        let frame = self.graph.shape(root).per_frame() * self.schedule.clips;
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting });
        (buffer, self.segments.present(root, turning.stage, turning.segment).lo)
    }

    /// The buffer that holds a value's gradient in a segment; and the frame that lies first in it.
    fn gradient(&mut self, value: ValueId, segment: usize) -> (BufferId, usize) {
        let root = self.segments.root[value.0];
        let lasting = self.segments.gradient_lasts(root);
        let frames = self.segments.most_gradient_present(root);
        let frame = self.graph.shape(root).per_frame() * self.schedule.clips;
        let what = What::ValueGradient(root);
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting });
        (buffer, self.segments.gradient_present(root, segment).lo)
    }

    /// The buffer of decoded frames: of the whole clip, or of a segment where no more is ever held.
    fn frames(&mut self) -> BufferId {
        let source = *self.graph.shape(Graph::SOURCE);
        let frames = match self.kind {
            Kind::Stream => self.segments.most_present(Graph::SOURCE),
            Kind::Training | Kind::Inference { .. } => source.dims.t,
        };
        let frame = source.per_frame() * self.schedule.clips;
        self.buffer(Buffer { what: What::Frames, dtype: DType::U8, frames, frame, lasting: true })
    }

    fn load(&mut self) {
        let frames = self.frames();
        let labels = self.per_label(What::Labels, DType::U32);
        let accesses = vec![self.all(Role::Frames, frames, Mode::Write), self.all(Role::Labels, labels, Mode::Write)];
        self.step(Places::LOAD, Action::Load, None, accesses);
    }

    fn report(&mut self) {
        let stage = self.segments.stages - 1;
        let turning = Turning { stage, segment: self.segments.count - 1, going: Going::Predicting, first: true };
        let (logits, _) = self.value(self.graph.output, turning);
        let mut accesses = vec![self.all(Role::Input, logits, Mode::Read)];
        for (role, what) in [(Role::Losses, What::Losses), (Role::LossWeights, What::LossWeights)] {
            if let Some(&buffer) = self.found.get(&what) {
                accesses.push(self.all(role, buffer, Mode::Read));
            }
        }
        self.step(self.end(), Action::Report, None, accesses);
    }

    /// A buffer with an element for each label: per clip, or per frame of the output.
    fn per_label(&mut self, what: What, dtype: DType) -> BufferId {
        let (frames, frame) = (self.graph.labelled_frames(), self.schedule.clips);
        self.buffer(Buffer { what, dtype, frames, frame, lasting: true })
    }

    fn segment(&mut self, turning: Turning) {
        let Turning { stage, segment, going, first } = turning;
        let needed = self.needed(turning);
        self.carry_in(turning, &needed);
        for id in self.graph.node_ids() {
            let node = self.graph.node(id);
            if first && self.gives_moments(id, stage) {
                self.moments(id, turning);
            }
            if needed[node.output.0] && self.segments.home(self.graph, id) == stage {
                self.forward(id, turning);
            }
        }
        self.store(turning);
        match going {
            Going::Passing => self.carry_out(turning),
            Going::Predicting => {
                match self.kind {
                    Kind::Stream => self.hand_out(turning),
                    Kind::Training | Kind::Inference { .. } => self.loss(turning),
                }
                self.carry_out(turning);
            }
            Going::Reversing => {
                self.loss(turning);
                self.reverse(stage, segment);
                if self.segments.alone {
                    self.carry_out(turning);
                } else {
                    self.store_gradients(stage, segment);
                    self.gradients_out(stage, segment);
                }
            }
        }
    }

    /// Backward through all nodes of a segment.
    fn reverse(&mut self, stage: usize, segment: usize) {
        let last = segment + 1 == self.segments.count;
        let mut begun = vec![false; self.graph.values.len()];
        self.written = vec![false; self.graph.values.len()];
        for id in self.graph.node_ids().rev() {
            let node = self.graph.node(id);
            let between = self.segments.stands_between(self.graph, id);
            let here = self.segments.home(self.graph, id) == stage;
            let to_input = between && self.segments.stage_of(node.input()) == stage;
            let late = self.segments.whole[node.output.0] && !self.segments.sums(id);
            if !(here || to_input) || (late && !last) {
                continue;
            }
            for (at, &input) in node.inputs.iter().enumerate() {
                let root = self.segments.root[input.0];
                let shared = self.segments.shared[id.0] == Some(at);
                if shared || (between && !to_input) || std::mem::replace(&mut begun[root.0], true) {
                    continue;
                }
                self.gradient_in(root, stage, segment, self.places.backward(id.0, Backward::In));
            }
            self.backward(id, stage, segment);
        }
    }

    /// The only layer that reads a value.
    fn reader(&self, value: ValueId) -> Option<NodeId> {
        let mut readers = self.graph.node_ids().filter(|&n| self.graph.node(n).inputs.contains(&value));
        readers.next().filter(|_| readers.next().is_none())
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
        if !self.segments.sums(id) {
            return Part::WHOLE;
        }
        self.part_of(node.input(), segment)
    }

    /// Whether the clip's first and last frames of a value are among those that a segment makes.
    fn part_of(&self, value: ValueId, segment: usize) -> Part {
        let made = self.segments.made(value, segment);
        let total = self.graph.shape(value).dims.t;
        Part { first: made.lo == 0 && !made.is_empty(), last: made.hi == total && !made.is_empty() }
    }

    fn param_accesses(&self, id: NodeId, gradients: bool, read: Window) -> Vec<Access> {
        let node = self.graph.node(id);
        let all = roles(&node.op);
        let mode = if gradients { Mode::Update } else { Mode::Read };
        let mut accesses = Vec::new();
        for (&param, (weight, gradient)) in node.params.iter().zip(all) {
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
            input: self.graph.shape(node.input()),
            output: self.graph.shape(node.output),
            read,
            made,
            dtype: self.dtype,
            training: self.kind == Kind::Training,
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
            let place = self.end() + 1;
            self.schedule.update.push(Step { action: Action::Update, node, accesses, place });
        }
    }
}

/// What steps call the parameters of a layer, and their gradients, in the order of [`Op::params`].
fn roles(op: &Op) -> Vec<(Role, Role)> {
    const WEIGHT: (Role, Role) = (Role::Weight, Role::WeightGradient);
    const BIAS: (Role, Role) = (Role::Bias, Role::BiasGradient);
    // Moving statistics have no gradient: nothing asks for it.
    const MOVING: [(Role, Role); 2] =
        [(Role::MovingMean, Role::MovingMean), (Role::MovingVariance, Role::MovingVariance)];
    match op {
        Op::Recurrent(_) => vec![
            WEIGHT,
            (Role::RecurrentWeight, Role::RecurrentWeightGradient),
            BIAS,
            (Role::RecurrentBias, Role::RecurrentBiasGradient),
        ],
        Op::BatchNorm(op) => {
            let own = [(op.scale, WEIGHT), (op.center, BIAS)].into_iter().filter(|(there, _)| *there);
            own.map(|(_, role)| role).chain(MOVING).collect()
        }
        Op::LayerNorm(op) => {
            [(op.scale, WEIGHT), (op.center, BIAS)].into_iter().filter(|(there, _)| *there).map(|(_, r)| r).collect()
        }
        Op::NormMean(_) => [WEIGHT, BIAS].into_iter().chain(MOVING).collect(),
        Op::Conv3d(_) | Op::Linear(_) | Op::Dense(_) | Op::GroupNorm(_) => vec![WEIGHT, BIAS],
        Op::MaxPool3d(_)
        | Op::AvgPool3d(_)
        | Op::AdaptivePool3d(_)
        | Op::GlobalAvgPool3d(_)
        | Op::Relu(_)
        | Op::Activation(_)
        | Op::Flatten(_)
        | Op::Dropout(_)
        | Op::Add(_)
        | Op::Concat(_)
        | Op::Reverse(_)
        | Op::LastFrame(_) => Vec::new(),
    }
}
