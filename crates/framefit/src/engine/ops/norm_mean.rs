//! Batch normalisation followed by the mean of each frame, from the means of frames and the moments of channels.
//!
//! With z\[t,n\] = γ(m\[t,n\] − μ)/σ + β for the mean m of a frame of P positions, M = N·T·P and x̂ = (x − μ)/σ:
//! dx = γ/σ · (dz/P − Σdz/M − x̂ · Σ(dz·m̂)/M), which is a·dz + b + d·x with three numbers per channel.

use super::norm::{Moments, inverse_deviation, moved};
use super::pooling::mean;
use super::{Asked, Layer, OnKernels, scratch_of};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, bytes, cast, elements};
use framefit_core::ops::NormMean;
use framefit_core::schedule::{Pass, Role, Step};
use framefit_kernels::mean::{MeanForwardArgs, MeanShape};
use framefit_kernels::norm::{ChannelMomentsArgs, ChannelShape, GradientMeans, ScaleShiftArgs};
use framefit_kernels::{Arena, choose};

/// The mean of one frame.
fn frame_mean(layer: &Layer<'_>) -> MeanShape {
    MeanShape { frames: 1, ..mean(layer) }
}

/// Channels over the frames read.
fn channels(layer: &Layer<'_>) -> ChannelShape {
    let positions = layer.input.dims.h * layer.input.dims.w;
    ChannelShape { rows: layer.read.len() * layer.clips * positions, channels: layer.input.channels }
}

