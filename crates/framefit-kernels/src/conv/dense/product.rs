//! Forward and gradient by the input: what is packed, how the work is cut, and which tiles run.

use std::ops::Range;

use super::tile::{Taps, Tile, TileFn, TileSet};
use crate::conv::axis::{Axis, numbers, phases};
use crate::conv::{ConvForwardArgs, ConvInputGradientArgs, ConvShape};
use crate::isa::Isa;
use crate::shared::SharedMut;
use crate::threads::Pool;

/// A task covers about this many output positions, so that a panel is read from near memory for most of them.
const TASK_POSITIONS: usize = 112;

/// With fewer blocks of rows than this, tasks are cut along output channels, too.
const FEW_TASKS: usize = 16;

/// Rows of a panel that are packed together: a cache line of each output channel's weights.
const PACKED_ROWS: usize = 16;

/// A sum over taps and input channels, for every output position of three axes.
struct Product {
    t: Axis,
    h: Axis,
    w: Axis,
    clips: usize,
    groups: usize,
    /// Input channels of a group, and of all groups.
    in_group: usize,
    in_channels: usize,
    /// Output channels of a group, and of all groups.
    out_group: usize,
    out_channels: usize,
    /// The first frame of the input slab, and its height and width.
    in_lo: usize,
    in_height: usize,
    in_width: usize,
    /// The first frame of the output slab, and its height and width.
    out_lo: usize,
    out_height: usize,
    out_width: usize,
    /// kH, kW of the stored weight.
    kernel_h: usize,
    kernel_w: usize,
    /// Elements between output channels, taps and input channels of the stored weight; and between groups.
    w_out: usize,
    w_tap: usize,
    w_in: usize,
    w_group: usize,
}

/// One panel: a few registers of output channels of one group.
#[derive(Clone, Copy)]
struct Block {
    group: usize,
    /// The first output channel in the group, and their number.
    first: usize,
    channels: usize,
    vectors: usize,
    /// Where the panel starts in the packed weights, and its bias in the packed bias.
    panel: usize,
    bias: usize,
}

impl Product {
    fn forward(s: &ConvShape) -> Product {
        let [t, h, w] = numbers(s);
        let volume = s.kernel.volume();
        Product {
            t: Axis::forward(t, s.y.lo..s.y.hi, s.input.t),
            h: Axis::forward(h, 0..s.output.h, s.input.h),
            w: Axis::forward(w, 0..s.output.w, s.input.w),
            clips: s.clips,
            groups: s.groups,
            in_group: s.group_channels(),
            in_channels: s.channels,
            out_group: s.group_out_channels(),
            out_channels: s.out_channels,
            in_lo: s.x.lo,
            in_height: s.input.h,
            in_width: s.input.w,
            out_lo: s.y.lo,
            out_height: s.output.h,
            out_width: s.output.w,
            kernel_h: s.kernel.h,
            kernel_w: s.kernel.w,
            w_out: volume * s.group_channels(),
            w_tap: s.group_channels(),
            w_in: 1,
            w_group: s.group_out_channels() * volume * s.group_channels(),
        }
    }

    /// The inputs whose remainders by the strides are `phase`.
    fn input_gradient(s: &ConvShape, phase: [usize; 3]) -> Product {
        let [t, h, w] = numbers(s);
        let forward = Product::forward(s);
        Product {
            t: Axis::backward(t, phase[0], s.x.lo..s.x.hi, s.y.lo..s.y.hi),
            h: Axis::backward(h, phase[1], 0..s.input.h, 0..s.output.h),
            w: Axis::backward(w, phase[2], 0..s.input.w, 0..s.output.w),
            in_group: forward.out_group,
            in_channels: forward.out_channels,
            out_group: forward.in_group,
            out_channels: forward.in_channels,
            in_lo: forward.out_lo,
            in_height: forward.out_height,
            in_width: forward.out_width,
            out_lo: forward.in_lo,
            out_height: forward.in_height,
            out_width: forward.in_width,
            w_out: forward.w_in,
            w_in: forward.w_out,
            ..forward
        }
    }

    fn taps(&self) -> usize {
        self.t.taps * self.h.taps * self.w.taps
    }

    /// Registers that hold the output channels of a group.
    fn group_vectors(&self, width: usize) -> usize {
        self.out_group.div_ceil(width)
    }

    /// Registers of one block: four where rows are too short to fill a tile of two.
    fn block_vectors(&self, tiles: &TileSet) -> usize {
        if self.group_vectors(tiles.width) >= 4 && self.w.count <= tiles.four.len() { 4 } else { 2 }
    }

    /// Blocks of one group: full ones, then two or one registers for the rest.
    fn group_blocks(&self, tiles: &TileSet) -> usize {
        let vectors = self.group_vectors(tiles.width);
        let full = self.block_vectors(tiles);
        let rest = vectors % full;
        vectors / full + rest / 2 + rest % 2
    }

