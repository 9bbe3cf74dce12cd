//! The gradients of GroupNorm and its special cases.

use super::columns::{LANES, period, sums, task_rows};
use super::group::NormShape;
use super::statistics::total;
use crate::channels::{PATTERN, Pattern};
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row};
use crate::threads::Pool;

/// What the gradient by the input reads and writes.
#[derive(Debug)]
pub struct GroupNormInputGradientArgs<'a, E> {
    /// x: \[I, P, C\].
    pub x: &'a [E],
    /// dy: \[I, P, C\].
    pub dy: &'a [E],
    /// γ: \[C\]; 1 when absent.
    pub gamma: Option<&'a [E]>,
    /// \[I, G\], of the forward.
    pub mean: &'a [E],
    /// \[I, G\], of the forward.
    pub inv_std: &'a [E],
    /// Whether the gradient is added to dx instead of overwriting it.
    pub accumulate: bool,
    /// dx: \[I, P, C\].
    pub dx: &'a mut [E],
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What the gradient by γ and β reads and writes.
#[derive(Debug)]
pub struct GroupNormWeightGradientArgs<'a, E> {
    /// x: \[I, P, C\].
    pub x: &'a [E],
    /// dy: \[I, P, C\].
    pub dy: &'a [E],
    /// \[I, G\], of the forward.
    pub mean: &'a [E],
    /// \[I, G\], of the forward.
    pub inv_std: &'a [E],
    /// dγ: \[C\]; Σ dy · x̂ is added. Absent where there is no γ.
    pub dgamma: Option<&'a mut [E]>,
    /// dβ: \[C\]; Σ dy is added. Absent where there is no β.
    pub dbeta: Option<&'a mut [E]>,
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

kernel_row! {
    /// dx (+)= inv_std · (g − mean(g) − x̂ · mean(g · x̂)), with g = dy · γ and means over each item's group.
    GroupNormInputGradient, NormShape, GroupNormInputGradientArgs
}
kernel_row! {
    /// dγ += Σ dy · x̂ and dβ += Σ dy, over items and positions.
    GroupNormWeightGradient, NormShape, GroupNormWeightGradientArgs
}

/// The slices of one task's items.
struct Input<'a, E> {
    x: &'a [E],
    dy: &'a [E],
    gamma: Option<&'a [E]>,
    mean: &'a [E],
    inv_std: &'a [E],
    accumulate: bool,
    held: &'a mut [E],
    dx: &'a mut [E],
}

/// γ of channels, in `to`.
#[inline(always)]
fn gamma_of<E: Real>(gamma: Option<&[E]>, first: usize, to: &mut [E]) {
    match gamma {
        Some(gamma) => to.copy_from_slice(&gamma[first..first + to.len()]),
        None => to.fill(E::ONE),
    }
}

#[inline(always)]
fn input_body<E: Real>(s: &NormShape, args: Input<'_, E>) {
    let Input { x, dy, gamma, mean, inv_std, accumulate, held, dx } = args;
    let items = x.chunks_exact(s.item()).zip(dy.chunks_exact(s.item())).zip(dx.chunks_exact_mut(s.item()));
    let statistics = mean.chunks_exact(s.groups).zip(inv_std.chunks_exact(s.groups));
    for (((x, dy), dx), (mean, inv_std)) in items.zip(statistics) {
        if s.positions == 1 {
            let size = s.group_channels();
            for group in 0..s.groups {
                let range = group * size..(group + 1) * size;
                let (x, dy, dx) = (&x[range.clone()], &dy[range.clone()], &mut dx[range.clone()]);
                let of = Line { gamma, first: range.start, mean: mean[group], inv_std: inv_std[group], accumulate };
                line(of, x, dy, dx);
            }
        } else {
            plane(s, Plane { x, dy, gamma, mean, inv_std, accumulate }, held, dx);
        }
    }
}

/// A group whose elements lie together, each with its own γ.
#[derive(Clone, Copy)]
struct Line<'a, E> {
    gamma: Option<&'a [E]>,
    /// The first channel of the group.
    first: usize,
    mean: E,
    inv_std: E,
    accumulate: bool,
}

