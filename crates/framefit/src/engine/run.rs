//! One step of a schedule: its ranges of the arena, handed to its kernel.
//!
//! `None` everywhere here means that ranges and kernel do not fit each other.

use super::kernels::{Kernels, Layer};
use super::{Element, Numbers, Outcome, Slots};
use framefit_core::plan::Placed;
use framefit_core::schedule::{Access, Action, Part, Role, Step};
use framefit_core::{Graph, Op};
use framefit_kernels::activation::{
    Activation, ActivationBackwardArgs, ActivationForwardArgs, ReluBackwardArgs, ReluForwardArgs,
};
use framefit_kernels::conv::{ConvForwardArgs, ConvInputGradientArgs, ConvWeightGradientArgs};
use framefit_kernels::frames::{FramesNormalizeArgs, FramesShape};
use framefit_kernels::linear::{LinearForwardArgs, LinearInputGradientArgs, LinearWeightGradientArgs};
use framefit_kernels::loss::{LossShape, SoftmaxCrossEntropyArgs};
use framefit_kernels::mean::{MeanBackwardArgs, MeanForwardArgs};
use framefit_kernels::optimizer::AdamArgs;
use framefit_kernels::pooling::{MaxPoolBackwardArgs, MaxPoolForwardArgs};
use framefit_kernels::{Arena, Pool, choose};
use std::ops::Range;

pub(super) struct Call<'a, E> {
    pub(super) graph: &'a Graph,
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) mean: &'a [E],
    pub(super) std: &'a [E],
    pub(super) placed: &'a Placed,
    pub(super) numbers: Numbers,
}

pub(super) fn range(placed: &Placed, access: &Access) -> Option<Range<usize>> {
    let buffer = placed.schedule.buffers.get(access.buffer.0)?;
    let frame = buffer.frame * buffer.dtype.bytes();
    let lo = placed.offsets.get(access.buffer.0)? + access.window.lo.checked_sub(access.base)? * frame;
    Some(lo..lo + access.window.len() * frame)
}

/// The bytes of each role, disjoint; empty for a role that the step does not have.
pub(super) fn bytes<'a, const N: usize>(
    placed: &Placed,
    step: &Step,
    roles: [Role; N],
    arena: &'a mut Arena,
) -> Option<[&'a mut [u8]; N]> {
    let mut ranges: [Range<usize>; N] = std::array::from_fn(|_| 0..0);
    for (slot, role) in ranges.iter_mut().zip(roles) {
        if let Some(access) = step.access(role) {
            *slot = range(placed, access)?;
        }
    }
    arena.bytes_mut().get_disjoint_mut(ranges).ok()
}

pub(super) fn cast<T: bytemuck::Pod>(bytes: &mut [u8]) -> Option<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).ok()
}

pub(super) fn elements<'a, E: Element, const N: usize>(
    placed: &Placed,
    step: &Step,
    roles: [Role; N],
    arena: &'a mut Arena,
) -> Option<[&'a mut [E]; N]> {
    let parts = bytes(placed, step, roles, arena)?;
    let mut all: [&mut [E]; N] = std::array::from_fn(|_| [].as_mut_slice());
    for (slot, part) in all.iter_mut().zip(parts) {
        *slot = if part.is_empty() { &mut [] } else { cast(part)? };
    }
    Some(all)
}

pub(super) fn present<E>(slice: &mut [E]) -> Option<&mut [E]> {
    Some(slice).filter(|s| !s.is_empty())
}

fn micro_step(placed: &Placed, action: Action) -> Option<&Step> {
    placed.schedule.micro_steps().find(|s| s.action == action)
}

pub(super) fn slots<'a>(placed: &Placed, arena: &'a mut Arena) -> Option<Slots<'a>> {
    let step = micro_step(placed, Action::Load)?;
    let [frames, labels] = bytes(placed, step, [Role::Frames, Role::Labels], arena)?;
    Some(Slots { frames, labels: cast(labels)? })
}

