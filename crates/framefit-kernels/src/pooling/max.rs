//! The loops of maximum pooling, over blocks of channels.

use std::ops::Range;

use super::PoolShape;
use crate::real::Real;
use crate::shared::SharedMut;

/// Channels of one block.
const LANES: usize = 16;

/// The part of `o·s − p .. o·s − p + k` that lies in `0..n`.
fn covered(o: usize, k: usize, s: usize, p: usize, n: usize) -> Range<usize> {
    let lo = (o * s).saturating_sub(p);
    let hi = (o * s + k).saturating_sub(p).min(n);
    lo..hi.max(lo)
}

/// The outputs, of `of`, that cover an index of `inputs`.
fn covering(inputs: &Range<usize>, k: usize, s: usize, p: usize, of: Range<usize>) -> Range<usize> {
    if inputs.is_empty() || of.is_empty() {
        return 0..0;
    }
    let lo = (inputs.start + p + 1).saturating_sub(k).div_ceil(s).max(of.start);
    let hi = ((inputs.end - 1 + p) / s + 1).min(of.end);
    lo..hi.max(lo)
}

/// The inputs that cell `cell` of `cells` owns: those from its window's start to the next cell's, the first and
/// the last cell reaching to the ends of `held`.
fn owned(cell: usize, s: usize, p: usize, cells: &Range<usize>, held: Range<usize>) -> Range<usize> {
    let border = |o: usize| (o * s).saturating_sub(p).clamp(held.start, held.end);
    let lo = if cell == cells.start { held.start } else { border(cell) };
    let hi = if cell + 1 == cells.end { held.end } else { border(cell + 1) };
    lo..hi
}

/// The window of one output: input frames, rows and columns.
struct Covered {
    t: Range<usize>,
    h: Range<usize>,
    w: Range<usize>,
}

fn row_at(s: &PoolShape, t: usize, n: usize, h: usize) -> usize {
    (((t - s.x.lo) * s.clips + n) * s.input.h + h) * s.input.w * s.channels
}

/// Takes the greater, or the NaN, of each lane, and where it is.
#[inline(always)]
fn take<E: Real>(best: &mut [E], place: &mut [u32], x: &[E], here: u32) {
    for ((best, place), x) in best.iter_mut().zip(place).zip(x) {
        let wins = *x > *best || x.is_nan();
        *best = if wins { *x } else { *best };
        *place = if wins { here } else { *place };
    }
}

/// The maximum of `len` channels from `c` over the window and its place, the window's indices counted in
/// order.
#[inline(always)]
fn maximum<E: Real>(
    s: &PoolShape,
    x: &[E],
    clip: usize,
    window: &Covered,
    c: usize,
    len: usize,
) -> ([E; LANES], [u32; LANES]) {
    let mut best = [E::NEG_INFINITY; LANES];
    let mut place = [0; LANES];
    let mut here = 0;
    for t in window.t.clone() {
        for h in window.h.clone() {
            let row = row_at(s, t, clip, h) + c;
            for w in window.w.clone() {
                let x = &x[row + w * s.channels..];
                match x.first_chunk::<LANES>() {
                    Some(x) if len == LANES => take(&mut best, &mut place, x, here),
                    _ => take(&mut best[..len], &mut place[..len], &x[..len], here),
                }
                here += 1;
            }
        }
    }
    (best, place)
}

/// One output row: y_row\[W', C\].
#[inline(always)]
pub(super) fn forward_row<E: Real>(s: &PoolShape, x: &[E], ot: usize, clip: usize, oh: usize, y_row: &mut [E]) {
    let t = covered(ot, s.kernel.t, s.stride.t, s.padding.t, s.input.t);
    let h = covered(oh, s.kernel.h, s.stride.h, s.padding.h, s.input.h);
    let mut window = Covered { t, h, w: 0..0 };
    for (ow, y) in y_row.chunks_exact_mut(s.channels).enumerate() {
        window.w = covered(ow, s.kernel.w, s.stride.w, s.padding.w, s.input.w);
        for (block, y) in y.chunks_mut(LANES).enumerate() {
            let (best, _) = maximum(s, x, clip, &window, block * LANES, y.len());
            y.copy_from_slice(&best[..y.len()]);
        }
    }
}

