//! Every row of the kernels that a cnn3d needs against PyTorch (`reference/pytorch/ops.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::kernels::activation::{ReluBackwardArgs, ReluForwardArgs};
use framefit::kernels::conv::*;
use framefit::kernels::linear::*;
use framefit::kernels::loss::*;
use framefit::kernels::mean::*;
use framefit::kernels::optimizer::{AdamArgs, AdamStep};
use framefit::kernels::pooling::*;
use reference::{Array, Case, Cases, Element, THREADS, assert_close, extents, nan, pool, rows, zeros};

const ADAM_WITHOUT_KERNEL: &[reference::WithoutKernel] = &[(
    "adam_decoupled_weight_decay",
    "the kernel adds the decay to the gradient, as torch.optim.Adam does by default",
)];

fn cases() -> Cases {
    Cases::of("pytorch/ops")
}

fn whole(frames: usize) -> Window {
    Window { lo: 0, hi: frames }
}

fn conv_shape(case: &Case<'_>) -> ConvShape {
    let (clips, channels, input) = extents(case.tensor("input"));
    let (_, out_channels, output) = extents(case.tensor("output"));
    ConvShape {
        clips,
        channels,
        out_channels,
        groups: case.size("groups"),
        input,
        output,
        kernel: case.dims("kernel", 1),
        stride: case.dims("stride", 1),
        padding: case.dims("padding", 0),
        dilation: case.dims("dilation", 1),
        x: whole(input.t),
        y: whole(output.t),
    }
}

fn conv3d<E: Element>(case: &Case<'_>) {
    let (s, pool) = (conv_shape(case), pool());
    let x: Vec<E> = case.tensor("input").frames().to();
    let dy: Vec<E> = case.tensor("grad_output").frames().to();
    let w: Vec<E> = case.tensor("weight").conv_weight().to();
    let bias: Option<Vec<E>> = case.get("bias").map(Array::to);
    assert_eq!(bias.is_some(), case.flag("bias"));
    for row in rows(E::conv_forward(), &s) {
        let (mut y, mut scratch) = (nan(s.y_len()), nan((row.scratch)(&s, THREADS)));
        let bias = bias.as_deref();
        let args =
            ConvForwardArgs { x: &x, w: &w, bias, relu: false, accumulate: false, y: &mut y, scratch: &mut scratch };
        (row.run)(&s, args, &pool);
        assert_close(&format!("{} {}", case.name, row.name), &y, &case.tensor("output").frames());
    }
    for row in rows(E::conv_input_gradient(), &s) {
        let (mut dx, mut scratch) = (nan(s.x_len()), nan((row.scratch)(&s, THREADS)));
        let args = ConvInputGradientArgs { dy: &dy, w: &w, dx: &mut dx, accumulate: false, scratch: &mut scratch };
        (row.run)(&s, args, &pool);
        assert_close(&format!("{} {}", case.name, row.name), &dx, &case.tensor("grad_input").frames());
    }
    for row in rows(E::conv_weight_gradient(), &s) {
        let (mut dw, mut scratch) = (zeros(s.weight_len()), nan((row.scratch)(&s, THREADS)));
        let mut db = bias.as_ref().map(|bias| zeros(bias.len()));
        let args = ConvWeightGradientArgs { x: &x, dy: &dy, dw: &mut dw, db: db.as_deref_mut(), scratch: &mut scratch };
        (row.run)(&s, args, &pool);
        let what = format!("{} {}", case.name, row.name);
        assert_close(&what, &dw, &case.tensor("grad_weight").conv_weight());
        if let Some(db) = db {
            assert_close(&what, &db, case.tensor("grad_bias"));
        }
    }
}

#[test]
fn conv3d_is_pytorchs() {
    cases().check("conv3d", 22, &[], |case| {
        conv3d::<f64>(case);
        conv3d::<f32>(case);
    });
}

fn max_pool3d<E: Element>(case: &Case<'_>) {
    let (clips, channels, input) = extents(case.tensor("input"));
    let (kernel, stride, padding) = (case.dims("kernel", 1), case.dims("stride", 1), case.dims("padding", 0));
    let output = PoolShape::output_of(input, kernel, stride, padding);
    assert_eq!(extents(case.tensor("output")), (clips, channels, output), "{}", case.name);
    let (x_window, y_window) = (whole(input.t), whole(output.t));
    let s = PoolShape { clips, channels, input, output, kernel, stride, padding, x: x_window, y: y_window };
    let (x, dy): (Vec<E>, Vec<E>) = (case.tensor("input").frames().to(), case.tensor("grad_output").frames().to());
    for row in rows(E::max_pool_forward(), &s) {
        let mut y = nan(s.y_len());
        (row.run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, &pool());
        assert_close(&format!("{} {}", case.name, row.name), &y, &case.tensor("output").frames());
    }
    for row in rows(E::max_pool_backward(), &s) {
        let mut dx = nan(s.x_len());
        let args = MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx: &mut dx };
        (row.run)(&s, args, &pool());
        assert_close(&format!("{} {}", case.name, row.name), &dx, &case.tensor("grad_input").frames());
    }
}

