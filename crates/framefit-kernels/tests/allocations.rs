//! No kernel allocates. One test alone, as the allocator counts for the whole process.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use framefit_kernels::activation::*;
use framefit_kernels::conv::*;
use framefit_kernels::dropout::*;
use framefit_kernels::elementwise::*;
use framefit_kernels::linear::*;
use framefit_kernels::loss::*;
use framefit_kernels::mean::*;
use framefit_kernels::norm::*;
use framefit_kernels::optimizer::*;
use framefit_kernels::pooling::*;
use framefit_kernels::recurrent::*;
use framefit_kernels::{Pool, Real, Row};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs each row, whose scratch `run` is lent, and checks that nothing is allocated meanwhile.
fn check<S, R: Row<S>>(
    table: &'static [R],
    shape: &S,
    scratch: impl Fn(&R) -> usize,
    mut run: impl FnMut(&R, &mut [f32]),
) {
    for row in table.iter().filter(|row| row.isa().available() && row.handles(shape)) {
        let mut scratch = vec![0.0; scratch(row)];
        // A worker thread allocates once, when it starts, which may be during any run.
        let counts = [(); 4].map(|()| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            run(row, &mut scratch);
            ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        assert_eq!(counts.into_iter().min(), Some(0), "{}", row.name());
    }
}

#[test]
fn kernels_allocate_nothing() {
    let pool = Pool::new(2).unwrap();
    let (input, one) = (Dims3 { t: 3, h: 6, w: 9 }, Dims3::cube(1));
    for (channels, out_channels, groups) in [(3, 20, 1), (8, 8, 8)] {
        for stride in [one, Dims3::cube(2)] {
            let output = ConvShape::output_of(input, Dims3::cube(3), stride, one, one);
            let s = ConvShape {
                clips: 2,
                channels,
                out_channels,
                groups,
                input,
                output,
                kernel: Dims3::cube(3),
                stride,
                padding: one,
                dilation: one,
                x: Window { lo: 0, hi: input.t },
                y: Window { lo: 0, hi: output.t },
            };
            convolutions(&s, &pool);
        }
    }
    pooling(&pool);
    linear(&pool);
    elementwise(&pool);
    norms(&pool);
    cells(&pool);
    losses(&pool);
}

fn convolutions(s: &ConvShape, pool: &Pool) {
    let (x, w, dy) = (vec![1.0; s.x_len()], vec![1.0; s.weight_len()], vec![1.0; s.y_len()]);
    let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
    let mut db = vec![0.0; s.out_channels];
    check(
        f32::conv_forward(),
        s,
        |row| (row.scratch)(s, 2),
        |row, scratch| {
            let args = ConvForwardArgs { x: &x, w: &w, bias: None, relu: true, accumulate: false, y: &mut y, scratch };
            (row.run)(s, args, pool);
        },
    );
    check(
        f32::conv_input_gradient(),
        s,
        |row| (row.scratch)(s, 2),
        |row, scratch| {
            let args = ConvInputGradientArgs { dy: &dy, w: &w, dx: &mut dx, accumulate: false, scratch };
            (row.run)(s, args, pool);
        },
    );
    check(
        f32::conv_weight_gradient(),
        s,
        |row| (row.scratch)(s, 2),
        |row, scratch| {
            let args = ConvWeightGradientArgs { x: &x, dy: &dy, dw: &mut dw, db: Some(&mut db), scratch };
            (row.run)(s, args, pool);
        },
    );
}

fn pooling(pool: &Pool) {
    let (input, two, none) = (Dims3 { t: 4, h: 6, w: 8 }, Dims3::cube(2), Dims3::cube(0));
    let output = PoolShape::output_of(input, two, two, none);
    let (x_window, y_window) = (Window { lo: 0, hi: 4 }, Window { lo: 0, hi: 2 });
    let s = PoolShape {
        clips: 1,
        channels: 20,
        input,
        output,
        kernel: two,
        stride: two,
        padding: none,
        x: x_window,
        y: y_window,
    };
    let (x, mut y, mut dx) = (vec![1.0; s.x_len()], vec![1.0; s.y_len()], vec![1.0; s.x_len()]);
    check(f32::max_pool_forward(), &s, |_| 0, |row, _| (row.run)(&s, MaxPoolForwardArgs { x: &x, y: &mut y }, pool));
    check(
        f32::max_pool_backward(),
        &s,
        |_| 0,
        |row, _| {
            let args = MaxPoolBackwardArgs { x: &x, dy: &y, relu: false, accumulate: false, dx: &mut dx };
            (row.run)(&s, args, pool);
        },
    );
    let s = MeanShape { clips: 1, frames: 4, positions: 48, channels: 20 };
    check(
        f32::mean_forward(),
        &s,
        |row| (row.scratch)(&s, 2),
        |row, scratch| {
            let args = MeanForwardArgs { x: &x, scale: 1.0, accumulate: false, y: &mut y[..20], scratch };
            (row.run)(&s, args, pool);
        },
    );
}

fn linear(pool: &Pool) {
    let s = LinearShape { clips: 3, frames: 2, features: 3000, out_features: 20 };
    let (x, mut w, mut y) = (vec![1.0; s.x_len()], vec![1.0; s.weight_len()], vec![1.0; s.y_len()]);
    check(
        f32::linear_forward(),
        &s,
        |row| (row.scratch)(&s, 2),
        |row, scratch| {
            let args =
                LinearForwardArgs { x: &x, w: &w, bias: None, relu: false, accumulate: false, y: &mut y, scratch };
            (row.run)(&s, args, pool);
        },
    );
    let len = w.len();
    let (g, mut m, mut v) = (vec![1.0; len], vec![0.0; len], vec![0.0; len]);
    check(
        f32::adam(),
        &len,
        |_| 0,
        |row, _| {
            let step = AdamStep::DEFAULT;
            (row.run)(&len, AdamArgs { step, w: &mut w, g: &g, m: &mut m, v: &mut v }, pool);
        },
    );
}

fn elementwise(pool: &Pool) {
    let len = 20_000;
    let (a, mut y) = (vec![1.0; len], vec![1.0; len]);
    for activation in [Activation::Tanh, Activation::Gelu] {
        check(
            f32::activation_forward(),
            &len,
            |_| 0,
            |row, _| (row.run)(&len, ActivationForwardArgs { activation, x: Some(&a), y: &mut y }, pool),
        );
        check(
            f32::activation_backward(),
            &len,
            |_| 0,
            |row, _| {
                let (dy, dx) = (Some(&a[..]), &mut y[..]);
                let args = ActivationBackwardArgs { activation, x: &a, y: &a, dy, accumulate: true, dx };
                (row.run)(&len, args, pool);
            },
        );
    }
    check(f32::addition(), &len, |_| 0, |row, _| (row.run)(&len, AdditionArgs { a: None, b: &a, y: &mut y }, pool));
    let s = FrameReversalShape { frame: len / 4, frames: 4 };
    check(
        f32::frame_reversal(),
        &s,
        |_| 0,
        |row, _| (row.run)(&s, FrameReversalArgs { x: &a, accumulate: true, y: &mut y }, pool),
    );
    for unit in [DropoutUnit::Element, DropoutUnit::ClipChannel] {
        let s = DropoutShape { clips: 2, frames: 2, positions: 125, channels: 40, unit };
        check(
            f32::dropout(),
            &s,
            |_| 0,
            |row, _| {
                let (keys, x) = (&[1, 2], Some(&a[..]));
                let args = DropoutArgs { keys, layer: 0, first_frame: 0, p: 0.5, x, accumulate: false, y: &mut y };
                (row.run)(&s, args, pool);
            },
        );
    }
}

fn norms(pool: &Pool) {
    let s = ChannelShape { rows: 500, channels: 40 };
    let (x, mut y, c) = (vec![1.0; s.len()], vec![1.0; s.len()], vec![1.0; 120]);
    let (mut state, mut sums) = (vec![0.0; 120], vec![0.0; 80]);
    check(
        f32::channel_moments(),
        &s,
        |row| (row.scratch)(&s, 2),
        |row, scratch| (row.run)(&s, ChannelMomentsArgs { x: &x, state: &mut state, scratch }, pool),
    );
    check(
        f32::batch_norm_sums(),
        &s,
        |row| (row.scratch)(&s, 2),
        |row, scratch| {
            let (mean, inv_std) = (&c[..40], &c[..40]);
            (row.run)(&s, BatchNormSumsArgs { x: &x, dy: &x, mean, inv_std, sums: &mut sums, scratch }, pool);
        },
    );
    check(
        f32::scale_shift(),
        &s,
        |_| 0,
        |row, _| {
            let (scale, y) = (&c[..40], &mut y[..]);
            let args = ScaleShiftArgs { x: None, scale, shift: None, relu: true, accumulate: false, y };
            (row.run)(&s, args, pool);
        },
    );
    check(
        f32::batch_norm_input_gradient(),
        &s,
        |_| 0,
        |row, _| {
            let (x, coefficients) = (&x[..], &c[..]);
            let args = BatchNormInputGradientArgs { x, dy: x, coefficients, accumulate: false, dx: &mut y };
            (row.run)(&s, args, pool);
        },
    );
    for (positions, groups) in [(50, 4), (1, 1)] {
        let s = NormShape { items: 500 / positions, positions, channels: 40, groups };
        let count = s.statistics_len();
        let (mut mean, mut inv_std) = (vec![1.0; count], vec![1.0; count]);
        check(
            f32::group_norm_forward(),
            &s,
            |_| 0,
            |row, _| {
                let (mean, inv_std) = (&mut mean[..], &mut inv_std[..]);
                let args = GroupNormForwardArgs { x: &x, gamma: None, beta: None, eps: 1.0, mean, inv_std, y: &mut y };
                (row.run)(&s, args, pool);
            },
        );
        check(
            f32::group_norm_statistics(),
            &s,
            |_| 0,
            |row, _| {
                let (mean, inv_std) = (&mut mean[..], &mut inv_std[..]);
                (row.run)(&s, GroupNormStatisticsArgs { x: &x, eps: 1.0, mean, inv_std }, pool);
            },
        );
        check(
            f32::group_norm_input_gradient(),
            &s,
            |row| (row.scratch)(&s, 2),
            |row, scratch| {
                let (mean, inv_std, accumulate, dx) = (&mean[..], &inv_std[..], false, &mut y[..]);
                let args =
                    GroupNormInputGradientArgs { x: &x, dy: &x, gamma: None, mean, inv_std, accumulate, dx, scratch };
                (row.run)(&s, args, pool);
            },
        );
        check(
            f32::group_norm_weight_gradient(),
            &s,
            |row| (row.scratch)(&s, 2),
            |row, scratch| {
                let (dgamma, dbeta) = y[..80].split_at_mut(40);
                let (dgamma, dbeta) = (Some(dgamma), Some(dbeta));
                let (mean, inv_std) = (&mean[..], &inv_std[..]);
                let args = GroupNormWeightGradientArgs { x: &x, dy: &x, mean, inv_std, dgamma, dbeta, scratch };
                (row.run)(&s, args, pool);
            },
        );
    }
}

fn cells(pool: &Pool) {
    let s = CellShape { positions: 500, units: 40 };
    let (activations, order) = (CellActivations::DEFAULT, GateOrder::UpdateReset);
    let (mut gates, before, mut c, mut h) =
        (vec![1.0; 4 * s.len()], vec![1.0; s.len()], vec![1.0; s.len()], vec![1.0; s.len()]);
    let c_prev = Some(&before[..]);
    check(
        f32::lstm_forward(),
        &s,
        |_| 0,
        |row, _| {
            let args = LstmForwardArgs { activations, gates: &mut gates, c_prev, c: &mut c, h: &mut h };
            (row.run)(&s, args, pool);
        },
    );
    check(
        f32::lstm_backward(),
        &s,
        |_| 0,
        |row, _| {
            let (c, dh, dc, dgates) = (&before[..], &before[..], &mut h[..], &mut gates[..]);
            let args = LstmBackwardArgs { activations, gates: None, c_prev, c, dh, dc, dgates };
            (row.run)(&s, args, pool);
        },
    );
    let h_gates = vec![1.0; 3 * s.len()];
    check(
        f32::gru_forward(),
        &s,
        |_| 0,
        |row, _| {
            let (x_gates, h_prev) = (&mut gates[..3 * s.len()], c_prev);
            let args = GruForwardArgs { activations, order, x_gates, h_gates: &h_gates, h_prev, h: &mut h };
            (row.run)(&s, args, pool);
        },
    );
}

fn losses(pool: &Pool) {
    let s = LossShape { clips: 50, classes: 400 };
    let (logits, labels, mut dlogits) = (vec![1.0; 20_000], vec![3; 50], vec![0.0; 20_000]);
    let (mut losses, mut weights) = (vec![0.0; 50], vec![0.0; 50]);
    check(
        f32::softmax_cross_entropy(),
        &s,
        |_| 0,
        |row, _| {
            let args = SoftmaxCrossEntropyArgs {
                logits: &logits,
                labels: &labels,
                ignored: None,
                class_weights: None,
                smoothing: 0.1,
                scale: 1.0,
                losses: &mut losses,
                weights: &mut weights,
                dlogits: &mut dlogits,
            };
            (row.run)(&s, args, pool);
        },
    );
    check(
        f32::binary_cross_entropy(),
        &s,
        |_| 0,
        |row, _| {
            let args = BinaryCrossEntropyArgs {
                logits: &logits,
                targets: &logits,
                ignored: None,
                weights: None,
                positive_weights: None,
                scale: 1.0,
                losses: &mut losses,
                counts: &mut weights,
                dlogits: &mut dlogits,
            };
            (row.run)(&s, args, pool);
        },
    );
    check(
        f32::labelled_binary_cross_entropy(),
        &s,
        |_| 0,
        |row, _| {
            let args = LabelledBinaryCrossEntropyArgs {
                logits: &logits,
                labels: &labels,
                ignored: None,
                positive_weights: None,
                smoothing: 0.1,
                scale: 1.0,
                losses: &mut losses,
                weights: &mut weights,
                dlogits: &mut dlogits,
            };
            (row.run)(&s, args, pool);
        },
    );
}
