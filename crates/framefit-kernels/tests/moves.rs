//! All rows of sums and moves.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, bits, nan, rows};
use framefit_kernels::conv::Window;
use framefit_kernels::elementwise::*;
use framefit_kernels::{Pool, Real};

#[test]
fn additions_add() {
    let pool = Pool::new(2).unwrap();
    for len in (0..=35).chain([16 * 1024 - 1, 16 * 1024 + 1, 50_001]) {
        let mut random = Random::new(1);
        let (a, b) = (random.vector::<f32>(len), random.vector::<f32>(len));
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        for row in rows(f32::addition()) {
            let (mut y, mut added) = (nan(len), a.clone());
            (row.run)(&len, AdditionArgs { a: Some(&a), b: &b, y: &mut y }, &pool);
            (row.run)(&len, AdditionArgs { a: None, b: &b, y: &mut added }, &pool);
            assert!(bits(&y) == bits(&want) && bits(&added) == bits(&want), "{} {len}", row.name);
        }
    }
}

#[test]
fn channels_go_into_a_concatenation_and_out_of_it() {
    let pool = Pool::new(2).unwrap();
    for (rows_of, channels, x_channels, x_first, y_channels, y_first) in
        [(5, 3, 3, 0, 8, 5), (7, 16, 40, 24, 16, 0), (3000, 17, 20, 1, 33, 16), (2, 0, 1, 1, 4, 2), (0, 2, 2, 0, 2, 0)]
    {
        let s = ChannelCopyShape { rows: rows_of, channels, x_channels, x_first, y_channels, y_first };
        let mut random = Random::new(2);
        let (x, before) = (random.vector::<f32>(rows_of * x_channels), random.vector::<f32>(rows_of * y_channels));
        for accumulate in [false, true] {
            let mut want = before.clone();
            for row in 0..rows_of {
                for c in 0..channels {
                    let to = &mut want[row * y_channels + y_first + c];
                    let from = x[row * x_channels + x_first + c];
                    *to = if accumulate { *to + from } else { from };
                }
            }
            for row in rows(f32::channel_copy()) {
                let mut y = before.clone();
                (row.run)(&s, ChannelCopyArgs { x: &x, accumulate, y: &mut y }, &pool);
                assert_eq!(bits(&y), bits(&want), "{} {s:?}", row.name);
            }
        }
    }
}

#[test]
fn frames_go_from_window_to_window() {
    let pool = Pool::new(2).unwrap();
    for frame in [0, 1, 33, 9000] {
        for (x, y, copied) in [((0, 5), (2, 6), (3, 5)), ((4, 9), (4, 9), (4, 9)), ((0, 2), (7, 9), (3, 3))] {
            let window = |(lo, hi): (usize, usize)| Window { lo, hi };
            let s = FrameCopyShape { frame, x: window(x), y: window(y), copied: window(copied) };
            let mut random = Random::new(3);
            let from = random.vector::<f32>(s.x.frames() * frame);
            let before = random.vector::<f32>(s.y.frames() * frame);
            for accumulate in [false, true] {
                let mut want = before.clone();
                for t in copied.0..copied.1 {
                    for i in 0..frame {
                        let to = &mut want[(t - y.0) * frame + i];
                        let from = from[(t - x.0) * frame + i];
                        *to = if accumulate { *to + from } else { from };
                    }
                }
                for row in rows(f32::frame_copy()) {
                    let mut to = before.clone();
                    (row.run)(&s, FrameCopyArgs { x: &from, accumulate, y: &mut to }, &pool);
                    assert_eq!(bits(&to), bits(&want), "{} {s:?}", row.name);
                }
            }
        }
    }
}

#[test]
fn frames_are_turned_round() {
    let pool = Pool::new(2).unwrap();
    for (frames, frame) in [(0, 4), (1, 5), (2, 0), (3, 7), (5, 16 * 1024 + 1), (4, 40_000)] {
        let s = FrameReversalShape { frame, frames };
        let mut random = Random::new(4);
        let (x, before) = (random.vector::<f32>(frames * frame), random.vector::<f32>(frames * frame));
        for accumulate in [false, true] {
            let mut want = before.clone();
            for t in 0..frames {
                for i in 0..frame {
                    let (to, from) = (&mut want[t * frame + i], x[(frames - 1 - t) * frame + i]);
                    *to = if accumulate { *to + from } else { from };
                }
            }
            for row in rows(f32::frame_reversal()) {
                let mut y = before.clone();
                (row.run)(&s, FrameReversalArgs { x: &x, accumulate, y: &mut y }, &pool);
                assert_eq!(bits(&y), bits(&want), "{} {s:?}", row.name);
            }
        }
    }
}
