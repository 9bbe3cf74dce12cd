//! What maximum pooling covers, and its plain loops.

use std::ops::Range;

use super::geometry::Geometry;
use crate::real::Real;
use crate::shared::SharedMut;

/// The window of one output: input frames, rows and columns.
pub(super) struct Window3 {
    pub(super) t: Range<usize>,
    pub(super) h: Range<usize>,
    pub(super) w: Range<usize>,
}

impl Window3 {
    /// The frames and rows that the outputs of row `oh` of frame `ot` cover; no columns yet.
    pub(super) fn of_row(s: &Geometry, ot: usize, oh: usize) -> Window3 {
        Window3 { t: s.t.covered(ot), h: s.h.covered(oh), w: 0..0 }
    }
}

/// The maximum of channel `c` over the window, and where it lies in x.
fn maximum<E: Real>(s: &Geometry, x: &[E], clip: usize, window: &Window3, c: usize) -> (E, usize) {
    let (mut best, mut place) = (E::NEG_INFINITY, None);
    for t in window.t.clone() {
        for h in window.h.clone() {
            for w in window.w.clone() {
                let at = s.x_row(t, clip, h) + w * s.channels + c;
                let x = x[at];
                if place.is_none() || x > best || x.is_nan() {
                    (best, place) = (x, Some(at));
                }
            }
        }
    }
    (best, place.unwrap_or(0))
}

/// One output row: y_row\[W', C\].
pub(super) fn forward_row<E: Real>(s: &Geometry, x: &[E], ot: usize, clip: usize, oh: usize, y_row: &mut [E]) {
    let mut window = Window3::of_row(s, ot, oh);
    for (ow, y) in y_row.chunks_exact_mut(s.channels).enumerate() {
        window.w = s.w.covered(ow);
        for (c, y) in y.iter_mut().enumerate() {
            *y = maximum(s, x, clip, &window, c).0;
        }
    }
}

/// The number of cells that the backward is cut into.
pub(super) fn cells(s: &Geometry) -> usize {
    s.y.frames().max(1) * s.clips * s.output.h.max(1)
}

/// The frames and rows of dx that one task writes: about one output's stride in time and height.
///
/// Cells own disjoint rows, so they may run at the same time. Windows that reach over several cells are
/// searched once for each.
pub(super) struct Cell {
    pub(super) clip: usize,
    pub(super) t: Range<usize>,
    pub(super) h: Range<usize>,
}

impl Cell {
    pub(super) fn of(s: &Geometry, index: usize) -> Cell {
        let (cells_t, cells_h) = (s.y.lo..s.y.hi.max(s.y.lo + 1), 0..s.output.h.max(1));
        let t = cells_t.start + index / (s.clips * cells_h.end);
        let h = index % cells_h.end;
        Cell {
            clip: index / cells_h.end % s.clips,
            t: s.t.owned(t, &cells_t, s.x.lo..s.x.hi),
            h: s.h.owned(h, &cells_h, 0..s.input.h),
        }
    }

    pub(super) fn owns(&self, t: usize, h: usize) -> bool {
        self.t.contains(&t) && self.h.contains(&h)
    }

    /// Makes the cell's rows zero, unless the gradient is added to what they hold.
    pub(super) fn clear<E: Real>(&self, s: &Geometry, accumulate: bool, dx: &SharedMut<'_, E>) {
        if accumulate {
            return;
        }
        for t in self.t.clone() {
            let at = s.x_row(t, self.clip, self.h.start);
            // SAFETY: cells own disjoint rows of dx, and each cell runs once.
            unsafe { dx.part(at..at + self.h.len() * s.input.w * s.channels) }.fill(E::ZERO);
        }
    }
}

/// What the backward of one cell reads.
pub(super) struct Backward<'a, E> {
    pub(super) x: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) relu: bool,
    pub(super) accumulate: bool,
}

/// Writes the frames and rows of dx that cell `index` owns.
pub(super) fn backward_cell<E: Real>(s: &Geometry, args: &Backward<'_, E>, index: usize, dx: &SharedMut<'_, E>) {
    let cell = Cell::of(s, index);
    cell.clear(s, args.accumulate, dx);
    for ot in s.t.covering(&cell.t, s.y.lo..s.y.hi) {
        for oh in s.h.covering(&cell.h, 0..s.output.h) {
            let row_len = s.output.w * s.channels;
            let row = ((ot - s.y.lo) * s.clips + cell.clip) * s.output.h + oh;
            let mut window = Window3::of_row(s, ot, oh);
            for (ow, dy) in args.dy[row * row_len..][..row_len].chunks_exact(s.channels).enumerate() {
                window.w = s.w.covered(ow);
                backward_window(s, args, &cell, &window, 0, dy, dx);
            }
        }
    }
}

/// Adds the gradient of one output's channels from `first` on, where the cell owns their maxima.
pub(super) fn backward_window<E: Real>(
    s: &Geometry,
    args: &Backward<'_, E>,
    cell: &Cell,
    window: &Window3,
    first: usize,
    dy: &[E],
    dx: &SharedMut<'_, E>,
) {
    for (c, dy) in dy.iter().enumerate() {
        let (best, at) = maximum(s, args.x, cell.clip, window, first + c);
        let row = at / (s.input.w * s.channels);
        let (t, h) = (row / s.input.h / s.clips + s.x.lo, row % s.input.h);
        if cell.owns(t, h) && (!args.relu || best > E::ZERO) {
            // SAFETY: an element of a row that this cell owns, dropped before the next is taken.
            let dx = unsafe { dx.part(at..at + 1) };
            dx[0] += *dy;
        }
    }
}
