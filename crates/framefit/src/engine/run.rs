//! One step of a schedule: its ranges of the arena, handed to its kernel.
//!
//! `None` everywhere here means that ranges and kernel do not fit each other.

use super::filed::Filed;
use super::kernels::Kernels;
use super::{Element, Numbers, Outcome};
use framefit_core::Graph;
use framefit_core::plan::Placed;
use framefit_core::schedule::{Access, Action, Part, Role, Step};
use framefit_kernels::frames::{FramesNormalizeArgs, FramesShape};
use framefit_kernels::optimizer::AdamArgs;
use framefit_kernels::{Arena, Pool, choose};
use std::cell::Cell;
use std::ops::Range;

pub(super) struct Call<'a, E> {
    pub(super) graph: &'a Graph,
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) mean: &'a [E],
    pub(super) std: &'a [E],
    pub(super) placed: &'a Placed,
    pub(super) numbers: Numbers<'a>,
    pub(super) batches: &'a [Cell<u64>],
    pub(super) filed: Option<&'a Filed>,
}

/// How a layer's output is made: as in [`Action::Forward`].
#[derive(Clone, Copy)]
pub(super) struct Forward {
    pub(super) relu: bool,
    pub(super) part: Part,
}

/// How the gradient of a layer's input is made: as in [`Action::InputGradient`].
#[derive(Clone, Copy)]
pub(super) struct InputGradient {
    pub(super) relu: bool,
    pub(super) accumulate: bool,
}

fn range(placed: &Placed, access: &Access) -> Option<Range<usize>> {
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

/// Frames and labels.
pub(super) fn slots<'a>(placed: &Placed, arena: &'a mut Arena) -> Option<(&'a mut [u8], &'a mut [u32])> {
    let step = micro_step(placed, Action::Load)?;
    let [frames, labels] = bytes(placed, step, [Role::Frames, Role::Labels], arena)?;
    Some((frames, cast(labels)?))
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
            Action::Forward { relu, part, .. } => self.forward(step, Forward { relu, part }, arena),
            Action::Moments { part } => self.moments(step, part, arena),
            Action::Finish { training } => self.finish(step, training, arena),
            Action::Loss => self.loss(step, arena),
            Action::InPlaceGradient => self.in_place_gradient(step, arena),
            Action::CellGradient => self.cell_gradient(step, arena),
            Action::Sums { part } => self.sums(step, part, arena),
            Action::InputGradient { relu, accumulate, .. } => {
                self.input_gradient(step, InputGradient { relu, accumulate }, arena)
            }
            Action::WeightGradient => self.weight_gradient(step, arena),
            Action::Clear => {
                let [frames] = elements::<E, 1>(self.placed, step, [Role::Output], arena)?;
                frames.fill(E::ZERO);
                Some(())
            }
            Action::Copy => self.copy(step, arena),
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

    /// Counts a batch that a layer's moving statistics take in: its number, from 1.
    pub(super) fn next_batch(&self, step: &Step) -> Option<u64> {
        let batches = self.batches.get(step.node?.0)?;
        batches.set(batches.get() + 1);
        Some(batches.get())
    }

    /// Within the arena, or from or to the file.
    fn copy(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let (from, to) = (step.access(Role::Input)?, step.access(Role::Output)?);
        let in_file = |access: &Access| self.placed.schedule.buffer(access.buffer).in_file();
        let (source, target) = (range(self.placed, from)?, range(self.placed, to)?);
        if source.len() != target.len() {
            return None;
        }
        match (in_file(from), in_file(to)) {
            (false, false) => {
                let [from, to] = bytes(self.placed, step, [Role::Input, Role::Output], arena)?;
                to.copy_from_slice(from);
                Some(())
            }
            (false, true) => self.filed?.write(target.start, arena.bytes().get(source)?),
            (true, false) => self.filed?.read(source.start, arena.bytes_mut().get_mut(target)?),
            (true, true) => None,
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
}
