//! Every row of the poolings against PyTorch (`reference/pytorch/more_ops.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::kernels::conv::{Dims3, Window};
use framefit::kernels::mean::*;
use framefit::kernels::pooling::*;
use reference::{Case, Cases, Element, THREADS, WithoutKernel, assert_close, extents, nan, pool, rows};

const MAX_POOL_3D_WITHOUT_KERNEL: &[WithoutKernel] = &[("max_pool3d_dilation_2", "windows have no dilation")];

fn cases() -> Cases {
    Cases::of("pytorch/pooling")
}

fn whole(frames: usize) -> Window {
    Window { lo: 0, hi: frames }
}

fn shape(case: &Case<'_>) -> PoolShape {
    let (clips, channels, input) = extents(case.tensor("input"));
    let (kernel, stride, padding) = (case.dims("kernel", 1), case.dims("stride", 1), case.dims("padding", 0));
    let output = if case.flag("ceil_mode") {
        PoolShape::output_rounded_up(input, kernel, stride, padding)
    } else {
        PoolShape::output_of(input, kernel, stride, padding)
    };
    assert_eq!(extents(case.tensor("output")), (clips, channels, output), "{}", case.name);
    let (x, y) = (whole(input.t), whole(output.t));
    PoolShape { clips, channels, input, output, kernel, stride, padding, x, y }
}

/// Where the output has the extent null, the input's stays.
fn adaptive_shape(case: &Case<'_>) -> AdaptiveShape {
    let (clips, channels, input) = extents(case.tensor("input"));
    let asked = case.attribute("output_size").as_array().unwrap();
    let of = |axis: usize, input: usize| asked[axis].as_u64().map_or(input, |size| size as usize);
    let output = Dims3 { t: of(0, input.t), h: of(1, input.h), w: of(2, input.w) };
    assert_eq!(extents(case.tensor("output")), (clips, channels, output), "{}", case.name);
    AdaptiveShape { clips, channels, input, output, x: whole(input.t), y: whole(output.t) }
}

/// Runs every row of a forward and of a backward table that take the same shape.
macro_rules! check_rows {
    ($case:ident, $s:ident, $element:ident: $forward:ident, |$x:ident, $y:ident| $forward_args:expr,
     $backward:ident, |$dy:ident, $dx:ident| $backward_args:expr) => {
        let $x: Vec<$element> = $case.tensor("input").frames().to();
        for row in rows($element::$forward(), &$s) {
            let mut out = nan($case.tensor("output").values.len());
            let $y = &mut out;
            (row.run)(&$s, $forward_args, &pool());
            assert_close(&format!("{} {}", $case.name, row.name), &out, &$case.tensor("output").frames());
        }
        let $dy: Vec<$element> = $case.tensor("grad_output").frames().to();
        for row in rows($element::$backward(), &$s) {
            let mut out = nan($x.len());
            let $dx = &mut out;
            (row.run)(&$s, $backward_args, &pool());
            assert_close(&format!("{} {}", $case.name, row.name), &out, &$case.tensor("grad_input").frames());
        }
    };
}

fn max_pool<E: Element>(case: &Case<'_>) {
    let s = shape(case);
    assert_eq!(case.dims("dilation", 1), Dims3::cube(1), "{}", case.name);
    check_rows!(case, s, E: max_pool_forward, |x, y| MaxPoolForwardArgs { x: &x, y },
        max_pool_backward, |dy, dx| MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx });
}

fn avg_pool<E: Element>(case: &Case<'_>) {
    let divisor = match (case.attribute("divisor_override").as_u64(), case.flag("count_include_pad")) {
        (Some(divisor), _) => Divisor::Fixed(divisor as usize),
        (None, true) => Divisor::WithPadding,
        (None, false) => Divisor::Inputs,
    };
    let s = AvgPoolShape { pool: shape(case), divisor };
    check_rows!(case, s, E: avg_pool_forward, |x, y| AvgPoolForwardArgs { x: &x, y },
        avg_pool_backward, |dy, dx| AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx });
}

fn adaptive_max_pool<E: Element>(case: &Case<'_>) {
    let s = adaptive_shape(case);
    check_rows!(case, s, E: adaptive_max_pool_forward, |x, y| MaxPoolForwardArgs { x: &x, y },
        adaptive_max_pool_backward,
        |dy, dx| MaxPoolBackwardArgs { x: &x, dy: &dy, relu: false, accumulate: false, dx });
}

/// Also by the mean over frames and positions, where there is one output.
fn adaptive_avg_pool<E: Element>(case: &Case<'_>) {
    let s = adaptive_shape(case);
    check_rows!(case, s, E: adaptive_avg_pool_forward, |x, y| AvgPoolForwardArgs { x: &x, y },
        adaptive_avg_pool_backward, |dy, dx| AvgPoolBackwardArgs { dy: &dy, accumulate: false, dx });
    if s.output != Dims3::cube(1) {
        return;
    }
    let (clips, frames, positions, channels) = (s.clips, s.input.t, s.input.h * s.input.w, s.channels);
    let scale = E::from_f64(1.0 / s.input.volume() as f64);
    let s = MeanShape { clips, frames, positions, channels };
    // As much as any row asks for.
    let scratch_len = E::mean_forward().iter().map(|row| (row.scratch)(&s, THREADS)).max().unwrap();
    let mut scratch = nan(scratch_len);
    check_rows!(case, s, E: mean_forward,
        |x, y| MeanForwardArgs { x: &x, scale, accumulate: false, y, scratch: &mut scratch },
        mean_backward, |dy, dx| MeanBackwardArgs { dy: &dy, scale, accumulate: false, dx });
}

#[test]
fn average_pooling_is_pytorchs() {
    for (op, count) in [("avg_pool3d", 11), ("avg_pool2d", 4), ("avg_pool1d", 3)] {
        cases().check(op, count, &[], |case| {
            avg_pool::<f64>(case);
            avg_pool::<f32>(case);
        });
    }
}

#[test]
fn maximum_pooling_is_pytorchs() {
    for (op, count, without_kernel) in
        [("max_pool3d", 5, MAX_POOL_3D_WITHOUT_KERNEL), ("max_pool2d", 1, &[]), ("max_pool1d", 1, &[])]
    {
        cases().check(op, count, without_kernel, |case| {
            max_pool::<f64>(case);
            max_pool::<f32>(case);
        });
    }
}

#[test]
fn adaptive_average_pooling_is_pytorchs() {
    cases().check("adaptive_avg_pool3d", 7, &[], |case| {
        adaptive_avg_pool::<f64>(case);
        adaptive_avg_pool::<f32>(case);
    });
}

#[test]
fn adaptive_maximum_pooling_is_pytorchs() {
    cases().check("adaptive_max_pool3d", 7, &[], |case| {
        adaptive_max_pool::<f64>(case);
        adaptive_max_pool::<f32>(case);
    });
}

#[test]
fn every_op_has_a_test() {
    let cases = cases();
    cases.assert_ops(&[
        "avg_pool3d",
        "avg_pool2d",
        "avg_pool1d",
        "max_pool3d",
        "max_pool2d",
        "max_pool1d",
        "adaptive_avg_pool3d",
        "adaptive_max_pool3d",
    ]);
    assert_eq!(cases.all().len(), 40);
}