pub(super) fn outcome<'a, E: Element>(placed: &Placed, arena: &'a mut Arena) -> Option<Outcome<'a, E>> {
    let step = micro_step(placed, Action::Report)?;
    let roles = [Role::Losses, Role::LossWeights, Role::Input];
    let [losses, weights, logits] = elements(placed, step, roles, arena)?;
    Some(Outcome { losses, weights, logits })
}

impl<E: Element> Call<'_, E> {
    pub(super) fn run(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        match step.action {
            Action::Load | Action::Report => Some(()),
            Action::Normalise => self.normalise(step, arena),
            Action::Finish { training } => self.norm_finish(step, training, arena),
            Action::CellGradient => self.cell_gradient(step, arena),
            Action::Forward { relu, part } => self.forward(step, relu, part, arena),
            Action::Loss => self.loss(step, arena),
            Action::ReluGradient => {
                let [y, dy] = elements::<E, 2>(self.placed, step, [Role::Output, Role::OutputGradient], arena)?;
                let row = choose(E::relu_backward(), self.kernels.isa, &y.len());
                (row.run)(&y.len(), ReluBackwardArgs { y, dy }, self.pool);
                Some(())
            }
            Action::InputGradient { relu, accumulate } => self.input_gradient(step, relu, accumulate, arena),
            Action::WeightGradient => self.weight_gradient(step, arena),
            Action::Clear => {
                let [frames] = elements::<E, 1>(self.placed, step, [Role::Output], arena)?;
                frames.fill(E::ZERO);
                Some(())
            }
            Action::Copy => {
                let [from, to] = bytes(self.placed, step, [Role::Input, Role::Output], arena)?;
                (from.len() == to.len()).then(|| to.copy_from_slice(from))
            }
            Action::Update => {
                let roles = [Role::Weight, Role::WeightGradient, Role::FirstMoment, Role::SecondMoment];
                let [w, g, m, v] = elements::<E, 4>(self.placed, step, roles, arena)?;
                let row = choose(E::adam(), self.kernels.isa, &w.len());
                let len = w.len();
                (row.run)(&len, AdamArgs { step: self.numbers.adam, w, g, m, v }, self.pool);
                Some(())
            }
        }
    }

    fn normalise(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let [x, y] = bytes(self.placed, step, [Role::Frames, Role::Output], arena)?;
        let channels = self.mean.len();
        let shape = FramesShape { pixels: x.len() / channels.max(1), channels };
        let row = choose(E::frames_normalize(), self.kernels.isa, &shape);
        let args = FramesNormalizeArgs { x, mean: self.mean, std: self.std, y: cast(y)? };
        (row.run)(&shape, args, self.pool);
        Some(())
    }

    fn loss(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles =
            [Role::Input, Role::Labels, Role::ClassWeights, Role::Losses, Role::LossWeights, Role::InputGradient];
        let [logits, labels, class_weights, losses, weights, dlogits] = bytes(self.placed, step, roles, arena)?;
        let labels: &[u32] = cast(labels)?;
        let shape = LossShape { clips: labels.len(), classes: self.graph.classes() };
        let row = choose(E::softmax_cross_entropy(), self.kernels.isa, &shape);
        let args = SoftmaxCrossEntropyArgs {
            logits: cast(logits)?,
            labels,
            ignored: Some(super::IGNORED),
            class_weights: Some(cast(class_weights)?),
            smoothing: 0.0,
            scale: E::from_f64(self.numbers.scale),
            losses: cast(losses)?,
            weights: cast(weights)?,
            dlogits: cast(dlogits)?,
        };
        (row.run)(&shape, args, self.pool);
        Some(())
    }

    /// The op of the step's layer, and the layer at work on these windows.
    pub(super) fn layer(&self, step: &Step, x: Role, y: Role) -> Option<(&Op, Layer<'_>)> {
        let node = self.graph.node(step.node?);
        let (input, output) = (self.graph.shape(node.input), self.graph.shape(node.output));
        let layer = Layer {
            clips: self.placed.schedule.clips,
            input,
            output,
            read: step.access(x)?.window,
            made: step.access(y)?.window,
        };
        Some((&node.op, layer))
    }

    fn forward(&self, step: &Step, relu: bool, part: Part, arena: &mut Arena) -> Option<()> {
        let op = &self.graph.node(step.node?).op;
        if op.is_recurrent() {
            return self.conv_lstm_forward(step, arena);
        }
        if let Op::NormMean(_) = op {
            return self.norm_forward(step, part, arena);
        }
        let roles = [Role::Input, Role::Weight, Role::Bias, Role::Output, Role::Workspace];
        let [x, w, bias, y, scratch] = elements::<E, 5>(self.placed, step, roles, arena)?;
        let isa = self.kernels.isa;
        if step.access(Role::Input).is_none() {
            // A ReLU in place.
            let row = choose(E::relu_forward(), isa, &y.len());
            let len = y.len();
            (row.run)(&len, ReluForwardArgs { y }, self.pool);
            return Some(());
        }
        // A sum over the clip begins at zero or goes on, and gets its bias once.
        let accumulate = !part.first;
        let bias = present(bias).map(|b| &*b).filter(|_| part.last);
        let (op, layer) = self.layer(step, Role::Input, Role::Output)?;
        match op {
            Op::Conv3d(op) => {
                let shape = layer.conv(op);
                let row = choose(E::conv_forward(), isa, &shape);
                (row.run)(&shape, ConvForwardArgs { x, w, bias, relu, y, scratch }, self.pool);
            }
            Op::MaxPool3d(op) => {
                let shape = layer.pool(op);
                let row = choose(E::max_pool_forward(), isa, &shape);
                (row.run)(&shape, MaxPoolForwardArgs { x, y }, self.pool);
            }
            Op::GlobalAvgPool3d(_) => {
                let shape = layer.mean();
                let row = choose(E::mean_forward(), isa, &shape);
                let scale = E::from_f64(1.0 / layer.input.dims.volume() as f64);
                (row.run)(&shape, MeanForwardArgs { x, scale, accumulate, y, scratch }, self.pool);
            }
            Op::Linear(op) => {
                let shape = layer.linear(op);
                let row = choose(E::linear_forward(), isa, &shape);
                let args = LinearForwardArgs { x, w, bias, relu, accumulate, y, scratch };
                (row.run)(&shape, args, self.pool);
            }
            Op::Dense(op) => {
                let shape = layer.dense(op);
                let row = choose(E::conv_forward(), isa, &shape);
                (row.run)(&shape, ConvForwardArgs { x, w, bias, relu, y, scratch }, self.pool);
            }
            Op::Relu(_) => {
                let row = choose(E::activation_forward(), isa, &y.len());
                let len = y.len();
                let args = ActivationForwardArgs { activation: Activation::Relu, x: Some(x), y };
                (row.run)(&len, args, self.pool);
            }
            Op::Flatten(_) | Op::ConvLstm2d(_) | Op::NormMean(_) => {}
        }
        Some(())
    }

    fn input_gradient(&self, step: &Step, relu: bool, accumulate: bool, arena: &mut Arena) -> Option<()> {
        if let Op::NormMean(_) = self.graph.node(step.node?).op {
            return self.norm_input_gradient(step, accumulate, arena);
        }
        if let Op::Relu(_) = self.graph.node(step.node?).op {
            let roles = [Role::Output, Role::OutputGradient, Role::InputGradient];
            let [y, dy, dx] = elements::<E, 3>(self.placed, step, roles, arena)?;
            let row = choose(E::activation_backward(), self.kernels.isa, &dx.len());
            let len = dx.len();
            let args = ActivationBackwardArgs { activation: Activation::Relu, x: &[], y, dy: Some(dy), accumulate, dx };
            (row.run)(&len, args, self.pool);
            return Some(());
        }
        let roles = [Role::Input, Role::OutputGradient, Role::Weight, Role::InputGradient, Role::Workspace];
        let [x, dy, w, dx, scratch] = elements::<E, 5>(self.placed, step, roles, arena)?;
        let isa = self.kernels.isa;
        let (op, layer) = self.layer(step, Role::InputGradient, Role::OutputGradient)?;
        match op {
            Op::Conv3d(op) => {
                let shape = layer.conv(op);
                let row = choose(E::conv_input_gradient(), isa, &shape);
                (row.run)(&shape, ConvInputGradientArgs { dy, w, dx, accumulate, scratch }, self.pool);
            }
            Op::MaxPool3d(op) => {
                let shape = layer.pool(op);
                let row = choose(E::max_pool_backward(), isa, &shape);
                (row.run)(&shape, MaxPoolBackwardArgs { x, dy, relu, accumulate, dx }, self.pool);
            }
            Op::GlobalAvgPool3d(_) => {
                let shape = layer.mean();
                let row = choose(E::mean_backward(), isa, &shape);
                let scale = E::from_f64(1.0 / layer.input.dims.volume() as f64);
                (row.run)(&shape, MeanBackwardArgs { dy, scale, accumulate, dx }, self.pool);
            }
            Op::Linear(op) => {
                let shape = layer.linear(op);
                let row = choose(E::linear_input_gradient(), isa, &shape);
                (row.run)(&shape, LinearInputGradientArgs { dy, w, dx, accumulate, scratch }, self.pool);
            }
            Op::Dense(op) => {
                let shape = layer.dense(op);
                let row = choose(E::conv_input_gradient(), isa, &shape);
                (row.run)(&shape, ConvInputGradientArgs { dy, w, dx, accumulate, scratch }, self.pool);
            }
            Op::ConvLstm2d(op) => {
                let shape = layer.gates(op);
                let row = choose(E::conv_input_gradient(), isa, &shape);
                (row.run)(&shape, ConvInputGradientArgs { dy, w, dx, accumulate, scratch }, self.pool);
            }
            Op::Relu(_) | Op::Flatten(_) | Op::NormMean(_) => {}
        }
        Some(())
    }

    fn weight_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let op = &self.graph.node(step.node?).op;
        if op.is_recurrent() {
            return self.conv_lstm_weight_gradient(step, arena);
        }
        if let Op::NormMean(_) = op {
            return self.norm_weight_gradient(step, arena);
        }
        let roles = [Role::Input, Role::OutputGradient, Role::WeightGradient, Role::BiasGradient, Role::Workspace];
        let [x, dy, dw, db, scratch] = elements::<E, 5>(self.placed, step, roles, arena)?;
        let db = present(db);
        let isa = self.kernels.isa;
        let (op, layer) = self.layer(step, Role::Input, Role::OutputGradient)?;
        match op {
            Op::Conv3d(op) => {
                let shape = layer.conv(op);
                let row = choose(E::conv_weight_gradient(), isa, &shape);
                (row.run)(&shape, ConvWeightGradientArgs { x, dy, dw, db, scratch }, self.pool);
            }
            Op::Linear(op) => {
                let shape = layer.linear(op);
                let row = choose(E::linear_weight_gradient(), isa, &shape);
                (row.run)(&shape, LinearWeightGradientArgs { x, dy, dw, db, scratch }, self.pool);
            }
            Op::Dense(op) => {
                let shape = layer.dense(op);
                let row = choose(E::conv_weight_gradient(), isa, &shape);
                (row.run)(&shape, ConvWeightGradientArgs { x, dy, dw, db, scratch }, self.pool);
            }
            Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Flatten(_)
            | Op::ConvLstm2d(_)
            | Op::NormMean(_) => {}
        }
        Some(())
    }
}
