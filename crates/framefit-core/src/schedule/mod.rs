//! The schedule: the ordered steps of one training step, and every range of every buffer that they touch.

mod build;
mod revolve;
mod segments;

pub use build::{KernelRequest, Kind, Pass, Workspaces, build};
pub use revolve::{Turn, advances, most_passes, revolve};
pub use segments::needs_whole_clip;

use crate::axes::{DType, Window};
use crate::graph::{Graph, NodeId, ParamId, ValueId};
use serde::{Deserialize, Serialize};

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
    /// What a recurrent layer keeps of its products with the state, in backward their gradients.
    HiddenGates(NodeId),
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
    /// Mean and reciprocal standard deviation that a layer normalises with.
    Statistics(NodeId),
    /// Sums over the clip of the gradient of a normalised value, and of its product with that value.
    Sums(NodeId),
    /// What makes the gradient of a normalised value an affine function of that value and of its gradient.
    Coefficients(NodeId),
    /// A value of the graph: all of it, or its window in the segment whose backward follows.
    Value(ValueId),
    /// The window of a value in a segment that is only passed through, on the way to a later one.
    Passing(ValueId),
    /// All of a value, in the file.
    Filed(ValueId),
    /// All of a value's gradient, in the file.
    FiledGradient(ValueId),
    /// Frames of a gradient, back from the file.
    FetchedGradient(ValueId),
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
            | What::HiddenGates(_)
            | What::Cells(_)
            | What::PassingCells(_)
            | What::Handed(_)
            | What::Means(_)
            | What::Moments(_)
            | What::Statistics(_)
            | What::Sums(_)
            | What::Coefficients(_)
            | What::Value(_)
            | What::Passing(_)
            | What::Filed(_)
            | What::FiledGradient(_)
            | What::FetchedGradient(_)
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
    /// Whether it lies in the file, and takes no bytes of the arena.
    pub fn in_file(&self) -> bool {
        matches!(self.what, What::Filed(_) | What::FiledGradient(_))
    }

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
    /// The bias of the product with the state.
    RecurrentBias,
    /// Its gradient.
    RecurrentBiasGradient,
    /// Gates.
    Gates,
    /// Products with the state.
    HiddenGates,
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
    /// Mean and reciprocal standard deviation.
    Statistics,
    /// Sums of gradients.
    Sums,
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
        /// Which of the layer's inputs.
        input: usize,
    },
    /// A segment's share in the statistics that a layer normalises with.
    Moments {
        /// Which part of the clip this is.
        part: Part,
    },
    /// Frames from one buffer to another.
    Copy,
    /// Loss of each clip, and the gradient of the logits.
    Loss,
    /// The host reads the logits and the losses.
    Report,
    /// Statistics, or the output of a layer that took its share of every frame, once the clip is over.
    Finish {
        /// Whether the statistics are the clips' own, and move the moving ones.
        training: bool,
    },
    /// From the gradient of a recurrent layer's output to that of its gates, frame by frame backwards.
    CellGradient,
    /// Gradient of an activation's input from that of its output, in place.
    InPlaceGradient,
    /// A segment's share in the sums that the gradient of a normalised value is made with.
    Sums {
        /// Which part of the clip this is.
        part: Part,
    },
    /// Gradient of a layer's input.
    InputGradient {
        /// Whether the input is a ReLU's output whose own gradient this step takes, too.
        relu: bool,
        /// Whether it is added to what is there.
        accumulate: bool,
        /// Which of the layer's inputs.
        input: usize,
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
            Action::Moments { .. } | Action::Finish { .. } => format!("{name}, statistics"),
            Action::Sums { .. } => format!("{name}, sums of its gradient"),
            Action::CellGradient => format!("{name}, gradient of its gates"),
            Action::InPlaceGradient => format!("{name}, backward"),
            Action::InputGradient { .. } => format!("{name}, gradient of its input"),
            Action::WeightGradient => format!("{name}, gradient of its weights"),
            Action::Clear if self.node.is_none() => "clearing a gradient".to_owned(),
            Action::Clear => format!("{name}, clearing its gradient"),
            Action::Copy => "carrying the state".to_owned(),
            Action::Update => format!("{name}, optimizer step"),
        }
    }
}

/// What a cut does to the gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cutting {
    /// Nothing: segments are recomputed, and the gradient of the state is handed to the segment before.
    #[default]
    Exact,
    /// The state goes on, its gradient does not: every segment is trained by itself, from the state that the one
    /// before left.
    Truncated,
}

/// How the clip is cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Cut {
    /// Source frames of a segment, the last one may have fewer.
    pub segment: usize,
    /// Most states that are kept at once for the backward pass.
    pub checkpoints: usize,
    /// What it does to the gradient.
    pub cutting: Cutting,
    /// Where what barriers need of the whole clip lies.
    pub keeping: Keeping,
}

impl Cut {
    /// The whole clip is one segment.
    pub const WHOLE: Cut = Cut::exact(usize::MAX, 0);

    /// Segments whose gradient is that of the whole clip.
    pub const fn exact(segment: usize, checkpoints: usize) -> Self {
        Self { segment, checkpoints, cutting: Cutting::Exact, keeping: Keeping::Memory }
    }

    /// The same cut, with what barriers need in a file.
    pub const fn in_file(self) -> Self {
        Self { keeping: Keeping::File, ..self }
    }

    /// Segments that hand on their state, and no gradient.
    pub const fn truncated(segment: usize) -> Self {
        Self { segment, checkpoints: 0, cutting: Cutting::Truncated, keeping: Keeping::Memory }
    }
}

/// Where what is kept of the whole clip for a barrier, and its gradient, lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keeping {
    /// In the arena.
    #[default]
    Memory,
    /// In a file.
    File,
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
    /// The places of the stages' passes, in the order they come: what lasts from program to program lives through
    /// all of a pass that touches it.
    pub passes: Vec<std::ops::Range<usize>>,
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

    /// Bytes of the file.
    pub fn file_bytes(&self) -> usize {
        self.buffers.iter().filter(|b| b.in_file()).map(|b| crate::arena::aligned(b.bytes())).sum()
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
                let (first, last) = if b.what.is_persistent() { (0, last_place) } else { (usize::MAX, 0) };
                let bytes = if b.in_file() { 0 } else { b.bytes() };
                crate::arena::Lifetime { bytes, first, last }
            })
            .collect();
        for step in self.distinct_steps() {
            let pass = self.passes.iter().find(|p| p.contains(&step.place));
            for access in &step.accesses {
                let life = &mut lifetimes[access.buffer.0];
                let lasts = self.segments > 1 && self.buffer(access.buffer).lasting;
                let (first, last) = match pass {
                    Some(pass) if lasts => (pass.start, pass.end - 1),
                    _ => (step.place, step.place),
                };
                life.first = life.first.min(first);
                life.last = life.last.max(last);
            }
        }
        for life in &mut lifetimes {
            life.first = life.first.min(life.last);
        }
        lifetimes
    }
}