#[test]
fn max_pool3d_is_pytorchs() {
    cases().check("max_pool3d", 8, &[], |case| {
        max_pool3d::<f64>(case);
        max_pool3d::<f32>(case);
    });
}

/// By the mean over frames and positions, and by the adaptive average with one output.
fn global_average<E: Element>(case: &Case<'_>) {
    assert_eq!(case.size("output_size"), 1);
    let (clips, channels, input) = extents(case.tensor("input"));
    let (x, dy): (Vec<E>, Vec<E>) = (case.tensor("input").frames().to(), case.tensor("grad_output").frames().to());
    let (y_want, dx_want) = (case.tensor("output").frames(), case.tensor("grad_input").frames());
    let what = |row: &str| format!("{} {row}", case.name);

    let s = MeanShape { clips, frames: input.t, positions: input.h * input.w, channels };
    let scale = E::from_f64(1.0 / input.volume() as f64);
    for row in rows(E::mean_forward(), &s) {
        let (mut y, mut scratch) = (nan(s.y_len()), nan((row.scratch)(&s, THREADS)));
        let args = MeanForwardArgs { x: &x, scale, accumulate: false, y: &mut y, scratch: &mut scratch };
        (row.run)(&s, args, &pool());
        assert_close(&what(row.name), &y, &y_want);
    }
    for row in rows(E::mean_backward(), &s) {
        let mut dx = nan(s.x_len());
        (row.run)(&s, MeanBackwardArgs { dy: &dy, scale, accumulate: false, dx: &mut dx }, &pool());
        assert_close(&what(row.name), &dx, &dx_want);
    }

    let output = Dims3::cube(1);
    let s = AdaptiveShape { clips, channels, input, output, x: whole(input.t), y: whole(1) };
    for row in rows(E::adaptive_avg_pool_forward(), &s) {
        let mut y = nan(s.y_len());
        (row.run)(&s, AvgPoolForwardArgs { x: &x, y: &mut y }, &pool());
        assert_close(&what(row.name), &y, &y_want);
    }
    for row in rows(E::adaptive_avg_pool_backward(), &s) {
        let mut dx = nan(s.x_len());
        (row.run)(&s, AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx: &mut dx }, &pool());
        assert_close(&what(row.name), &dx, &dx_want);
    }
}

#[test]
fn the_mean_over_time_and_space_is_pytorchs() {
    cases().check("adaptive_avg_pool3d", 2, &[], |case| {
        global_average::<f64>(case);
        global_average::<f32>(case);
    });
}

fn linear<E: Element>(case: &Case<'_>) {
    let (features, out_features) = (case.size("in_features"), case.size("out_features"));
    let s = LinearShape { clips: case.tensor("input").dims[0], frames: 1, features, out_features };
    let (x, w, dy): (Vec<E>, Vec<E>, Vec<E>) =
        (case.tensor("input").to(), case.tensor("weight").to(), case.tensor("grad_output").to());
    let bias: Option<Vec<E>> = case.get("bias").map(Array::to);
    assert_eq!(bias.is_some(), case.flag("bias"));
    for row in rows(E::linear_forward(), &s) {
        let (mut y, mut scratch) = (nan(s.y_len()), nan((row.scratch)(&s, THREADS)));
        let (bias, y_out) = (bias.as_deref(), &mut y);
        let args =
            LinearForwardArgs { x: &x, w: &w, bias, relu: false, accumulate: false, y: y_out, scratch: &mut scratch };
        (row.run)(&s, args, &pool());
        assert_close(&format!("{} {}", case.name, row.name), &y, case.tensor("output"));
    }
    for row in rows(E::linear_input_gradient(), &s) {
        let (mut dx, mut scratch) = (nan(s.x_len()), nan((row.scratch)(&s, THREADS)));
        let args = LinearInputGradientArgs { dy: &dy, w: &w, dx: &mut dx, accumulate: false, scratch: &mut scratch };
        (row.run)(&s, args, &pool());
        assert_close(&format!("{} {}", case.name, row.name), &dx, case.tensor("grad_input"));
    }
    for row in rows(E::linear_weight_gradient(), &s) {
        let (mut dw, mut scratch) = (zeros(s.weight_len()), nan((row.scratch)(&s, THREADS)));
        let mut db = bias.as_ref().map(|bias| zeros(bias.len()));
        let args =
            LinearWeightGradientArgs { x: &x, dy: &dy, dw: &mut dw, db: db.as_deref_mut(), scratch: &mut scratch };
        (row.run)(&s, args, &pool());
        let what = format!("{} {}", case.name, row.name);
        assert_close(&what, &dw, case.tensor("grad_weight"));
        if let Some(db) = db {
            assert_close(&what, &db, case.tensor("grad_bias"));
        }
    }
}

