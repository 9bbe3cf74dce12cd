//! GroupNorm and its special cases: shape and forward.

use std::ops::Range;

use super::statistics::statistics;
use crate::channels::Pattern;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// Items of P positions and C channels, each normalised over its positions and the channels of a group.
///
/// | layer | items | positions | channels | groups |
/// | --- | --- | --- | --- | --- |
/// | GroupNorm per frame and clip | T · N | H · W | C | G |
/// | InstanceNorm per frame and clip | T · N | H · W | C | C |
/// | GroupNorm per position | T · N · H · W | 1 | C | G |
/// | LayerNorm over C | T · N · H · W | 1 | C | 1 |
/// | LayerNorm over H, W, C | T · N | 1 | H · W · C | 1 |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormShape {
    /// I.
    pub items: usize,
    /// P.
    pub positions: usize,
    /// C: γ and β have one number for each.
    pub channels: usize,
    /// G, divides C.
    pub groups: usize,
}

impl NormShape {
    /// Elements of x: I · P · C.
    pub fn len(&self) -> usize {
        self.items * self.positions * self.channels
    }

    /// Whether x has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of the statistics: I · G.
    pub fn statistics_len(&self) -> usize {
        self.items * self.groups
    }

    /// C/G.
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    pub(super) fn check(&self) {
        assert!(self.groups >= 1 && self.channels.is_multiple_of(self.groups), "groups must divide C: {self:?}");
    }

    /// P · C.
    pub(super) fn item(&self) -> usize {
        self.positions * self.channels
    }

    /// Items of one task.
    pub(super) fn task_items(&self) -> usize {
        (16 * 1024 / self.item().max(1)).max(1)
    }

    /// Calls `each` with the group and the range of every run of channels of one group in `channels`.
    #[inline(always)]
    pub(super) fn group_runs(&self, channels: Range<usize>, mut each: impl FnMut(usize, Range<usize>)) {
        let size = self.group_channels();
        let mut c = channels.start;
        while c < channels.end {
            let group = c / size;
            let end = ((group + 1) * size).min(channels.end);
            each(group, c..end);
            c = end;
        }
    }
}

/// What the forward reads and writes.
#[derive(Debug)]
pub struct GroupNormForwardArgs<'a, E> {
    /// x: \[I, P, C\].
    pub x: &'a [E],
    /// γ: \[C\]; 1 when absent.
    pub gamma: Option<&'a [E]>,
    /// β: \[C\]; 0 when absent.
    pub beta: Option<&'a [E]>,
    /// Added to the variance.
    pub eps: f64,
    /// \[I, G\], overwritten.
    pub mean: &'a mut [E],
    /// \[I, G\], overwritten with 1/√(variance + eps).
    pub inv_std: &'a mut [E],
    /// y: \[I, P, C\], overwritten.
    pub y: &'a mut [E],
}

kernel_row! {
    /// y = x̂ · γ\[c\] + β\[c\], x̂ being normalised with the mean and the variance (of the population) of each item's
    /// group. As PyTorch's `GroupNorm` and `LayerNorm`.
    GroupNormForward, NormShape, GroupNormForwardArgs
}

/// y of one group whose elements lie together, each with its own γ and β.
#[inline(always)]
fn line<E: Real>(x: &[E], (mean, inv_std): (E, E), gamma: Option<&[E]>, beta: Option<&[E]>, y: &mut [E]) {
    match gamma {
        Some(gamma) => {
            for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = (*x - mean) * (inv_std * *gamma);
            }
        }
        None => {
            for (y, x) in y.iter_mut().zip(x) {
                *y = (*x - mean) * inv_std;
            }
        }
    }
    if let Some(beta) = beta {
        for (y, beta) in y.iter_mut().zip(beta) {
            *y += *beta;
        }
    }
}

/// The slices of one task's items.
struct Forward<'a, E> {
    x: &'a [E],
    gamma: Option<&'a [E]>,
    beta: Option<&'a [E]>,
    eps: f64,
    mean: &'a mut [E],
    inv_std: &'a mut [E],
    y: &'a mut [E],
}

