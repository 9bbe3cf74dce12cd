//! The GRU that applies its reset gate after the product with the state.

use super::tile::{Plane, TILE, Tile, task_positions};
use super::{CellActivations, CellShape, GateOrder};
use crate::activation::{apply, times_slope};
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the forward reads and writes. The three parts of a position are r and z in `order`, then the candidate n.
#[derive(Debug)]
pub struct GruForwardArgs<'a, E> {
    /// The functions σ of r and z, and φ of n.
    pub activations: CellActivations,
    /// The order of r and z.
    pub order: GateOrder,
    /// \[P, 3, K\]: the product with x, its bias added, in; r, z and n, activated, out.
    pub x_gates: &'a mut [E],
    /// \[P, 3, K\]: the product with h_prev, its bias added.
    pub h_gates: &'a [E],
    /// h of the frame before: \[P, K\]; zero when absent.
    pub h_prev: Option<&'a [E]>,
    /// h: \[P, K\], overwritten.
    pub h: &'a mut [E],
}

/// What the backward reads and writes.
#[derive(Debug)]
pub struct GruBackwardArgs<'a, E> {
    /// The functions of the forward.
    pub activations: CellActivations,
    /// The order of r and z.
    pub order: GateOrder,
    /// \[P, 3, K\]: r, z and n, activated, in; the gradient of the product with x out.
    pub x_gates: &'a mut [E],
    /// \[P, 3, K\]: the product with h_prev in, of which n's part is read; its gradient out.
    pub h_gates: &'a mut [E],
    /// h of the frame before: \[P, K\]; zero when absent.
    pub h_prev: Option<&'a [E]>,
    /// The whole gradient of h: \[P, K\].
    pub dh: &'a [E],
    /// \[P, K\], overwritten with z ∘ dh: what reaches the state before without a product.
    pub dh_prev: &'a mut [E],
}

kernel_row! {
    /// r = σ(x_r + h_r); z = σ(x_z + h_z); n = φ(x_n + r ∘ h_n); h = (1−z) ∘ n + z ∘ h_prev. As PyTorch's `GRUCell`
    /// and Keras's `GRU` with `reset_after=True`.
    GruForward, CellShape, GruForwardArgs
}
kernel_row! {
    /// The gradients of both products, and of the state before past them.
    GruBackward, CellShape, GruBackwardArgs
}

/// The slices of one task's positions.
struct Forward<'a, E> {
    activations: CellActivations,
    order: GateOrder,
    units: usize,
    x_gates: &'a mut [E],
    h_gates: &'a [E],
    h_prev: Option<&'a [E]>,
    h: &'a mut [E],
}

