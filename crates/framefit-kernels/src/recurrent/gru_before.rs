//! The GRU that applies its reset gate before the product with the state, in the two stages around that product.

use super::tile::{Plane, TILE, Tile, task_positions};
use super::{CellActivations, CellShape, GateOrder};
use crate::activation::{apply, times_slope};
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the first stage reads and writes.
#[derive(Debug)]
pub struct GruGatesForwardArgs<'a, E> {
    /// The functions of the cell.
    pub activations: CellActivations,
    /// The order of r and z.
    pub order: GateOrder,
    /// \[P, 2, K\]: before activation in, r and z out.
    pub gates: &'a mut [E],
    /// h of the frame before: \[P, K\]; zero when absent.
    pub h_prev: Option<&'a [E]>,
    /// \[P, K\], overwritten with r ∘ h_prev.
    pub reset: &'a mut [E],
}

/// What the second stage reads and writes.
#[derive(Debug)]
pub struct GruStateForwardArgs<'a, E> {
    /// The functions of the cell.
    pub activations: CellActivations,
    /// The order of r and z.
    pub order: GateOrder,
    /// \[P, 2, K\]: r and z.
    pub gates: &'a [E],
    /// \[P, K\]: before activation in, n out.
    pub candidate: &'a mut [E],
    /// h of the frame before: \[P, K\]; zero when absent.
    pub h_prev: Option<&'a [E]>,
    /// h: \[P, K\], overwritten.
    pub h: &'a mut [E],
}

/// What the backward of the second stage, which comes first, reads and writes.
#[derive(Debug)]
pub struct GruStateBackwardArgs<'a, E> {
    /// The functions of the cell.
    pub activations: CellActivations,
    /// The order of r and z.
    pub order: GateOrder,
    /// \[P, 2, K\]: r and z in; the gradient of z before activation out in z's place, r stays.
    pub gates: &'a mut [E],
    /// \[P, K\]: n in, its gradient before activation out.
    pub candidate: &'a mut [E],
    /// h of the frame before: \[P, K\]; zero when absent.
    pub h_prev: Option<&'a [E]>,
    /// The whole gradient of h: \[P, K\].
    pub dh: &'a [E],
    /// \[P, K\], overwritten with z ∘ dh: what reaches the state before without a product.
    pub dh_prev: &'a mut [E],
}

/// What the backward of the first stage reads and writes.
#[derive(Debug)]
pub struct GruGatesBackwardArgs<'a, E> {
    /// The functions of the cell.
    pub activations: CellActivations,
    /// The order of r and z.
    pub order: GateOrder,
    /// \[P, 2, K\]: r in; the gradient of r before activation out in r's place, z's place stays.
    pub gates: &'a mut [E],
    /// h of the frame before: \[P, K\]; zero when absent.
    pub h_prev: Option<&'a [E]>,
    /// The gradient of r ∘ h_prev: \[P, K\].
    pub dreset: &'a [E],
    /// \[P, K\]: r ∘ dreset is added.
    pub dh_prev: &'a mut [E],
}

kernel_row! {
    /// r = σ(gates_r); z = σ(gates_z); reset = r ∘ h_prev. The first stage of Keras's `GRU` with
    /// `reset_after=False` and of convolutional GRUs; the product with `reset` then makes the candidate.
    GruGatesForward, CellShape, GruGatesForwardArgs
}
kernel_row! {
    /// n = φ(candidate); h = (1−z) ∘ n + z ∘ h_prev.
    GruStateForward, CellShape, GruStateForwardArgs
}
kernel_row! {
    /// The gradients of the candidate and of z before activation, and of h_prev past both products.
    GruStateBackward, CellShape, GruStateBackwardArgs
}
kernel_row! {
    /// The gradient of r before activation, and of h_prev by way of r ∘ h_prev.
    GruGatesBackward, CellShape, GruGatesBackwardArgs
}

/// The slices of one task's positions; which of them a stage reads or writes is said above.
struct Stage<'a, E> {
    activations: CellActivations,
    order: GateOrder,
    units: usize,
    h_prev: Option<&'a [E]>,
}

impl<E: Real> Stage<'_, E> {
    #[inline(always)]
    fn before(&self, tile: &Tile, to: &mut Plane<E>) {
        if let Some(h_prev) = self.h_prev {
            tile.gather(h_prev, (0, 1), self.units, to);
        }
    }
}

