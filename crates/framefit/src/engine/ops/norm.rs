//! Normalisation of channels with statistics of the clips: over the whole batch, or over each clip in groups.
//!
//! What is gathered has one number, or a few, for each row: a channel, or a channel of one clip. Where rows are those
//! of clips, the numbers of each clip lie together, in a block.

use super::{Asked, Layer, OnKernels, scratch_of};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, bytes, cast, elements, present};
use framefit_core::ops::{BatchNorm, GroupNorm, Momentum, NormLayout};
use framefit_core::schedule::{Part, Pass, Role, Step};
use framefit_kernels::norm::{
    BatchNormInputGradientArgs, BatchNormSumsArgs, ChannelMomentsArgs, ChannelShape, GradientMeans, ScaleShiftArgs,
    merge_moments,
};
use framefit_kernels::{Arena, Real, choose};

/// Count, mean and squared deviations of a row, or of several together.
#[derive(Clone, Copy, Default)]
pub(super) struct Moments([f64; 3]);

impl Moments {
    /// Of channel c, from those of all channels: `[3,C]`.
    pub(super) fn of(all: &[f64], channels: usize, c: usize) -> Option<Self> {
        Some(Self([*all.get(c)?, *all.get(channels + c)?, *all.get(2 * channels + c)?]))
    }

    /// Those of all rows of one group.
    fn merged(mut rows: impl Iterator<Item = Option<Self>>) -> Option<Self> {
        rows.try_fold(Self::default(), |mut all, row| {
            merge_moments(&mut all.0, &row?.0);
            Some(all)
        })
    }

    pub(super) fn count(self) -> f64 {
        self.0[0]
    }

    pub(super) fn mean(self) -> f64 {
        self.0[1]
    }

    /// The mean of the squared deviations.
    pub(super) fn variance(self) -> f64 {
        self.0[2] / self.0[0].max(1.0)
    }

    /// The variance of a population that these are a sample of.
    fn unbiased_variance(self) -> f64 {
        self.0[2] / (self.0[0] - 1.0).max(1.0)
    }
}

/// 1/√(variance + ε).
pub(super) fn inverse_deviation(variance: f64, epsilon: f64) -> f64 {
    1.0 / (variance + epsilon).sqrt()
}

/// A moving statistic that takes this share of a new one.
pub(super) fn moved<E: Real>(old: E, new: f64, share: f64) -> E {
    E::from_f64((1.0 - share) * old.to_f64() + share * new)
}

/// The share of the new in the moving statistics; batches count from 1.
fn share_of_the_new(momentum: Momentum, batch: u64) -> f64 {
    match momentum {
        Momentum::Keras(stays) => 1.0 - stays,
        Momentum::PyTorch(share) => share,
        Momentum::PyTorchCumulative => 1.0 / batch as f64,
    }
}

/// How rows of statistics lie over x: `[T,N,P,C]`.
struct Rows {
    /// Blocks of rows: 1, or N.
    blocks: usize,
    /// Rows of a block, which are innermost in x.
    channels: usize,
    /// Rows, side by side, that share a mean and a variance.
    group: usize,
    /// x as the kernels take it: all of it, or one frame of one clip.
    shape: ChannelShape,
}

impl Rows {
    /// Over all clips, frames and positions.
    fn of_batch(features: usize, layer: &Layer<'_>) -> Self {
        let all = layer.read.len() * layer.clips * layer.input.per_frame();
        let shape = ChannelShape { rows: all / features.max(1), channels: features };
        Self { blocks: 1, channels: features, group: 1, shape }
    }

    /// Over the frames and positions of each clip, and the channels of each group.
    fn of_clips(groups: usize, layer: &Layer<'_>) -> Self {
        let (input, frames) = (layer.input, layer.read.len());
        let positions = layer.positions();
        let (blocks, channels, rows) = match (layer.clips, positions) {
            (1, _) => (1, input.channels, frames * positions),
            (clips, 1) => (1, clips * input.channels, frames),
            (clips, _) => (clips, input.channels, positions),
        };
        Self { blocks, channels, group: input.channels / groups.max(1), shape: ChannelShape { rows, channels } }
    }

    fn len(&self) -> usize {
        self.blocks * self.channels
    }

    /// The numbers, `per_row` of each row, of the block that an item of x belongs to: `[per_row,channels]`.
    fn block<'a, T>(&self, numbers: &'a [T], per_row: usize, item: usize) -> Option<&'a [T]> {
        let size = per_row * self.channels;
        numbers.get(item % self.blocks * size..)?.get(..size)
    }

    fn block_mut<'a, T>(&self, numbers: &'a mut [T], per_row: usize, item: usize) -> Option<&'a mut [T]> {
        let size = per_row * self.channels;
        numbers.get_mut(item % self.blocks * size..)?.get_mut(..size)
    }
}

