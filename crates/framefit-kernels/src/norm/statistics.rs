//! Mean and inv_std of each group of each item.

use super::columns::{LANES, period, sums};
use super::group::NormShape;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the statistics read and write.
#[derive(Debug)]
pub struct GroupNormStatisticsArgs<'a, E> {
    /// x: \[I, P, C\].
    pub x: &'a [E],
    /// Added to the variance.
    pub eps: f64,
    /// \[I, G\], overwritten.
    pub mean: &'a mut [E],
    /// \[I, G\], overwritten with 1/√(variance + eps).
    pub inv_std: &'a mut [E],
}

kernel_row! {
    /// The statistics of [`GroupNormForward`](super::GroupNormForward), the same bits, for a backward that keeps none.
    GroupNormStatistics, NormShape, GroupNormStatisticsArgs
}

/// The sum of all lanes, in order.
#[inline(always)]
pub(super) fn total<E: Real>(lanes: [E; LANES]) -> E {
    let mut lanes = lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Mean and inv_std of one group whose elements `x` lie together.
#[inline(always)]
fn together<E: Real>(x: &[E], eps: f64) -> (E, E) {
    let count = E::from_f64(x.len() as f64);
    let [sum] = sums(x, x, LANES, 0, |_, x, _| [x]);
    let mean = total(sum) / count;
    let [plain, squared] = sums(x, x, LANES, 0, |_, x, _| [x - mean, (x - mean) * (x - mean)]);
    let (plain, squared) = (total(plain) / count, total(squared) / count);
    (mean + plain, E::ONE / (squared - plain * plain + E::from_f64(eps)).sqrt())
}

/// Mean and inv_std of each group of one item.
#[inline(always)]
pub(super) fn statistics<E: Real>(s: &NormShape, x: &[E], eps: f64, mean: &mut [E], inv_std: &mut [E]) {
    if s.groups == 1 || s.positions == 1 {
        let groups = x.chunks_exact(x.len() / s.groups);
        for ((x, mean), inv_std) in groups.zip(mean).zip(inv_std) {
            (*mean, *inv_std) = together(x, eps);
        }
        return;
    }
    let (channels, size, width) = (s.channels, s.group_channels(), period(s.channels));
    let count = E::from_f64((s.positions * size) as f64);
    mean.fill(E::ZERO);
    inv_std.fill(E::ZERO);
    for first in (0..width).step_by(LANES) {
        let [sum] = sums(x, x, width, first, |_, x, _| [x]);
        for (j, sum) in sum.into_iter().enumerate() {
            mean[(first + j) % channels / size] += sum;
        }
    }
    for mean in mean.iter_mut() {
        *mean /= count;
    }
    for first in (0..width).step_by(LANES) {
        let mut around = [E::ZERO; LANES];
        for (j, around) in around.iter_mut().enumerate() {
            *around = mean[(first + j) % channels / size];
        }
        let [squared] = sums(x, x, width, first, |j, x, _| [(x - around[j]) * (x - around[j])]);
        for (j, squared) in squared.into_iter().enumerate() {
            inv_std[(first + j) % channels / size] += squared;
        }
    }
    for inv_std in inv_std {
        *inv_std = E::ONE / (*inv_std / count + E::from_f64(eps)).sqrt();
    }
}

/// mean, inv_std: those of the items of x.
#[inline(always)]
fn body<E: Real>(s: &NormShape, x: &[E], eps: f64, mean: &mut [E], inv_std: &mut [E]) {
    let of_items = mean.chunks_exact_mut(s.groups).zip(inv_std.chunks_exact_mut(s.groups));
    for (x, (mean, inv_std)) in x.chunks_exact(s.item()).zip(of_items) {
        statistics(s, x, eps, mean, inv_std);
    }
}

fn group_norm_statistics<E: Real>(
    s: &NormShape,
    args: GroupNormStatisticsArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&NormShape, &[E], f64, &mut [E], &mut [E]) + Sync,
) {
    s.check();
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert_eq!(args.mean.len(), s.statistics_len(), "mean: {s:?}");
    assert_eq!(args.inv_std.len(), s.statistics_len(), "inv_std: {s:?}");
    if s.is_empty() {
        return;
    }
    let (x, eps) = (args.x, args.eps);
    let inv_std = SharedMut::new(args.inv_std);
    let items = s.task_items();
    pool.chunks(args.mean, items * s.groups, &|task, mean| {
        let first = task.index * items;
        let count = mean.len() / s.groups;
        let x = &x[first * s.item()..(first + count) * s.item()];
        // SAFETY: each task takes the statistics of its own items, once.
        let inv_std = unsafe { inv_std.part(first * s.groups..(first + count) * s.groups) };
        body(s, x, eps, mean, inv_std);
    });
}

compiled_tables! {
    STATISTICS_F32, STATISTICS_F64: GroupNormStatistics, scratch: no_scratch,
    names: ["group_norm_statistics_f32__avx512", "group_norm_statistics_f32__avx2", "group_norm_statistics_f32__scalar", "group_norm_statistics_f64__scalar"],
    group_norm_statistics(body: (s: &NormShape, x: &[f32], eps: f64, mean: &mut [f32], inv_std: &mut [f32]))
}
