//! Recurrent layers: the products with the frames of a segment, and its frames one by one, forwards and backwards.

mod cell;
mod dropout;
mod product;

use super::{Asked, Layer, OnKernels, aligned, scratch_of};
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements, present};
use cell::Before;
use dropout::Zeros;
use framefit_core::ops::{Cell, Recurrent};
use framefit_core::schedule::{Pass, Role, Step};
use framefit_kernels::conv::{ConvForwardArgs, ConvInputGradientArgs, ConvWeightGradientArgs};
use framefit_kernels::elementwise::AdditionArgs;
use framefit_kernels::mean::{MeanForwardArgs, MeanShape};
use framefit_kernels::recurrent::CellShape;
use framefit_kernels::{Arena, choose};
use product::{Product, of_vectors};
use std::ops::Range;

/// Vectors whose gates are computed at once where the gates are not kept.
const ROWS_AT_ONCE: usize = 256;

/// A recurrent layer at work on the frames of a segment.
struct Work<'a, 'c, E> {
    op: &'a Recurrent,
    call: &'a Call<'c, E>,
    layer: Layer<'a>,
    /// T of the segment.
    frames: usize,
    /// P = N·H'·W', and K.
    cell: CellShape,
    /// What is dropped of the states.
    zeros: Option<Zeros<'a>>,
}

fn cell_of(op: &Recurrent, layer: &Layer<'_>) -> CellShape {
    CellShape { positions: layer.clips * layer.output.dims.h * layer.output.dims.w, units: op.filters }
}

/// How the gates of a unit lie in the buffer of gates: 3 and 0 are `[T,P,3,K]`; 2 and 1 are `[T,P,2,K]` and behind it
/// `[T,P,K]`, where products with different things are added to the gates and to the candidate.
const fn parts(cell: Cell) -> [usize; 2] {
    match cell {
        Cell::Lstm => [4, 0],
        Cell::GruResetAfter => [3, 0],
        Cell::GruResetBefore => [2, 1],
    }
}

/// Of each part that there is, its place, and the range of its gates among all of a unit.
fn ranges(cell: Cell) -> impl Iterator<Item = (usize, Range<usize>)> {
    let [first, second] = parts(cell);
    [0..first, first..first + second].into_iter().enumerate().filter(|(_, gates)| !gates.is_empty())
}

/// The part of a weight or a bias that makes some gates.
fn rows(cell: Cell, all: usize, gates: &Range<usize>) -> Range<usize> {
    let one = all / cell.gates_per_unit();
    gates.start * one..gates.end * one
}

/// The biases of the products with the frame and with the state. Keras's GRU that resets after the product has both in
/// one tensor.
fn biases<'b, E>(op: &Recurrent, bias: &'b mut [E], recurrent: &'b mut [E]) -> [&'b mut [E]; 2] {
    if bias.len() == 2 * op.gates() {
        let (bias, recurrent) = bias.split_at_mut(op.gates());
        return [bias, recurrent];
    }
    [bias, recurrent]
}

/// Whether only the sum of both biases matters.
const fn joins_biases(cell: Cell) -> bool {
    match cell {
        Cell::Lstm | Cell::GruResetBefore => true,
        Cell::GruResetAfter => false,
    }
}

/// Frames whose products are computed at once: of vectors all where their gates are kept, else some; of maps one, so
/// that it is still in near memory when it is used.
fn at_once(op: &Recurrent, layer: &Layer<'_>, kept: bool) -> usize {
    let frames = layer.made.len().max(1);
    match (of_vectors(op, layer), kept) {
        (false, _) => 1,
        (true, true) => frames,
        (true, false) => (ROWS_AT_ONCE / layer.clips.max(1)).clamp(1, frames),
    }
}

/// Scratch of the forward besides that of its products: the sum of the biases, the gates of the frames that are
/// computed at once, and what one frame would keep of the products with the state.
fn passing<E>(op: &Recurrent, layer: &Layer<'_>) -> [usize; 3] {
    let biases = if op.bias && joins_biases(op.cell) { op.gates() } else { 0 };
    let CellShape { positions, units } = cell_of(op, layer);
    // Never less for more clips, of which fewer frames are computed at once.
    let rows = match of_vectors(op, layer) {
        true => ROWS_AT_ONCE.max(layer.clips).min(layer.made.len() * layer.clips),
        false => positions,
    };
    [biases, rows * op.gates(), op.hidden_per_unit() * positions * units].map(aligned::<E>)
}