#[inline(always)]
fn forward_body<E: Real>(args: Forward<'_, E>) {
    let Forward { activations, order, units, x_gates, h_gates, h_prev, h: h_out } = args;
    let (r_at, z_at) = order.places();
    let steps = [(r_at, activations.gate), (z_at, activations.gate), (2, activations.state)];
    let mut planes: [Plane<E>; 3] = [[E::ZERO; TILE]; 3];
    let (mut part, mut before) = ([E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(h_out.len() / units, units) {
        let len = tile.len();
        // The factor of the part with h: 1 for the gates, r for the candidate.
        let mut factor = [E::ONE; TILE];
        for (i, (plane, (at, kind))) in planes.iter_mut().zip(steps).enumerate() {
            tile.gather(x_gates, (at, 3), units, plane);
            tile.gather(h_gates, (at, 3), units, &mut part);
            for j in 0..TILE {
                plane[j] += factor[j] * part[j];
            }
            apply(kind, &mut plane[..len]);
            tile.scatter(plane, (at, 3), units, x_gates);
            if i == 0 {
                before.copy_from_slice(plane);
            } else {
                factor.copy_from_slice(&before);
            }
        }
        match h_prev {
            Some(h_prev) => tile.gather(h_prev, (0, 1), units, &mut before),
            None => before = [E::ZERO; TILE],
        }
        let [_, z, n] = &planes;
        for j in 0..TILE {
            part[j] = n[j] + z[j] * (before[j] - n[j]);
        }
        tile.scatter(&part, (0, 1), units, h_out);
    }
}

/// The slices of one task's positions.
struct Backward<'a, E> {
    activations: CellActivations,
    order: GateOrder,
    units: usize,
    x_gates: &'a mut [E],
    h_gates: &'a mut [E],
    h_prev: Option<&'a [E]>,
    dh: &'a [E],
    dh_prev: &'a mut [E],
}

#[inline(always)]
fn backward_body<E: Real>(args: Backward<'_, E>) {
    let Backward { activations, order, units, x_gates, h_gates, h_prev, dh: dh_in, dh_prev } = args;
    let (r_at, z_at) = order.places();
    let (mut r, mut z, mut n) = ([E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE]);
    let (mut hidden, mut before, mut dh) = ([E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE]);
    let (mut dn, mut gates) = ([E::ZERO; TILE], [[E::ZERO; TILE]; 2]);
    for tile in Tile::all(dh_in.len() / units, units) {
        let len = tile.len();
        tile.gather(x_gates, (r_at, 3), units, &mut r);
        tile.gather(x_gates, (z_at, 3), units, &mut z);
        tile.gather(x_gates, (2, 3), units, &mut n);
        tile.gather(h_gates, (2, 3), units, &mut hidden);
        tile.gather(dh_in, (0, 1), units, &mut dh);
        if let Some(h_prev) = h_prev {
            tile.gather(h_prev, (0, 1), units, &mut before);
        }
        for j in 0..TILE {
            dn[j] = dh[j] * (E::ONE - z[j]);
            gates[1][j] = dh[j] * (before[j] - n[j]);
            dh[j] *= z[j];
        }
        tile.scatter(&dh, (0, 1), units, dh_prev);
        times_slope(activations.state, &n[..len], &mut dn[..len]);
        tile.scatter(&dn, (2, 3), units, x_gates);
        for j in 0..TILE {
            gates[0][j] = dn[j] * hidden[j];
            dn[j] *= r[j];
        }
        tile.scatter(&dn, (2, 3), units, h_gates);
        for (gate, (of, at)) in gates.iter_mut().zip([(&r, r_at), (&z, z_at)]) {
            times_slope(activations.gate, &of[..len], &mut gate[..len]);
            tile.scatter(gate, (at, 3), units, x_gates);
            tile.scatter(gate, (at, 3), units, h_gates);
        }
    }
}

fn forward<E: Real>(s: &CellShape, args: GruForwardArgs<'_, E>, pool: &Pool, body: impl Fn(Forward<'_, E>) + Sync) {
    args.activations.check();
    assert_eq!(args.x_gates.len(), 3 * s.len(), "x_gates: {s:?}");
    assert_eq!(args.h_gates.len(), 3 * s.len(), "h_gates: {s:?}");
    assert!(args.h_prev.is_none_or(|h| h.len() == s.len()), "h_prev: {s:?}");
    assert_eq!(args.h.len(), s.len(), "h: {s:?}");
    let (activations, order, units) = (args.activations, args.order, s.units);
    let (h_gates, h_prev) = (args.h_gates, args.h_prev);
    let x_gates = SharedMut::new(args.x_gates);
    let step = task_positions(units) * units;
    pool.chunks(args.h, step, &|task, h| {
        let range = task.index * step..task.index * step + h.len();
        let wide = 3 * range.start..3 * range.end;
        // SAFETY: each task takes its own positions, once.
        let x_gates = unsafe { x_gates.part(wide.clone()) };
        let (h_gates, h_prev) = (&h_gates[wide], h_prev.map(|h| &h[range]));
        body(Forward { activations, order, units, x_gates, h_gates, h_prev, h });
    });
}

fn backward<E: Real>(s: &CellShape, args: GruBackwardArgs<'_, E>, pool: &Pool, body: impl Fn(Backward<'_, E>) + Sync) {
    args.activations.check();
    assert_eq!(args.x_gates.len(), 3 * s.len(), "x_gates: {s:?}");
    assert_eq!(args.h_gates.len(), 3 * s.len(), "h_gates: {s:?}");
    assert!(args.h_prev.is_none_or(|h| h.len() == s.len()), "h_prev: {s:?}");
    assert_eq!(args.dh.len(), s.len(), "dh: {s:?}");
    assert_eq!(args.dh_prev.len(), s.len(), "dh_prev: {s:?}");
    let (activations, order, units) = (args.activations, args.order, s.units);
    let (h_prev, dh) = (args.h_prev, args.dh);
    let (x_gates, h_gates) = (SharedMut::new(args.x_gates), SharedMut::new(args.h_gates));
    let step = task_positions(units) * units;
    pool.chunks(args.dh_prev, step, &|task, dh_prev| {
        let range = task.index * step..task.index * step + dh_prev.len();
        let wide = 3 * range.start..3 * range.end;
        // SAFETY: each task takes its own positions, once.
        let (x_gates, h_gates) = unsafe { (x_gates.part(wide.clone()), h_gates.part(wide)) };
        let (h_prev, dh) = (h_prev.map(|h| &h[range.clone()]), &dh[range]);
        body(Backward { activations, order, units, x_gates, h_gates, h_prev, dh, dh_prev });
    });
}

compiled_tables! {
    GRU_FORWARD_F32, GRU_FORWARD_F64: GruForward, scratch: no_scratch,
    names: ["gru_forward_f32__avx512", "gru_forward_f32__avx2", "gru_forward_f32__scalar", "gru_forward_f64__scalar"],
    forward(forward_body: (args: Forward<'_, f32>))
}

compiled_tables! {
    GRU_BACKWARD_F32, GRU_BACKWARD_F64: GruBackward, scratch: no_scratch,
    names: ["gru_backward_f32__avx512", "gru_backward_f32__avx2", "gru_backward_f32__scalar", "gru_backward_f64__scalar"],
    backward(backward_body: (args: Backward<'_, f32>))
}