/// γ or β of a row: those of a channel are the same for every clip.
fn of_row<E: Real>(numbers: Option<&[E]>, row: usize, absent: f64) -> f64 {
    numbers.map_or(absent, |n| n[row % n.len()].to_f64())
}

/// A window's share in the moments.
fn moments<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    part: Part,
    arena: &mut Arena,
    rows: impl FnOnce(&Layer<'_>) -> Rows,
) -> Option<()> {
    let [x, moments, scratch] = bytes(call.placed, step, [Role::Input, Role::Moments, Role::Workspace], arena)?;
    let (x, scratch): (&[E], &mut [E]) = (cast(x)?, cast(scratch)?);
    let moments: &mut [f64] = cast(moments)?;
    let rows = rows(&call.layer(step, Role::Input, Role::Input)?);
    if part.first {
        moments.fill(0.0);
    }
    let row = choose(E::channel_moments(), call.kernels.isa, &rows.shape);
    for (item, x) in x.chunks_exact(rows.shape.len()).enumerate() {
        let state = rows.block_mut(moments, 3, item)?;
        (row.run)(&rows.shape, ChannelMomentsArgs { x, state, scratch }, call.pool);
    }
    Some(())
}

/// Means and reciprocal standard deviations, `[2,channels]` of each block, from the moments.
fn statistics<E: Element>(rows: &Rows, moments: &[f64], epsilon: f64, statistics: &mut [E]) -> Option<()> {
    let channels = rows.channels;
    for block in 0..rows.blocks {
        let moments = rows.block(moments, 3, block)?;
        let (means, inv_stds) = rows.block_mut(statistics, 2, block)?.split_at_mut(channels);
        let groups = means.chunks_mut(rows.group).zip(inv_stds.chunks_mut(rows.group));
        for (group, (means, inv_stds)) in groups.enumerate() {
            let first = group * rows.group;
            let of = Moments::merged((first..first + means.len()).map(|c| Moments::of(moments, channels, c)))?;
            means.fill(E::from_f64(of.mean()));
            inv_stds.fill(E::from_f64(inverse_deviation(of.variance(), epsilon)));
        }
    }
    Some(())
}

/// y = relu?(x · a + b), with a = γ · inv_std and b = β − mean · a.
fn forward<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    how: Forward,
    arena: &mut Arena,
    rows: impl FnOnce(&Layer<'_>) -> Rows,
) -> Option<()> {
    let roles = [Role::Input, Role::Statistics, Role::Weight, Role::Bias, Role::Output, Role::Workspace];
    let [x, statistics, gamma, beta, y, scratch] = elements::<E, 6>(call.placed, step, roles, arena)?;
    let (gamma, beta) = (present(gamma).map(|g| &*g), present(beta).map(|b| &*b));
    let rows = rows(&call.layer(step, Role::Input, Role::Output)?);
    for block in 0..rows.blocks {
        let (means, inv_stds) = rows.block(statistics, 2, block)?.split_at(rows.channels);
        let (scales, shifts) = rows.block_mut(scratch, 2, block)?.split_at_mut(rows.channels);
        for (c, (mean, inv_std)) in means.iter().zip(inv_stds).enumerate() {
            let scale = of_row(gamma, c, 1.0) * inv_std.to_f64();
            scales[c] = E::from_f64(scale);
            shifts[c] = E::from_f64(of_row(beta, c, 0.0) - mean.to_f64() * scale);
        }
    }
    let row = choose(E::scale_shift(), call.kernels.isa, &rows.shape);
    let size = rows.shape.len();
    for (item, (x, y)) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)).enumerate() {
        let (scale, shift) = rows.block(scratch, 2, item)?.split_at(rows.channels);
        let args = ScaleShiftArgs { x: Some(x), scale, shift: Some(shift), relu: how.relu, accumulate: false, y };
        (row.run)(&rows.shape, args, call.pool);
    }
    Some(())
}

