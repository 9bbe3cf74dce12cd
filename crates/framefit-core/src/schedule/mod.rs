//! The schedule: the ordered steps of one training step, and every range of every buffer that they touch.

mod build;
mod revolve;
mod segments;

pub use build::{KernelRequest, Kind, Pass, Workspaces, build};
pub use revolve::{Turn, advances, revolve};

use crate::axes::{DType, Window};
use crate::graph::{Graph, NodeId, ParamId, ValueId};
use serde::Serialize;

/// Index of a buffer in [`Schedule::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BufferId(pub usize);

/// Something of the model that lives from one segment to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Held {
    /// The frames of a value that later segments still read.
    Window(ValueId),
    /// h of a recurrent layer: its last output.
    Hidden(NodeId),
    /// c of a recurrent layer.
    Cell(NodeId),
}

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
    /// `[N]` or `[T',N]`, class indices.
    Labels,
    /// `[N]` or `[T',N]`, the loss of each label.
    Losses,
    /// `[N]` or `[T',N]`, the weight of each label in the mean loss.
    LossWeights,
    /// Activated gates of a recurrent layer, in backward their gradients before activation.
    Gates(NodeId),
    /// c of a recurrent layer in a segment whose backward follows.
    Cells(NodeId),
    /// c of a recurrent layer in a segment that is only passed through.
    PassingCells(NodeId),
    /// The gradient of h or c on its way from frame to frame.
    Handed(Held),
    /// The mean of every frame, of a layer that normalises them.
    Means(NodeId),
    /// Count, mean and squared deviations of each channel over the clip.
    Moments(NodeId),
    /// What makes the gradient of a normalised mean an affine function of the frame.
    Coefficients(NodeId),
    /// A value of the graph: all of it, or its window in the segment whose backward follows.
    Value(ValueId),
    /// The window of a value in a segment that is only passed through, on the way to a later one.
    Passing(ValueId),
    /// The gradient of a value, over the same window.
    ValueGradient(ValueId),
    /// The state at the boundary before the segment at hand.
    State(Held),
    /// A state that is kept, by slot.
    Checkpoint(Held, usize),
    /// The gradient of the state, handed to the segment before.
    StateGradient(Held),
    /// What a kernel writes and nobody else reads.
    Workspace(NodeId, Pass),
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
            | What::Losses
            | What::LossWeights
            | What::Gates(_)
            | What::Cells(_)
            | What::PassingCells(_)
            | What::Handed(_)
            | What::Means(_)
            | What::Moments(_)
            | What::Coefficients(_)
            | What::Value(_)
            | What::Passing(_)
            | What::ValueGradient(_)
            | What::State(_)
            | What::Checkpoint(..)
            | What::StateGradient(_)
            | What::Workspace(..) => false,
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
    /// The most frames it holds at once; one for what has no time axis.
    pub frames: usize,
    /// Elements of one frame, over all clips of the micro-batch.
    pub frame: usize,
    /// Whether its content outlives the segment that made it.
    pub lasting: bool,
}

impl Buffer {
    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.frames * self.frame
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
    /// Loss of each label.
    Losses,
    /// Weight of each label.
    LossWeights,
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
    /// The weight that meets the state.
    RecurrentWeight,
    /// Its gradient.
    RecurrentWeightGradient,
    /// Gates.
    Gates,
    /// c of the segment's frames.
    Cells,
    /// h before the segment.
    HiddenBefore,
    /// c before the segment.
    CellBefore,
    /// Gradient of h, handed from frame to frame.
    HiddenGradient,
    /// Gradient of c, handed from frame to frame.
    CellGradient,
    /// Means of frames.
    Means,
    /// Moments of channels.
    Moments,
    /// Coefficients of a gradient.
    Coefficients,
    /// Moving mean.
    MovingMean,
    /// Moving variance.
    MovingVariance,
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
    /// Which frames.
    pub window: Window,
    /// The frame that lies first in the buffer at this moment.
    pub base: usize,
    /// How.
    pub mode: Mode,
}

/// Which segments of a clip a step of a summing layer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Part {
    /// The sum begins here.
    pub first: bool,
    /// The sum is complete after this.
    pub last: bool,
}

