//! The scalar f64 rows of activations, pooling, norms, cells and losses against PyTorch's numbers
//! (`reference/pytorch.py`).
#![allow(clippy::unwrap_used)]

mod common;

use common::{Tolerance, assert_close, nan, reference};
use framefit_kernels::activation::*;
use framefit_kernels::conv::{Dims3, Window};
use framefit_kernels::loss::*;
use framefit_kernels::norm::*;
use framefit_kernels::pooling::*;
use framefit_kernels::recurrent::*;
use framefit_kernels::{Pool, Real};

#[track_caller]
fn agrees(got: &[f64], name: &str) {
    assert_close(got, &reference(name), Tolerance::F64_REORDERED, name);
}

fn pool() -> Pool {
    Pool::new(1).unwrap()
}

#[test]
fn activations() {
    for (name, activation) in [
        ("relu", Activation::Relu),
        ("leaky_relu", Activation::LeakyRelu { slope: 0.02 }),
        ("elu", Activation::Elu { alpha: 1.4 }),
        ("selu", Activation::Selu),
        ("relu6", Activation::Relu6),
        ("gelu", Activation::Gelu),
        ("gelu_tanh", Activation::GeluTanh),
        ("silu", Activation::Silu),
        ("sigmoid", Activation::Sigmoid),
        ("hard_sigmoid", Activation::HardSigmoid),
        ("hard_swish", Activation::HardSwish),
        ("tanh", Activation::Tanh),
        ("softplus", Activation::Softplus),
    ] {
        let (x, dy) = (reference(&format!("activation.{name}.x")), reference(&format!("activation.{name}.dy")));
        let (mut y, mut dx) = (nan(20), nan(20));
        let args = ActivationForwardArgs { activation, x: Some(&x), y: &mut y };
        (f64::activation_forward()[0].run)(&20, args, &pool());
        agrees(&y, &format!("activation.{name}.y"));
        let args = ActivationBackwardArgs { activation, x: &x, y: &y, dy: Some(&dy), accumulate: false, dx: &mut dx };
        (f64::activation_backward()[0].run)(&20, args, &pool());
        // PyTorch's slope of the hard sigmoid is 1/6 rounded to f32, whatever the element type.
        let tolerance = match activation {
            Activation::HardSigmoid => Tolerance { absolute: 0.0, relative: 3e-8 },
            _ => Tolerance::F64_REORDERED,
        };
        assert_close(&dx, &reference(&format!("activation.{name}.dx")), tolerance, name);
    }
}

const INPUT: Dims3 = Dims3 { t: 4, h: 6, w: 4 };

fn strided(output: fn(Dims3, Dims3, Dims3, Dims3) -> Dims3) -> PoolShape {
    let (kernel, stride) = (Dims3 { t: 2, h: 3, w: 3 }, Dims3 { t: 2, h: 3, w: 2 });
    let padding = Dims3 { t: 1, h: 1, w: 0 };
    let output = output(INPUT, kernel, stride, padding);
    let (x, y) = (Window { lo: 0, hi: INPUT.t }, Window { lo: 0, hi: output.t });
    PoolShape { clips: 2, channels: 1, input: INPUT, output, kernel, stride, padding, x, y }
}

#[test]
fn average_pooling() {
    for (mode, output) in [
        ("floor", PoolShape::output_of as fn(Dims3, Dims3, Dims3, Dims3) -> Dims3),
        ("ceil", PoolShape::output_rounded_up),
    ] {
        for (name, divisor) in
            [("padded", Divisor::WithPadding), ("inputs", Divisor::Inputs), ("fixed", Divisor::Fixed(5))]
        {
            let name = |part: &str| format!("avg_pool.{name}.{mode}.{part}");
            let s = AvgPoolShape { pool: strided(output), divisor };
            let (x, dy) = (reference(&name("x")), reference(&name("dy")));
            let (mut y, mut dx) = (nan(s.pool.y_len()), nan(x.len()));
            (f64::avg_pool_forward()[0].run)(&s, AvgPoolForwardArgs { x: &x, y: &mut y }, &pool());
            agrees(&y, &name("y"));
            let args = AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx: &mut dx };
            (f64::avg_pool_backward()[0].run)(&s, args, &pool());
            agrees(&dx, &name("dx"));
        }
    }
}

