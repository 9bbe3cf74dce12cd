//! Maximum pooling with lanes over channels.

use super::geometry::Geometry;
use super::max::{self, Backward, Window3};
use super::{MaxPoolBackwardArgs, MaxPoolForwardArgs};
use crate::isa::Isa;
use crate::lanes::{Avx2, Avx512, Lanes};
use crate::shared::SharedMut;
use crate::threads::Pool;

/// The channels of one register.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    count: usize,
}

/// # Safety
///
/// The instruction set must be there, and x the slab of `s`.
#[inline(always)]
unsafe fn load<V: Lanes>(x: &[f32], at: usize, part: Part) -> V {
    let x = &x[at + part.first..][..part.count];
    // SAFETY: the slice holds the part; the caller has the instruction set.
    unsafe { if part.count == V::WIDTH { V::load(x.as_ptr()) } else { V::load_part(x.as_ptr(), part.count) } }
}

/// # Safety
///
/// The instruction set must be there.
#[inline(always)]
unsafe fn store<V: Lanes>(value: V, to: &mut [f32]) {
    // SAFETY: the slice holds at most a register; the caller has the instruction set.
    unsafe {
        if to.len() == V::WIDTH { value.store(to.as_mut_ptr()) } else { value.store_part(to.as_mut_ptr(), to.len()) }
    }
}

fn parts(channels: usize, width: usize) -> impl Iterator<Item = Part> {
    (0..channels).step_by(width).map(move |first| Part { first, count: (channels - first).min(width) })
}

/// The maximum over the window, NaN if it holds one.
///
/// # Safety
///
/// The instruction set must be there.
#[inline(always)]
unsafe fn maximum<V: Lanes>(s: &Geometry, x: &[f32], clip: usize, window: &Window3, part: Part) -> V {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let mut best = V::splat(f32::NEG_INFINITY);
        for t in window.t.clone() {
            for h in window.h.clone() {
                let row = s.x_row(t, clip, h);
                for w in window.w.clone() {
                    best = best.take_greater(load::<V>(x, row + w * s.channels, part));
                }
            }
        }
        best
    }
}

/// # Safety
///
/// The instruction set must be there.
#[inline(always)]
unsafe fn forward_row<V: Lanes>(s: &Geometry, x: &[f32], ot: usize, clip: usize, oh: usize, y_row: &mut [f32]) {
    let mut window = Window3::of_row(s, ot, oh);
    for (ow, y) in y_row.chunks_exact_mut(s.channels).enumerate() {
        window.w = s.w.covered(ow);
        for part in parts(s.channels, V::WIDTH) {
            // SAFETY: the caller has the instruction set.
            unsafe {
                let best = maximum::<V>(s, x, clip, &window, part);
                store(best, &mut y[part.first..part.first + part.count]);
            }
        }
    }
}

/// The same as [`max::backward_cell`].
///
/// # Safety
///
/// The instruction set must be there.
#[inline(always)]
unsafe fn backward_cell<V: Lanes>(s: &Geometry, args: &Backward<'_, f32>, index: usize, dx: &SharedMut<'_, f32>) {
    let cell = max::Cell::of(s, index);
    cell.clear(s, args.accumulate, dx);
    for ot in s.t.covering(&cell.t, s.y.lo..s.y.hi) {
        for oh in s.h.covering(&cell.h, 0..s.output.h) {
            let row_len = s.output.w * s.channels;
            let row = ((ot - s.y.lo) * s.clips + cell.clip) * s.output.h + oh;
            let dy_row = &args.dy[row * row_len..][..row_len];
            let mut window = Window3::of_row(s, ot, oh);
            for ow in 0..s.output.w {
                window.w = s.w.covered(ow);
                for part in parts(s.channels, V::WIDTH) {
                    // SAFETY: the caller has the instruction set.
                    unsafe {
                        let best = maximum::<V>(s, args.x, cell.clip, &window, part);
                        if best.any_nan() {
                            let dy = &dy_row[ow * s.channels + part.first..][..part.count];
                            max::backward_window(s, args, &cell, &window, part.first, dy, dx);
                            continue;
                        }
                        let mut given = load::<V>(dy_row, ow * s.channels, part);
                        if args.relu {
                            given = given.where_positive(best);
                        }
                        give(s, args.x, &cell, &window, part, (best, given), dx);
                    }
                }
            }
        }
    }
}

