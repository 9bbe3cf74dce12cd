//! The schedule: the ordered steps of one training step, and every range of every buffer that they touch.

mod build;

pub use build::{KernelRequest, Kind, Pass, Workspaces, build};

use crate::axes::{DType, Window};
use crate::graph::{Graph, NodeId, ParamId, ValueId};
use serde::Serialize;

/// Index of a buffer in [`Schedule::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BufferId(pub usize);

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum What {
    /// A parameter.
    Weight(ParamId),
    /// The gradient of a parameter, summed over micro-batches.
    Gradient(ParamId),
    /// The optimizer's running mean of the gradient.
    FirstMoment(ParamId),
    /// The optimizer's running mean of the squared gradient.
    SecondMoment(ParamId),
    /// `[K]`, the weight of each class in the loss.
    ClassWeights,
    /// `[T,N,H,W,C]`, pixels as decoded.
    Frames,
    /// `[N]`, class indices.
    Labels,
    /// `[N]`, the loss of each clip.
    ClipLosses,
    /// A value of the graph.
    Value(ValueId),
    /// The gradient of a value.
    ValueGradient(ValueId),
    /// What a kernel writes and nobody else reads.
    Workspace(NodeId),
}

impl What {
    /// Whether it lives through the whole training step and into the next.
    pub fn is_persistent(self) -> bool {
        match self {
            What::Weight(_) | What::Gradient(_) | What::FirstMoment(_) | What::SecondMoment(_) | What::ClassWeights => {
                true
            }
            What::Frames
            | What::Labels
            | What::ClipLosses
            | What::Value(_)
            | What::ValueGradient(_)
            | What::Workspace(_) => false,
        }
    }
}

/// Some bytes of the arena for some of the steps.
#[derive(Clone, Debug, Serialize)]
pub struct Buffer {
    /// What it holds.
    pub what: What,
    /// The type of its elements.
    pub dtype: DType,
    /// The frames it holds; one for what has no time axis.
    pub window: Window,
    /// Elements of one frame, over all clips of the micro-batch.
    pub frame: usize,
}

impl Buffer {
    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.window.len() * self.frame
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
}

/// What a step uses a buffer for. A kernel finds its arguments by role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Role {
    /// Pixels as decoded.
    Frames,
    /// Class indices.
    Labels,
    /// Weight of each class.
    ClassWeights,
    /// Loss of each clip.
    ClipLosses,
    /// x.
    Input,
    /// y.
    Output,
    /// w.
    Weight,
    /// The bias.
    Bias,
    /// dx.
    InputGradient,
    /// dy.
    OutputGradient,
    /// dw.
    WeightGradient,
    /// The gradient of the bias.
    BiasGradient,
    /// The optimizer's first moment.
    FirstMoment,
    /// The optimizer's second moment.
    SecondMoment,
    /// Scratch.
    Workspace,
}

/// How a step uses a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Mode {
    /// Its content is read.
    Read,
    /// All of it is overwritten; what was there does not matter.
    Write,
    /// Its content is read and overwritten.
    Update,
}

/// One buffer of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Access {
    /// What for.
    pub role: Role,
    /// Which.
    pub buffer: BufferId,
    /// Which of its frames.
    pub window: Window,
    /// How.
    pub mode: Mode,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Action {
    /// The data pipeline fills frames and labels.
    Load,
    /// Pixels to normalised values.
    Normalise,
    /// A layer's output, with the ReLU after it where `relu`.
    Forward {
        /// Whether the step applies the layer's ReLU, too.
        relu: bool,
    },
    /// Loss of each clip, and the gradient of the logits.
    Loss,
    /// The host reads the logits and the losses.
    Report,
    /// Gradient of a ReLU's input from that of its output, in place.
    ReluGradient,
    /// Gradient of a layer's input.
    InputGradient {
        /// Whether the input is a ReLU's output whose own gradient this step takes, too.
        relu: bool,
    },
    /// Gradients of a layer's parameters, added to what is there.
    WeightGradient,
    /// Sets a gradient to zero.
    Clear,
    /// The optimizer's step on one parameter.
    Update,
}

/// One kernel call on fixed windows.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// What it does.
    pub action: Action,
    /// The layer it belongs to.
    pub node: Option<NodeId>,
    /// Everything it touches.
    pub accesses: Vec<Access>,
}

impl Step {
    /// The access with this role.
    pub fn access(&self, role: Role) -> Option<&Access> {
        self.accesses.iter().find(|a| a.role == role)
    }

    /// The step in words, such as "conv1, gradient of its weights".
    pub fn describe(&self, graph: &Graph) -> String {
        let name = self.node.map_or("", |n| graph.node(n).name.as_str());
        match self.action {
            Action::Load => "loading the clips".to_owned(),
            Action::Normalise => "normalising the frames".to_owned(),
            Action::Forward { .. } => format!("{name}, forward"),
            Action::Loss => "the loss".to_owned(),
            Action::Report => "reading the losses".to_owned(),
            Action::ReluGradient => format!("{name}, backward"),
            Action::InputGradient { .. } => format!("{name}, gradient of its input"),
            Action::WeightGradient => format!("{name}, gradient of its weights"),
            Action::Clear => format!("{name}, clearing its gradient"),
            Action::Update => format!("{name}, optimizer step"),
        }
    }
}

/// The steps of one training step, or of a forward pass.
#[derive(Clone, Debug, Serialize)]
pub struct Schedule {
    /// N, clips of the micro-batch.
    pub clips: usize,
    /// Buffers; the persistent ones come first, in the same order in every schedule of the same kind.
    pub buffers: Vec<Buffer>,
    /// Once, before the first micro-batch.
    pub begin: Vec<Step>,
    /// For each micro-batch.
    pub micro: Vec<Step>,
    /// Once, after the last micro-batch.
    pub update: Vec<Step>,
}

impl Schedule {
    /// A buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// The buffer that holds `what`.
    pub fn find(&self, what: What) -> Option<BufferId> {
        self.buffers.iter().position(|b| b.what == what).map(BufferId)
    }

    /// All steps in the order they run, each micro-batch step once.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.begin.iter().chain(&self.micro).chain(&self.update)
    }

    /// Number of buffers that live through the whole training step.
    pub fn persistent(&self) -> usize {
        self.buffers.iter().take_while(|b| b.what.is_persistent()).count()
    }

    /// First and last step, as positions in [`Schedule::steps`], that touch each buffer.
    pub fn lifetimes(&self) -> Vec<crate::arena::Lifetime> {
        let last = self.steps().count().saturating_sub(1);
        let mut lifetimes: Vec<crate::arena::Lifetime> = self
            .buffers
            .iter()
            .map(|b| {
                let (first, last) = if b.what.is_persistent() { (0, last) } else { (usize::MAX, 0) };
                crate::arena::Lifetime { bytes: b.bytes(), first, last }
            })
            .collect();
        for (index, step) in self.steps().enumerate() {
            for access in &step.accesses {
                let life = &mut lifetimes[access.buffer.0];
                life.first = life.first.min(index);
                life.last = life.last.max(index);
            }
        }
        for life in &mut lifetimes {
            life.first = life.first.min(life.last);
        }
        lifetimes
    }
}