#[test]
fn maximum_pooling_rounded_up() {
    let s = strided(PoolShape::output_rounded_up);
    let (x, dy) = (reference("max_pool.ceil.x"), reference("max_pool.ceil.dy"));
    let (mut y, mut dx) = (nan(s.y_len()), nan(x.len()));
    (f64::max_pool_forward()[0].run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, &pool());
    agrees(&y, "max_pool.ceil.y");
    let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
    (f64::max_pool_backward()[0].run)(&s, args, &pool());
    agrees(&dx, "max_pool.ceil.dx");
}

#[test]
fn adaptive_pooling() {
    let output = Dims3 { t: 3, h: 4, w: 3 };
    let (x, y) = (Window { lo: 0, hi: INPUT.t }, Window { lo: 0, hi: output.t });
    let s = AdaptiveShape { clips: 2, channels: 1, input: INPUT, output, x, y };
    let (x, dy) = (reference("adaptive.avg.x"), reference("adaptive.avg.dy"));
    let (mut y, mut dx) = (nan(s.y_len()), nan(x.len()));
    (f64::adaptive_avg_pool_forward()[0].run)(&s, AvgPoolForwardArgs { x: &x, y: &mut y }, &pool());
    agrees(&y, "adaptive.avg.y");
    let args = AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx: &mut dx };
    (f64::adaptive_avg_pool_backward()[0].run)(&s, args, &pool());
    agrees(&dx, "adaptive.avg.dx");
    let (x, dy) = (reference("adaptive.max.x"), reference("adaptive.max.dy"));
    (f64::adaptive_max_pool_forward()[0].run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, &pool());
    agrees(&y, "adaptive.max.y");
    let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
    (f64::adaptive_max_pool_backward()[0].run)(&s, args, &pool());
    agrees(&dx, "adaptive.max.dx");
}

#[test]
fn group_and_layer_norm() {
    for (name, items, positions, channels, groups) in [("group_norm", 3, 4, 6, 3), ("layer_norm", 4, 1, 7, 1)] {
        let s = NormShape { items, positions, channels, groups };
        let of = |part: &str| reference(&format!("{name}.{part}"));
        let (x, dy, gamma, beta) = (of("x"), of("dy"), of("gamma"), of("beta"));
        let (mut y, mut mean, mut inv_std) = (nan(s.len()), nan(s.statistics_len()), nan(s.statistics_len()));
        let args = GroupNormForwardArgs {
            x: &x,
            gamma: Some(&gamma),
            beta: Some(&beta),
            eps: 1e-3,
            mean: &mut mean,
            inv_std: &mut inv_std,
            y: &mut y,
        };
        (f64::group_norm_forward()[0].run)(&s, args, &pool());
        agrees(&y, &format!("{name}.y"));
        let row = &f64::group_norm_input_gradient()[0];
        let (mut dx, mut scratch) = (nan(s.len()), nan((row.scratch)(&s, 1)));
        let args = GroupNormInputGradientArgs {
            x: &x,
            dy: &dy,
            gamma: Some(&gamma),
            mean: &mean,
            inv_std: &inv_std,
            accumulate: false,
            dx: &mut dx,
            scratch: &mut scratch,
        };
        (row.run)(&s, args, &pool());
        agrees(&dx, &format!("{name}.dx"));
        let row = &f64::group_norm_weight_gradient()[0];
        let (mut dgamma, mut dbeta) = (vec![0.0; channels], vec![0.0; channels]);
        let mut scratch = nan((row.scratch)(&s, 1));
        let args = GroupNormWeightGradientArgs {
            x: &x,
            dy: &dy,
            mean: &mean,
            inv_std: &inv_std,
            dgamma: Some(&mut dgamma),
            dbeta: Some(&mut dbeta),
            scratch: &mut scratch,
        };
        (row.run)(&s, args, &pool());
        agrees(&dgamma, &format!("{name}.dgamma"));
        agrees(&dbeta, &format!("{name}.dbeta"));
    }
}