    fn block(&self, tiles: &TileSet, index: usize) -> Block {
        let width = tiles.width;
        let per_group = self.group_blocks(tiles);
        let (group, index) = (index / per_group, index % per_group);
        let total = self.group_vectors(width);
        let full = self.block_vectors(tiles);
        let whole = total / full;
        let (before, vectors) = if index < whole {
            (index * full, full)
        } else {
            let before = whole * full + 2 * (index - whole);
            (before, (total - before).min(2))
        };
        let first = before * width;
        let lanes = group * total * width + first;
        Block {
            group,
            first,
            channels: (self.out_group - first).min(vectors * width),
            vectors,
            panel: lanes * self.taps() * self.in_group,
            bias: lanes,
        }
    }

    fn lanes(&self, width: usize) -> usize {
        self.groups * self.group_vectors(width) * width
    }

    fn panels_len(&self, width: usize) -> usize {
        self.lanes(width) * self.taps() * self.in_group
    }

    /// Elements of one thread's zero-padded copy of the inputs of a tile.
    fn border_len(&self, tiles: &TileSet) -> usize {
        if self.taps() == 0 {
            return 0;
        }
        self.t.taps * self.h.taps * self.border_columns(tiles.one.len()) * self.in_channels
    }

    /// Input columns that `positions` neighbouring positions read.
    fn border_columns(&self, positions: usize) -> usize {
        (positions - 1) * self.w.in_step + (self.w.taps - 1) * self.w.in_dilation + 1
    }

    fn scratch(&self, tiles: &TileSet, threads: usize) -> usize {
        self.panels_len(tiles.width) + self.lanes(tiles.width) + threads * self.border_len(tiles)
    }

    /// Fills the panel of a block: \[taps\]\[input channels\]\[registers · lanes\], zero where there is no channel.
    fn pack(&self, block: Block, width: usize, w: &[f32], panel: &mut [f32]) {
        let lanes = block.vectors * width;
        let w = &w[block.group * self.w_group + block.first * self.w_out..];
        let mut taps = panel.chunks_exact_mut(lanes * self.in_group);
        for jt in 0..self.t.taps {
            for jh in 0..self.h.taps {
                for jw in 0..self.w.taps {
                    let tap = (self.t.tap(jt) * self.kernel_h + self.h.tap(jh)) * self.kernel_w + self.w.tap(jw);
                    if let Some(panel) = taps.next() {
                        self.pack_tap(&w[tap * self.w_tap..], lanes, block.channels, panel);
                    }
                }
            }
        }
    }

    /// One tap of a panel: \[input channels\]\[lanes\].
    fn pack_tap(&self, w: &[f32], lanes: usize, channels: usize, panel: &mut [f32]) {
        for (group, panel) in panel.chunks_mut(PACKED_ROWS * lanes).enumerate() {
            let first = group * PACKED_ROWS;
            if self.w_out == 1 {
                for (row, panel) in panel.chunks_exact_mut(lanes).enumerate() {
                    panel[..channels].copy_from_slice(&w[(first + row) * self.w_in..][..channels]);
                    panel[channels..].fill(0.0);
                }
                continue;
            }
            let rows = panel.len() / lanes;
            for lane in 0..channels {
                let from = w[lane * self.w_out + first * self.w_in..].iter().step_by(self.w_in);
                for (to, from) in panel[lane..].iter_mut().step_by(lanes).zip(from.take(rows)) {
                    *to = *from;
                }
            }
            for row in panel.chunks_exact_mut(lanes) {
                row[channels..].fill(0.0);
            }
        }
    }

    fn run(&self, tiles: &TileSet, io: Io<'_>, scratch: &mut [f32], pool: &Pool) {
        let width = tiles.width;
        let (panels, scratch) = scratch.split_at_mut(self.panels_len(width));
        let (bias, scratch) = scratch.split_at_mut(self.lanes(width));
        let borders = &mut scratch[..pool.threads() * self.border_len(tiles)];
        let blocks = self.groups * self.group_blocks(tiles);

        bias.fill(0.0);
        if let Some(given) = io.bias {
            for index in 0..blocks {
                let block = self.block(tiles, index);
                let from = &given[block.group * self.out_group + block.first..][..block.channels];
                bias[block.bias..][..block.channels].copy_from_slice(from);
            }
        }
        let shared = SharedMut::new(panels);
        pool.run(blocks, &|task| {
            let block = self.block(tiles, task.index);
            let len = block.vectors * width * self.taps() * self.in_group;
            // SAFETY: the panels of blocks are disjoint, and each task packs one.
            let panel = unsafe { shared.part(block.panel..block.panel + len) };
            self.pack(block, width, io.w, panel);
        });

        let rows = self.t.count * self.clips * self.h.count;
        if rows == 0 || self.w.count == 0 {
            return;
        }
        let task_rows = TASK_POSITIONS.div_ceil(self.w.count).min(rows);
        let row_blocks = rows.div_ceil(task_rows);
        let splits = if row_blocks < FEW_TASKS { blocks } else { 1 };
        let border_len = self.border_len(tiles);
        let (panels, bias) = (&*panels, &*bias);
        let (y, borders) = (SharedMut::new(io.y), SharedMut::new(borders));
        pool.run(row_blocks * splits, &|task| {
            let (row_block, split) = (task.index / splits, task.index % splits);
            // SAFETY: each thread has its own border.
            let border = unsafe { borders.part(task.thread * border_len..(task.thread + 1) * border_len) };
            let mut work = Work { product: self, io: &io.shared, tiles, panels, bias, border, y: &y };
            for index in split * blocks / splits..(split + 1) * blocks / splits {
                let block = self.block(tiles, index);
                for row in row_block * task_rows..((row_block + 1) * task_rows).min(rows) {
                    work.row(block, row);
                }
            }
        });
    }
}

