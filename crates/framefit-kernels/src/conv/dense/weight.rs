//! The gradient by the weights.
//!
//! Output rows are cut into slices, each with its own partial sums; a slice is walked row by row, and each
//! stretch of a row meets all taps while it is in near memory. The partial sums have the layout of forward's
//! panels and are added up in order.

use std::ops::Range;

use super::weight_tile::{Strip, WeightTile, WeightTileSet};
use crate::conv::axis::{Axis, numbers};
use crate::conv::{ConvShape, ConvWeightGradientArgs};
use crate::isa::Isa;
use crate::shared::SharedMut;
use crate::threads::Pool;

/// Output positions that meet all taps before the next ones.
const STRETCH: usize = 128;

/// Rows of fewer positions than this are taken several together, up to MOST_ROWS.
const SHORT_ROW: usize = 64;

/// Rows that are taken together, at most.
const MOST_ROWS: usize = 16;

/// Rows of at most this many positions are copied whole where they have a border.
const COPIED_ROW: usize = 32;

/// Partial sums take at most this many elements, unless one slice alone takes more.
const PARTIALS: usize = 1 << 20;

/// Slices, at most.
const SLICES: usize = 64;

/// With fewer slices than this, tasks are cut along output channels and time taps, too.
const FEW_TASKS: usize = 16;

/// Rows of a panel that are added up by one task.
const REDUCED_ROWS: usize = 32;

/// Output channels of the widest block: two of the widest registers.
const MOST_LANES: usize = 32;

struct Weights<'s> {
    s: &'s ConvShape,
    t: Axis,
    h: Axis,
    w: Axis,
    width: usize,
    group_c: usize,
    group_k: usize,
    /// Registers of a group's output channels, and blocks of two or one of them.
    group_vectors: usize,
    group_blocks: usize,
    /// Elements of the partial weights and of the partial bias of one slice.
    weights_len: usize,
    lanes: usize,
    rows: usize,
    slices: usize,
    /// Tasks of one slice.
    units: usize,
}

/// One or two registers of output channels of one group.
#[derive(Clone, Copy)]
struct Block {
    group: usize,
    first: usize,
    channels: usize,
    vectors: usize,
    /// Where it starts in a slice's partial weights and partial bias.
    panel: usize,
    bias: usize,
}

impl<'s> Weights<'s> {
    fn new(s: &'s ConvShape, width: usize) -> Weights<'s> {
        let [t, h, w] = numbers(s);
        let (group_c, group_k) = (s.group_channels(), s.group_out_channels());
        let group_vectors = group_k.div_ceil(width);
        let lanes = s.groups * group_vectors * width;
        let weights_len = lanes * s.kernel.volume() * group_c;
        let rows = s.y.frames() * s.clips * s.output.h;
        let slices = (PARTIALS / weights_len.max(1)).clamp(1, SLICES).min(rows.max(1));
        let group_blocks = group_vectors.div_ceil(2);
        let units = if slices < FEW_TASKS { s.groups * group_blocks * s.kernel.t } else { 1 };
        Weights {
            s,
            t: Axis::forward(t, s.y.lo..s.y.hi, s.input.t),
            h: Axis::forward(h, 0..s.output.h, s.input.h),
            w: Axis::forward(w, 0..s.output.w, s.input.w),
            width,
            group_c,
            group_k,
            group_vectors,
            group_blocks,
            weights_len,
            lanes,
            rows,
            slices,
            units,
        }
    }

    fn block(&self, index: usize) -> Block {
        let (group, index) = (index / self.group_blocks, index % self.group_blocks);
        let vectors = (self.group_vectors - 2 * index).min(2);
        let first = 2 * index * self.width;
        let lanes = group * self.group_vectors * self.width + first;
        Block {
            group,
            first,
            channels: (self.group_k - first).min(vectors * self.width),
            vectors,
            panel: lanes * self.s.kernel.volume() * self.group_c,
            bias: lanes,
        }
    }

    fn blocks(&self) -> usize {
        self.s.groups * self.group_blocks
    }

    fn stretches(&self) -> usize {
        self.s.output.w.div_ceil(STRETCH)
    }

    /// The positions of one stretch that read left of, inside, and right of the input.
    fn parts(&self, stretch: usize) -> [Range<usize>; 3] {
        let (count, stretches) = (self.s.output.w, self.stretches());
        let (lo, hi) = (stretch * count / stretches, (stretch + 1) * count / stretches);
        let inside = self.w.interior();
        if inside.len() < count && count <= COPIED_ROW {
            return [lo..hi, hi..hi, hi..hi];
        }
        let (a, b) = (inside.start.clamp(lo, hi), inside.end.clamp(lo, hi));
        [lo..a, a..b, b..hi]
    }

    /// Elements of the zero-padded inputs of `positions` neighbouring positions.
    fn border_len(&self, positions: usize) -> usize {
        self.border_columns(positions) * self.s.channels
    }

    fn border_columns(&self, positions: usize) -> usize {
        if positions == 0 {
            return 0;
        }
        (positions - 1) * self.w.in_step + (self.w.taps - 1) * self.w.in_dilation + 1
    }

    /// Rows that are taken together.
    fn group_rows(&self) -> usize {
        (SHORT_ROW / self.s.output.w.max(1)).clamp(1, MOST_ROWS)
    }

    /// The longest left and right borders of any stretch, for each row of a group.
    fn borders(&self) -> [usize; 2] {
        let mut most = [0, 0];
        for stretch in 0..self.stretches() {
            let [left, _, right] = self.parts(stretch);
            most = [most[0].max(self.border_len(left.len())), most[1].max(self.border_len(right.len()))];
        }
        most
    }

    fn scratch(&self, threads: usize) -> usize {
        let [left, right] = self.borders();
        self.slices * (self.weights_len + self.lanes) + threads * self.group_rows() * (left + right)
    }

    fn x_row(&self, t: usize, clip: usize, h: usize) -> usize {
        let s = self.s;
        (((t - s.x.lo) * s.clips + clip) * s.input.h + h) * s.input.w * s.channels
    }
}

/// A thread's view of one task.
struct Work<'a> {
    weights: &'a Weights<'a>,
    tiles: &'a WeightTileSet,
    x: &'a [f32],
    dy: &'a [f32],
    /// Partial sums of the slice: whole panels, of which this task writes those of its blocks and time taps.
    partial: *mut f32,
    partial_bias: Option<*mut f32>,
    /// Zero-padded inputs, for each row of a group.
    borders: &'a mut [f32],
    left_len: usize,
    right_len: usize,
    blocks: Range<usize>,
    taps_t: Range<usize>,
}

