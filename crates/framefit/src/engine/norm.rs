//! Batch normalisation followed by the mean of each frame, from the means of frames and the moments of channels.
//!
//! With z\[t,n\] = γ(m\[t,n\] − μ)/σ + β for the mean m of a frame of P positions, M = N·T·P and x̂ = (x − μ)/σ:
//! dx = γ/σ · (dz/P − Σdz/M − x̂ · Σ(dz·m̂)/M), which is a·dz + b + d·x with three numbers per channel.

use super::Element;
use super::run::{Call, bytes, cast, elements};
use framefit_core::Op;
use framefit_core::ops::NormMean;
use framefit_core::schedule::{Part, Role, Step};
use framefit_kernels::mean::MeanForwardArgs;
use framefit_kernels::norm::{ChannelMomentsArgs, ChannelShape, ScaleShiftArgs};
use framefit_kernels::{Arena, choose};

/// Mean and reciprocal standard deviation of a channel.
#[derive(Clone, Copy)]
struct Statistics {
    mean: f64,
    inv_std: f64,
}

/// Of channel c, from the moments `[3,C]`.
fn batch_statistics(moments: &[f64], channels: usize, c: usize, epsilon: f64) -> Option<(Statistics, f64)> {
    let (count, mean) = (moments.get(c)?, moments.get(channels + c)?);
    let variance = moments.get(2 * channels + c)? / count.max(1.0);
    Some((Statistics { mean: *mean, inv_std: 1.0 / (variance + epsilon).sqrt() }, variance))
}