impl OnKernels for NormMean {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::Means, Role::Moments, Role::Workspace];
        let [x, means, moments, scratch] = bytes(call.placed, step, roles, arena)?;
        let (x, means): (&mut [E], &mut [E]) = (cast(x)?, cast(means)?);
        let scratch: &mut [E] = cast(scratch)?;
        let layer = call.layer(step, Role::Input, Role::Input)?;
        let shape = frame_mean(&layer);
        let row = choose(E::mean_forward(), call.kernels.isa, &shape);
        let scale = E::from_f64(1.0 / shape.positions as f64);
        for (x, y) in x.chunks_exact(shape.x_len()).zip(means.chunks_exact_mut(shape.y_len())) {
            (row.run)(&shape, MeanForwardArgs { x, scale, accumulate: false, y, scratch }, call.pool);
        }
        if !moments.is_empty() {
            let state: &mut [f64] = cast(moments)?;
            if how.part.first {
                state.fill(0.0);
            }
            let shape = channels(&layer);
            let row = choose(E::channel_moments(), call.kernels.isa, &shape);
            (row.run)(&shape, ChannelMomentsArgs { x, state, scratch }, call.pool);
        }
        Some(())
    }

    fn finish<E: Element>(&self, call: &Call<'_, E>, step: &Step, training: bool, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::Means,
            Role::Moments,
            Role::Weight,
            Role::Bias,
            Role::MovingMean,
            Role::MovingVariance,
            Role::Output,
        ];
        let [means, moments, gamma, beta, moving_mean, moving_variance, y] = bytes(call.placed, step, roles, arena)?;
        let (means, gamma, beta): (&[E], &[E], &[E]) = (cast(means)?, cast(gamma)?, cast(beta)?);
        let (moving_mean, moving_variance): (&mut [E], &mut [E]) = (cast(moving_mean)?, cast(moving_variance)?);
        let y: &mut [E] = cast(y)?;
        let channels = call.layer(step, Role::Means, Role::Output)?.input.channels;
        let moments: &[f64] = if training { cast(moments)? } else { &[] };
        for c in 0..channels {
            let (moving_mean, moving_variance) = (moving_mean.get_mut(c)?, moving_variance.get_mut(c)?);
            let (mean, variance) = if training {
                let new = Moments::of(moments, channels, c)?;
                let share = 1.0 - self.momentum;
                *moving_mean = moved(*moving_mean, new.mean(), share);
                *moving_variance = moved(*moving_variance, new.variance(), share);
                (new.mean(), new.variance())
            } else {
                (moving_mean.to_f64(), moving_variance.to_f64())
            };
            let inv_std = inverse_deviation(variance, self.epsilon);
            let (gamma, beta) = (gamma.get(c)?.to_f64(), beta.get(c)?.to_f64());
            for (y, m) in y.iter_mut().zip(means).skip(c).step_by(channels) {
                *y = E::from_f64(gamma * (m.to_f64() - mean) * inv_std + beta);
            }
        }
        Some(())
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::OutputGradient,
            Role::Means,
            Role::Moments,
            Role::Weight,
            Role::WeightGradient,
            Role::BiasGradient,
            Role::Coefficients,
        ];
        let [dz, means, moments, gamma, dgamma, dbeta, coefficients] = bytes(call.placed, step, roles, arena)?;
        let (dz, means, gamma): (&[E], &[E], &[E]) = (cast(dz)?, cast(means)?, cast(gamma)?);
        let (dgamma, dbeta): (&mut [E], &mut [E]) = (cast(dgamma)?, cast(dbeta)?);
        let coefficients: &mut [E] = cast(coefficients)?;
        let moments: &[f64] = cast(moments)?;
        let layer = call.layer(step, Role::Means, Role::OutputGradient)?;
        let (channels, positions) = (layer.input.channels, mean(&layer).positions as f64);
        for c in 0..channels {
            let of = Moments::of(moments, channels, c)?;
            let (mean, count) = (of.mean(), of.count().max(1.0));
            let inv_std = inverse_deviation(of.variance(), self.epsilon);
            let (mut sum, mut product) = (0.0, 0.0);
            for (dz, m) in dz.iter().zip(means).skip(c).step_by(channels) {
                sum += dz.to_f64();
                product += dz.to_f64() * (m.to_f64() - mean) * inv_std;
            }
            *dbeta.get_mut(c)? += E::from_f64(sum);
            *dgamma.get_mut(c)? += E::from_f64(product);
            let gamma = gamma.get(c)?.to_f64();
            let means = GradientMeans { mean, inv_std, dy: gamma * sum / count, product: gamma * product / count };
            let [a, b, d] = means.coefficients(gamma);
            *coefficients.get_mut(c)? = E::from_f64(a / positions);
            *coefficients.get_mut(channels + c)? = E::from_f64(b);
            *coefficients.get_mut(2 * channels + c)? = E::from_f64(d);
        }
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::Coefficients, Role::InputGradient, Role::Workspace];
        let [x, dz, coefficients, dx, shift] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let layer = call.layer(step, Role::InputGradient, Role::OutputGradient)?;
        let (channels, positions) = (layer.input.channels, mean(&layer).positions);
        let (a, rest) = coefficients.split_at_checked(channels)?;
        let (b, d) = rest.split_at_checked(channels)?;
        let shift = shift.get_mut(..channels)?;
        let shape = ChannelShape { rows: positions, channels };
        let row = choose(E::scale_shift(), call.kernels.isa, &shape);
        let per_item = shape.rows * channels;
        let frames = x.chunks_exact(per_item).zip(dx.chunks_exact_mut(per_item)).zip(dz.chunks_exact(channels));
        for ((x, y), dz) in frames {
            for ((shift, dz), (a, b)) in shift.iter_mut().zip(dz).zip(a.iter().zip(b)) {
                *shift = *a * *dz + *b;
            }
            let accumulate = how.accumulate;
            let args = ScaleShiftArgs { x: Some(x), scale: d, shift: Some(shift), relu: false, accumulate, y };
            (row.run)(&shape, args, call.pool);
        }
        Some(())
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let layer = &asked.layer;
        match asked.pass {
            Pass::Forward => {
                let means = scratch_of!(asked, E::mean_forward(), frame_mean(layer));
                means.max(scratch_of!(asked, E::channel_moments(), channels(layer)))
            }
            Pass::InputGradient => layer.input.channels,
            Pass::WeightGradient | Pass::State | Pass::Moments | Pass::Sums => 0,
        }
    }
}