impl Work<'_> {
    /// Sums of this task start at zero.
    fn clear(&self) {
        let it = self.weights;
        for index in self.blocks.clone() {
            let block = it.block(index);
            let lanes = block.vectors * it.width;
            let frame = it.s.kernel.h * it.s.kernel.w * it.group_c * lanes;
            // SAFETY: the panel of the block has kT frames; those of this task are its own.
            unsafe {
                let start = self.partial.add(block.panel + self.taps_t.start * frame);
                std::slice::from_raw_parts_mut(start, self.taps_t.len() * frame).fill(0.0);
            }
            if let Some(bias) = self.partial_bias {
                // SAFETY: the block's lanes of the slice's bias, which this task owns.
                unsafe { std::slice::from_raw_parts_mut(bias.add(block.bias), lanes).fill(0.0) };
            }
        }
    }

    /// Adds the products of a few neighbouring output rows.
    fn rows(&mut self, rows: Range<usize>) {
        let it = self.weights;
        let s = it.s;
        for stretch in 0..it.stretches() {
            let parts = it.parts(stretch);
            self.bias(rows.clone(), parts[0].start..parts[2].end);
            for jt in self.taps_t.clone() {
                for jh in 0..s.kernel.h {
                    self.tap_row(rows.clone(), &parts, jt, jh);
                }
            }
        }
    }

    /// Adds dy to the partial bias: as the gradient of a weight whose input is always one.
    fn bias(&self, rows: Range<usize>, positions: Range<usize>) {
        let it = self.weights;
        let Some(bias) = self.partial_bias else { return };
        let mut strips = [Strip::EMPTY; MOST_ROWS];
        for (strip, row) in strips.iter_mut().zip(rows.clone()) {
            *strip =
                Strip { x: &ONE, x_step: 0, dy: dy_at(it.s, self.dy, row, positions.start), count: positions.len() };
        }
        for index in self.blocks.clone() {
            let block = it.block(index);
            // SAFETY: each strip holds positions of one row of dy, of which the block's channels are read; the
            // sums are the block's lanes of the slice's bias, which this task owns; the tiles' instruction set
            // has been found.
            unsafe {
                self.tiles.functions(block.vectors)[0](&WeightTile {
                    strips: &strips[..rows.len()],
                    x_first: 0,
                    dy_first: block.group * it.group_k + block.first,
                    dy_step: it.s.out_channels,
                    last_lanes: block.channels - (block.vectors - 1) * it.width,
                    sums: bias.add(block.bias),
                });
            }
        }
    }

    /// The stretch's positions of each row that reads valid inputs at time tap `jt` and height tap `jh`: the
    /// strips' number.
    fn strips(
        &mut self,
        rows: Range<usize>,
        parts: &[Range<usize>; 3],
        (jt, jh): (usize, usize),
        strips: &mut [Strip; 3 * MOST_ROWS],
    ) -> usize {
        let it = self.weights;
        let s = it.s;
        let mut count = 0;
        let borders = self.borders.chunks_exact_mut((self.left_len + self.right_len).max(1));
        let mut borders = borders.map(Some).chain(std::iter::repeat_with(|| None));
        for row in rows {
            let border = borders.next().flatten().unwrap_or_default();
            let (oh, clip, qt) = (row % s.output.h, row / s.output.h % s.clips, row / s.output.h / s.clips);
            if !it.t.valid_taps(qt).contains(&jt) || !it.h.valid_taps(oh).contains(&jh) {
                continue;
            }
            let t = (it.t.input(qt) + (jt * it.t.in_dilation) as isize) as usize;
            let h = (it.h.input(oh) + (jh * it.h.in_dilation) as isize) as usize;
            let x_row = &self.x[it.x_row(t, clip, h)..][..s.input.w * s.channels];
            let (left, right) = border.split_at_mut(self.left_len);
            copy_border(it, x_row, &parts[0], left);
            copy_border(it, x_row, &parts[2], right);
            let inside = x_row.as_ptr().wrapping_offset(it.w.input(parts[1].start) * s.channels as isize);
            for (x, part) in [left.as_ptr(), inside, right.as_ptr()].into_iter().zip(parts) {
                if part.is_empty() {
                    continue;
                }
                let dy = dy_at(s, self.dy, row, part.start);
                strips[count] = Strip { x, x_step: s.stride.w * s.channels, dy, count: part.len() };
                count += 1;
            }
        }
        count
    }

    /// Adds the products of one stretch of each row of dy with the rows of x that it reads at one tap.
    fn tap_row(&mut self, rows: Range<usize>, parts: &[Range<usize>; 3], jt: usize, jh: usize) {
        let it = self.weights;
        let s = it.s;
        let mut strips = [Strip::EMPTY; 3 * MOST_ROWS];
        let count = self.strips(rows, parts, (jt, jh), &mut strips);
        let strips = &strips[..count];
        if strips.is_empty() {
            return;
        }
        // One run covers a kernel row where its inputs are neighbours.
        let joined = s.groups == 1 && s.dilation.w == 1;
        let (runs, run) = if joined { (1, s.kernel.w * it.group_c) } else { (s.kernel.w, it.group_c) };
        for index in self.blocks.clone() {
            let block = it.block(index);
            let functions = self.tiles.functions(block.vectors);
            let lanes = block.vectors * it.width;
            for jw in 0..runs {
                let x_first = jw * s.dilation.w * s.channels + block.group * it.group_c;
                let sums_row = ((jt * s.kernel.h + jh) * s.kernel.w + jw) * it.group_c;
                let count = run.div_ceil(functions.len());
                for tile in 0..count {
                    let elements = tile * run / count..(tile + 1) * run / count;
                    // SAFETY: each strip reads, for each of its positions, elements of one run of the slab's
                    // row or of a border, and the block's channels of positions of one row of dy. The sums
                    // are rows of the block's panel that this task owns. The tiles' instruction set has been
                    // found.
                    unsafe {
                        functions[elements.len() - 1](&WeightTile {
                            strips,
                            x_first: x_first + elements.start,
                            dy_first: block.group * it.group_k + block.first,
                            dy_step: s.out_channels,
                            last_lanes: block.channels - (block.vectors - 1) * it.width,
                            sums: self.partial.add(block.panel + (sums_row + elements.start) * lanes),
                        });
                    }
                }
            }
        }
    }
}