impl<E: Element> Call<'_, E> {
    fn norm(&self, step: &Step) -> Option<(&NormMean, usize, f64)> {
        let node = self.graph.node(step.node?);
        let Op::NormMean(op) = &node.op else { return None };
        let input = self.graph.shape(node.input);
        Some((op, input.channels, (input.dims.h * input.dims.w) as f64))
    }

    pub(super) fn norm_forward(&self, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::Means, Role::Moments, Role::Workspace];
        let [x, means, moments, scratch] = bytes(self.placed, step, roles, arena)?;
        let (x, means): (&mut [E], &mut [E]) = (cast(x)?, cast(means)?);
        let scratch: &mut [E] = cast(scratch)?;
        let (_, layer) = self.layer(step, Role::Input, Role::Input)?;
        let shape = layer.frame_mean();
        let row = choose(E::mean_forward(), self.kernels.isa, &shape);
        let scale = E::from_f64(1.0 / shape.positions as f64);
        for (x, y) in x.chunks_exact(shape.x_len()).zip(means.chunks_exact_mut(shape.y_len())) {
            (row.run)(&shape, MeanForwardArgs { x, scale, accumulate: false, y, scratch }, self.pool);
        }
        if !moments.is_empty() {
            let state: &mut [f64] = cast(moments)?;
            if part.first {
                state.fill(0.0);
            }
            let shape = layer.channels();
            let row = choose(E::channel_moments(), self.kernels.isa, &shape);
            (row.run)(&shape, ChannelMomentsArgs { x, state, scratch }, self.pool);
        }
        Some(())
    }

    pub(super) fn norm_finish(&self, step: &Step, training: bool, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::Means,
            Role::Moments,
            Role::Weight,
            Role::Bias,
            Role::MovingMean,
            Role::MovingVariance,
            Role::Output,
        ];
        let [means, moments, gamma, beta, moving_mean, moving_variance, y] = bytes(self.placed, step, roles, arena)?;
        let (means, gamma, beta): (&[E], &[E], &[E]) = (cast(means)?, cast(gamma)?, cast(beta)?);
        let (moving_mean, moving_variance): (&mut [E], &mut [E]) = (cast(moving_mean)?, cast(moving_variance)?);
        let y: &mut [E] = cast(y)?;
        let (op, channels, _) = self.norm(step)?;
        let moments: &[f64] = if training { cast(moments)? } else { &[] };
        for c in 0..channels {
            let (mean, variance) = (moving_mean.get_mut(c)?, moving_variance.get_mut(c)?);
            let of = if training {
                let (of, now) = batch_statistics(moments, channels, c, op.epsilon)?;
                let moved = |old: E, new: f64| E::from_f64(op.momentum * old.to_f64() + (1.0 - op.momentum) * new);
                (*mean, *variance) = (moved(*mean, of.mean), moved(*variance, now));
                of
            } else {
                Statistics { mean: mean.to_f64(), inv_std: 1.0 / (variance.to_f64() + op.epsilon).sqrt() }
            };
            let (gamma, beta) = (gamma.get(c)?.to_f64(), beta.get(c)?.to_f64());
            for (y, m) in y.iter_mut().zip(means).skip(c).step_by(channels) {
                *y = E::from_f64(gamma * (m.to_f64() - of.mean) * of.inv_std + beta);
            }
        }
        Some(())
    }

    pub(super) fn norm_weight_gradient(&self, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::OutputGradient,
            Role::Means,
            Role::Moments,
            Role::Weight,
            Role::WeightGradient,
            Role::BiasGradient,
            Role::Coefficients,
        ];
        let [dz, means, moments, gamma, dgamma, dbeta, coefficients] = bytes(self.placed, step, roles, arena)?;
        let (dz, means, gamma): (&[E], &[E], &[E]) = (cast(dz)?, cast(means)?, cast(gamma)?);
        let (dgamma, dbeta): (&mut [E], &mut [E]) = (cast(dgamma)?, cast(dbeta)?);
        let coefficients: &mut [E] = cast(coefficients)?;
        let moments: &[f64] = cast(moments)?;
        let (op, channels, positions) = self.norm(step)?;
        for c in 0..channels {
            let (of, _) = batch_statistics(moments, channels, c, op.epsilon)?;
            let count = moments.get(c)?.max(1.0);
            let (mut sum, mut product) = (0.0, 0.0);
            for (dz, m) in dz.iter().zip(means).skip(c).step_by(channels) {
                sum += dz.to_f64();
                product += dz.to_f64() * (m.to_f64() - of.mean) * of.inv_std;
            }
            *dbeta.get_mut(c)? += E::from_f64(sum);
            *dgamma.get_mut(c)? += E::from_f64(product);
            let scale = gamma.get(c)?.to_f64() * of.inv_std;
            let d = -scale * of.inv_std * product / count;
            *coefficients.get_mut(c)? = E::from_f64(scale / positions);
            *coefficients.get_mut(channels + c)? = E::from_f64(-scale * sum / count - d * of.mean);
            *coefficients.get_mut(2 * channels + c)? = E::from_f64(d);
        }
        Some(())
    }

    pub(super) fn norm_input_gradient(&self, step: &Step, accumulate: bool, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::Coefficients, Role::InputGradient, Role::Workspace];
        let [x, dz, coefficients, dx, shift] = elements::<E, 5>(self.placed, step, roles, arena)?;
        let (_, channels, positions) = self.norm(step)?;
        let (a, rest) = coefficients.split_at_checked(channels)?;
        let (b, d) = rest.split_at_checked(channels)?;
        let shift = shift.get_mut(..channels)?;
        let shape = ChannelShape { rows: positions as usize, channels };
        let row = choose(E::scale_shift(), self.kernels.isa, &shape);
        let per_item = shape.rows * channels;
        let frames = x.chunks_exact(per_item).zip(dx.chunks_exact_mut(per_item)).zip(dz.chunks_exact(channels));
        for ((x, y), dz) in frames {
            for ((shift, dz), (a, b)) in shift.iter_mut().zip(dz).zip(a.iter().zip(b)) {
                *shift = *a * *dz + *b;
            }
            let args = ScaleShiftArgs { x: Some(x), scale: d, shift: Some(shift), accumulate, y };
            (row.run)(&shape, args, self.pool);
        }
        Some(())
    }
}