#[inline(always)]
fn line<E: Real>(of: Line<'_, E>, x: &[E], dy: &[E], dx: &mut [E]) {
    let mut gamma = [E::ONE; PATTERN];
    let (mut plain, mut product) = (E::ZERO, E::ZERO);
    for (i, (x, dy)) in x.chunks(PATTERN).zip(dy.chunks(PATTERN)).enumerate() {
        gamma_of(of.gamma, of.first + i * PATTERN, &mut gamma[..x.len()]);
        let (mut part, mut part_product) = ([E::ZERO; LANES], [E::ZERO; LANES]);
        for ((x, dy), gamma) in x.chunks(LANES).zip(dy.chunks(LANES)).zip(gamma.chunks(LANES)) {
            let mut add = |j: usize, x: E, dy: E| {
                let g = dy * gamma[j];
                part[j] += g;
                part_product[j] += g * (x - of.mean);
            };
            if let (Some(x), Some(dy)) = (x.first_chunk::<LANES>(), dy.first_chunk::<LANES>()) {
                for j in 0..LANES {
                    add(j, x[j], dy[j]);
                }
            } else {
                for (j, (x, dy)) in x.iter().zip(dy).enumerate() {
                    add(j, *x, *dy);
                }
            }
        }
        plain += total(part);
        product += total(part_product);
    }
    let count = E::from_f64(x.len() as f64);
    let g_mean = plain / count;
    let slope = of.inv_std * of.inv_std * (product / count);
    let parts = x.chunks(PATTERN).zip(dy.chunks(PATTERN)).zip(dx.chunks_mut(PATTERN));
    for (i, ((x, dy), dx)) in parts.enumerate() {
        gamma_of(of.gamma, of.first + i * PATTERN, &mut gamma[..x.len()]);
        for (((dx, x), dy), gamma) in dx.iter_mut().zip(x).zip(dy).zip(&gamma) {
            let d = of.inv_std * ((*dy * *gamma - g_mean) - (*x - of.mean) * slope);
            *dx = if of.accumulate { *dx + d } else { d };
        }
    }
}

/// One item: x, dy: \[P, C\]; mean, inv_std: \[G\].
struct Plane<'a, E> {
    x: &'a [E],
    dy: &'a [E],
    gamma: Option<&'a [E]>,
    mean: &'a [E],
    inv_std: &'a [E],
    accumulate: bool,
}

/// One item of several positions; `held` has two numbers per group.
#[inline(always)]
fn plane<E: Real>(s: &NormShape, args: Plane<'_, E>, held: &mut [E], dx: &mut [E]) {
    let Plane { x, dy, gamma, mean, inv_std, accumulate } = args;
    let (channels, size, width) = (s.channels, s.group_channels(), period(s.channels));
    let count = E::from_f64((s.positions * size) as f64);
    let (plain, product) = held[..2 * s.groups].split_at_mut(s.groups);
    plain.fill(E::ZERO);
    product.fill(E::ZERO);
    for first in (0..width).step_by(LANES) {
        let (mut weights, mut around) = ([E::ONE; LANES], [E::ZERO; LANES]);
        for j in 0..LANES {
            let c = (first + j) % channels;
            weights[j] = gamma.map_or(E::ONE, |gamma| gamma[c]);
            around[j] = mean[c / size];
        }
        let [g, gx] = sums(x, dy, width, first, |j, x, dy| {
            let g = dy * weights[j];
            [g, g * (x - around[j])]
        });
        for j in 0..LANES {
            let group = (first + j) % channels / size;
            plain[group] += g[j];
            product[group] += gx[j];
        }
    }
    for ((plain, product), inv_std) in plain.iter_mut().zip(product.iter_mut()).zip(inv_std) {
        *plain = *inv_std * (*plain / count);
        *product = *inv_std * *inv_std * *inv_std * (*product / count);
    }
    for first in Pattern::<E, 4>::runs(channels) {
        let pattern = Pattern::new(channels, first, |run, [scale, g_mean, shift, slope]| {
            s.group_runs(run.clone(), |group, of| {
                for c in of {
                    let i = c - run.start;
                    scale[i] = inv_std[group] * gamma.map_or(E::ONE, |gamma| gamma[c]);
                    g_mean[i] = plain[group];
                    shift[i] = mean[group];
                    slope[i] = product[group];
                }
            });
        });
        for part in pattern.parts(x.len()) {
            let n = part.len();
            let (x, dy, dx) = (&x[part.clone()], &dy[part.clone()], &mut dx[part]);
            let [scale, g_mean, shift, slope] = &pattern.values;
            let (scale, g_mean, shift, slope) = (&scale[..n], &g_mean[..n], &shift[..n], &slope[..n]);
            for i in 0..n {
                let d = (dy[i] * scale[i] - g_mean[i]) - (x[i] - shift[i]) * slope[i];
                dx[i] = if accumulate { dx[i] + d } else { d };
            }
        }
    }
}

fn input_scratch(s: &NormShape, threads: usize) -> usize {
    if s.positions == 1 { 0 } else { threads * 2 * s.groups }
}