#[test]
fn batch_norm() {
    let s = ChannelShape { rows: 9, channels: 4 };
    let of = |part: &str| reference(&format!("batch_norm.{part}"));
    let (x, dy, gamma, beta) = (of("x"), of("dy"), of("gamma"), of("beta"));
    let (mut state, mut mean, mut inv_std) = (vec![0.0; 12], nan(4), nan(4));
    let row = &f64::channel_moments()[0];
    let mut scratch = nan((row.scratch)(&s, 1));
    (row.run)(&s, ChannelMomentsArgs { x: &x, state: &mut state, scratch: &mut scratch }, &pool());
    normalizers(&state, 1e-3, &mut mean, &mut inv_std);
    let scale: Vec<f64> = gamma.iter().zip(&inv_std).map(|(gamma, inv_std)| gamma * inv_std).collect();
    let shift: Vec<f64> = (0..4).map(|c| beta[c] - mean[c] * scale[c]).collect();
    let mut y = nan(x.len());
    let args =
        ScaleShiftArgs { x: Some(&x), scale: &scale, shift: Some(&shift), relu: false, accumulate: false, y: &mut y };
    (f64::scale_shift()[0].run)(&s, args, &pool());
    agrees(&y, "batch_norm.y");
    let row = &f64::batch_norm_sums()[0];
    let (mut sums, mut scratch) = (vec![0.0; 8], nan((row.scratch)(&s, 1)));
    let args =
        BatchNormSumsArgs { x: &x, dy: &dy, mean: &mean, inv_std: &inv_std, sums: &mut sums, scratch: &mut scratch };
    (row.run)(&s, args, &pool());
    agrees(&sums[..4], "batch_norm.dbeta");
    agrees(&sums[4..], "batch_norm.dgamma");
    let mut coefficients = vec![0.0; 12];
    for c in 0..4 {
        let (dy, product) = (gamma[c] * sums[c] / 9.0, gamma[c] * sums[4 + c] / 9.0);
        let means = GradientMeans { mean: mean[c], inv_std: inv_std[c], dy, product };
        for (i, number) in means.coefficients(gamma[c]).into_iter().enumerate() {
            coefficients[4 * i + c] = number;
        }
    }
    let mut dx = nan(x.len());
    let args =
        BatchNormInputGradientArgs { x: &x, dy: &dy, coefficients: &coefficients, accumulate: false, dx: &mut dx };
    (f64::batch_norm_input_gradient()[0].run)(&s, args, &pool());
    agrees(&dx, "batch_norm.dx");
}

#[test]
fn lstm() {
    let s = CellShape { positions: 4, units: 3 };
    let activations = CellActivations::DEFAULT;
    let (mut gates, c_prev) = (reference("lstm.x"), reference("lstm.c"));
    let (mut c, mut h) = (nan(12), nan(12));
    let args = LstmForwardArgs { activations, gates: &mut gates, c_prev: Some(&c_prev), c: &mut c, h: &mut h };
    (f64::lstm_forward()[0].run)(&s, args, &pool());
    // PyTorch's h and c side by side.
    let both: Vec<f64> = h.chunks(3).zip(c.chunks(3)).flat_map(|(h, c)| [h, c].concat()).collect();
    agrees(&both, "lstm.y");
    let (dh, dc): (Vec<Vec<f64>>, Vec<Vec<f64>>) =
        reference("lstm.dy").chunks(6).map(|row| (row[..3].to_vec(), row[3..].to_vec())).unzip();
    let (dh, mut dc) = (dh.concat(), dc.concat());
    let args = LstmBackwardArgs {
        activations,
        gates: None,
        c_prev: Some(&c_prev),
        c: &c,
        dh: &dh,
        dc: &mut dc,
        dgates: &mut gates,
    };
    (f64::lstm_backward()[0].run)(&s, args, &pool());
    agrees(&gates, "lstm.dx");
    agrees(&dc, "lstm.dc");
}

