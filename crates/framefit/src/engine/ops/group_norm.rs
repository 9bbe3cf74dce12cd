//! Normalisation of every frame or position by itself. Backward takes the statistics anew: the same bits, and nothing
//! kept.

use super::norm::OfClips;
use super::{Asked, Layer, OnKernels, aligned, scratch_of};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements, present};
use framefit_core::ops::{GroupNorm, LayerNorm};
use framefit_core::schedule::{Part, Pass, Role, Step};
use framefit_kernels::norm::{
    GroupNormForwardArgs, GroupNormInputGradientArgs, GroupNormStatisticsArgs, GroupNormWeightGradientArgs, NormShape,
};
use framefit_kernels::{Arena, choose};

/// What is normalised over what.
struct Norm {
    shape: NormShape,
    epsilon: f64,
}

/// Items are frames of clips; nothing where statistics are over the frames of a clip.
fn groups(op: &GroupNorm, layer: &Layer<'_>) -> Option<Norm> {
    let shape = NormShape {
        items: layer.made.len() * layer.clips,
        positions: layer.positions(),
        channels: layer.input.channels,
        groups: op.groups,
    };
    op.per_frame.then_some(Norm { shape, epsilon: op.epsilon })
}

/// Items are positions, or frames, of clips.
fn vectors(op: &LayerNorm, layer: &Layer<'_>) -> Norm {
    let channels = op.features(layer.input);
    let of_frame = layer.input.per_frame() / channels.max(1);
    let shape = NormShape { items: layer.made.len() * layer.clips * of_frame, positions: 1, channels, groups: 1 };
    Norm { shape, epsilon: op.epsilon }
}

impl Norm {
    /// The parts of scratch.
    fn split<'a, E: Element>(&self, scratch: &'a mut [E]) -> Option<[&'a mut [E]; 3]> {
        let len = self.shape.statistics_len();
        let (mean, rest) = scratch.split_at_mut_checked(aligned::<E>(len))?;
        let (inv_std, rest) = rest.split_at_mut_checked(aligned::<E>(len))?;
        Some([mean.get_mut(..len)?, inv_std.get_mut(..len)?, rest])
    }

    fn statistics<E: Element>(&self, call: &Call<'_, E>, x: &[E], mean: &mut [E], inv_std: &mut [E]) {
        let row = choose(E::group_norm_statistics(), call.kernels.isa, &self.shape);
        (row.run)(&self.shape, GroupNormStatisticsArgs { x, eps: self.epsilon, mean, inv_std }, call.pool);
    }

    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::Weight, Role::Bias, Role::Output, Role::Workspace];
        let [x, gamma, beta, y, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let [mean, inv_std, _] = self.split(scratch)?;
        let (gamma, beta) = (present(gamma).map(|p| &*p), present(beta).map(|p| &*p));
        let args = GroupNormForwardArgs { x, gamma, beta, eps: self.epsilon, mean, inv_std, y };
        (choose(E::group_norm_forward(), call.kernels.isa, &self.shape).run)(&self.shape, args, call.pool);
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        accumulate: bool,
        arena: &mut Arena,
    ) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::Weight, Role::InputGradient, Role::Workspace];
        let [x, dy, gamma, dx, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let [mean, inv_std, scratch] = self.split(scratch)?;
        self.statistics(call, x, mean, inv_std);
        let gamma = present(gamma).map(|p| &*p);
        let args = GroupNormInputGradientArgs { x, dy, gamma, mean, inv_std, accumulate, dx, scratch };
        (choose(E::group_norm_input_gradient(), call.kernels.isa, &self.shape).run)(&self.shape, args, call.pool);
        Some(())
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [Role::Input, Role::OutputGradient, Role::WeightGradient, Role::BiasGradient, Role::Workspace];
        let [x, dy, dgamma, dbeta, scratch] = elements::<E, 5>(call.placed, step, roles, arena)?;
        let [mean, inv_std, scratch] = self.split(scratch)?;
        self.statistics(call, x, mean, inv_std);
        let (dgamma, dbeta) = (present(dgamma), present(dbeta));
        let args = GroupNormWeightGradientArgs { x, dy, mean, inv_std, dgamma, dbeta, scratch };
        (choose(E::group_norm_weight_gradient(), call.kernels.isa, &self.shape).run)(&self.shape, args, call.pool);
        Some(())
    }

    /// Scratch of one call: means, reciprocal standard deviations, and what the kernel asks for.
    fn asked<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let shape = &self.shape;
        let statistics = 2 * aligned::<E>(shape.statistics_len());
        match asked.pass {
            Pass::Forward => statistics + scratch_of!(asked, E::group_norm_forward(), shape.clone()),
            Pass::InputGradient => statistics + scratch_of!(asked, E::group_norm_input_gradient(), shape.clone()),
            Pass::WeightGradient => statistics + scratch_of!(asked, E::group_norm_weight_gradient(), shape.clone()),
            Pass::State | Pass::Moments | Pass::Sums => 0,
        }
    }
}

impl OnKernels for GroupNorm {
    fn moments<E: Element>(&self, call: &Call<'_, E>, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        OfClips(self).moments(call, step, part, arena)
    }

    fn finish<E: Element>(&self, call: &Call<'_, E>, step: &Step, training: bool, arena: &mut Arena) -> Option<()> {
        OfClips(self).finish(call, step, training, arena)
    }

    fn sums<E: Element>(&self, call: &Call<'_, E>, step: &Step, part: Part, arena: &mut Arena) -> Option<()> {
        OfClips(self).sums(call, step, part, arena)
    }

    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, how: Forward, arena: &mut Arena) -> Option<()> {
        if !self.per_frame {
            return OfClips(self).forward(call, step, how, arena);
        }
        groups(self, &call.layer(step, Role::Input, Role::Output)?)?.forward(call, step, arena)
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        if !self.per_frame {
            return OfClips(self).input_gradient(call, step, how, arena);
        }
        let layer = call.layer(step, Role::InputGradient, Role::OutputGradient)?;
        groups(self, &layer)?.input_gradient(call, step, how.accumulate, arena)
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        if !self.per_frame {
            return OfClips(self).weight_gradient(call, step, arena);
        }
        groups(self, &call.layer(step, Role::Input, Role::OutputGradient)?)?.weight_gradient(call, step, arena)
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        if !self.per_frame {
            return OfClips(self).scratch::<E>(asked);
        }
        groups(self, &asked.layer).map_or(0, |norm| norm.asked::<E>(asked))
    }
}

impl OnKernels for LayerNorm {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        vectors(self, &call.layer(step, Role::Input, Role::Output)?).forward(call, step, arena)
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let layer = call.layer(step, Role::InputGradient, Role::OutputGradient)?;
        vectors(self, &layer).input_gradient(call, step, how.accumulate, arena)
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        vectors(self, &call.layer(step, Role::Input, Role::OutputGradient)?).weight_gradient(call, step, arena)
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        vectors(self, &asked.layer).asked::<E>(asked)
    }
}