/// Elements of h that the backward of a frame uses as scratch, twice.
fn spare<E>(op: &Recurrent, layer: &Layer<'_>) -> [usize; 2] {
    let state = aligned::<E>(cell_of(op, layer).len());
    match op.cell {
        Cell::Lstm => [0, 0],
        Cell::GruResetAfter => [state, 0],
        Cell::GruResetBefore => [state, state],
    }
}

/// Frame t of some, and the one before it; before the first one lies `first`.
fn with_last<'b, E>(
    of: &'b mut [E],
    t: usize,
    len: usize,
    first: Option<&'b [E]>,
) -> Option<(Option<&'b [E]>, &'b mut [E])> {
    let (before, rest) = of.split_at_mut_checked(t * len)?;
    let last = if t == 0 { first } else { Some(before.get((t - 1) * len..)?) };
    Some((last, rest.get_mut(..len)?))
}

fn frame<E>(of: &mut [E], t: usize, len: usize) -> Option<&mut [E]> {
    of.get_mut(t * len..(t + 1) * len)
}

/// The first so many elements; the rest stays.
fn take<'b, E>(from: &mut &'b mut [E], len: usize) -> Option<&'b mut [E]> {
    from.split_off_mut(..len)
}

fn up_to<E>(of: &mut [E], len: usize) -> &mut [E] {
    let len = len.min(of.len());
    of.split_at_mut(len).0
}

impl<'a, 'c, E: Element> Work<'a, 'c, E> {
    fn new(op: &'a Recurrent, call: &'a Call<'c, E>, step: &Step, [x, y]: [Role; 2]) -> Option<Self> {
        let layer = call.layer(step, x, y)?;
        let (frames, cell) = (layer.made.len(), cell_of(op, &layer));
        Some(Self { op, call, layer, frames, cell, zeros: Zeros::of(op, call, step, layer.clips) })
    }

    /// The parts of the gates of so many frames.
    fn gates<'g>(&self, gates: &'g mut [E], frames: usize) -> Option<[&'g mut [E]; 2]> {
        let [first, second] = parts(self.op.cell).map(|gates| frames * gates * self.cell.len());
        let (first, rest) = gates.split_at_mut_checked(first)?;
        Some([first, rest.get_mut(..second)?])
    }

    /// The same of frame t of them.
    fn gates_of<'g>(&self, gates: &'g mut [&mut [E]; 2], t: usize) -> Option<[&'g mut [E]; 2]> {
        let [first, second] = parts(self.op.cell).map(|gates| gates * self.cell.len());
        let [a, b] = gates;
        Some([frame(a, t, first)?, frame(b, t, second)?])
    }

    /// Adds the sums over all positions of x: `[T,P,C]` to those of y: `[C]`.
    fn add_sums(&self, x: &[E], y: &mut [E], scratch: &mut [E]) {
        let shape = sums(&self.cell, self.frames, y.len());
        let row = choose(E::mean_forward(), self.call.kernels.isa, &shape);
        (row.run)(&shape, MeanForwardArgs { x, scale: E::ONE, accumulate: true, y, scratch }, self.call.pool);
    }

    /// Adds the gradient of the weight of the first gates: of the state before the first frame, where there is one, and
    /// of those within the segment.
    fn add_state_gradient(
        &self,
        (h, h_before): (&[E], Option<&[E]>),
        dgates: &[E],
        du: &mut [E],
        scratch: &mut [E],
    ) -> Option<()> {
        let (state, rest) = (self.cell.len(), self.frames.checked_sub(1)?);
        let (of_first, of_rest) = dgates.split_at_checked(dgates.len() / self.frames)?;
        if let Some(before) = h_before {
            self.add_product_gradient(0, (before, of_first), &mut *du, &mut *scratch)?;
        }
        self.add_product_gradient(0, (h.get(..rest * state)?, of_rest), du, scratch)
    }

    /// Adds the gradient of the weight of a part's gates that x: `[T,P,K]` meets, dy: `[T,P,gK]`.
    fn add_product_gradient(&self, part: usize, (x, dy): (&[E], &[E]), dw: &mut [E], scratch: &mut [E]) -> Option<()> {
        let (state, gates) = (self.cell.len(), parts(self.op.cell)[part]);
        if x.is_empty() {
            return Some(());
        }
        let Some(zeros) = self.zeros else {
            let args = ConvWeightGradientArgs { x, dy, dw, db: None, scratch };
            Product::of_states(self.op, &self.layer, x.len() / state, gates).weight_gradient(self.call, args);
            return Some(());
        };
        for (x, dy) in x.chunks_exact(state).zip(dy.chunks_exact(gates * state)) {
            let args = ConvWeightGradientArgs { x, dy, dw: &mut *dw, db: None, scratch: &mut *scratch };
            self.add_dropped_gradient(zeros, part, args)?;
        }
        Some(())
    }
}

