//! The LSTM.

use super::tile::{Plane, TILE, Tile, task_positions};
use super::{CellActivations, CellShape};
use crate::activation::{apply, times_slope};
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What the forward reads and writes. Gates lie in the order i, f, g, o, PyTorch's and Keras's alike.
#[derive(Debug)]
pub struct LstmForwardArgs<'a, E> {
    /// The functions σ of the gates i, f, o, and φ of g and the state.
    pub activations: CellActivations,
    /// \[P, 4, K\]: before activation in, activated out.
    pub gates: &'a mut [E],
    /// c of the frame before: \[P, K\]; zero when absent.
    pub c_prev: Option<&'a [E]>,
    /// c: \[P, K\], overwritten.
    pub c: &'a mut [E],
    /// h: \[P, K\], overwritten.
    pub h: &'a mut [E],
}

/// What the backward reads and writes.
#[derive(Debug)]
pub struct LstmBackwardArgs<'a, E> {
    /// The functions of the forward.
    pub activations: CellActivations,
    /// Activated: \[P, 4, K\]; when absent `dgates` holds them.
    pub gates: Option<&'a [E]>,
    /// c of the frame before: \[P, K\]; zero when absent.
    pub c_prev: Option<&'a [E]>,
    /// c: \[P, K\].
    pub c: &'a [E],
    /// The whole gradient of h: \[P, K\].
    pub dh: &'a [E],
    /// \[P, K\]: what the later frame gives to the gradient of c in (zero after the last frame), the gradient of
    /// c_prev out.
    pub dc: &'a mut [E],
    /// \[P, 4, K\], overwritten with the gradient of the gates before activation.
    pub dgates: &'a mut [E],
}

kernel_row! {
    /// c = σ(f) ∘ c_prev + σ(i) ∘ φ(g); h = σ(o) ∘ φ(c). As PyTorch's `LSTMCell` and Keras's `LSTM` and `ConvLSTM2D`.
    LstmForward, CellShape, LstmForwardArgs
}
kernel_row! {
    /// The gradients of the gates before activation, and of c_prev.
    LstmBackward, CellShape, LstmBackwardArgs
}

/// The slices of one task's positions.
struct Forward<'a, E> {
    activations: CellActivations,
    units: usize,
    gates: &'a mut [E],
    c_prev: Option<&'a [E]>,
    c: &'a mut [E],
    h: &'a mut [E],
}