/// The address of the first channel at a position of a row of dy.
fn dy_at(s: &ConvShape, dy: &[f32], row: usize, position: usize) -> *const f32 {
    dy.as_ptr().wrapping_add((row * s.output.w + position) * s.out_channels)
}

static ONE: f32 = 1.0;

/// Copies the inputs of `positions`, zero where they lie outside the row.
fn copy_border(it: &Weights<'_>, x_row: &[f32], positions: &Range<usize>, border: &mut [f32]) {
    let channels = it.s.channels;
    let columns = it.border_columns(positions.len());
    if columns == 0 {
        return;
    }
    let first = it.w.input(positions.start);
    let clamp = |column: isize| column.clamp(0, it.s.input.w as isize) as usize;
    let (lo, hi) = (clamp(first), clamp(first + columns as isize));
    let before = ((lo as isize - first) as usize).min(columns);
    let (left, rest) = border[..columns * channels].split_at_mut(before * channels);
    let (middle, right) = rest.split_at_mut((hi - lo) * channels);
    left.fill(0.0);
    middle.copy_from_slice(&x_row[lo * channels..hi * channels]);
    right.fill(0.0);
}

/// dw and db += the sum of all slices' partial sums, slice after slice.
fn reduce(it: &Weights<'_>, partials: &[f32], biases: &[f32], args: (&mut [f32], Option<&mut [f32]>), pool: &Pool) {
    let (dw, db) = args;
    let row_len = it.s.kernel.volume() * it.group_c;
    let chunks = row_len.div_ceil(REDUCED_ROWS);
    let dw = SharedMut::new(dw);
    pool.run(it.blocks() * chunks, &|task| {
        let block = it.block(task.index / chunks);
        let lanes = block.vectors * it.width;
        let first = task.index % chunks * REDUCED_ROWS;
        let rows = (row_len - first).min(REDUCED_ROWS);
        let mut sums = [0.0; REDUCED_ROWS * MOST_LANES];
        let sums = &mut sums[..rows * lanes];
        for partial in partials.chunks_exact(it.weights_len) {
            let partial = &partial[block.panel + first * lanes..][..rows * lanes];
            for (sum, partial) in sums.iter_mut().zip(partial) {
                *sum += *partial;
            }
        }
        for lane in 0..block.channels {
            let k = block.group * it.group_k + block.first + lane;
            let at = k * row_len + first;
            // SAFETY: each task has its own output channels or its own rows of them.
            let dw = unsafe { dw.part(at..at + rows) };
            for (dw, sum) in dw.iter_mut().zip(sums[lane..].iter().step_by(lanes)) {
                *dw += *sum;
            }
        }
    });
    let Some(db) = db else { return };
    for index in 0..it.blocks() {
        let block = it.block(index);
        for lane in 0..block.channels {
            let sum: f32 = biases[block.bias + lane..].iter().step_by(it.lanes).sum();
            db[block.group * it.group_k + block.first + lane] += sum;
        }
    }
}