/// Sums of each channel over frames and positions.
fn sums(cell: &CellShape, frames: usize, channels: usize) -> MeanShape {
    MeanShape { clips: 1, frames, positions: cell.positions, channels }
}

impl OnKernels for Recurrent {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::Input,
            Role::Weight,
            Role::RecurrentWeight,
            Role::Bias,
            Role::RecurrentBias,
            Role::Output,
            Role::Cells,
            Role::Gates,
            Role::HiddenGates,
            Role::HiddenBefore,
            Role::CellBefore,
            Role::Workspace,
        ];
        let [x, w, u, bias, recurrent_bias, h, c, gates, hidden, h_before, c_before, mut scratch] =
            elements::<E, 12>(call.placed, step, roles, arena)?;
        let work = Work::new(self, call, step, [Role::Input, Role::Output])?;
        let (frames, state) = (work.frames, work.cell.len());
        let x_frame = x.len() / frames.max(1);
        let kept = !gates.is_empty();
        let before = Before { h: present(h_before).map(|s| &*s), c: present(c_before).map(|s| &*s) };

        let [sum, passing_gates, passing_hidden] = passing::<E>(self, &work.layer);
        let sum = take(&mut scratch, sum)?;
        let passing_gates = take(&mut scratch, passing_gates)?;
        let passing_hidden = take(&mut scratch, passing_hidden)?;
        let [bias, recurrent_bias] = biases(self, bias, recurrent_bias);
        let bias = match joins_biases(self.cell) && !recurrent_bias.is_empty() {
            true => {
                let (y, len) = (sum.get_mut(..bias.len())?, bias.len());
                let args = AdditionArgs { a: Some(bias), b: recurrent_bias, y: &mut *y };
                (choose(E::addition(), call.kernels.isa, &len).run)(&len, args, call.pool);
                y
            }
            false => bias,
        };
        let (bias, recurrent_bias) = (present(bias).map(|b| &*b), present(recurrent_bias).map(|b| &*b));

        let once = at_once(self, &work.layer, kept);
        for from in (0..frames).step_by(once) {
            let count = once.min(frames - from);
            // Where the first of these frames lies among the gates at hand.
            let (mut at_hand, base) = match kept {
                true => (work.gates(gates, frames)?, from),
                false => (work.gates(passing_gates, count)?, 0),
            };
            let x = x.get(from * x_frame..(from + count) * x_frame)?;
            for (part, of_unit) in ranges(self.cell) {
                let len = of_unit.len() * state;
                let args = ConvForwardArgs {
                    x,
                    w: w.get(rows(self.cell, w.len(), &of_unit))?,
                    bias: bias.and_then(|bias| bias.get(rows(self.cell, bias.len(), &of_unit))),
                    relu: false,
                    accumulate: false,
                    y: at_hand[part].get_mut(base * len..(base + count) * len)?,
                    scratch,
                };
                Product::of_frames(self, &work.layer, count, of_unit.len()).forward(call, args);
            }
            for t in from..from + count {
                let (h_last, h) = with_last(h, t, state, before.h)?;
                let (c_last, c) = with_last(c, t, if self.has_cell() { state } else { 0 }, before.c)?;
                let len = self.hidden_per_unit() * state;
                let forward = cell::Forward {
                    before: Before { h: h_last, c: c_last },
                    gates: work.gates_of(&mut at_hand, base + t - from)?,
                    hidden: if kept { frame(hidden, t, len)? } else { passing_hidden.get_mut(..len)? },
                    h,
                    c,
                    scratch,
                };
                work.frame_forward(u, recurrent_bias, forward)?;
            }
        }
        Some(())
    }

    /// Gates to their gradients before activation, in place, from the last frame to the first; the gradient of
    /// the state after the segment to that of the state before it.
    fn cell_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::OutputGradient,
            Role::RecurrentWeight,
            Role::Output,
            Role::Cells,
            Role::Gates,
            Role::HiddenGates,
            Role::HiddenBefore,
            Role::CellBefore,
            Role::HiddenGradient,
            Role::CellGradient,
            Role::Workspace,
        ];
        let [dy, u, h, c, gates, hidden, h_before, c_before, dh, dc, mut scratch] =
            elements::<E, 11>(call.placed, step, roles, arena)?;
        let work = Work::new(self, call, step, [Role::OutputGradient, Role::OutputGradient])?;
        let state = work.cell.len();
        let c_state = if self.has_cell() { state } else { 0 };
        let before = Before { h: present(h_before).map(|s| &*s), c: present(c_before).map(|s| &*s) };
        let [total, dreset] = spare::<E>(self, &work.layer);
        let (total, dreset) = (take(&mut scratch, total)?, take(&mut scratch, dreset)?);
        // Scratch is cut at cache lines, the states end where they end.
        let (total, dreset) = (up_to(total, state), up_to(dreset, state));
        let mut gates = work.gates(gates, work.frames)?;
        for t in (0..work.frames).rev() {
            let (h_last, _) = with_last(h, t, state, before.h)?;
            let (c_last, c) = with_last(c, t, c_state, before.c)?;
            let backward = cell::Backward {
                before: Before { h: h_last, c: c_last },
                gates: work.gates_of(&mut gates, t)?,
                hidden: frame(hidden, t, self.hidden_per_unit() * state)?,
                c,
                dy: dy.get(t * state..(t + 1) * state)?,
                dh,
                dc,
                spare: [&mut *total, &mut *dreset],
                scratch,
            };
            work.frame_backward(u, backward)?;
        }
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        let roles = [Role::OutputGradient, Role::Weight, Role::InputGradient, Role::Workspace];
        let [dgates, w, dx, scratch] = elements::<E, 4>(call.placed, step, roles, arena)?;
        let work = Work::new(self, call, step, [Role::InputGradient, Role::OutputGradient])?;
        let x_frame = dx.len() / work.layer.read.len().max(1);
        let first = work.layer.made.lo.checked_sub(work.layer.read.lo)? * x_frame;
        let (before, rest) = dx.split_at_mut_checked(first)?;
        let (dx, after) = rest.split_at_mut_checked(work.frames * x_frame)?;
        if !how.accumulate {
            before.fill(E::ZERO);
            after.fill(E::ZERO);
        }
        let dgates = work.gates(dgates, work.frames)?;
        for (part, of_unit) in ranges(self.cell) {
            let args = ConvInputGradientArgs {
                dy: dgates[part],
                w: w.get(rows(self.cell, w.len(), &of_unit))?,
                dx: &mut *dx,
                accumulate: how.accumulate || part > 0,
                scratch: &mut *scratch,
            };
            Product::of_frames(self, &work.layer, work.frames, of_unit.len()).input_gradient(call, args);
        }
        Some(())
    }

    fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let roles = [
            Role::Input,
            Role::OutputGradient,
            Role::Output,
            Role::HiddenBefore,
            Role::HiddenGates,
            Role::WeightGradient,
            Role::RecurrentWeightGradient,
            Role::BiasGradient,
            Role::RecurrentBiasGradient,
            Role::Workspace,
        ];
        let [x, dgates, h, h_before, hidden, dw, du, db, recurrent_db, scratch] =
            elements::<E, 10>(call.placed, step, roles, arena)?;
        let work = Work::new(self, call, step, [Role::Input, Role::OutputGradient])?;
        let states = (&*h, present(h_before).map(|s| &*s));
        let dgates = work.gates(dgates, work.frames)?;
        let [db, recurrent_db] = biases(self, db, recurrent_db);
        for (part, of_unit) in ranges(self.cell) {
            let [in_dw, in_db] = [dw.len(), db.len()].map(|all| rows(self.cell, all, &of_unit));
            let args = ConvWeightGradientArgs {
                x,
                dy: dgates[part],
                dw: dw.get_mut(in_dw)?,
                db: present(db.get_mut(in_db)?),
                scratch: &mut *scratch,
            };
            Product::of_frames(self, &work.layer, work.frames, of_unit.len()).weight_gradient(call, args);
            if joins_biases(self.cell) && !recurrent_db.is_empty() {
                let in_db = rows(self.cell, recurrent_db.len(), &of_unit);
                work.add_sums(dgates[part], recurrent_db.get_mut(in_db)?, scratch);
            }
        }
        match self.cell {
            Cell::Lstm => work.add_state_gradient(states, dgates[0], du, scratch),
            Cell::GruResetAfter => {
                if !recurrent_db.is_empty() {
                    work.add_sums(hidden, recurrent_db, scratch);
                }
                work.add_state_gradient(states, hidden, du, scratch)
            }
            Cell::GruResetBefore => {
                let (du, of_candidate) = du.split_at_mut_checked(du.len() / 3 * 2)?;
                work.add_state_gradient(states, dgates[0], du, scratch)?;
                work.add_product_gradient(1, (hidden, dgates[1]), of_candidate, scratch)
            }
        }
    }

    fn scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let layer = &asked.layer;
        let frames = layer.made.len();
        let most = |products: &mut dyn Iterator<Item = usize>| products.max().unwrap_or(0);
        let each = || ranges(self.cell).map(|(_, gates)| gates.len());
        let of_dropped = most(&mut each().map(|gates| dropout::scratch::<E>(self, asked, gates)));
        match asked.pass {
            Pass::Forward => {
                let once = at_once(self, layer, false);
                let counts = [at_once(self, layer, true), once, frames % once];
                let of_frames = |gates: usize| {
                    let counts = counts.into_iter().filter(|&count| count > 0);
                    let products = counts.map(|count| Product::of_frames(self, layer, count, gates));
                    most(&mut products.map(|product| product.forward_scratch::<E>(asked)))
                };
                let of_state = |gates| Product::of_states(self, layer, 1, gates).forward_scratch::<E>(asked);
                let of_products = most(&mut each().map(|gates| of_frames(gates).max(of_state(gates))));
                passing::<E>(self, layer).into_iter().sum::<usize>() + of_products.max(of_dropped)
            }
            Pass::State => {
                let of_state = |gates| Product::of_states(self, layer, 1, gates).input_gradient_scratch::<E>(asked);
                spare::<E>(self, layer).into_iter().sum::<usize>() + most(&mut each().map(of_state)).max(of_dropped)
            }
            Pass::InputGradient => {
                let of = |gates| Product::of_frames(self, layer, frames, gates).input_gradient_scratch::<E>(asked);
                most(&mut each().map(of))
            }
            Pass::WeightGradient => {
                let of_frames =
                    |gates| Product::of_frames(self, layer, frames, gates).weight_gradient_scratch::<E>(asked);
                let of_states = |count: usize, gates| {
                    Product::of_states(self, layer, count.max(1), gates).weight_gradient_scratch::<E>(asked)
                };
                let of_sums = |gates: usize| {
                    scratch_of!(asked, E::mean_forward(), sums(&cell_of(self, layer), frames, gates * self.filters))
                };
                let of_products = most(&mut each().map(|gates| {
                    let states = [1, frames.saturating_sub(1), frames].map(|count| of_states(count, gates));
                    of_frames(gates).max(of_sums(gates)).max(most(&mut states.into_iter()))
                }));
                of_products.max(of_dropped)
            }
            Pass::Moments | Pass::Sums => 0,
        }
    }
}