/// A window's share in Σ dy and Σ dy · x̂, `[2,channels]` of each block.
fn sums<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    part: Part,
    arena: &mut Arena,
    rows: impl FnOnce(&Layer<'_>) -> Rows,
) -> Option<()> {
    let roles = [Role::Input, Role::OutputGradient, Role::Statistics, Role::Sums, Role::Workspace];
    let [x, dy, statistics, sums, scratch] = bytes(call.placed, step, roles, arena)?;
    let (x, dy, statistics): (&[E], &[E], &[E]) = (cast(x)?, cast(dy)?, cast(statistics)?);
    let (sums, scratch): (&mut [f64], &mut [E]) = (cast(sums)?, cast(scratch)?);
    let rows = rows(&call.layer(step, Role::Input, Role::OutputGradient)?);
    if part.first {
        sums.fill(0.0);
    }
    let row = choose(E::batch_norm_sums(), call.kernels.isa, &rows.shape);
    let size = rows.shape.len();
    for (item, (x, dy)) in x.chunks_exact(size).zip(dy.chunks_exact(size)).enumerate() {
        let (mean, inv_std) = rows.block(statistics, 2, item)?.split_at(rows.channels);
        let sums = rows.block_mut(sums, 2, item)?;
        (row.run)(&rows.shape, BatchNormSumsArgs { x, dy, mean, inv_std, sums, scratch }, call.pool);
    }
    Some(())
}

/// The gradients of γ and β are added to; a, b, d are made, `[3,channels]` of each block, so that
/// dx = a · dy + b + d · x. Without moments the statistics do not depend on x, and b and d are zero.
fn weight_gradient<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    arena: &mut Arena,
    rows: impl FnOnce(&Layer<'_>) -> Rows,
) -> Option<()> {
    let roles = [
        Role::Sums,
        Role::Moments,
        Role::Statistics,
        Role::Weight,
        Role::WeightGradient,
        Role::BiasGradient,
        Role::Coefficients,
    ];
    let [sums, moments, statistics, gamma, dgamma, dbeta, coefficients] = bytes(call.placed, step, roles, arena)?;
    let (sums, moments): (&[f64], &[f64]) = (cast(sums)?, cast(moments)?);
    let (statistics, coefficients): (&[E], &mut [E]) = (cast(statistics)?, cast(coefficients)?);
    let gamma: Option<&[E]> = match present(gamma) {
        Some(gamma) => Some(cast(gamma)?),
        None => None,
    };
    let rows = rows(&call.layer(step, Role::Coefficients, Role::Coefficients)?);
    let channels = rows.channels;
    for (gradient, first) in [(dbeta, 0), (dgamma, channels)] {
        let gradient: &mut [E] = cast(gradient)?;
        if gradient.is_empty() {
            continue;
        }
        for block in 0..rows.blocks {
            let sums = rows.block(sums, 2, block)?.get(first..)?.get(..channels)?;
            for sums in sums.chunks_exact(gradient.len()) {
                for (gradient, sum) in gradient.iter_mut().zip(sums) {
                    *gradient += E::from_f64(*sum);
                }
            }
        }
    }
    for block in 0..rows.blocks {
        let (means, inv_stds) = rows.block(statistics, 2, block)?.split_at(channels);
        let coefficients = rows.block_mut(coefficients, 3, block)?;
        for first in (0..channels).step_by(rows.group) {
            let group = first..first + rows.group;
            let mut of = GradientMeans {
                mean: means.get(first)?.to_f64(),
                inv_std: inv_stds.get(first)?.to_f64(),
                dy: 0.0,
                product: 0.0,
            };
            if !moments.is_empty() {
                let (moments, sums) = (rows.block(moments, 3, block)?, rows.block(sums, 2, block)?);
                let mut count = 0.0;
                for c in group.clone() {
                    count += Moments::of(moments, channels, c)?.count();
                    of.dy += of_row(gamma, c, 1.0) * sums.get(c)?;
                    of.product += of_row(gamma, c, 1.0) * sums.get(channels + c)?;
                }
                of.dy /= count.max(1.0);
                of.product /= count.max(1.0);
            }
            for c in group {
                for (i, number) in of.coefficients(of_row(gamma, c, 1.0)).into_iter().enumerate() {
                    *coefficients.get_mut(i * channels + c)? = E::from_f64(number);
                }
            }
        }
    }
    Some(())
}

/// dx (+)= a · dy + b + d · x; without x, a · dy.
fn input_gradient<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    how: InputGradient,
    arena: &mut Arena,
    rows: impl FnOnce(&Layer<'_>) -> Rows,
) -> Option<()> {
    let roles = [Role::Input, Role::OutputGradient, Role::Coefficients, Role::InputGradient];
    let [x, dy, coefficients, dx] = elements::<E, 4>(call.placed, step, roles, arena)?;
    let rows = rows(&call.layer(step, Role::InputGradient, Role::OutputGradient)?);
    let (size, accumulate) = (rows.shape.len(), how.accumulate);
    for (item, (dy, dx)) in dy.chunks_exact(size).zip(dx.chunks_exact_mut(size)).enumerate() {
        let coefficients = rows.block(coefficients, 3, item)?;
        if x.is_empty() {
            let scale = coefficients.get(..rows.channels)?;
            let row = choose(E::scale_shift(), call.kernels.isa, &rows.shape);
            let args = ScaleShiftArgs { x: Some(dy), scale, shift: None, relu: false, accumulate, y: dx };
            (row.run)(&rows.shape, args, call.pool);
        } else {
            let x = x.get(item * size..)?.get(..size)?;
            let row = choose(E::batch_norm_input_gradient(), call.kernels.isa, &rows.shape);
            let args = BatchNormInputGradientArgs { x, dy, coefficients, accumulate, dx };
            (row.run)(&rows.shape, args, call.pool);
        }
    }
    Some(())
}

