//! All rows of dropout: what its mask depends on, and on what not.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, bits, nan, on_any_threads, rows};
use framefit_kernels::dropout::*;
use framefit_kernels::{Pool, Real};

const UNITS: [DropoutUnit; 4] =
    [DropoutUnit::Element, DropoutUnit::FrameChannel, DropoutUnit::ClipChannel, DropoutUnit::ElementOfEveryFrame];

fn run<E: Real>(row: &Dropout<E>, s: &DropoutShape, keys: &[u64], first_frame: usize, x: &[E], pool: &Pool) -> Vec<E> {
    let mut y = nan(s.len());
    (row.run)(s, DropoutArgs { keys, layer: 1, first_frame, p: 0.3, x: Some(x), accumulate: false, y: &mut y }, pool);
    y
}

#[test]
fn rows_make_the_same_mask_for_any_threads() {
    for unit in UNITS {
        for channels in [1, 3, 8, 16, 33, 255, 256, 257, 600] {
            for positions in [0, 1, 7, 20_000 / channels] {
                let s = DropoutShape { clips: 2, frames: 2, positions, channels, unit };
                let x = Random::new(1).vector::<f32>(s.len());
                let (wide, keys) = (common::widen(&x), [5, 6]);
                let want = run(&f64::dropout()[0], &s, &keys, 3, &wide, &Pool::new(1).unwrap());
                let zeros = want.iter().map(|y| *y == 0.0);
                for row in rows(f32::dropout()) {
                    let what = format!("{} {s:?}", row.name);
                    let y = on_any_threads(&what, |pool| run(row, &s, &keys, 3, &x, pool));
                    assert!(y.iter().map(|y| *y == 0.0).eq(zeros.clone()), "{what}");
                    let kept = y.iter().zip(&x).all(|(y, x)| *y == 0.0 || *y == x * (1.0 / 0.7_f64) as f32);
                    assert!(kept, "{what}");
                    let pool = Pool::new(2).unwrap();
                    let mut inplace = x.clone();
                    let args = DropoutArgs {
                        keys: &keys,
                        layer: 1,
                        first_frame: 3,
                        p: 0.3,
                        x: None,
                        accumulate: false,
                        y: &mut inplace,
                    };
                    (row.run)(&s, args, &pool);
                    assert_eq!(bits(&inplace), bits(&y), "{what}");
                    let mut added = x.clone();
                    let args = DropoutArgs {
                        keys: &keys,
                        layer: 1,
                        first_frame: 3,
                        p: 0.3,
                        x: Some(&x),
                        accumulate: true,
                        y: &mut added,
                    };
                    (row.run)(&s, args, &pool);
                    let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
                    assert_eq!(bits(&added), bits(&sum), "{what}");
                }
            }
        }
    }
}

#[test]
fn windows_and_micro_batches_do_not_change_the_mask() {
    let pool = Pool::new(2).unwrap();
    for unit in UNITS {
        let s = DropoutShape { clips: 3, frames: 5, positions: 4, channels: 6, unit };
        let (keys, ones) = ([11, 22, 33], vec![1.0_f32; s.len()]);
        for row in rows(f32::dropout()) {
            let whole = run(row, &s, &keys, 2, &ones, &pool);
            let frame = 3 * 24;
            for t in 0..5 {
                let window = DropoutShape { frames: 1, ..s.clone() };
                let y = run(row, &window, &keys, 2 + t, &ones[..frame], &pool);
                assert_eq!(y, whole[t * frame..(t + 1) * frame], "{} frame {t}", row.name);
                for n in [2, 0, 1] {
                    let single = DropoutShape { clips: 1, ..window.clone() };
                    let y = run(row, &single, &keys[n..=n], 2 + t, &ones[..24], &pool);
                    assert_eq!(y, whole[t * frame + n * 24..][..24], "{} frame {t} clip {n}", row.name);
                }
            }
        }
    }
}