#[inline(always)]
fn gates_forward_body<E: Real>(s: Stage<'_, E>, gates: &mut [E], reset: &mut [E]) {
    let (r_at, _) = s.order.places();
    let (mut plane, mut before) = ([E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(reset.len() / s.units, s.units) {
        let len = tile.len();
        s.before(&tile, &mut before);
        for at in 0..2 {
            tile.gather(gates, (at, 2), s.units, &mut plane);
            apply(s.activations.gate, &mut plane[..len]);
            tile.scatter(&plane, (at, 2), s.units, gates);
            if at == r_at {
                for j in 0..TILE {
                    plane[j] *= before[j];
                }
                tile.scatter(&plane, (0, 1), s.units, reset);
            }
        }
    }
}

#[inline(always)]
fn state_forward_body<E: Real>(s: Stage<'_, E>, gates: &[E], candidate: &mut [E], h: &mut [E]) {
    let (_, z_at) = s.order.places();
    let (mut z, mut n, mut before) = ([E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(h.len() / s.units, s.units) {
        s.before(&tile, &mut before);
        tile.gather(gates, (z_at, 2), s.units, &mut z);
        tile.gather(candidate, (0, 1), s.units, &mut n);
        apply(s.activations.state, &mut n[..tile.len()]);
        tile.scatter(&n, (0, 1), s.units, candidate);
        for j in 0..TILE {
            n[j] += z[j] * (before[j] - n[j]);
        }
        tile.scatter(&n, (0, 1), s.units, h);
    }
}

#[inline(always)]
fn state_backward_body<E: Real>(s: Stage<'_, E>, gates: &mut [E], candidate: &mut [E], dh_in: &[E], dh_prev: &mut [E]) {
    let (_, z_at) = s.order.places();
    let (mut z, mut n, mut before) = ([E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE]);
    let (mut dz, mut dn, mut dh) = ([E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(dh_in.len() / s.units, s.units) {
        let len = tile.len();
        s.before(&tile, &mut before);
        tile.gather(gates, (z_at, 2), s.units, &mut z);
        tile.gather(candidate, (0, 1), s.units, &mut n);
        tile.gather(dh_in, (0, 1), s.units, &mut dh);
        for j in 0..TILE {
            dz[j] = dh[j] * (before[j] - n[j]);
            dn[j] = dh[j] * (E::ONE - z[j]);
            dh[j] *= z[j];
        }
        times_slope(s.activations.gate, &z[..len], &mut dz[..len]);
        times_slope(s.activations.state, &n[..len], &mut dn[..len]);
        tile.scatter(&dz, (z_at, 2), s.units, gates);
        tile.scatter(&dn, (0, 1), s.units, candidate);
        tile.scatter(&dh, (0, 1), s.units, dh_prev);
    }
}

#[inline(always)]
fn gates_backward_body<E: Real>(s: Stage<'_, E>, gates: &mut [E], dreset: &[E], dh_prev: &mut [E]) {
    let (r_at, _) = s.order.places();
    let (mut r, mut before) = ([E::ZERO; TILE], [E::ZERO; TILE]);
    let (mut dr, mut dh) = ([E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(dreset.len() / s.units, s.units) {
        let len = tile.len();
        s.before(&tile, &mut before);
        tile.gather(gates, (r_at, 2), s.units, &mut r);
        tile.gather(dreset, (0, 1), s.units, &mut dr);
        tile.gather(dh_prev, (0, 1), s.units, &mut dh);
        for j in 0..TILE {
            dh[j] += dr[j] * r[j];
            dr[j] *= before[j];
        }
        times_slope(s.activations.gate, &r[..len], &mut dr[..len]);
        tile.scatter(&dr, (r_at, 2), s.units, gates);
        tile.scatter(&dh, (0, 1), s.units, dh_prev);
    }
}

/// Panics unless the slices have the lengths that the shape asks for; gives the elements of a state per task.
fn check<E>(s: &CellShape, activations: CellActivations, gates: &[E], h_prev: Option<&[E]>, states: &[usize]) -> usize {
    activations.check();
    assert_eq!(gates.len(), 2 * s.len(), "gates: {s:?}");
    assert!(h_prev.is_none_or(|h| h.len() == s.len()), "h_prev: {s:?}");
    assert!(states.iter().all(|len| *len == s.len()), "states of {states:?} elements: {s:?}");
    task_positions(s.units) * s.units
}

fn gates_forward<E: Real>(
    s: &CellShape,
    args: GruGatesForwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Stage<'_, E>, &mut [E], &mut [E]) + Sync,
) {
    let (activations, order, units, h_prev) = (args.activations, args.order, s.units, args.h_prev);
    let step = check(s, activations, args.gates, h_prev, &[args.reset.len()]);
    let gates = SharedMut::new(args.gates);
    pool.chunks(args.reset, step, &|task, reset| {
        let range = task.index * step..task.index * step + reset.len();
        // SAFETY: each task takes its own positions, once.
        let gates = unsafe { gates.part(2 * range.start..2 * range.end) };
        body(Stage { activations, order, units, h_prev: h_prev.map(|h| &h[range]) }, gates, reset);
    });
}

fn state_forward<E: Real>(
    s: &CellShape,
    args: GruStateForwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Stage<'_, E>, &[E], &mut [E], &mut [E]) + Sync,
) {
    let (activations, order, units, h_prev) = (args.activations, args.order, s.units, args.h_prev);
    let step = check(s, activations, args.gates, h_prev, &[args.candidate.len(), args.h.len()]);
    let (gates, candidate) = (args.gates, SharedMut::new(args.candidate));
    pool.chunks(args.h, step, &|task, h| {
        let range = task.index * step..task.index * step + h.len();
        let gates = &gates[2 * range.start..2 * range.end];
        // SAFETY: each task takes its own positions, once.
        let candidate = unsafe { candidate.part(range.clone()) };
        body(Stage { activations, order, units, h_prev: h_prev.map(|h| &h[range]) }, gates, candidate, h);
    });
}

fn state_backward<E: Real>(
    s: &CellShape,
    args: GruStateBackwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Stage<'_, E>, &mut [E], &mut [E], &[E], &mut [E]) + Sync,
) {
    let (activations, order, units, h_prev, dh) = (args.activations, args.order, s.units, args.h_prev, args.dh);
    let states = [args.candidate.len(), dh.len(), args.dh_prev.len()];
    let step = check(s, activations, args.gates, h_prev, &states);
    let (gates, candidate) = (SharedMut::new(args.gates), SharedMut::new(args.candidate));
    pool.chunks(args.dh_prev, step, &|task, dh_prev| {
        let range = task.index * step..task.index * step + dh_prev.len();
        // SAFETY: each task takes its own positions, once.
        let (gates, candidate) = unsafe { (gates.part(2 * range.start..2 * range.end), candidate.part(range.clone())) };
        let stage = Stage { activations, order, units, h_prev: h_prev.map(|h| &h[range.clone()]) };
        body(stage, gates, candidate, &dh[range], dh_prev);
    });
}

fn gates_backward<E: Real>(
    s: &CellShape,
    args: GruGatesBackwardArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Stage<'_, E>, &mut [E], &[E], &mut [E]) + Sync,
) {
    let (activations, order, units, h_prev) = (args.activations, args.order, s.units, args.h_prev);
    let dreset = args.dreset;
    let step = check(s, activations, args.gates, h_prev, &[dreset.len(), args.dh_prev.len()]);
    let gates = SharedMut::new(args.gates);
    pool.chunks(args.dh_prev, step, &|task, dh_prev| {
        let range = task.index * step..task.index * step + dh_prev.len();
        // SAFETY: each task takes its own positions, once.
        let gates = unsafe { gates.part(2 * range.start..2 * range.end) };
        let stage = Stage { activations, order, units, h_prev: h_prev.map(|h| &h[range.clone()]) };
        body(stage, gates, &dreset[range], dh_prev);
    });
}

compiled_tables! {
    GRU_GATES_FORWARD_F32, GRU_GATES_FORWARD_F64: GruGatesForward, scratch: no_scratch,
    names: ["gru_gates_forward_f32__avx512", "gru_gates_forward_f32__avx2", "gru_gates_forward_f32__scalar", "gru_gates_forward_f64__scalar"],
    gates_forward(gates_forward_body: (s: Stage<'_, f32>, gates: &mut [f32], reset: &mut [f32]))
}

compiled_tables! {
    GRU_STATE_FORWARD_F32, GRU_STATE_FORWARD_F64: GruStateForward, scratch: no_scratch,
    names: ["gru_state_forward_f32__avx512", "gru_state_forward_f32__avx2", "gru_state_forward_f32__scalar", "gru_state_forward_f64__scalar"],
    state_forward(state_forward_body: (s: Stage<'_, f32>, gates: &[f32], candidate: &mut [f32], h: &mut [f32]))
}

compiled_tables! {
    GRU_STATE_BACKWARD_F32, GRU_STATE_BACKWARD_F64: GruStateBackward, scratch: no_scratch,
    names: ["gru_state_backward_f32__avx512", "gru_state_backward_f32__avx2", "gru_state_backward_f32__scalar", "gru_state_backward_f64__scalar"],
    state_backward(state_backward_body: (s: Stage<'_, f32>, gates: &mut [f32], candidate: &mut [f32], dh_in: &[f32], dh_prev: &mut [f32]))
}

compiled_tables! {
    GRU_GATES_BACKWARD_F32, GRU_GATES_BACKWARD_F64: GruGatesBackward, scratch: no_scratch,
    names: ["gru_gates_backward_f32__avx512", "gru_gates_backward_f32__avx2", "gru_gates_backward_f32__scalar", "gru_gates_backward_f64__scalar"],
    gates_backward(gates_backward_body: (s: Stage<'_, f32>, gates: &mut [f32], dreset: &[f32], dh_prev: &mut [f32]))
}