#[test]
fn gru() {
    let s = CellShape { positions: 4, units: 3 };
    let (activations, order) = (CellActivations::DEFAULT, GateOrder::ResetUpdate);
    let (mut x_gates, mut h_gates, h_prev) = (reference("gru.x"), reference("gru.product"), reference("gru.h"));
    let mut h = nan(12);
    let args = GruForwardArgs {
        activations,
        order,
        x_gates: &mut x_gates,
        h_gates: &h_gates,
        h_prev: Some(&h_prev),
        h: &mut h,
    };
    (f64::gru_forward()[0].run)(&s, args, &pool());
    agrees(&h, "gru.y");
    let mut dh_prev = nan(12);
    let args = GruBackwardArgs {
        activations,
        order,
        x_gates: &mut x_gates,
        h_gates: &mut h_gates,
        h_prev: Some(&h_prev),
        dh: &reference("gru.dy"),
        dh_prev: &mut dh_prev,
    };
    (f64::gru_backward()[0].run)(&s, args, &pool());
    agrees(&x_gates, "gru.dx");
    let weight = reference("gru.weight");
    for (at, d) in dh_prev.iter_mut().enumerate() {
        let (position, k) = (at / 3, at % 3);
        *d += (0..9).map(|g| h_gates[position * 9 + g] * weight[g * 3 + k]).sum::<f64>();
    }
    agrees(&dh_prev, "gru.dh");
}

#[test]
fn smoothed_cross_entropy() {
    let s = LossShape { clips: 6, classes: 4 };
    let ignored = -100_i32 as u32;
    let labels: Vec<u32> = reference("smooth.labels").iter().map(|label| *label as i32 as u32).collect();
    let (logits, class_weights) = (reference("smooth.logits"), reference("smooth.weights"));
    let counted = labels.iter().filter(|label| **label != ignored);
    let scale = 1.0 / counted.map(|label| class_weights[*label as usize]).sum::<f64>();
    let (mut losses, mut weights, mut dlogits) = (nan(6), nan(6), nan(24));
    let args = SoftmaxCrossEntropyArgs {
        logits: &logits,
        labels: &labels,
        ignored: Some(ignored),
        class_weights: Some(&class_weights),
        smoothing: 0.2,
        scale,
        losses: &mut losses,
        weights: &mut weights,
        dlogits: &mut dlogits,
    };
    (f64::softmax_cross_entropy()[0].run)(&s, args, &pool());
    agrees(&losses, "smooth.losses");
    agrees(&[losses.iter().sum::<f64>() / weights.iter().sum::<f64>()], "smooth.mean");
    agrees(&dlogits, "smooth.dlogits");
}

#[test]
fn binary_cross_entropy() {
    let s = LossShape { clips: 4, classes: 3 };
    let (mut losses, mut counts, mut dlogits) = (nan(4), nan(4), nan(12));
    let args = BinaryCrossEntropyArgs {
        logits: &reference("binary.logits"),
        targets: &reference("binary.targets"),
        ignored: None,
        weights: Some(&reference("binary.weights")),
        positive_weights: Some(&reference("binary.positive")),
        scale: 1.0 / 12.0,
        losses: &mut losses,
        counts: &mut counts,
        dlogits: &mut dlogits,
    };
    (f64::binary_cross_entropy()[0].run)(&s, args, &pool());
    agrees(&losses, "binary.losses");
    agrees(&dlogits, "binary.dlogits");
    assert_eq!(counts, [3.0; 4]);
}