/// Adds the gradient `given` to the first input of the window that is `best`, where the cell owns it.
///
/// # Safety
///
/// The instruction set must be there.
#[inline(always)]
unsafe fn give<V: Lanes>(
    s: &Geometry,
    x: &[f32],
    cell: &max::Cell,
    window: &Window3,
    part: Part,
    (best, mut given): (V, V),
    dx: &SharedMut<'_, f32>,
) {
    for t in window.t.clone() {
        for h in window.h.clone() {
            let row = s.x_row(t, cell.clip, h);
            let owned = cell.owns(t, h);
            for w in window.w.clone() {
                let at = row + w * s.channels;
                // SAFETY: the caller has the instruction set; the cell owns the row that it writes, and the part
                // is dropped before the next is taken.
                unsafe {
                    let (hit, rest) = given.split_equal(load::<V>(x, at, part), best);
                    given = rest;
                    if owned {
                        let dx = dx.part(at + part.first..at + part.first + part.count);
                        let before = load::<V>(dx, 0, Part { first: 0, count: part.count });
                        store(before.add(hit), dx);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn forward_row_avx512(s: &Geometry, x: &[f32], ot: usize, clip: usize, oh: usize, y_row: &mut [f32]) {
    // SAFETY: the instruction set is this function's.
    unsafe { forward_row::<Avx512>(s, x, ot, clip, oh, y_row) }
}

#[target_feature(enable = "avx2,fma")]
fn forward_row_avx2(s: &Geometry, x: &[f32], ot: usize, clip: usize, oh: usize, y_row: &mut [f32]) {
    // SAFETY: the instruction set is this function's.
    unsafe { forward_row::<Avx2>(s, x, ot, clip, oh, y_row) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn backward_cell_avx512(s: &Geometry, args: &Backward<'_, f32>, index: usize, dx: &SharedMut<'_, f32>) {
    // SAFETY: the instruction set is this function's.
    unsafe { backward_cell::<Avx512>(s, args, index, dx) }
}

#[target_feature(enable = "avx2,fma")]
fn backward_cell_avx2(s: &Geometry, args: &Backward<'_, f32>, index: usize, dx: &SharedMut<'_, f32>) {
    // SAFETY: the instruction set is this function's.
    unsafe { backward_cell::<Avx2>(s, args, index, dx) }
}

pub(super) fn forward(isa: Isa, s: &Geometry, args: MaxPoolForwardArgs<'_, f32>, pool: &Pool) {
    assert!(isa.available(), "this machine has no {isa}");
    super::forward(s, args, pool, |s, x, ot, clip, oh, y_row| match isa {
        // SAFETY: the instruction set is there.
        Isa::Avx512 => unsafe { forward_row_avx512(s, x, ot, clip, oh, y_row) },
        // SAFETY: the instruction set is there.
        Isa::Avx2 => unsafe { forward_row_avx2(s, x, ot, clip, oh, y_row) },
        Isa::Scalar => max::forward_row(s, x, ot, clip, oh, y_row),
    });
}

pub(super) fn backward(isa: Isa, s: &Geometry, args: MaxPoolBackwardArgs<'_, f32>, pool: &Pool) {
    assert!(isa.available(), "this machine has no {isa}");
    super::backward(s, args, pool, |s, args, index, dx| match isa {
        // SAFETY: the instruction set is there.
        Isa::Avx512 => unsafe { backward_cell_avx512(s, args, index, dx) },
        // SAFETY: the instruction set is there.
        Isa::Avx2 => unsafe { backward_cell_avx2(s, args, index, dx) },
        Isa::Scalar => max::backward_cell(s, args, index, dx),
    });
}
