//! From a graph to its schedule.

use super::{Access, Action, Buffer, BufferId, Mode, Role, Schedule, Step, What};
use crate::axes::{DType, Shape, Window};
use crate::graph::{Graph, NodeId, ParamId, ValueId};
use crate::ops::Op;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// The schedule of a micro-batch of `clips` whole clips (one segment).
pub fn build(graph: &Graph, kind: Kind, clips: usize, dtype: DType, workspaces: &dyn Workspaces) -> Schedule {
    Builder::new(graph, kind, clips, dtype, workspaces).run()
}

struct Builder<'a> {
    graph: &'a Graph,
    kind: Kind,
    dtype: DType,
    workspaces: &'a dyn Workspaces,
    /// For each value, the one whose bytes it lies in.
    root: Vec<ValueId>,
    /// For each value, whether a parameter comes before it.
    trained: Vec<bool>,
    schedule: Schedule,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, kind: Kind, clips: usize, dtype: DType, workspaces: &'a dyn Workspaces) -> Self {
        let mut root: Vec<ValueId> = (0..graph.values.len()).map(ValueId).collect();
        let mut trained = vec![false; graph.values.len()];
        for node in &graph.nodes {
            if node.op.in_place() {
                root[node.output.0] = root[node.input.0];
            }
            trained[node.output.0] = trained[node.input.0] || !node.params.is_empty();
        }
        let schedule =
            Schedule { clips, buffers: Vec::new(), begin: Vec::new(), micro: Vec::new(), update: Vec::new() };
        Self { graph, kind, dtype, workspaces, root, trained, schedule }
    }

    fn run(mut self) -> Schedule {
        self.persistent();
        self.load();
        for id in self.graph.node_ids() {
            self.forward(id);
        }
        self.loss();
        if self.kind == Kind::Training {
            for id in self.graph.node_ids().rev() {
                self.backward(id);
            }
            self.optimizer();
        }
        self.report();
        self.schedule
    }

    fn buffer(&mut self, what: What, dtype: DType, window: Window, frame: usize) -> BufferId {
        if let Some(id) = self.schedule.find(what).filter(|_| !matches!(what, What::Workspace(_))) {
            return id;
        }
        self.schedule.buffers.push(Buffer { what, dtype, window, frame });
        BufferId(self.schedule.buffers.len() - 1)
    }

    fn persistent(&mut self) {
        let params = || (0..self.graph.params.len()).map(ParamId);
        let mut all: Vec<What> = params().map(What::Weight).collect();
        if matches!(self.kind, Kind::Training | Kind::Inference { trained: true }) {
            all.extend(params().map(What::Gradient));
            all.extend(params().map(What::FirstMoment));
            all.extend(params().map(What::SecondMoment));
        }
        for what in all {
            if let What::Weight(p) | What::Gradient(p) | What::FirstMoment(p) | What::SecondMoment(p) = what {
                let len = self.graph.param(p).len();
                self.buffer(what, self.dtype, Window::whole(1), len);
            }
        }
        self.buffer(What::ClassWeights, self.dtype, Window::whole(1), self.graph.classes());
    }

    fn value(&mut self, value: ValueId, gradient: bool) -> BufferId {
        let root = self.root[value.0];
        let shape = *self.graph.shape(root);
        let what = if gradient { What::ValueGradient(root) } else { What::Value(root) };
        let frame = shape.per_frame() * self.schedule.clips;
        self.buffer(what, self.dtype, Window::whole(shape.dims.t), frame)
    }

    fn access(&mut self, role: Role, buffer: BufferId, mode: Mode) -> Access {
        Access { role, buffer, window: self.schedule.buffer(buffer).window, mode }
    }

    fn param_access(&mut self, id: NodeId, gradients: bool) -> Vec<Access> {
        let params = self.graph.node(id).params.clone();
        let roles = match gradients {
            false => [Role::Weight, Role::Bias],
            true => [Role::WeightGradient, Role::BiasGradient],
        };
        let mut accesses = Vec::new();
        for (param, role) in params.into_iter().zip(roles) {
            let what = if gradients { What::Gradient(param) } else { What::Weight(param) };
            let mode = if gradients { Mode::Update } else { Mode::Read };
            if let Some(buffer) = self.schedule.find(what) {
                accesses.push(self.access(role, buffer, mode));
            }
        }
        accesses
    }

    fn workspace(&mut self, id: NodeId, pass: Pass) -> Option<Access> {
        let node = self.graph.node(id);
        let (input, output) = (self.graph.shape(node.input), self.graph.shape(node.output));
        let bytes = self.workspaces.bytes(&KernelRequest {
            op: &node.op,
            pass,
            clips: self.schedule.clips,
            input,
            output,
            read: Window::whole(input.dims.t),
            made: Window::whole(output.dims.t),
            dtype: self.dtype,
        });
        if bytes == 0 {
            return None;
        }
        let elements = bytes.div_ceil(self.dtype.bytes());
        let buffer = self.buffer(What::Workspace(id), self.dtype, Window::whole(1), elements);
        Some(self.access(Role::Workspace, buffer, Mode::Write))
    }

    fn load(&mut self) {
        let source = *self.graph.shape(Graph::SOURCE);
        let clips = self.schedule.clips;
        let window = Window::whole(source.dims.t);
        let frames = self.buffer(What::Frames, DType::U8, window, source.per_frame() * clips);
        let labels = self.buffer(What::Labels, DType::U32, Window::whole(1), clips);
        let value = self.value(Graph::SOURCE, false);
        let load = vec![self.access(Role::Frames, frames, Mode::Write), self.access(Role::Labels, labels, Mode::Write)];
        let normalise =
            vec![self.access(Role::Frames, frames, Mode::Read), self.access(Role::Output, value, Mode::Write)];
        self.schedule.micro.push(Step { action: Action::Load, node: None, accesses: load });
        self.schedule.micro.push(Step { action: Action::Normalise, node: None, accesses: normalise });
    }

    /// The layer after this one, where it is a ReLU that this one's kernel can apply.
    fn fused_relu(&self, id: NodeId) -> bool {
        let has_epilogue = match self.graph.node(id).op {
            Op::Conv3d(_) | Op::Linear(_) => true,
            Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::Relu(_) | Op::Flatten(_) => false,
        };
        has_epilogue && self.reader(self.graph.node(id).output).is_some_and(|op| matches!(op, Op::Relu(_)))
    }

    fn reader(&self, value: ValueId) -> Option<&Op> {
        self.graph.nodes.iter().find(|n| n.input == value).map(|n| &n.op)
    }

    fn maker(&self, value: ValueId) -> Option<NodeId> {
        self.graph.values[value.0].made_by
    }

    fn forward(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let (input, output) = (node.input, node.output);
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) => {
                if !self.maker(input).is_some_and(|before| self.fused_relu(before)) {
                    let y = self.value(output, false);
                    let accesses = vec![self.access(Role::Output, y, Mode::Update)];
                    let action = Action::Forward { relu: true };
                    self.schedule.micro.push(Step { action, node: Some(id), accesses });
                }
                return;
            }
            Op::Conv3d(_) | Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::Linear(_) => {}
        }
        let (x, y) = (self.value(input, false), self.value(output, false));
        let mut accesses = vec![self.access(Role::Input, x, Mode::Read), self.access(Role::Output, y, Mode::Write)];
        accesses.extend(self.param_access(id, false));
        accesses.extend(self.workspace(id, Pass::Forward));
        let action = Action::Forward { relu: self.fused_relu(id) };
        self.schedule.micro.push(Step { action, node: Some(id), accesses });
    }

    fn loss(&mut self) {
        let logits = self.value(self.graph.output, false);
        let gradient = self.value(self.graph.output, true);
        let clips = self.schedule.clips;
        let losses = self.buffer(What::ClipLosses, self.dtype, Window::whole(1), clips);
        let mut accesses = vec![
            self.access(Role::Input, logits, Mode::Read),
            self.access(Role::InputGradient, gradient, Mode::Write),
            self.access(Role::ClipLosses, losses, Mode::Write),
        ];
        for (role, what) in [(Role::Labels, What::Labels), (Role::ClassWeights, What::ClassWeights)] {
            if let Some(buffer) = self.schedule.find(what) {
                accesses.push(self.access(role, buffer, Mode::Read));
            }
        }
        self.schedule.micro.push(Step { action: Action::Loss, node: None, accesses });
    }

    fn report(&mut self) {
        let logits = self.value(self.graph.output, false);
        let mut accesses = vec![self.access(Role::Input, logits, Mode::Read)];
        if let Some(losses) = self.schedule.find(What::ClipLosses) {
            accesses.push(self.access(Role::ClipLosses, losses, Mode::Read));
        }
        self.schedule.micro.push(Step { action: Action::Report, node: None, accesses });
    }

    fn backward(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let (input, output) = (node.input, node.output);
        match node.op {
            Op::Flatten(_) => return,
            Op::Relu(_) => {
                let masked_by_pool = matches!(self.reader(output), Some(Op::MaxPool3d(_)));
                if self.trained[output.0] && !masked_by_pool {
                    let (y, dy) = (self.value(output, false), self.value(output, true));
                    let accesses = vec![
                        self.access(Role::Output, y, Mode::Read),
                        self.access(Role::OutputGradient, dy, Mode::Update),
                    ];
                    self.schedule.micro.push(Step { action: Action::ReluGradient, node: Some(id), accesses });
                }
                return;
            }
            Op::Conv3d(_) | Op::MaxPool3d(_) | Op::GlobalAvgPool3d(_) | Op::Linear(_) => {}
        }
        if !self.trained[output.0] {
            return;
        }
        let dy = self.value(output, true);
        // The weights' gradient comes first: after it the input is dead, and the input's gradient may take
        // its bytes.
        if !node.params.is_empty() {
            let x = self.value(input, false);
            let mut accesses =
                vec![self.access(Role::Input, x, Mode::Read), self.access(Role::OutputGradient, dy, Mode::Read)];
            accesses.extend(self.param_access(id, true));
            accesses.extend(self.workspace(id, Pass::WeightGradient));
            self.schedule.micro.push(Step { action: Action::WeightGradient, node: Some(id), accesses });
        }
        if self.trained[input.0] {
            let dx = self.value(input, true);
            let mut accesses = vec![
                self.access(Role::OutputGradient, dy, Mode::Read),
                self.access(Role::InputGradient, dx, Mode::Write),
            ];
            if node.params.is_empty() && node.op.backward_reads().input {
                let x = self.value(input, false);
                accesses.push(self.access(Role::Input, x, Mode::Read));
            }
            accesses.extend(self.param_access(id, false).into_iter().filter(|a| a.role == Role::Weight));
            accesses.extend(self.workspace(id, Pass::InputGradient));
            let relu = matches!(node.op, Op::MaxPool3d(_))
                && self.maker(input).is_some_and(|before| matches!(self.graph.node(before).op, Op::Relu(_)));
            let action = Action::InputGradient { relu };
            self.schedule.micro.push(Step { action, node: Some(id), accesses });
        }
    }

    fn optimizer(&mut self) {
        for index in 0..self.graph.params.len() {
            let param = ParamId(index);
            let node = Some(self.graph.param(param).node);
            let found =
                [What::Weight(param), What::Gradient(param), What::FirstMoment(param), What::SecondMoment(param)]
                    .map(|what| self.schedule.find(what));
            let [Some(weight), Some(gradient), Some(first), Some(second)] = found else {
                continue;
            };
            let clear = vec![self.access(Role::WeightGradient, gradient, Mode::Write)];
            self.schedule.begin.push(Step { action: Action::Clear, node, accesses: clear });
            let update = vec![
                self.access(Role::Weight, weight, Mode::Update),
                self.access(Role::WeightGradient, gradient, Mode::Read),
                self.access(Role::FirstMoment, first, Mode::Update),
                self.access(Role::SecondMoment, second, Mode::Update),
            ];
            self.schedule.update.push(Step { action: Action::Update, node, accesses: update });
        }
    }
}
