//! From a graph to its schedule.
//!
//! The source frames are cut into segments. A segment is passed through (only what later segments need is
//! computed), or reversed (forward keeping what backward reads, then backward). Values made of the whole clip,
//! and all that follows from them, are computed once, in the last segment, between its forward and its backward.

use super::revolve::{Turn, revolve};
use super::segments::Segments;
use super::{Access, Action, Buffer, BufferId, Cut, Held, Mode, Part, ProgramId, Role, Schedule, Step, What};
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

    // Buffers.

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

    /// A buffer of a state, or of its gradient.
    fn state(&mut self, what: What, held: Held) -> BufferId {
        let (value, frames) = match held {
            Held::Window(value) => (value, self.segments.most_held(value)),
            Held::Hidden(node) | Held::Cell(node) => (self.graph.node(node).output, 1),
        };
        let frame = self.graph.shape(value).per_frame() * self.schedule.clips;
        let lasting = !matches!(what, What::Handed(_));
        self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting })
    }

    /// Everything that is carried over some boundary. The source is not: it is normalised again instead.
    fn held(&self) -> Vec<Held> {
        let windows = (1..self.graph.values.len())
            .map(ValueId)
            .filter(|&v| self.segments.root[v.0] == v && self.segments.most_held(v) > 0)
            .map(Held::Window);
        let recurrent = self.recurrent().flat_map(|n| [Held::Hidden(n), Held::Cell(n)]);
        windows.chain(recurrent).collect()
    }

    /// Recurrent layers that segments go through one after the other.
    fn recurrent(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node_ids().filter(|&n| {
            let node = self.graph.node(n);
            node.op.is_recurrent() && !self.segments.whole[node.output.0] && self.segments.count > 1
        })
    }

    /// The frames of a state at the boundary before a segment.
    fn held_window(&self, held: Held, segment: usize) -> Window {
        match held {
            Held::Window(value) => self.segments.held(value, segment),
            Held::Hidden(node) | Held::Cell(node) => self.segments.last_made(self.graph.node(node).output, segment),
        }
    }

    /// Values whose frames are carried over some boundary.
    fn carried(&self) -> Vec<ValueId> {
        let windows = self.held().into_iter().filter_map(|held| match held {
            Held::Window(value) => Some(value),
            Held::Hidden(_) | Held::Cell(_) => None,
        });
        windows.collect()
    }

    // Programs.

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

    /// Between the state at hand and a slot; from no slot, the empty state at the clip's start.
    fn move_states(&mut self, segment: usize, slot: Option<usize>, keep: bool) {
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

    fn copy(&mut self, place: usize, from: (BufferId, usize), to: (BufferId, usize), window: Window) {
        self.copy_as(place, (from, window), (to, window));
    }

    /// Copies frames to others, as many.
    fn copy_as(&mut self, place: usize, from: ((BufferId, usize), Window), to: ((BufferId, usize), Window)) {
        let ((from, from_base), read) = from;
        let ((to, to_base), written) = to;
        let accesses = vec![
            Access { role: Role::Input, buffer: from, window: read, base: from_base, mode: Mode::Read },
            Access { role: Role::Output, buffer: to, window: written, base: to_base, mode: Mode::Write },
        ];
        self.step(place, Action::Copy, None, accesses);
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

    /// Which values of a segment have to be made.
    fn needed(&self, going: Going, segment: usize, first: bool) -> Vec<bool> {
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

    fn carry_in(&mut self, going: Going, segment: usize, needed: &[bool]) {
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

    fn carry_place(&self, going: Going) -> usize {
        match going {
            Going::Passing => Places::CARRY,
            Going::Reversing | Going::Predicting => self.places().carry_out() + 1,
        }
    }

    /// Whether a value, or one that lies in its bytes, is needed.
    fn alias_needed(&self, root: ValueId, needed: &[bool]) -> bool {
        (0..needed.len()).any(|v| needed[v] && self.segments.root[v] == root)
    }

    fn carry_out(&mut self, segment: usize) {
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
    fn hands_nothing(&self, held: Held, segment: usize) -> bool {
        match held {
            Held::Window(_) => false,
            Held::Hidden(node) | Held::Cell(node) => self.made(node, segment).is_empty(),
        }
    }

    /// The buffer of a recurrent layer's c in a segment, and the frame that lies first in it.
    fn cells(&mut self, node: NodeId, going: Going, segment: usize) -> (BufferId, usize) {
        let what = match going {
            Going::Reversing => What::Cells(node),
            Going::Passing | Going::Predicting => What::PassingCells(node),
        };
        let frame = self.graph.shape(self.graph.node(node).output).per_frame() * self.schedule.clips;
        self.of_node(what, node, segment, frame)
    }

    /// A buffer with as many frames as a node makes in a segment.
    fn of_node(&mut self, what: What, node: NodeId, segment: usize, frame: usize) -> (BufferId, usize) {
        let frames = (0..self.segments.count).map(|s| self.made(node, s).len()).max().unwrap_or(0);
        let buffer = self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: false });
        (buffer, self.made(node, segment).lo)
    }

    // Forward.

    fn reader(&self, value: ValueId) -> Option<&Op> {
        self.graph.nodes.iter().find(|n| n.input == value).map(|n| &n.op)
    }

    fn maker(&self, value: ValueId) -> Option<NodeId> {
        self.graph.values[value.0].made_by
    }

    /// Whether the layer after this one is a ReLU that this one's kernel can apply.
    fn fused_relu(&self, id: NodeId) -> bool {
        let has_epilogue = match self.graph.node(id).op {
            Op::Conv3d(_) | Op::Linear(_) => true,
            Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Flatten(_)
            | Op::Dense(_)
            | Op::ConvLstm2d(_)
            | Op::NormMean(_) => false,
        };
        has_epilogue && self.reader(self.graph.node(id).output).is_some_and(|op| matches!(op, Op::Relu(_)))
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

    fn forward(&mut self, id: NodeId, going: Going, segment: usize) {
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

    /// (h, c) before the first frame of a window; nothing before the clip's first frame.
    fn state_before(&mut self, id: NodeId, made: Window) -> Vec<Access> {
        if made.lo == 0 {
            return Vec::new();
        }
        let window = Window { lo: made.lo - 1, hi: made.lo };
        let states = [(Role::HiddenBefore, Held::Hidden(id)), (Role::CellBefore, Held::Cell(id))];
        states
            .map(|(role, held)| {
                let buffer = self.state(What::State(held), held);
                Access { role, buffer, window, base: window.lo, mode: Mode::Read }
            })
            .to_vec()
    }

    /// All gates of a recurrent layer in a segment.
    fn gates(&mut self, id: NodeId, segment: usize, role: Role, mode: Mode) -> Access {
        let output = self.graph.node(id).output;
        let frame = 4 * self.graph.shape(output).per_frame() * self.schedule.clips;
        let (buffer, base) = self.of_node(What::Gates(id), id, segment, frame);
        Access { role, buffer, window: self.made(id, segment), base, mode }
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

    /// The share of a segment in the statistics, and the output once they are complete.
    fn norm_forward(&mut self, id: NodeId, place: usize, going: Going, segment: usize) {
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
    fn norm_backward(&mut self, id: NodeId, segment: usize) {
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

    /// The loss of the labels that the segment makes outputs for.
    fn loss(&mut self, segment: usize) {
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

    // Backward.

    /// Whether a node is a ReLU in place whose gradient the max pooling after it takes, too.
    fn masks_in_pool(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        matches!(node.op, Op::Relu(_))
            && self.segments.in_place[id.0]
            && matches!(self.reader(node.output), Some(Op::MaxPool3d(_)))
    }

    /// Whether the gradient of a value is added up from several places (later segments, and this one), or from
    /// none at all.
    fn gathers(&self, value: ValueId) -> bool {
        self.segments.most_held(value) > 0 || self.segments.unread(self.graph, value)
    }

    /// Sets up a gradient that later segments contribute to: theirs where frames were held, else zero.
    fn gradient_in(&mut self, value: ValueId, segment: usize, place: usize) {
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
    fn gradients_out(&mut self, segment: usize, place: usize) {
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

    fn backward(&mut self, id: NodeId, segment: usize) {
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
            let window = if accumulate { read } else { self.written(input, segment) };
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

    /// From the last frame of the segment to the first: the gradient of the gates, and of the state before.
    fn cell_gradient(&mut self, id: NodeId, segment: usize, dy: Access) {
        let made = self.made(id, segment);
        let place = |step| self.places().backward(id.0, step);
        let (into, inner, out) = (place(Backward::In), place(Backward::Inner), place(Backward::Out));
        let end = Window { lo: made.hi - 1, hi: made.hi };
        let total = self.graph.shape(self.graph.node(id).output).dims.t;
        let mut accesses = vec![dy];
        for (role, held) in [(Role::HiddenGradient, Held::Hidden(id)), (Role::CellGradient, Held::Cell(id))] {
            let handed = self.state(What::Handed(held), held);
            if made.hi < total {
                let later = self.state(What::StateGradient(held), held);
                self.copy(into, (later, end.lo), (handed, end.lo), end);
            } else {
                let access =
                    Access { role: Role::Output, buffer: handed, window: end, base: end.lo, mode: Mode::Write };
                self.step(into, Action::Clear, None, vec![access]);
            }
            accesses.push(Access { role, buffer: handed, window: end, base: end.lo, mode: Mode::Update });
        }
        let (cells, base) = self.cells(id, Going::Reversing, segment);
        accesses.push(Access { role: Role::Cells, buffer: cells, window: made, base, mode: Mode::Read });
        accesses.extend(self.state_before(id, made).into_iter().filter(|a| a.role == Role::CellBefore));
        accesses.push(self.gates(id, segment, Role::Gates, Mode::Update));
        let weights = self.param_accesses(id, false, made);
        accesses.extend(weights.into_iter().filter(|a| a.role == Role::RecurrentWeight));
        accesses.extend(self.workspace(id, Pass::State, made, made));
        self.step(inner, Action::CellGradient, Some(id), accesses);
        if made.lo > 0 {
            let before = Window { lo: made.lo - 1, hi: made.lo };
            for held in [Held::Hidden(id), Held::Cell(id)] {
                let handed = self.state(What::Handed(held), held);
                let earlier = self.state(What::StateGradient(held), held);
                self.copy_as(out, ((handed, end.lo), end), ((earlier, before.lo), before));
            }
        }
    }

    /// The frames of a value whose gradient is written at once: all that are there.
    fn written(&self, value: ValueId, segment: usize) -> Window {
        self.segments.present(value, segment)
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