/// What a product reads and writes.
struct Io<'a> {
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    y: &'a mut [f32],
    shared: Shared<'a>,
}

struct Shared<'a> {
    x: &'a [f32],
    relu: bool,
    accumulate: bool,
}

/// A thread's view of a product.
struct Work<'a> {
    product: &'a Product,
    io: &'a Shared<'a>,
    tiles: &'a TileSet,
    panels: &'a [f32],
    bias: &'a [f32],
    border: &'a mut [f32],
    y: &'a SharedMut<'a, f32>,
}

impl Work<'_> {
    /// Computes the channels of `block` for one row of output positions.
    fn row(&mut self, block: Block, row: usize) {
        let p = self.product;
        let (qh, clip, qt) = (row % p.h.count, row / p.h.count % p.clips, row / p.h.count / p.clips);
        let (taps_t, taps_h) = (p.t.valid_taps(qt), p.h.valid_taps(qh));
        let functions = match block.vectors {
            1 => self.tiles.one,
            2 => self.tiles.two,
            _ => self.tiles.four,
        };
        let interior = p.w.interior();
        let count = p.w.count.div_ceil(functions.len());
        let out_row = {
            let t = p.t.out_first + qt * p.t.out_step - p.out_lo;
            let h = p.h.out_first + qh * p.h.out_step;
            ((t * p.clips + clip) * p.out_height + h) * p.out_width
        };
        for index in 0..count {
            let positions = index * p.w.count / count..(index + 1) * p.w.count / count;
            let inside = interior.start <= positions.start && positions.end <= interior.end;
            let place = Place { qt, qh, clip, taps_t: taps_t.clone(), taps_h: taps_h.clone(), positions, inside };
            let column = p.w.out_first + place.positions.start * p.w.out_step;
            let y = (out_row + column) * p.out_channels + block.group * p.out_group + block.first;
            self.tile(block, functions[place.positions.len() - 1], &place, y);
        }
    }

    /// Computes one tile whose first output is at `y`.
    fn tile(&mut self, block: Block, function: TileFn, place: &Place, y: usize) {
        let p = self.product;
        let width = self.tiles.width;
        let lanes = block.vectors * width;
        let (kernel_w, tap_len) = (p.w.taps, p.in_group * lanes);
        let empty = place.taps_t.is_empty() || place.taps_h.is_empty() || kernel_w == 0;
        let (x, x_t, x_h) = if empty {
            (self.io.x.as_ptr(), 0, 0)
        } else if place.inside {
            self.inside(place)
        } else {
            self.copy_border(place)
        };
        // One run covers a kernel row where its inputs are neighbours.
        let joined = p.groups == 1 && p.w.in_dilation == 1;
        let (runs, run) = if joined { (1, kernel_w * p.in_group) } else { (kernel_w, p.in_group) };
        let first_tap = (place.taps_t.start * p.h.taps + place.taps_h.start) * kernel_w;
        let used = (place.positions.len() - 1) * p.w.out_step * p.out_channels + block.channels;
        assert!(y + used <= self.y.len());
        // SAFETY: the panel of the block has taps · in_group rows of `lanes`, of which the tile reads those
        // from first_tap on; the bias has `lanes` elements. Inputs: `inside` and `copy_border` give addresses
        // whose taps and positions all lie in the slab or the border, plus the group's channels. Outputs:
        // asserted to be in y; rows, blocks and positions of different tasks are disjoint. The tile functions
        // belong to an instruction set that `tiles` has found.
        unsafe {
            function(&Tile {
                x: x.wrapping_add(block.group * p.in_group),
                x_step: p.w.in_step * p.in_channels,
                panel: self.panels.as_ptr().add(block.panel + if empty { 0 } else { first_tap * tap_len }),
                t: Taps {
                    count: if empty { 0 } else { place.taps_t.len() },
                    x_pitch: x_t,
                    w_pitch: p.h.taps * kernel_w * tap_len,
                },
                h: Taps { count: place.taps_h.len(), x_pitch: x_h, w_pitch: kernel_w * tap_len },
                w: Taps { count: runs, x_pitch: p.w.in_dilation * p.in_channels, w_pitch: tap_len },
                run,
                y: self.y.start().add(y),
                y_step: p.w.out_step * p.out_channels,
                last_lanes: block.channels - (block.vectors - 1) * width,
                bias: self.bias.as_ptr().add(block.bias),
                relu: self.io.relu,
                accumulate: self.io.accumulate,
            });
        }
    }

    /// The address of the tile's first input, and the distance of taps in time and height, in the slab.
    fn inside(&self, place: &Place) -> (*const f32, usize, usize) {
        let p = self.product;
        let column = p.w.input(place.positions.start) as usize;
        let x = &self.io.x[input_row(p, place, place.taps_t.start, place.taps_h.start) + column * p.in_channels..];
        let row = p.in_width * p.in_channels;
        (x.as_ptr(), p.t.in_dilation * p.clips * p.in_height * row, p.h.in_dilation * row)
    }

    /// Copies the tile's inputs to the border, zero where they lie outside: the same as `inside` gives.
    fn copy_border(&mut self, place: &Place) -> (*const f32, usize, usize) {
        let p = self.product;
        let columns = p.border_columns(place.positions.len());
        let row_len = columns * p.in_channels;
        let first = p.w.input(place.positions.start);
        let clamp = |column: isize| column.clamp(0, p.in_width as isize) as usize;
        let (lo, hi) = (clamp(first), clamp(first + columns as isize));
        let before = ((lo as isize - first) as usize).min(columns);
        let mut rows = 0;
        for jt in place.taps_t.clone() {
            for jh in place.taps_h.clone() {
                let row = &mut self.border[rows * row_len..][..row_len];
                let from = input_row(p, place, jt, jh);
                let (left, rest) = row.split_at_mut(before * p.in_channels);
                let (middle, right) = rest.split_at_mut((hi - lo) * p.in_channels);
                left.fill(0.0);
                middle.copy_from_slice(&self.io.x[from + lo * p.in_channels..from + hi * p.in_channels]);
                right.fill(0.0);
                rows += 1;
            }
        }
        (self.border.as_ptr(), place.taps_h.len() * row_len, row_len)
    }
}

