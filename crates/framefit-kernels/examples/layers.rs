//! Prints the rate of each row of the layers between convolutions, in GB/s of what they read and write: activations,
//! average and adaptive pooling, norms, dropout, moves and the pointwise parts of recurrent cells.
//!
//! Rates of one thread are by its time on the processor, so that other programs disturb them little; those of
//! two threads are by the clock.
//!
//! `cargo run --release -p framefit-kernels --example layers [-- FILTER]`, where FILTER is part of a row's name.

mod common;

use common::{Bench, fill};
use framefit_kernels::Real;
use framefit_kernels::activation::*;
use framefit_kernels::conv::{Dims3, Window};
use framefit_kernels::dropout::*;
use framefit_kernels::elementwise::*;
use framefit_kernels::norm::*;
use framefit_kernels::pooling::*;
use framefit_kernels::recurrent::*;

/// Elements of most tensors.
const LEN: usize = 1 << 21;

fn main() -> std::io::Result<()> {
    let bench = Bench::new()?;
    activations(&bench);
    pooling(&bench);
    for channels in [3, 40, 64] {
        println!("channels: {channels}");
        channel_norms(&bench, channels);
        group_norms(&bench, channels);
        drops(&bench, channels);
        moves(&bench, channels);
        cells(&bench, channels);
    }
    Ok(())
}

fn activations(bench: &Bench) {
    let (x, dy, mut out) = (fill(LEN), fill(LEN), fill(LEN));
    for activation in [
        Activation::Relu,
        Activation::Elu { alpha: 1.0 },
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::HardSwish,
        Activation::Tanh,
        Activation::Softplus,
    ] {
        println!("{activation:?}");
        bench.table(f32::activation_forward(), &LEN, |row, pool| {
            (row.run)(&LEN, ActivationForwardArgs { activation, x: Some(&x), y: &mut out }, pool);
            2 * LEN
        });
        bench.table(f32::activation_backward(), &LEN, |row, pool| {
            let (x, y, dx) = (&x[..], &x[..], &mut out[..]);
            let args = ActivationBackwardArgs { activation, x, y, dy: Some(&dy), accumulate: false, dx };
            (row.run)(&LEN, args, pool);
            3 * LEN
        });
    }
}

fn pooling(bench: &Bench) {
    let (input, two) = (Dims3 { t: 4, h: 128, w: 128 }, Dims3::cube(2));
    let (x_window, y_window) = (Window { lo: 0, hi: 4 }, Window { lo: 0, hi: 2 });
    let output = PoolShape::output_of(input, two, two, Dims3::cube(0));
    let pool = PoolShape {
        clips: 1,
        channels: 32,
        input,
        output,
        kernel: two,
        stride: two,
        padding: Dims3::cube(0),
        x: x_window,
        y: y_window,
    };
    let (x, mut y, mut dx) = (fill(pool.x_len()), fill(pool.y_len()), fill(pool.x_len()));
    let len = x.len() + y.len();
    let s = AvgPoolShape { pool, divisor: Divisor::Inputs };
    bench.table(f32::avg_pool_forward(), &s, |row, pool| {
        (row.run)(&s, AvgPoolForwardArgs { x: &x, y: &mut y }, pool);
        len
    });
    bench.table(f32::avg_pool_backward(), &s, |row, pool| {
        (row.run)(&s, AvgPoolBackwardArgs { dy: &y, accumulate: false, dx: &mut dx }, pool);
        len
    });
    let output = Dims3 { t: 2, h: 7, w: 7 };
    let s = AdaptiveShape { clips: 1, channels: 32, input, output, x: x_window, y: y_window };
    let y = &mut y[..s.y_len()];
    bench.table(f32::adaptive_avg_pool_forward(), &s, |row, pool| {
        (row.run)(&s, AvgPoolForwardArgs { x: &x, y }, pool);
        x.len()
    });
    bench.table(f32::adaptive_avg_pool_backward(), &s, |row, pool| {
        (row.run)(&s, AvgPoolBackwardArgs { dy: y, accumulate: false, dx: &mut dx }, pool);
        x.len()
    });
    bench.table(f32::adaptive_max_pool_forward(), &s, |row, pool| {
        (row.run)(&s, MaxPoolForwardArgs { x: &x, y }, pool);
        x.len()
    });
    bench.table(f32::adaptive_max_pool_backward(), &s, |row, pool| {
        (row.run)(&s, MaxPoolBackwardArgs { x: &x, dy: y, relu: false, accumulate: false, dx: &mut dx }, pool);
        2 * x.len()
    });
}