impl Part {
    /// The whole clip at once.
    pub const WHOLE: Part = Part { first: true, last: true };
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
        /// For a layer that sums over the clip: which part of the clip this is.
        part: Part,
    },
    /// Frames from one buffer to another.
    Copy,
    /// Loss of each clip, and the gradient of the logits.
    Loss,
    /// The host reads the logits and the losses.
    Report,
    /// The output of a layer that took its share of every frame, once the clip is over.
    Finish {
        /// Whether the statistics are the clips' own, and move the moving ones.
        training: bool,
    },
    /// From the gradient of a recurrent layer's output to that of its gates, frame by frame backwards.
    CellGradient,
    /// Gradient of a ReLU's input from that of its output, in place.
    ReluGradient,
    /// Gradient of a layer's input.
    InputGradient {
        /// Whether the input is a ReLU's output whose own gradient this step takes, too.
        relu: bool,
        /// Whether it is added to what is there.
        accumulate: bool,
    },
    /// Gradients of a layer's parameters, added to what is there.
    WeightGradient,
    /// Sets frames to zero.
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
    /// Its place among the steps of a program, the same in every segment. Buffers that live within a program
    /// share bytes by it.
    pub place: usize,
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
            Action::Finish { .. } => format!("{name}, forward"),
            Action::CellGradient => format!("{name}, gradient of its gates"),
            Action::ReluGradient => format!("{name}, backward"),
            Action::InputGradient { .. } => format!("{name}, gradient of its input"),
            Action::WeightGradient => format!("{name}, gradient of its weights"),
            Action::Clear if self.node.is_none() => "clearing a gradient".to_owned(),
            Action::Clear => format!("{name}, clearing its gradient"),
            Action::Copy => "carrying the state".to_owned(),
            Action::Update => format!("{name}, optimizer step"),
        }
    }
}

/// How the clip is cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Cut {
    /// Source frames of a segment, the last one may have fewer.
    pub segment: usize,
    /// Most states that are kept at once for the backward pass.
    pub checkpoints: usize,
}

impl Cut {
    /// The whole clip is one segment.
    pub const WHOLE: Cut = Cut { segment: usize::MAX, checkpoints: 0 };
}

/// Index of a program in [`Schedule::programs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProgramId(pub usize);

/// The steps of one training step, or of a forward pass.
#[derive(Clone, Debug, Serialize)]
pub struct Schedule {
    /// N, clips of the micro-batch.
    pub clips: usize,
    /// Segments of the clip.
    pub segments: usize,
    /// Buffers; the persistent ones come first, in the same order in every schedule of the same kind.
    pub buffers: Vec<Buffer>,
    /// Once, before the first micro-batch.
    pub begin: Vec<Step>,
    /// Runs of steps that belong together: a segment passed through, a segment with its backward, a state kept.
    pub programs: Vec<Vec<Step>>,
    /// For each micro-batch, the programs in order.
    pub micro: Vec<ProgramId>,
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

    /// The steps of a micro-batch in the order they run.
    pub fn micro_steps(&self) -> impl Iterator<Item = &Step> {
        self.micro.iter().flat_map(|id| &self.programs[id.0])
    }

    /// Every step once, in no particular order.
    pub fn distinct_steps(&self) -> impl Iterator<Item = &Step> {
        self.begin.iter().chain(self.programs.iter().flatten()).chain(&self.update)
    }

    /// Number of buffers that live through the whole training step.
    pub fn persistent(&self) -> usize {
        self.buffers.iter().take_while(|b| b.what.is_persistent()).count()
    }

    /// Bytes that the schedule itself takes in the host's memory.
    pub fn host_bytes(&self) -> usize {
        let step = |s: &Step| size_of::<Step>() + s.accesses.capacity() * size_of::<Access>();
        let programs = self.programs.iter().map(|p| (p.capacity() - p.len()) * size_of::<Step>() + size_of_val(p));
        self.distinct_steps().map(step).sum::<usize>()
            + programs.sum::<usize>()
            + self.buffers.capacity() * size_of::<Buffer>()
            + self.micro.capacity() * size_of::<ProgramId>()
    }

    /// First and last place that touch each buffer.
    pub fn lifetimes(&self) -> Vec<crate::arena::Lifetime> {
        let last_place = self.distinct_steps().map(|s| s.place).max().unwrap_or(0);
        let mut lifetimes: Vec<crate::arena::Lifetime> = self
            .buffers
            .iter()
            .map(|b| {
                let always = b.what.is_persistent() || (b.lasting && self.segments > 1);
                let (first, last) = if always { (0, last_place) } else { (usize::MAX, 0) };
                crate::arena::Lifetime { bytes: b.bytes(), first, last }
            })
            .collect();
        for step in self.distinct_steps() {
            for access in &step.accesses {
                let life = &mut lifetimes[access.buffer.0];
                life.first = life.first.min(step.place);
                life.last = life.last.max(step.place);
            }
        }
        for life in &mut lifetimes {
            life.first = life.first.min(life.last);
        }
        lifetimes
    }
}
