//! Sums over the rows of each column, in a fixed order.

use crate::real::Real;

/// Columns summed together.
pub(super) const LANES: usize = 32;

/// Rows summed before their sum joins the others: keeps rounding errors low.
const BLOCK: usize = 128;

/// Columns that repeat with `channels` and make whole lanes: the least common multiple.
pub(super) fn period(channels: usize) -> usize {
    let twos = channels.trailing_zeros().min(LANES.trailing_zeros());
    channels * (LANES >> twos)
}

/// K sums, over the rows of x and y, of `f(lane, x, y)` for the columns `first..first + LANES`.
///
/// Rows have `width` elements; the last may be shorter, and what it lacks counts as nothing.
#[inline(always)]
pub(super) fn sums<E: Real, const K: usize>(
    x: &[E],
    y: &[E],
    width: usize,
    first: usize,
    f: impl Fn(usize, E, E) -> [E; K],
) -> [[E; LANES]; K] {
    let mut total = [[E::ZERO; LANES]; K];
    for (x, y) in x.chunks(BLOCK * width).zip(y.chunks(BLOCK * width)) {
        let mut part = [[E::ZERO; LANES]; K];
        for (x, y) in x.chunks(width).zip(y.chunks(width)) {
            let (Some(x), Some(y)) = (x.get(first..), y.get(first..)) else { continue };
            if let (Some(x), Some(y)) = (x.first_chunk::<LANES>(), y.first_chunk::<LANES>()) {
                for j in 0..LANES {
                    let values = f(j, x[j], y[j]);
                    for k in 0..K {
                        part[k][j] += values[k];
                    }
                }
            } else {
                for (j, (x, y)) in x.iter().zip(y).enumerate() {
                    let values = f(j, *x, *y);
                    for k in 0..K {
                        part[k][j] += values[k];
                    }
                }
            }
        }
        for (total, part) in total.iter_mut().zip(&part) {
            for (total, part) in total.iter_mut().zip(part) {
                *total += *part;
            }
        }
    }
    total
}

/// Rows of one task, by shape alone: enough that the sums of all tasks are few beside x.
pub(super) fn task_rows(channels: usize) -> usize {
    (16 * 1024 / channels.max(1)).max(256)
}
