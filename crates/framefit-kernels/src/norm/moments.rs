//! Count, mean and squared deviations of channels, over any number of windows.

use super::ChannelShape;
use super::columns::{LANES, period, sums, task_rows};
use crate::real::Real;
use crate::table::{compiled_tables, kernel_row};
use crate::threads::Pool;

/// What the moments read and write.
#[derive(Debug)]
pub struct ChannelMomentsArgs<'a, E> {
    /// x: \[rows, C\].
    pub x: &'a [E],
    /// \[3, C\]: the count, the mean, and Σ (x − mean)², of all windows so far; zero before the first.
    pub state: &'a mut [f64],
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

kernel_row! {
    /// state becomes the moments of what it was made of and x together.
    ///
    /// Moments of parts are merged by the rule of Chan, Golub and LeVeque (1979), in f64 and in order.
    ChannelMoments, ChannelShape, ChannelMomentsArgs
}

/// Adds the moments `other` to `state`, both \[3, C\] as in [`ChannelMomentsArgs`].
///
/// Panics when their lengths differ or are not a multiple of 3.
pub fn merge_moments(state: &mut [f64], other: &[f64]) {
    assert!(state.len() == other.len() && state.len().is_multiple_of(3), "{} and {}", state.len(), other.len());
    let channels = state.len() / 3;
    for c in 0..channels {
        merge(state, c, [other[c], other[channels + c], other[2 * channels + c]]);
    }
}

/// Adds (count, mean, squared deviations) to channel `c` of `state`.
fn merge(state: &mut [f64], c: usize, [count, mean, squares]: [f64; 3]) {
    if count == 0.0 {
        return;
    }
    let channels = state.len() / 3;
    let before = state[c];
    let total = before + count;
    let delta = mean - state[channels + c];
    state[channels + c] += delta * (count / total);
    state[2 * channels + c] += squares + delta * delta * (before * (count / total));
    state[c] = total;
}

/// Writes mean and 1/√(variance + eps) of each channel, the variance being that of the population.
///
/// state: \[3, C\] as in [`ChannelMomentsArgs`]; mean and inv_std: \[C\]. Panics when the lengths do not fit.
pub fn normalizers<E: Real>(state: &[f64], eps: f64, mean: &mut [E], inv_std: &mut [E]) {
    let channels = mean.len();
    assert!(state.len() == 3 * channels && inv_std.len() == channels, "state and inv_std of {channels} channels");
    for c in 0..channels {
        mean[c] = E::from_f64(state[channels + c]);
        inv_std[c] = E::from_f64(1.0 / (state[2 * channels + c] / state[c] + eps).sqrt());
    }
}

fn scratch(s: &ChannelShape, _: usize) -> usize {
    s.rows.div_ceil(task_rows(s.channels)) * 3 * s.channels
}

/// parts: \[3, C\] = a shift near the mean of x, Σ (x − shift), Σ (x − shift)².
#[inline(always)]
fn body<E: Real>(x: &[E], parts: &mut [E]) {
    let channels = parts.len() / 3;
    let (shift, deviations) = parts.split_at_mut(channels);
    shift.fill(E::ZERO);
    deviations.fill(E::ZERO);
    let width = period(channels);
    for first in (0..width).step_by(LANES) {
        let [sum] = sums(x, x, width, first, |_, x, _| [x]);
        for (j, sum) in sum.into_iter().enumerate() {
            shift[(first + j) % channels] += sum;
        }
    }
    let rows = E::from_f64((x.len() / channels) as f64);
    for shift in shift.iter_mut() {
        *shift /= rows;
    }
    for first in (0..width).step_by(LANES) {
        let mut around = [E::ZERO; LANES];
        for (j, around) in around.iter_mut().enumerate() {
            *around = shift[(first + j) % channels];
        }
        let [plain, squared] = sums(x, x, width, first, |j, x, _| {
            let d = x - around[j];
            [d, d * d]
        });
        for j in 0..LANES {
            let c = (first + j) % channels;
            deviations[c] += plain[j];
            deviations[channels + c] += squared[j];
        }
    }
}

fn moments<E: Real>(
    s: &ChannelShape,
    args: ChannelMomentsArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&[E], &mut [E]) + Sync,
) {
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert_eq!(args.state.len(), 3 * s.channels, "state: {s:?}");
    if s.is_empty() {
        return;
    }
    let step = task_rows(s.channels) * s.channels;
    let parts = &mut args.scratch[..scratch(s, 1)];
    let x = args.x;
    pool.chunks(parts, 3 * s.channels, &|task, parts| {
        let at = task.index * step;
        body(&x[at..(at + step).min(x.len())], parts);
    });
    for (x, parts) in x.chunks(step).zip(parts.chunks_exact(3 * s.channels)) {
        let count = (x.len() / s.channels) as f64;
        for c in 0..s.channels {
            let [shift, plain, squared] = [0, 1, 2].map(|i| parts[i * s.channels + c].to_f64());
            merge(args.state, c, [count, shift + plain / count, squared - plain * plain / count]);
        }
    }
}

compiled_tables! {
    MOMENTS_F32, MOMENTS_F64: ChannelMoments, scratch: scratch,
    names: ["channel_moments_f32__avx512", "channel_moments_f32__avx2", "channel_moments_f32__scalar", "channel_moments_f64__scalar"],
    moments(body: (x: &[f32], parts: &mut [f32]))
}