fn input_gradient<E: Real>(
    s: &NormShape,
    args: GroupNormInputGradientArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&NormShape, Input<'_, E>) + Sync,
) {
    s.check();
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert_eq!(args.dy.len(), s.len(), "dy: {s:?}");
    assert!(args.gamma.is_none_or(|gamma| gamma.len() == s.channels), "gamma: {s:?}");
    assert_eq!(args.mean.len(), s.statistics_len(), "mean: {s:?}");
    assert_eq!(args.inv_std.len(), s.statistics_len(), "inv_std: {s:?}");
    assert_eq!(args.dx.len(), s.len(), "dx: {s:?}");
    if s.is_empty() {
        return;
    }
    let GroupNormInputGradientArgs { x, dy, gamma, mean, inv_std, accumulate, dx, scratch } = args;
    let per_thread = input_scratch(s, 1);
    let held = SharedMut::new(&mut scratch[..input_scratch(s, pool.threads())]);
    let items = s.task_items();
    pool.chunks(dx, items * s.item(), &|task, dx| {
        let range = task.index * items * s.item()..task.index * items * s.item() + dx.len();
        let first = task.index * items * s.groups;
        let statistics = first..first + dx.len() / s.item() * s.groups;
        // SAFETY: two tasks of one thread never run at the same time.
        let held = unsafe { held.part(task.thread * per_thread..(task.thread + 1) * per_thread) };
        let (mean, inv_std) = (&mean[statistics.clone()], &inv_std[statistics]);
        body(s, Input { x: &x[range.clone()], dy: &dy[range], gamma, mean, inv_std, accumulate, held, dx });
    });
}

/// C from which on the gradient by γ and β is cut by channels alone.
const WIDE: usize = 4096;

/// Channels of one task of the gradient by γ and β.
const COLUMNS: usize = 512;

/// Items whose sums are made apart, before they are added in order.
fn block_items(s: &NormShape) -> usize {
    if s.channels >= WIDE { s.items.max(1) } else { task_rows(s.channels).div_ceil(s.positions.max(1)) }
}

fn weight_scratch(s: &NormShape, _: usize) -> usize {
    s.items.div_ceil(block_items(s)) * 2 * s.channels
}

/// What the sums read of one block of items.
struct Weight<'a, E> {
    x: &'a [E],
    dy: &'a [E],
    mean: &'a [E],
    inv_std: &'a [E],
}

/// Positions from which on short rows are summed several at a time.
const LONG: usize = 16;

/// As [`weight_body`] over all channels, in columns that repeat with them.
#[inline(always)]
fn whole_rows<E: Real>(s: &NormShape, of: &Weight<'_, E>, dbeta: &mut [E], dgamma: &mut [E]) {
    let (channels, size, width) = (s.channels, s.group_channels(), period(s.channels));
    let items = of.x.chunks_exact(s.item()).zip(of.dy.chunks_exact(s.item()));
    let statistics = of.mean.chunks_exact(s.groups).zip(of.inv_std.chunks_exact(s.groups));
    for ((x, dy), (mean, inv_std)) in items.zip(statistics) {
        for first in (0..width.min(x.len())).step_by(LANES) {
            let mut around = [E::ZERO; LANES];
            for (j, around) in around.iter_mut().enumerate() {
                *around = mean[(first + j) % channels / size];
            }
            let [plain, product] = sums(x, dy, width, first, |j, x, dy| [dy, dy * (x - around[j])]);
            for j in 0..LANES {
                let c = (first + j) % channels;
                dbeta[c] += plain[j];
                dgamma[c] += product[j] * inv_std[c / size];
            }
        }
    }
}

/// dbeta, dgamma: the sums of one block of items for the channels from `first` on.
#[inline(always)]
fn weight_body<E: Real>(s: &NormShape, of: Weight<'_, E>, first: usize, dbeta: &mut [E], dgamma: &mut [E]) {
    dbeta.fill(E::ZERO);
    dgamma.fill(E::ZERO);
    if s.positions >= LONG && dbeta.len() == s.channels {
        return whole_rows(s, &of, dbeta, dgamma);
    }
    let size = s.group_channels();
    let parts = dbeta.chunks_mut(LANES).zip(dgamma.chunks_mut(LANES));
    for (i, (dbeta, dgamma)) in parts.enumerate() {
        let first = first + i * LANES;
        let lanes = dbeta.len();
        let mut groups = [0; LANES];
        for (j, group) in groups[..lanes].iter_mut().enumerate() {
            *group = (first + j) / size;
        }
        let (mut total, mut total_product) = ([E::ZERO; LANES], [E::ZERO; LANES]);
        let items = of.x.chunks_exact(s.item()).zip(of.dy.chunks_exact(s.item()));
        let statistics = of.mean.chunks_exact(s.groups).zip(of.inv_std.chunks_exact(s.groups));
        for ((x, dy), (mean, inv_std)) in items.zip(statistics) {
            let (mut around, mut scale) = ([E::ZERO; LANES], [E::ZERO; LANES]);
            if s.groups == 1 {
                (around, scale) = ([mean[0]; LANES], [inv_std[0]; LANES]);
            } else {
                for j in 0..lanes {
                    (around[j], scale[j]) = (mean[groups[j]], inv_std[groups[j]]);
                }
            }
            let (mut part, mut part_product) = ([E::ZERO; LANES], [E::ZERO; LANES]);
            for (x, dy) in x.chunks_exact(s.channels).zip(dy.chunks_exact(s.channels)) {
                let (mut row, mut dy_row) = ([E::ZERO; LANES], [E::ZERO; LANES]);
                row[..lanes].copy_from_slice(&x[first..first + lanes]);
                dy_row[..lanes].copy_from_slice(&dy[first..first + lanes]);
                for j in 0..LANES {
                    part[j] += dy_row[j];
                    part_product[j] += dy_row[j] * (row[j] - around[j]);
                }
            }
            for j in 0..LANES {
                total[j] += part[j];
                total_product[j] += part_product[j] * scale[j];
            }
        }
        dbeta.copy_from_slice(&total[..lanes]);
        dgamma.copy_from_slice(&total_product[..lanes]);
    }
}