#[inline(always)]
fn forward_body<E: Real>(s: &NormShape, args: Forward<'_, E>) {
    let Forward { x, gamma, beta, eps, mean, inv_std, y } = args;
    let items = x.chunks_exact(s.item()).zip(y.chunks_exact_mut(s.item()));
    let statistics_of = mean.chunks_exact_mut(s.groups).zip(inv_std.chunks_exact_mut(s.groups));
    for ((x, y), (mean, inv_std)) in items.zip(statistics_of) {
        statistics(s, x, eps, mean, inv_std);
        if s.positions == 1 {
            s.group_runs(0..s.channels, |group, run| {
                let (gamma, beta) = (gamma.map(|gamma| &gamma[run.clone()]), beta.map(|beta| &beta[run.clone()]));
                line(&x[run.clone()], (mean[group], inv_std[group]), gamma, beta, &mut y[run]);
            });
            continue;
        }
        for first in Pattern::<E, 3>::runs(s.channels) {
            let pattern = Pattern::new(s.channels, first, |channels, [shift, scale, offset]| {
                s.group_runs(channels.clone(), |group, run| {
                    let at = run.start - channels.start..run.end - channels.start;
                    shift[at.clone()].fill(mean[group]);
                    match gamma {
                        Some(gamma) => {
                            for (scale, gamma) in scale[at].iter_mut().zip(&gamma[run]) {
                                *scale = inv_std[group] * *gamma;
                            }
                        }
                        None => scale[at].fill(inv_std[group]),
                    }
                });
                if let Some(beta) = beta {
                    offset[..channels.len()].copy_from_slice(&beta[channels]);
                }
            });
            let [shift, scale, offset] = &pattern.values;
            for part in pattern.parts(x.len()) {
                let (x, y) = (&x[part.clone()], &mut y[part]);
                for ((((y, x), shift), scale), offset) in y.iter_mut().zip(x).zip(shift).zip(scale).zip(offset) {
                    *y = (*x - *shift) * *scale + *offset;
                }
            }
        }
    }
}

fn forward<E: Real>(
    s: &NormShape,
    args: GroupNormForwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&NormShape, Forward<'_, E>) + Sync,
) {
    s.check();
    assert_eq!(args.x.len(), s.len(), "x: {s:?}");
    assert!(args.gamma.is_none_or(|gamma| gamma.len() == s.channels), "gamma: {s:?}");
    assert!(args.beta.is_none_or(|beta| beta.len() == s.channels), "beta: {s:?}");
    assert_eq!(args.mean.len(), s.statistics_len(), "mean: {s:?}");
    assert_eq!(args.inv_std.len(), s.statistics_len(), "inv_std: {s:?}");
    assert_eq!(args.y.len(), s.len(), "y: {s:?}");
    if s.is_empty() {
        return;
    }
    let (x, gamma, beta, eps) = (args.x, args.gamma, args.beta, args.eps);
    let (mean, inv_std) = (SharedMut::new(args.mean), SharedMut::new(args.inv_std));
    let items = s.task_items();
    pool.chunks(args.y, items * s.item(), &|task, y| {
        let x = &x[task.index * items * s.item()..][..y.len()];
        let first = task.index * items * s.groups;
        let range = first..first + y.len() / s.item() * s.groups;
        // SAFETY: each task takes the statistics of its own items, once.
        let (mean, inv_std) = unsafe { (mean.part(range.clone()), inv_std.part(range)) };
        body(s, Forward { x, gamma, beta, eps, mean, inv_std, y });
    });
}

compiled_tables! {
    FORWARD_F32, FORWARD_F64: GroupNormForward, scratch: no_scratch,
    names: ["group_norm_forward_f32__avx512", "group_norm_forward_f32__avx2", "group_norm_forward_f32__scalar", "group_norm_forward_f64__scalar"],
    forward(forward_body: (s: &NormShape, args: Forward<'_, f32>))
}