pub(in crate::conv) fn weight_gradient_scratch(isa: Isa, s: &ConvShape, threads: usize) -> usize {
    Weights::new(s, WeightTileSet::of(isa).width).scratch(threads)
}

pub(in crate::conv) fn weight_gradient(isa: Isa, s: &ConvShape, args: ConvWeightGradientArgs<'_, f32>, pool: &Pool) {
    assert!(isa.available(), "this machine has no {isa}");
    args.check(s, weight_gradient_scratch(isa, s, pool.threads()));
    let tiles = WeightTileSet::of(isa);
    let it = Weights::new(s, tiles.width);
    if it.rows == 0 || s.output.w == 0 || it.weights_len == 0 {
        return;
    }
    let [left_len, right_len] = it.borders();
    let border_len = it.group_rows() * (left_len + right_len);
    let (partials, scratch) = args.scratch.split_at_mut(it.slices * it.weights_len);
    let (biases, scratch) = scratch.split_at_mut(it.slices * it.lanes);
    let shared_partials = SharedMut::new(partials);
    let shared_biases = SharedMut::new(biases);
    let borders = SharedMut::new(&mut scratch[..pool.threads() * border_len]);
    let (x, dy, with_bias) = (args.x, args.dy, args.db.is_some());
    pool.run(it.slices * it.units, &|task| {
        let (slice, unit) = (task.index / it.units, task.index % it.units);
        let (blocks, taps_t) = if it.units == 1 {
            (0..it.blocks(), 0..s.kernel.t)
        } else {
            let (block, jt) = (unit / s.kernel.t, unit % s.kernel.t);
            (block..block + 1, jt..jt + 1)
        };
        // SAFETY: each thread has its own borders.
        let borders = unsafe { borders.part(task.thread * border_len..(task.thread + 1) * border_len) };
        let mut work = Work {
            weights: &it,
            tiles,
            x,
            dy,
            partial: shared_partials.start().wrapping_add(slice * it.weights_len),
            partial_bias: (with_bias && taps_t.start == 0)
                .then(|| shared_biases.start().wrapping_add(slice * it.lanes)),
            borders,
            left_len,
            right_len,
            blocks,
            taps_t,
        };
        work.clear();
        let rows = slice * it.rows / it.slices..(slice + 1) * it.rows / it.slices;
        for first in rows.clone().step_by(it.group_rows()) {
            work.rows(first..(first + it.group_rows()).min(rows.end));
        }
    });
    reduce(&it, partials, biases, (args.dw, args.db), pool);
}