/// Where the input row of a tap starts in the slab.
fn input_row(p: &Product, place: &Place, jt: usize, jh: usize) -> usize {
    let t = p.t.input(place.qt) + (jt * p.t.in_dilation) as isize - p.in_lo as isize;
    let h = p.h.input(place.qh) + (jh * p.h.in_dilation) as isize;
    ((t as usize * p.clips + place.clip) * p.in_height + h as usize) * p.in_width * p.in_channels
}

/// Neighbouring positions of one output row.
struct Place {
    qt: usize,
    qh: usize,
    clip: usize,
    taps_t: Range<usize>,
    taps_h: Range<usize>,
    positions: Range<usize>,
    /// Whether no position reads outside the input's width.
    inside: bool,
}

pub(in crate::conv) fn forward_scratch(isa: Isa, s: &ConvShape, threads: usize) -> usize {
    Product::forward(s).scratch(super::shapes(isa), threads)
}

pub(in crate::conv) fn forward(isa: Isa, s: &ConvShape, args: ConvForwardArgs<'_, f32>, pool: &Pool) {
    args.check(s, forward_scratch(isa, s, pool.threads()));
    let io = Io {
        w: args.w,
        bias: args.bias,
        y: args.y,
        shared: Shared { x: args.x, relu: args.relu, accumulate: args.accumulate },
    };
    Product::forward(s).run(super::tiles(isa), io, args.scratch, pool);
}

pub(in crate::conv) fn input_gradient_scratch(isa: Isa, s: &ConvShape, threads: usize) -> usize {
    let sizes = phases(s).map(|phase| Product::input_gradient(s, phase).scratch(super::shapes(isa), threads));
    sizes.max().unwrap_or(0)
}

pub(in crate::conv) fn input_gradient(isa: Isa, s: &ConvShape, args: ConvInputGradientArgs<'_, f32>, pool: &Pool) {
    args.check(s, input_gradient_scratch(isa, s, pool.threads()));
    for phase in phases(s) {
        let io = Io {
            w: args.w,
            bias: None,
            y: &mut *args.dx,
            shared: Shared { x: args.dy, relu: false, accumulate: args.accumulate },
        };
        Product::input_gradient(s, phase).run(super::tiles(isa), io, &mut *args.scratch, pool);
    }
}