fn scratch<E: Element>(asked: &Asked<'_>, rows: &Rows) -> usize {
    match asked.pass {
        Pass::Forward => 2 * rows.len(),
        Pass::Moments => scratch_of!(asked, E::channel_moments(), rows.shape.clone()),
        Pass::Sums => scratch_of!(asked, E::batch_norm_sums(), rows.shape.clone()),
        Pass::InputGradient | Pass::WeightGradient | Pass::State => 0,
    }
}

fn batch_rows(op: &BatchNorm, layer: &Layer<'_>) -> Rows {
    Rows::of_batch(op.features(layer.input), layer)
}

impl OnKernels for BatchNorm {
    fn moments<E: Element>(&self, call: &Call<'_, E>, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        moments(call, step, part, arena, |layer| batch_rows(self, layer))
    }

    fn finish<E: Element>(&self, call: &Call<'_, E>, step: &Step, training: bool, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Moments, Role::Statistics, Role::MovingMean, Role::MovingVariance];
        let [moments, to, mean, variance] = bytes(call.placed, step, roles, arena)?;
        let (moments, to): (&[f64], &mut [E]) = (cast(moments)?, cast(to)?);
        let (mean, variance): (&mut [E], &mut [E]) = (cast(mean)?, cast(variance)?);
        let rows = batch_rows(self, &call.layer(step, Role::Statistics, Role::Statistics)?);
        if !training {
            let (means, inv_stds) = to.split_at_mut_checked(rows.channels)?;
            means.copy_from_slice(mean);
            for (inv_std, variance) in inv_stds.iter_mut().zip(variance) {
                *inv_std = E::from_f64(inverse_deviation(variance.to_f64(), self.epsilon));
            }
            return Some(());
        }
        statistics(&rows, moments, self.epsilon, to)?;
        let batch = call.next_batch(step)?;
        let share = share_of_the_new(self.momentum, batch);
        for (c, (mean, variance)) in mean.iter_mut().zip(variance).enumerate() {
            let new = Moments::of(moments, rows.channels, c)?;
            let new_variance = match self.layout {
                NormLayout::PyTorch => new.unbiased_variance(),
                NormLayout::Keras => new.variance(),
            };
            (*mean, *variance) = (moved(*mean, new.mean(), share), moved(*variance, new_variance, share));
        }
        Some(())
    }

    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        forward(call, step, how, arena, |layer| batch_rows(self, layer))
    }

    fn sums<E: Element>(&self, call: &Call<'_, E>, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        sums(call, step, part, arena, |layer| batch_rows(self, layer))
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        weight_gradient(call, step, arena, |layer| batch_rows(self, layer))
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        input_gradient(call, step, how, arena, |layer| batch_rows(self, layer))
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        scratch::<E>(asked, &batch_rows(self, &asked.layer))
    }
}

/// Group normalisation with the statistics of whole clips.
pub(super) struct OfClips<'a>(pub(super) &'a GroupNorm);

impl OnKernels for OfClips<'_> {
    fn moments<E: Element>(&self, call: &Call<'_, E>, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        moments(call, step, part, arena, |layer| Rows::of_clips(self.0.groups, layer))
    }

    fn finish<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: bool, arena: &mut Arena) -> Option<()> {
        let [moments, to] = bytes(call.placed, step, [Role::Moments, Role::Statistics], arena)?;
        let rows = Rows::of_clips(self.0.groups, &call.layer(step, Role::Statistics, Role::Statistics)?);
        statistics::<E>(&rows, cast(moments)?, self.0.epsilon, cast(to)?)
    }

    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        forward(call, step, how, arena, |layer| Rows::of_clips(self.0.groups, layer))
    }

    fn sums<E: Element>(&self, call: &Call<'_, E>, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        sums(call, step, part, arena, |layer| Rows::of_clips(self.0.groups, layer))
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        weight_gradient(call, step, arena, |layer| Rows::of_clips(self.0.groups, layer))
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        input_gradient(call, step, how, arena, |layer| Rows::of_clips(self.0.groups, layer))
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        scratch::<E>(asked, &Rows::of_clips(self.0.groups, &asked.layer))
    }
}
