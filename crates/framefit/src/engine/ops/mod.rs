//! What each op asks of the kernels, one file per family: their shapes, their arguments by role, their scratch.
//!
//! `None` everywhere here means that ranges and kernel do not fit each other.

mod activation;
mod branches;
mod conv;
mod dropout;
mod frames;
mod group_norm;
mod linear;
mod loss;
mod norm;
mod norm_mean;
mod pooling;
mod recurrent;
mod rows;
mod view;

pub use loss::{Loss, LossKind};

use super::Element;
use super::run::{Call, Forward, InputGradient};
use framefit_core::schedule::{Action, Part, Pass, Role, Step};
use framefit_core::{Op, Shape, axes};
use framefit_kernels::conv::{Dims3, Window};
use framefit_kernels::{Arena, Isa};

/// An op on the kernels. A step that its op does not know does not fit.
trait OnKernels {
    /// The output, or its share of it.
    fn forward<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: Forward, _: &mut Arena) -> Option<()> {
        None
    }

    /// A segment's share in the statistics that the layer normalises with.
    fn moments<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: Part, _: &mut Arena) -> Option<()> {
        None
    }

    /// Statistics, or the output, once every frame of the clip has given its share.
    fn finish<E: Element>(&self, _: &Call<'_, E>, _: &Step, _training: bool, _: &mut Arena) -> Option<()> {
        None
    }

    /// The gradient of the input from that of the output, in the same bytes.
    fn in_place_gradient<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: &mut Arena) -> Option<()> {
        None
    }

    /// The gradient of a recurrent layer's gates.
    fn cell_gradient<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: &mut Arena) -> Option<()> {
        None
    }

    /// A segment's share in the sums that the gradient of the input is made with.
    fn sums<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: Part, _: &mut Arena) -> Option<()> {
        None
    }

    /// The gradient of the input.
    fn input_gradient<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: InputGradient, _: &mut Arena) -> Option<()> {
        None
    }

    /// The gradients of the parameters, added to what is there.
    fn weight_gradient<E: Element>(&self, _: &Call<'_, E>, _: &Step, _: &mut Arena) -> Option<()> {
        None
    }

    /// Scratch of one call, in elements.
    fn scratch<E: Element>(&self, _: &Asked<'_>) -> usize {
        0
    }
}

macro_rules! each_op {
    ($self:expr, $op:ident => $body:expr) => {
        match $self {
            Op::Conv3d($op) => $body,
            Op::MaxPool3d($op) => $body,
            Op::AvgPool3d($op) => $body,
            Op::AdaptivePool3d($op) => $body,
            Op::GlobalAvgPool3d($op) => $body,
            Op::Relu($op) => $body,
            Op::Activation($op) => $body,
            Op::Flatten($op) => $body,
            Op::Linear($op) => $body,
            Op::Dense($op) => $body,
            Op::Recurrent($op) => $body,
            Op::NormMean($op) => $body,
            Op::BatchNorm($op) => $body,
            Op::GroupNorm($op) => $body,
            Op::LayerNorm($op) => $body,
            Op::Dropout($op) => $body,
            Op::Add($op) => $body,
            Op::Concat($op) => $body,
            Op::Reverse($op) => $body,
            Op::LastFrame($op) => $body,
        }
    };
}

impl<E: Element> Call<'_, E> {
    pub(super) fn forward(&self, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.forward(self, step, how, arena))
    }

    pub(super) fn moments(&self, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.moments(self, step, part, arena))
    }

    pub(super) fn finish(&self, step: &Step, training: bool, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.finish(self, step, training, arena))
    }

    pub(super) fn in_place_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.in_place_gradient(self, step, arena))
    }

    pub(super) fn cell_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.cell_gradient(self, step, arena))
    }

    pub(super) fn sums(&self, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.sums(self, step, part, arena))
    }

    pub(super) fn input_gradient(&self, step: &Step, how: InputGradient, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.input_gradient(self, step, how, arena))
    }

    pub(super) fn weight_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        each_op!(&self.graph.node(step.node?).op, op => op.weight_gradient(self, step, arena))
    }

    /// The step's layer at work on the windows of these roles, for the input that the step is about.
    fn layer(&self, step: &Step, x: Role, y: Role) -> Option<Layer<'_>> {
        let node = self.graph.node(step.node?);
        let at = input_of(step.action);
        let channels = |input| self.graph.shape(input).channels;
        Some(Layer {
            clips: self.placed.schedule.clips,
            input: self.graph.shape(*node.inputs.get(at)?),
            output: self.graph.shape(node.output),
            read: step.access(x)?.window,
            made: step.access(y)?.window,
            channels_before: node.inputs.iter().take(at).map(|&input| channels(input)).sum(),
        })
    }
}

/// Which of a layer's inputs a step is about.
fn input_of(action: Action) -> usize {
    match action {
        Action::Forward { input, .. } | Action::InputGradient { input, .. } => input,
        Action::Load
        | Action::Normalise
        | Action::Moments { .. }
        | Action::Copy
        | Action::Loss
        | Action::Report
        | Action::Finish { .. }
        | Action::CellGradient
        | Action::InPlaceGradient
        | Action::Sums { .. }
        | Action::WeightGradient
        | Action::Clear
        | Action::Update => 0,
    }
}

/// Scratch of one call of an op, in elements.
pub(super) fn scratch<E: Element>(op: &Op, asked: &Asked<'_>) -> usize {
    each_op!(op, op => op.scratch::<E>(asked))
}

/// A layer at work: the clips, its shapes, and the windows.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) clips: usize,
    pub(super) input: &'a Shape,
    pub(super) output: &'a Shape,
    pub(super) read: axes::Window,
    pub(super) made: axes::Window,
    /// Channels of the inputs before this one.
    pub(super) channels_before: usize,
}

impl Layer<'_> {
    /// H · W of the input.
    fn positions(&self) -> usize {
        self.input.dims.h * self.input.dims.w
    }
}

/// Which call scratch is asked for.
pub(super) struct Asked<'a> {
    pub(super) layer: Layer<'a>,
    pub(super) pass: Pass,
    pub(super) training: bool,
    pub(super) isa: Isa,
    pub(super) threads: usize,
}

/// The scratch of the row that a table has for a shape.
macro_rules! scratch_of {
    ($asked:expr, $table:expr, $shape:expr) => {{
        let shape = $shape;
        (framefit_kernels::choose($table, $asked.isa, &shape).scratch)(&shape, $asked.threads)
    }};
}
use scratch_of;

fn dims(d: axes::Dims3) -> Dims3 {
    Dims3 { t: d.t, h: d.h, w: d.w }
}

fn window(w: axes::Window) -> Window {
    Window { lo: w.lo, hi: w.hi }
}

/// Elements rounded up to a cache line.
fn aligned<E>(elements: usize) -> usize {
    elements.next_multiple_of(64 / size_of::<E>())
}