fn weight_gradient<E: Real>(
    s: &NormShape,
    args: GroupNormWeightGradientArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&NormShape, Weight<'_, E>, usize, &mut [E], &mut [E]) + Sync,
) {
    s.check();
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert_eq!(args.dy.len(), s.len(), "dy: {s:?}");
    assert_eq!(args.mean.len(), s.statistics_len(), "mean: {s:?}");
    assert_eq!(args.inv_std.len(), s.statistics_len(), "inv_std: {s:?}");
    assert!(args.dgamma.as_ref().is_none_or(|dgamma| dgamma.len() == s.channels), "dgamma: {s:?}");
    assert!(args.dbeta.as_ref().is_none_or(|dbeta| dbeta.len() == s.channels), "dbeta: {s:?}");
    if s.is_empty() {
        return;
    }
    let (x, dy, mean, inv_std) = (args.x, args.dy, args.mean, args.inv_std);
    let (items, channels) = (block_items(s), s.channels);
    let blocks = s.items.div_ceil(items);
    let columns = channels.div_ceil(COLUMNS);
    let parts = &mut args.scratch[..weight_scratch(s, 1)];
    let shared = SharedMut::new(parts);
    pool.run(blocks * columns, &|task| {
        let (block, column) = (task.index / columns, task.index % columns);
        let range = block * items..(block * items + items).min(s.items);
        let first = column * COLUMNS;
        let count = COLUMNS.min(channels - first);
        let at = block * 2 * channels + first;
        // SAFETY: tasks write disjoint columns of disjoint blocks, and each task runs once.
        let (dbeta, dgamma) =
            unsafe { (shared.part(at..at + count), shared.part(at + channels..at + channels + count)) };
        let elements = range.start * s.item()..range.end * s.item();
        let statistics = range.start * s.groups..range.end * s.groups;
        let of = Weight {
            x: &x[elements.clone()],
            dy: &dy[elements],
            mean: &mean[statistics.clone()],
            inv_std: &inv_std[statistics],
        };
        body(s, of, first, dbeta, dgamma);
    });
    for (sums, first) in [(args.dbeta, 0), (args.dgamma, channels)] {
        let Some(sums) = sums else { continue };
        for part in args.scratch[..weight_scratch(s, 1)].chunks_exact(2 * channels) {
            for (sum, part) in sums.iter_mut().zip(&part[first..]) {
                *sum += *part;
            }
        }
    }
}

compiled_tables! {
    INPUT_GRADIENT_F32, INPUT_GRADIENT_F64: GroupNormInputGradient, scratch: input_scratch,
    names: ["group_norm_input_gradient_f32__avx512", "group_norm_input_gradient_f32__avx2", "group_norm_input_gradient_f32__scalar", "group_norm_input_gradient_f64__scalar"],
    input_gradient(input_body: (s: &NormShape, args: Input<'_, f32>))
}

compiled_tables! {
    WEIGHT_GRADIENT_F32, WEIGHT_GRADIENT_F64: GroupNormWeightGradient, scratch: weight_scratch,
    names: ["group_norm_weight_gradient_f32__avx512", "group_norm_weight_gradient_f32__avx2", "group_norm_weight_gradient_f32__scalar", "group_norm_weight_gradient_f64__scalar"],
    weight_gradient(weight_body: (s: &NormShape, of: Weight<'_, f32>, first: usize, dbeta: &mut [f32], dgamma: &mut [f32]))
}