#[test]
fn linear_is_pytorchs() {
    cases().check("linear", 3, &[], |case| {
        linear::<f64>(case);
        linear::<f32>(case);
    });
}

fn relu<E: Element>(case: &Case<'_>) {
    let (x, dy): (Vec<E>, Vec<E>) = (case.tensor("input").to(), case.tensor("grad_output").to());
    let len = x.len();
    for row in rows(E::relu_forward(), &len) {
        let mut y = x.clone();
        (row.run)(&len, ReluForwardArgs { y: &mut y }, &pool());
        assert_close(row.name, &y, case.tensor("output"));
    }
    let y: Vec<E> = case.tensor("output").to();
    for row in rows(E::relu_backward(), &len) {
        let mut d = dy.clone();
        (row.run)(&len, ReluBackwardArgs { y: &y, dy: &mut d }, &pool());
        assert_close(row.name, &d, case.tensor("grad_input"));
    }
}

#[test]
fn relu_is_pytorchs() {
    cases().check("relu", 1, &[], |case| {
        relu::<f64>(case);
        relu::<f32>(case);
    });
}

fn cross_entropy<E: Element>(case: &Case<'_>) {
    let input = case.tensor("input");
    let s = LossShape { clips: input.dims[0], classes: input.dims[1] };
    let logits: Vec<E> = input.to();
    let labels: Vec<u32> = case.tensor("target").values.iter().map(|&label| label as u32).collect();
    let weights: Option<Vec<E>> = case.get("weight").map(Array::to);
    assert_eq!(weights.is_some(), case.flag("weighted"));
    let total: f64 = labels.iter().map(|&l| weights.as_ref().map_or(1.0, |w| w[l as usize].to_f64())).sum();
    let scale = E::from_f64(1.0 / total);
    for row in rows(E::cross_entropy(), &s) {
        let (mut losses, mut dlogits) = (nan::<E>(s.clips), nan(logits.len()));
        let args = CrossEntropyArgs {
            logits: &logits,
            labels: &labels,
            class_weights: weights.as_deref(),
            scale,
            losses: &mut losses,
            dlogits: &mut dlogits,
        };
        (row.run)(&s, args, &pool());
        let what = format!("{} {}", case.name, row.name);
        assert_close(&what, &[losses.into_iter().sum::<E>() * scale], case.tensor("output"));
        assert_close(&what, &dlogits, case.tensor("grad_input"));
    }
}

#[test]
fn cross_entropy_is_pytorchs() {
    cases().check("cross_entropy", 4, &[], |case| {
        cross_entropy::<f64>(case);
        cross_entropy::<f32>(case);
    });
}

fn adam<E: Element>(case: &Case<'_>) {
    let betas = case.attribute("betas").as_array().unwrap();
    let (start, gradients, parameters) = (case.tensor("start"), case.tensor("gradients"), case.tensor("parameters"));
    let len = start.values.len();
    for row in rows(E::adam(), &len) {
        let (mut w, mut m, mut v) = (start.to::<E>(), zeros(len), zeros(len));
        let steps = gradients.to::<E>();
        assert_eq!(steps.len(), case.size("steps") * len);
        for (i, g) in steps.chunks_exact(len).enumerate() {
            let step = AdamStep {
                lr: case.number("lr"),
                beta1: betas[0].as_f64().unwrap(),
                beta2: betas[1].as_f64().unwrap(),
                eps: case.number("eps"),
                weight_decay: case.number("weight_decay"),
                step: i as u64 + 1,
            };
            (row.run)(&len, AdamArgs { step, w: &mut w, g, m: &mut m, v: &mut v }, &pool());
            let want = Array { dims: start.dims.clone(), values: parameters.values[i * len..][..len].to_vec() };
            assert_close(&format!("{} {} step {}", case.name, row.name, i + 1), &w, &want);
        }
        let what = format!("{} {}", case.name, row.name);
        assert_close(&what, &m, case.tensor("first_moment"));
        assert_close(&what, &v, case.tensor("second_moment"));
    }
}

#[test]
fn adam_is_pytorchs() {
    cases().check("adam", 3, ADAM_WITHOUT_KERNEL, |case| {
        assert!(!case.flag("decoupled"));
        adam::<f64>(case);
        adam::<f32>(case);
    });
}

#[test]
fn every_op_has_a_test() {
    let cases = cases();
    cases.assert_ops(&["conv3d", "max_pool3d", "adaptive_avg_pool3d", "linear", "relu", "cross_entropy", "adam"]);
    assert_eq!(cases.all().len(), 44);
}