fn channel_norms(bench: &Bench, channels: usize) {
    let s = ChannelShape { rows: LEN / channels, channels };
    let (x, dy, mut out) = (fill(s.len()), fill(s.len()), fill(s.len()));
    let (a, b, coefficients) = (fill(channels), fill(channels), fill(3 * channels));
    let (mut state, mut sums) = (vec![0.0; 3 * channels], vec![0.0; 2 * channels]);
    bench.table(f32::channel_moments(), &s, |row, pool| {
        let mut scratch = vec![0.0; (row.scratch)(&s, pool.threads())];
        (row.run)(&s, ChannelMomentsArgs { x: &x, state: &mut state, scratch: &mut scratch }, pool);
        s.len()
    });
    bench.table(f32::scale_shift(), &s, |row, pool| {
        let (x, y) = (Some(&x[..]), &mut out[..]);
        let args = ScaleShiftArgs { x, scale: &a, shift: Some(&b), relu: true, accumulate: false, y };
        (row.run)(&s, args, pool);
        2 * s.len()
    });
    bench.table(f32::batch_norm_sums(), &s, |row, pool| {
        let mut scratch = vec![0.0; (row.scratch)(&s, pool.threads())];
        let (x, dy, mean, inv_std) = (&x[..], &dy[..], &a[..], &b[..]);
        let args = BatchNormSumsArgs { x, dy, mean, inv_std, sums: &mut sums, scratch: &mut scratch };
        (row.run)(&s, args, pool);
        2 * s.len()
    });
    bench.table(f32::batch_norm_input_gradient(), &s, |row, pool| {
        let (x, dy, coefficients, dx) = (&x[..], &dy[..], &coefficients[..], &mut out[..]);
        let args = BatchNormInputGradientArgs { x, dy, coefficients, accumulate: false, dx };
        (row.run)(&s, args, pool);
        3 * s.len()
    });
}

fn group_norms(bench: &Bench, channels: usize) {
    let per_frame = NormShape { items: 8, positions: LEN / 8 / channels, channels, groups: channels.min(8) };
    let per_frame = if channels == 3 { NormShape { groups: 3, ..per_frame } } else { per_frame };
    let over_channels = NormShape { items: LEN / channels, positions: 1, channels, groups: 1 };
    let over_frames = NormShape { items: 8, positions: 1, channels: LEN / 8, groups: 1 };
    for (name, s) in [("group norm", per_frame), ("layer norm", over_channels), ("over frames", over_frames)] {
        println!("{name}");
        let (x, dy, mut out) = (fill(s.len()), fill(s.len()), fill(s.len()));
        let (gamma, beta) = (fill(s.channels), fill(s.channels));
        let (mut mean, mut inv_std) = (fill(s.statistics_len()), fill(s.statistics_len()));
        let (mut dgamma, mut dbeta) = (fill(s.channels), fill(s.channels));
        bench.table(f32::group_norm_forward(), &s, |row, pool| {
            let args = GroupNormForwardArgs {
                x: &x,
                gamma: Some(&gamma),
                beta: Some(&beta),
                eps: 1e-5,
                mean: &mut mean,
                inv_std: &mut inv_std,
                y: &mut out,
            };
            (row.run)(&s, args, pool);
            2 * s.len()
        });
        bench.table(f32::group_norm_statistics(), &s, |row, pool| {
            (row.run)(&s, GroupNormStatisticsArgs { x: &x, eps: 1e-5, mean: &mut mean, inv_std: &mut inv_std }, pool);
            s.len()
        });
        bench.table(f32::group_norm_input_gradient(), &s, |row, pool| {
            let args = GroupNormInputGradientArgs {
                x: &x,
                dy: &dy,
                gamma: Some(&gamma),
                mean: &mean,
                inv_std: &inv_std,
                accumulate: false,
                dx: &mut out,
                scratch: &mut vec![0.0; (row.scratch)(&s, pool.threads())],
            };
            (row.run)(&s, args, pool);
            3 * s.len()
        });
        bench.table(f32::group_norm_weight_gradient(), &s, |row, pool| {
            let args = GroupNormWeightGradientArgs {
                x: &x,
                dy: &dy,
                mean: &mean,
                inv_std: &inv_std,
                dgamma: Some(&mut dgamma),
                dbeta: Some(&mut dbeta),
                scratch: &mut vec![0.0; (row.scratch)(&s, pool.threads())],
            };
            (row.run)(&s, args, pool);
            2 * s.len()
        });
    }
}