#[test]
fn channels_are_dropped_whole() {
    let pool = Pool::new(1).unwrap();
    let (clips, frames, positions, channels) = (4, 6, 5, 40);
    for unit in [DropoutUnit::FrameChannel, DropoutUnit::ClipChannel] {
        let s = DropoutShape { clips, frames, positions, channels, unit };
        let keys = [1, 2, 3, 4];
        let y = run(&f64::dropout()[0], &s, &keys, 0, &vec![1.0; s.len()], &pool);
        let at = |t: usize, n: usize, p: usize, c: usize| y[((t * clips + n) * positions + p) * channels + c];
        let mut changes = 0;
        for t in 0..frames {
            for n in 0..clips {
                for c in 0..channels {
                    assert!((0..positions).all(|p| at(t, n, p, c) == at(t, n, 0, c)));
                    changes += usize::from(at(t, n, 0, c) != at(0, n, 0, c));
                }
            }
        }
        assert_eq!(changes == 0, unit == DropoutUnit::ClipChannel);
    }
}

#[test]
fn frames_share_a_mask_where_they_should() {
    let pool = Pool::new(1).unwrap();
    let (clips, frames, positions, channels) = (2, 5, 7, 11);
    for unit in UNITS {
        let s = DropoutShape { clips, frames, positions, channels, unit };
        let y = run(&f64::dropout()[0], &s, &[3, 4], 0, &vec![1.0; s.len()], &pool);
        let mut of_frames = y.chunks_exact(clips * positions * channels);
        let first = of_frames.next().unwrap();
        let same = of_frames.all(|frame| frame == first);
        assert_eq!(same, matches!(unit, DropoutUnit::ClipChannel | DropoutUnit::ElementOfEveryFrame), "{unit:?}");
        assert_ne!(first[..positions * channels], first[positions * channels..], "{unit:?}: clips differ");
    }
}

/// Layers, and clips whose keys lie side by side, agree as often as chance has it.
#[test]
fn layers_and_neighbouring_keys_draw_apart() {
    let pool = Pool::new(1).unwrap();
    let s = DropoutShape { clips: 1, frames: 1, positions: 100, channels: 100, unit: DropoutUnit::Element };
    let (ones, mut masks) = (vec![1.0; s.len()], Vec::new());
    for key in 0..4 {
        for layer in 0..4 {
            let (mut y, keys) = (nan(s.len()), [key]);
            let args = DropoutArgs {
                keys: &keys,
                layer,
                first_frame: 0,
                p: 0.5,
                x: Some(&ones),
                accumulate: false,
                y: &mut y,
            };
            (f64::dropout()[0].run)(&s, args, &pool);
            masks.push(y);
        }
    }
    for (i, a) in masks.iter().enumerate() {
        for b in &masks[..i] {
            let agree = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert!(agree.abs_diff(5000) < 250, "{agree} of 10000");
        }
    }
}

/// The share that is kept, and how often two neighbours in any direction are kept together, within five standard
/// deviations.
#[test]
fn draws_are_independent_with_the_right_mean() {
    let pool = Pool::new(2).unwrap();
    let (clips, frames, positions, channels) = (4, 16, 128, 64);
    let s = DropoutShape { clips, frames, positions, channels, unit: DropoutUnit::Element };
    let kept: Vec<bool> = run(&f32::dropout()[0], &s, &[0, 1, 2, 3], 0, &vec![1.0; s.len()], &pool)
        .into_iter()
        .map(|y| y != 0.0)
        .collect();
    let check = |share: f64, want: f64, of: usize| {
        let deviation = (want * (1.0 - want) / of as f64).sqrt();
        assert!((share - want).abs() < 5.0 * deviation, "{share} of {of}, want {want}");
    };
    let plane = positions * channels;
    check(kept.iter().filter(|kept| **kept).count() as f64 / s.len() as f64, 0.7, s.len());
    for distance in [1, 2, channels, plane, clips * plane] {
        let pairs = kept.iter().zip(&kept[distance..]).filter(|(a, b)| **a && **b).count();
        let of = s.len() - distance;
        check(pairs as f64 / of as f64, 0.49, of);
    }
}

#[test]
fn the_extremes_drop_nothing_and_everything() {
    let pool = Pool::new(1).unwrap();
    for unit in UNITS {
        let s = DropoutShape { clips: 1, frames: 2, positions: 10, channels: 30, unit };
        let x = vec![2.0_f32; s.len()];
        for row in rows(f32::dropout()) {
            for (p, want) in [(0.0, 2.0), (1.0, 0.0)] {
                let mut y = nan(s.len());
                let args =
                    DropoutArgs { keys: &[9], layer: 0, first_frame: 0, p, x: Some(&x), accumulate: false, y: &mut y };
                (row.run)(&s, args, &pool);
                assert!(y.iter().all(|y| *y == want), "{} {p}", row.name);
            }
        }
    }
}