/// The number of cells that the backward is cut into.
pub(super) fn cells(s: &PoolShape) -> usize {
    s.y.frames().max(1) * s.clips * s.output.h.max(1)
}

/// What the backward of one cell reads.
pub(super) struct Backward<'a, E> {
    pub(super) x: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) relu: bool,
    pub(super) accumulate: bool,
}

/// Writes the frames and rows of dx that cell `index` owns: about one output's stride in time and height.
///
/// Cells own disjoint rows, so they may run at the same time. Windows that reach over several cells are
/// searched once for each.
#[inline(always)]
pub(super) fn backward_cell<E: Real>(s: &PoolShape, args: &Backward<'_, E>, index: usize, dx: &SharedMut<'_, E>) {
    let (cells_t, cells_h) = (s.y.lo..s.y.hi.max(s.y.lo + 1), 0..s.output.h.max(1));
    let ct = cells_t.start + index / (s.clips * cells_h.end);
    let (clip, ch) = (index / cells_h.end % s.clips, index % cells_h.end);
    let own_t = owned(ct, s.stride.t, s.padding.t, &cells_t, s.x.lo..s.x.hi);
    let own_h = owned(ch, s.stride.h, s.padding.h, &cells_h, 0..s.input.h);
    let row_len = s.input.w * s.channels;
    if !args.accumulate {
        for t in own_t.clone() {
            let at = row_at(s, t, clip, own_h.start);
            // SAFETY: cells own disjoint rows of dx, and each cell runs once.
            unsafe { dx.part(at..at + own_h.len() * row_len) }.fill(E::ZERO);
        }
    }
    for ot in covering(&own_t, s.kernel.t, s.stride.t, s.padding.t, s.y.lo..s.y.hi) {
        for oh in covering(&own_h, s.kernel.h, s.stride.h, s.padding.h, 0..s.output.h) {
            backward_row(s, args, (ot, clip, oh), &own_t, &own_h, dx);
        }
    }
}

/// Adds the gradient of one output row to the owned rows of dx.
#[inline(always)]
fn backward_row<E: Real>(
    s: &PoolShape,
    args: &Backward<'_, E>,
    (ot, clip, oh): (usize, usize, usize),
    own_t: &Range<usize>,
    own_h: &Range<usize>,
    dx: &SharedMut<'_, E>,
) {
    let row_len = s.output.w * s.channels;
    let dy_row = &args.dy[(((ot - s.y.lo) * s.clips + clip) * s.output.h + oh) * row_len..][..row_len];
    let t = covered(ot, s.kernel.t, s.stride.t, s.padding.t, s.input.t);
    let h = covered(oh, s.kernel.h, s.stride.h, s.padding.h, s.input.h);
    let mut window = Covered { t, h, w: 0..0 };
    for (ow, dy) in dy_row.chunks_exact(s.channels).enumerate() {
        window.w = covered(ow, s.kernel.w, s.stride.w, s.padding.w, s.input.w);
        for (block, dy) in dy.chunks(LANES).enumerate() {
            let c = block * LANES;
            let (best, place) = maximum(s, args.x, clip, &window, c, dy.len());
            let mut given = [E::ZERO; LANES];
            for ((given, dy), best) in given.iter_mut().zip(dy).zip(&best) {
                *given = if !args.relu || *best > E::ZERO { *dy } else { E::ZERO };
            }
            let mut here = 0;
            for t in window.t.clone() {
                for h in window.h.clone() {
                    if !own_t.contains(&t) || !own_h.contains(&h) {
                        here += window.w.len() as u32;
                        continue;
                    }
                    let row = row_at(s, t, clip, h) + c;
                    for w in window.w.clone() {
                        let at = row + w * s.channels;
                        // SAFETY: a row that this cell owns; the part is dropped before the next is taken.
                        let dx = unsafe { dx.part(at..at + dy.len()) };
                        match dx.first_chunk_mut::<LANES>() {
                            Some(dx) => give(dx, &given, &place, here),
                            None => give(dx, &given, &place, here),
                        }
                        here += 1;
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn give<E: Real>(dx: &mut [E], given: &[E; LANES], place: &[u32; LANES], here: u32) {
    for ((dx, given), place) in dx.iter_mut().zip(given).zip(place) {
        *dx += if *place == here { *given } else { E::ZERO };
    }
}