fn drops(bench: &Bench, channels: usize) {
    for unit in [DropoutUnit::Element, DropoutUnit::FrameChannel] {
        println!("{unit:?}");
        let s = DropoutShape { clips: 2, frames: 4, positions: LEN / 8 / channels, channels, unit };
        let (x, mut y) = (fill(s.len()), fill(s.len()));
        bench.table(f32::dropout(), &s, |row, pool| {
            let keys = &[1, 2];
            let args =
                DropoutArgs { keys, layer: 0, first_frame: 0, p: 0.5, x: Some(&x), accumulate: false, y: &mut y };
            (row.run)(&s, args, pool);
            2 * s.len()
        });
    }
}

fn moves(bench: &Bench, channels: usize) {
    let (a, b, mut y) = (fill(LEN), fill(LEN), fill(2 * LEN));
    bench.table(f32::addition(), &LEN, |row, pool| {
        (row.run)(&LEN, AdditionArgs { a: Some(&a), b: &b, y: &mut y[..LEN] }, pool);
        3 * LEN
    });
    let rows = LEN / channels;
    let (x_channels, y_channels) = (channels, 2 * channels);
    let s = ChannelCopyShape { rows, channels, x_channels, x_first: 0, y_channels, y_first: channels };
    bench.table(f32::channel_copy(), &s, |row, pool| {
        let y = &mut y[..rows * y_channels];
        (row.run)(&s, ChannelCopyArgs { x: &a[..rows * channels], accumulate: false, y }, pool);
        2 * rows * channels
    });
}

fn cells(bench: &Bench, units: usize) {
    let s = CellShape { positions: 135 * 240, units };
    let activations = CellActivations::DEFAULT;
    let order = GateOrder::ResetUpdate;
    let (mut gates, h_prev, dh) = (fill(4 * s.len()), fill(s.len()), fill(s.len()));
    let (mut c, mut h, mut more) = (fill(s.len()), fill(s.len()), fill(3 * s.len()));
    bench.table(f32::lstm_forward(), &s, |row, pool| {
        let (c_prev, c, h) = (Some(&h_prev[..]), &mut c[..], &mut h[..]);
        (row.run)(&s, LstmForwardArgs { activations, gates: &mut gates, c_prev, c, h }, pool);
        11 * s.len()
    });
    bench.table(f32::lstm_backward(), &s, |row, pool| {
        let (c_prev, c, dc, dgates) = (Some(&h_prev[..]), &c[..], &mut h[..], &mut gates[..]);
        (row.run)(&s, LstmBackwardArgs { activations, gates: None, c_prev, c, dh: &dh, dc, dgates }, pool);
        13 * s.len()
    });
    let x_gates = &mut gates[..3 * s.len()];
    bench.table(f32::gru_forward(), &s, |row, pool| {
        let (h_gates, h_prev, h) = (&more[..], Some(&h_prev[..]), &mut h[..]);
        (row.run)(&s, GruForwardArgs { activations, order, x_gates, h_gates, h_prev, h }, pool);
        11 * s.len()
    });
    bench.table(f32::gru_backward(), &s, |row, pool| {
        let (h_gates, h_prev, dh_prev) = (&mut more[..], Some(&h_prev[..]), &mut h[..]);
        (row.run)(&s, GruBackwardArgs { activations, order, x_gates, h_gates, h_prev, dh: &dh, dh_prev }, pool);
        13 * s.len()
    });
}
