//! No kernel allocates. One test alone, as the allocator counts for the whole process.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use framefit_kernels::conv::*;
use framefit_kernels::linear::*;
use framefit_kernels::mean::*;
use framefit_kernels::optimizer::*;
use framefit_kernels::pooling::*;
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
            (row.run)(s, ConvForwardArgs { x: &x, w: &w, bias: None, relu: true, y: &mut y, scratch }, pool);
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