#[inline(always)]
fn forward_body<E: Real>(args: Forward<'_, E>) {
    let Forward { activations, units, gates, c_prev, c: c_out, h: h_out } = args;
    let kinds = [activations.gate, activations.gate, activations.state, activations.gate];
    let mut planes: [Plane<E>; 4] = [[E::ZERO; TILE]; 4];
    let (mut c, mut h) = ([E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(c_out.len() / units, units) {
        let len = tile.len();
        for (gate, (plane, kind)) in planes.iter_mut().zip(kinds).enumerate() {
            tile.gather(gates, (gate, 4), units, plane);
            apply(kind, &mut plane[..len]);
            tile.scatter(plane, (gate, 4), units, gates);
        }
        match c_prev {
            Some(c_prev) => tile.gather(c_prev, (0, 1), units, &mut c),
            None => c = [E::ZERO; TILE],
        }
        let [i, f, g, o] = &planes;
        for j in 0..TILE {
            c[j] = f[j] * c[j] + i[j] * g[j];
        }
        tile.scatter(&c, (0, 1), units, c_out);
        h.copy_from_slice(&c);
        apply(activations.state, &mut h[..len]);
        for j in 0..TILE {
            h[j] *= o[j];
        }
        tile.scatter(&h, (0, 1), units, h_out);
    }
}

/// The slices of one task's positions.
struct Backward<'a, E> {
    activations: CellActivations,
    units: usize,
    gates: Option<&'a [E]>,
    c_prev: Option<&'a [E]>,
    c: &'a [E],
    dh: &'a [E],
    dc: &'a mut [E],
    dgates: &'a mut [E],
}

#[inline(always)]
fn backward_body<E: Real>(args: Backward<'_, E>) {
    let Backward { activations, units, gates, c_prev, c: c_in, dh: dh_in, dc: dc_io, dgates } = args;
    let kinds = [activations.gate, activations.gate, activations.state, activations.gate];
    let mut planes: [Plane<E>; 4] = [[E::ZERO; TILE]; 4];
    let mut grads: [Plane<E>; 4] = [[E::ZERO; TILE]; 4];
    let (mut before, mut state, mut dh, mut dc) = ([E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE], [E::ZERO; TILE]);
    for tile in Tile::all(c_in.len() / units, units) {
        let len = tile.len();
        for (gate, plane) in planes.iter_mut().enumerate() {
            tile.gather(gates.unwrap_or(dgates), (gate, 4), units, plane);
        }
        if let Some(c_prev) = c_prev {
            tile.gather(c_prev, (0, 1), units, &mut before);
        }
        tile.gather(c_in, (0, 1), units, &mut state);
        tile.gather(dh_in, (0, 1), units, &mut dh);
        tile.gather(dc_io, (0, 1), units, &mut dc);
        apply(activations.state, &mut state[..len]);
        let [i, f, g, o] = &planes;
        let [di, df, dg, d_o] = &mut grads;
        for j in 0..TILE {
            d_o[j] = dh[j] * state[j];
            dh[j] *= o[j];
        }
        times_slope(activations.state, &state[..len], &mut dh[..len]);
        for j in 0..TILE {
            let d = dc[j] + dh[j];
            di[j] = d * g[j];
            df[j] = d * before[j];
            dg[j] = d * i[j];
            dc[j] = d * f[j];
        }
        tile.scatter(&dc, (0, 1), units, dc_io);
        for (gate, ((grad, plane), kind)) in grads.iter_mut().zip(&planes).zip(kinds).enumerate() {
            times_slope(kind, &plane[..len], &mut grad[..len]);
            tile.scatter(grad, (gate, 4), units, dgates);
        }
    }
}

fn forward<E: Real>(s: &CellShape, args: LstmForwardArgs<'_, E>, pool: &Pool, body: impl Fn(Forward<'_, E>) + Sync) {
    args.activations.check();
    assert_eq!(args.gates.len(), 4 * s.len(), "gates: {s:?}");
    assert!(args.c_prev.is_none_or(|c| c.len() == s.len()), "c_prev: {s:?}");
    assert_eq!(args.c.len(), s.len(), "c: {s:?}");
    assert_eq!(args.h.len(), s.len(), "h: {s:?}");
    let (activations, units, c_prev) = (args.activations, s.units, args.c_prev);
    let (gates, h) = (SharedMut::new(args.gates), SharedMut::new(args.h));
    let step = task_positions(units) * units;
    pool.chunks(args.c, step, &|task, c| {
        let range = task.index * step..task.index * step + c.len();
        // SAFETY: each task takes its own positions, once.
        let (gates, h) = unsafe { (gates.part(4 * range.start..4 * range.end), h.part(range.clone())) };
        body(Forward { activations, units, gates, c_prev: c_prev.map(|c| &c[range]), c, h });
    });
}

fn backward<E: Real>(s: &CellShape, args: LstmBackwardArgs<'_, E>, pool: &Pool, body: impl Fn(Backward<'_, E>) + Sync) {
    args.activations.check();
    assert!(args.gates.is_none_or(|gates| gates.len() == 4 * s.len()), "gates: {s:?}");
    assert!(args.c_prev.is_none_or(|c| c.len() == s.len()), "c_prev: {s:?}");
    assert_eq!(args.c.len(), s.len(), "c: {s:?}");
    assert_eq!(args.dh.len(), s.len(), "dh: {s:?}");
    assert_eq!(args.dc.len(), s.len(), "dc: {s:?}");
    assert_eq!(args.dgates.len(), 4 * s.len(), "dgates: {s:?}");
    let (activations, units) = (args.activations, s.units);
    let (gates, c_prev, c, dh) = (args.gates, args.c_prev, args.c, args.dh);
    let dgates = SharedMut::new(args.dgates);
    let step = task_positions(units) * units;
    pool.chunks(args.dc, step, &|task, dc| {
        let range = task.index * step..task.index * step + dc.len();
        let wide = 4 * range.start..4 * range.end;
        // SAFETY: each task takes its own positions, once.
        let dgates = unsafe { dgates.part(wide.clone()) };
        body(Backward {
            activations,
            units,
            gates: gates.map(|gates| &gates[wide]),
            c_prev: c_prev.map(|c| &c[range.clone()]),
            c: &c[range.clone()],
            dh: &dh[range],
            dc,
            dgates,
        });
    });
}

compiled_tables! {
    LSTM_FORWARD_F32, LSTM_FORWARD_F64: LstmForward, scratch: no_scratch,
    names: ["lstm_forward_f32__avx512", "lstm_forward_f32__avx2", "lstm_forward_f32__scalar", "lstm_forward_f64__scalar"],
    forward(forward_body: (args: Forward<'_, f32>))
}

compiled_tables! {
    LSTM_BACKWARD_F32, LSTM_BACKWARD_F64: LstmBackward, scratch: no_scratch,
    names: ["lstm_backward_f32__avx512", "lstm_backward_f32__avx2", "lstm_backward_f32__scalar", "lstm_backward_f64__scalar"],
    backward(backward_body: (args: Backward<'_, f32>))
}
