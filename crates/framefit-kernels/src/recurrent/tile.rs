//! Cells are computed in tiles: the same gate of several positions, side by side in cache.

/// Elements of a plane.
pub(super) const TILE: usize = 512;

/// Elements of a state that one task computes, about.
const TASK: usize = 8 * 1024;

/// One gate of a tile.
pub(super) type Plane<E> = [E; TILE];

/// Positions of one task.
pub(super) fn task_positions(units: usize) -> usize {
    (TASK / units.max(1)).max(1)
}

/// Some units of some positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    first: usize,
    positions: usize,
    unit: usize,
    width: usize,
}

impl Tile {
    /// The tiles of `positions` positions of `units` units.
    #[inline(always)]
    pub(super) fn all(positions: usize, units: usize) -> impl Iterator<Item = Tile> {
        let (rows, width) = ((TILE / units.max(1)).max(1), units.clamp(1, TILE));
        let columns = units.div_ceil(width);
        (0..positions.div_ceil(rows) * columns).map(move |i| {
            let (first, unit) = (i / columns * rows, i % columns * width);
            Tile { first, positions: rows.min(positions - first), unit, width: width.min(units - unit) }
        })
    }

    /// Elements of the tile.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.positions * self.width
    }

    /// Reads gate `gate` of `gates` from \[P, gates, K\].
    #[inline(always)]
    pub(super) fn gather<E: Copy>(&self, from: &[E], (gate, gates): (usize, usize), units: usize, to: &mut Plane<E>) {
        if gates == 1 && self.width == units {
            to[..self.len()].copy_from_slice(&from[self.first * units..][..self.len()]);
            return;
        }
        for (i, to) in to[..self.len()].chunks_exact_mut(self.width).enumerate() {
            let at = ((self.first + i) * gates + gate) * units + self.unit;
            for (to, from) in to.iter_mut().zip(&from[at..at + self.width]) {
                *to = *from;
            }
        }
    }

    /// Writes gate `gate` of `gates` to \[P, gates, K\].
    #[inline(always)]
    pub(super) fn scatter<E: Copy>(&self, from: &Plane<E>, (gate, gates): (usize, usize), units: usize, to: &mut [E]) {
        if gates == 1 && self.width == units {
            to[self.first * units..][..self.len()].copy_from_slice(&from[..self.len()]);
            return;
        }
        for (i, from) in from[..self.len()].chunks_exact(self.width).enumerate() {
            let at = ((self.first + i) * gates + gate) * units + self.unit;
            for (to, from) in to[at..at + self.width].iter_mut().zip(from) {
                *to = *from;
            }
        }
    }
}
