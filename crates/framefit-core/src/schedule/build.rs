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

    /// Forward of a segment to be reversed, or to predict from; the whole values' forward comes after it.
    fn forward(self, node: usize) -> usize {
        self.carry_out() + 2 + node
    }

    fn loss(self) -> usize {
        self.forward(self.nodes)
    }

    /// Backward in three steps per node, the last node first.
    fn backward(self, node: usize, step: usize) -> usize {
        self.loss() + 1 + (self.nodes - 1 - node) * 3 + step
    }

    fn end(self) -> usize {
        self.loss() + 2 + self.nodes * 3
    }
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
            all.extend(params().map(|p| (p, What::Gradient(p))));
            all.extend(params().map(|p| (p, What::FirstMoment(p))));
            all.extend(params().map(|p| (p, What::SecondMoment(p))));
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
        let whole = self.segments.whole[root.0];
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

    fn state(&mut self, what: fn(Held) -> What, held: Held) -> BufferId {
        self.state_buffer(what(held), held)
    }

    fn state_buffer(&mut self, what: What, held: Held) -> BufferId {
        let Held::Window(value) = held;
        let frame = self.graph.shape(value).per_frame() * self.schedule.clips;
        let frames = self.segments.most_held(value);
        self.buffer(Buffer { what, dtype: self.dtype, frames, frame, lasting: true })
    }

    /// Values whose frames are carried over some boundary; the source is normalised again instead.
    fn carried(&self) -> Vec<ValueId> {
        (1..self.graph.values.len())
            .map(ValueId)
            .filter(|&v| self.segments.root[v.0] == v && self.segments.most_held(v) > 0)
            .collect()
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
        let labels = self.flat(What::Labels, DType::U32, clips, true);
        let accesses = vec![self.all(Role::Frames, frames, Mode::Write), self.all(Role::Labels, labels, Mode::Write)];
        self.step(Places::LOAD, Action::Load, None, accesses);
    }

    fn report(&mut self) {
        let last = self.segments.count - 1;
        let (logits, _) = self.value(self.graph.output, false, Going::Predicting, last);
        let mut accesses = vec![self.all(Role::Input, logits, Mode::Read)];
        if let Some(&losses) = self.found.get(&What::ClipLosses) {
            accesses.push(self.all(Role::ClipLosses, losses, Mode::Read));
        }
        self.step(self.places().end(), Action::Report, None, accesses);
    }

    /// Between the state at hand and a slot; from no slot, the empty state at the clip's start.
    fn move_states(&mut self, segment: usize, slot: Option<usize>, keep: bool) {
        let Some(slot) = slot else { return };
        for value in self.carried() {
            let held = Held::Window(value);
            let window = self.segments.held(value, segment);
            if window.is_empty() {
                continue;
            }
            let state = self.state(What::State, held);
            let kept = self.state_buffer(What::Checkpoint(held, slot), held);
            let (from, to) = if keep { (state, kept) } else { (kept, state) };
            self.copy(Places::STATES, (from, window.lo), (to, window.lo), window);
        }
    }

    fn copy(&mut self, place: usize, from: (BufferId, usize), to: (BufferId, usize), window: Window) {
        let accesses = vec![
            Access { role: Role::Input, buffer: from.0, window, base: from.1, mode: Mode::Read },
            Access { role: Role::Output, buffer: to.0, window, base: to.1, mode: Mode::Write },
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
                if last {
                    self.loss(segment);
                }
                self.carry_out(segment);
            }
            Going::Reversing => {
                if last {
                    self.loss(segment);
                }
                let mut begun = vec![false; self.graph.values.len()];
                for id in self.graph.node_ids().rev() {
                    let node = self.graph.node(id);
                    let root = self.segments.root[node.input.0];
                    if !node.op.in_place() && !std::mem::replace(&mut begun[root.0], true) {
                        self.gradient_in(root, segment, self.places().backward(id.0, 0));
                    }
                    if last || !self.segments.whole[self.graph.node(id).input.0] {
                        self.backward(id, segment);
                    }
                }
                let place = places.end() - 1;
                self.gradients_out(segment, place);
            }
        }
    }

    /// Which values of a segment have to be made.
    fn needed(&self, going: Going, segment: usize, first: bool) -> Vec<bool> {
        let graph = self.graph;
        let last = segment + 1 == self.segments.count;
        let mut needed = vec![false; graph.values.len()];
        for value in self.carried() {
            if !last {
                needed[value.0] = true;
            }
        }
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            let sums = node.op.sums_over_time() && !self.segments.whole[node.input.0];
            let wanted = match going {
                Going::Predicting => true,
                _ if self.segments.whole[node.output.0] => (sums && first) || (!sums && last && first),
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
            let state = self.state(What::State, Held::Window(value));
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
        for value in self.carried() {
            let window = self.segments.held(value, segment + 1);
            if window.is_empty() {
                continue;
            }
            let from = self.value(value, false, going, segment);
            let state = self.state(What::State, Held::Window(value));
            self.copy(place, from, (state, window.lo), window);
        }
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
            Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::Relu(_) | Op::Flatten(_) => false,
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
            Op::Relu(_) => {
                let fused = self.maker(input).is_some_and(|before| self.fused_relu(before));
                if !fused && !made.is_empty() {
                    let (buffer, base) = self.value(output, false, going, segment);
                    let access = Access { role: Role::Output, buffer, window: made, base, mode: Mode::Update };
                    let action = Action::Forward { relu: true, part: Part::WHOLE };
                    self.step(place, action, Some(id), vec![access]);
                }
                return;
            }
            Op::Conv3d(_) | Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::Linear(_) => {}
        }
        let read = self.segments.reads(self.graph, id, segment);
        if read.is_empty() || made.is_empty() {
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
        accesses.extend(self.workspace(id, Pass::Forward, read, made));
        let relu = self.fused_relu(id) && part.last;
        self.step(place, Action::Forward { relu, part }, Some(id), accesses);
    }

    fn param_accesses(&self, id: NodeId, gradients: bool, read: Window) -> Vec<Access> {
        let params = &self.graph.node(id).params;
        let roles = match gradients {
            false => [Role::Weight, Role::Bias],
            true => [Role::WeightGradient, Role::BiasGradient],
        };
        let mode = if gradients { Mode::Update } else { Mode::Read };
        let mut accesses = Vec::new();
        for (&param, role) in params.iter().zip(roles) {
            let what = if gradients { What::Gradient(param) } else { What::Weight(param) };
            if let Some(&buffer) = self.found.get(&what) {
                let whole = self.all(role, buffer, mode);
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

    fn loss(&mut self, segment: usize) {
        let going = if self.kind == Kind::Training { Going::Reversing } else { Going::Predicting };
        let (logits, _) = self.value(self.graph.output, false, going, segment);
        let (gradient, _) = self.value(self.graph.output, true, going, segment);
        let losses = self.flat(What::ClipLosses, self.dtype, self.schedule.clips, true);
        let mut accesses = vec![
            self.all(Role::Input, logits, Mode::Read),
            self.all(Role::InputGradient, gradient, Mode::Write),
            self.all(Role::ClipLosses, losses, Mode::Write),
        ];
        for (role, what) in [(Role::Labels, What::Labels), (Role::ClassWeights, What::ClassWeights)] {
            if let Some(&buffer) = self.found.get(&what) {
                accesses.push(self.all(role, buffer, Mode::Read));
            }
        }
        self.step(self.places().loss(), Action::Loss, None, accesses);
    }

    // Backward.

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
            let from = self.state(What::StateGradient, Held::Window(value));
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
            let to = self.state(What::StateGradient, Held::Window(value));
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
        let (weight_place, input_place) = (place(1), place(2));
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) => {
                let masked_by_pool = matches!(self.reader(output), Some(Op::MaxPool3d(_)));
                if !masked_by_pool {
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
                    self.step(weight_place, Action::ReluGradient, Some(id), accesses);
                }
                return;
            }
            Op::Conv3d(_) | Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::Linear(_) => {}
        }
        let read = self.segments.reads(self.graph, id, segment);
        if read.is_empty() {
            return;
        }
        let (dy, dy_base) = self.value(output, true, going, segment);
        let dy_access =
            Access { role: Role::OutputGradient, buffer: dy, window: made, base: dy_base, mode: Mode::Read };
        // The weights' gradient comes first: after it the input is dead, and the input's gradient may take
        // its bytes.
        if !node.params.is_empty() {
            let (x, base) = self.value(input, false, going, segment);
            let mut accesses =
                vec![Access { role: Role::Input, buffer: x, window: read, base, mode: Mode::Read }, dy_access];
            accesses.extend(self.param_accesses(id, true, read));
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
            let weights = self.param_accesses(id, false, read);
            accesses.extend(weights.into_iter().filter(|a| a.role == Role::Weight));
            accesses.extend(self.workspace(id, Pass::InputGradient, window, made));
            let relu = matches!(node.op, Op::MaxPool3d(_))
                && self.maker(input).is_some_and(|before| matches!(self.graph.node(before).op, Op::Relu(_)));
            let action = Action::InputGradient { relu, accumulate };
            self.step(input_place, action, Some(id), accesses);
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
