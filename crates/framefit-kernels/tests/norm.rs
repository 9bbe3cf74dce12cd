//! All rows of the normalisation tables.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, bits, differences, dot, nan, on_any_threads, rows, widen};
use framefit_kernels::norm::*;
use framefit_kernels::{Pool, Real};

/// Sizes around registers, patterns and tasks.
fn channel_shapes() -> Vec<ChannelShape> {
    let mut shapes = Vec::new();
    for channels in (1..=18).chain([31, 32, 33, 40, 64, 255, 256, 257, 300]) {
        for rows in [0, 1, 2, 33, 1000 / channels + 3] {
            shapes.push(ChannelShape { rows, channels });
        }
    }
    for (rows, channels) in [(16 * 1024 + 5, 1), (5500, 3), (700, 40), (513, 70)] {
        shapes.push(ChannelShape { rows, channels });
    }
    shapes
}

/// Numbers far from zero beside their spread.
fn shifted<E: Real>(random: &mut Random, s: &ChannelShape) -> Vec<E> {
    let values: Vec<E> = random.vector(s.len());
    let shift = |c: usize| E::from_f64(10.0 * (c % 7) as f64);
    values.into_iter().enumerate().map(|(i, x)| x + shift(i % s.channels)).collect()
}

fn column(x: &[f64], channels: usize, c: usize) -> impl Iterator<Item = f64> {
    x.iter().skip(c).step_by(channels).copied()
}

/// \[3, C\].
fn moments_by_definition(x: &[f64], channels: usize) -> Vec<f64> {
    let rows = x.len() / channels;
    let mut state = vec![0.0; 3 * channels];
    for c in 0..channels {
        let mean = column(x, channels, c).sum::<f64>() / rows as f64;
        state[c] = rows as f64;
        state[channels + c] = if rows == 0 { 0.0 } else { mean };
        state[2 * channels + c] = column(x, channels, c).map(|x| (x - mean) * (x - mean)).sum();
    }
    state
}

fn moments<E: Real>(row: &ChannelMoments<E>, s: &ChannelShape, x: &[E], state: &mut [f64], pool: &Pool) {
    let mut scratch = nan((row.scratch)(s, pool.threads()));
    (row.run)(s, ChannelMomentsArgs { x, state, scratch: &mut scratch }, pool);
}

const MOMENTS: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };

#[test]
fn moments_agree_with_the_definition() {
    for s in channel_shapes() {
        let x = shifted::<f32>(&mut Random::new(1), &s);
        let want = moments_by_definition(&widen(&x), s.channels);
        for row in rows(f32::channel_moments()) {
            let [one, three] = [1, 3].map(|threads| {
                let mut state = vec![0.0; 3 * s.channels];
                moments(row, &s, &x, &mut state, &Pool::new(threads).unwrap());
                state
            });
            assert_eq!(one, three, "{} {s:?}", row.name);
            assert_close(&one, &want, MOMENTS, &format!("{} {s:?}", row.name));
        }
    }
}

#[test]
fn moments_of_windows_are_those_of_the_whole() {
    let pool = Pool::new(2).unwrap();
    for channels in [1, 3, 16, 40] {
        let s = ChannelShape { rows: 900, channels };
        let x = shifted::<f64>(&mut Random::new(2), &s);
        let want = moments_by_definition(&x, channels);
        for cuts in [vec![1, 899], vec![300, 0, 600], vec![7; 128]] {
            let (mut state, mut merged, mut at) = (vec![0.0; 3 * channels], vec![0.0; 3 * channels], 0);
            for rows in cuts.into_iter().chain([900]) {
                let rows = rows.min(900 - at);
                let s = ChannelShape { rows, channels };
                let x = &x[at * channels..(at + rows) * channels];
                moments(&f64::channel_moments()[0], &s, x, &mut state, &pool);
                let mut part = vec![0.0; 3 * channels];
                moments(&f64::channel_moments()[0], &s, x, &mut part, &pool);
                merge_moments(&mut merged, &part);
                at += rows;
            }
            assert_close(&state, &want, Tolerance::F64_REORDERED, "state");
            assert_close(&merged, &want, Tolerance::F64_REORDERED, "merged");
            let (mut mean, mut inv_std) = (nan::<f64>(channels), nan::<f64>(channels));
            normalizers(&state, 0.1, &mut mean, &mut inv_std);
            let wanted: Vec<f64> = (0..channels).map(|c| (want[2 * channels + c] / 900.0 + 0.1).powf(-0.5)).collect();
            assert_close(&mean, &want[channels..2 * channels], Tolerance::F64_REORDERED, "mean");
            assert_close(&inv_std, &wanted, Tolerance::F64_REORDERED, "inv_std");
        }
    }
}

#[test]
fn scale_shift_rows_agree_with_the_definition() {
    let pool = Pool::new(2).unwrap();
    for s in channel_shapes() {
        let mut random = Random::new(3);
        let (x, before) = (random.vector::<f32>(s.len()), random.vector::<f32>(s.len()));
        let (scale, shift) = (random.vector::<f32>(s.channels), random.vector::<f32>(s.channels));
        let all = [(Some(&shift[..]), false, false), (Some(&shift[..]), true, false), (None, false, true)];
        for (shift, relu, accumulate) in all.into_iter().chain([(None, false, false)]) {
            let of = |(i, x): (usize, &f32)| {
                let c = i % s.channels;
                let added = if accumulate { f64::from(before[i]) } else { 0.0 };
                let y = f64::from(*x) * f64::from(scale[c]) + shift.map_or(0.0, |b| f64::from(b[c])) + added;
                if relu { y.max(0.0) } else { y }
            };
            let want: Vec<f64> = x.iter().enumerate().map(of).collect();
            for row in rows(f32::scale_shift()) {
                let what = format!("{} {s:?}", row.name);
                let mut y = if accumulate { before.clone() } else { nan(s.len()) };
                let args = ScaleShiftArgs { x: Some(&x), scale: &scale, shift, relu, accumulate, y: &mut y };
                (row.run)(&s, args, &pool);
                assert_close(&y, &want, Tolerance::F32_ELEMENTWISE, &what);
                if !accumulate {
                    let mut y = x.clone();
                    let args = ScaleShiftArgs { x: None, scale: &scale, shift, relu, accumulate, y: &mut y };
                    (row.run)(&s, args, &pool);
                    assert_close(&y, &want, Tolerance::F32_ELEMENTWISE, &what);
                }
            }
        }
    }
}

/// BatchNorm's backward in two halves, from the moments on; (dx, sums).
fn batch_norm_backward<E: Real>(
    rows: (&ChannelMoments<E>, &BatchNormSums<E>, &BatchNormInputGradient<E>),
    s: &ChannelShape,
    (x, dy, gamma): (&[E], &[E], &[E]),
    pool: &Pool,
) -> (Vec<E>, Vec<f64>) {
    let mut state = vec![0.0; 3 * s.channels];
    moments(rows.0, s, x, &mut state, pool);
    let (mut mean, mut inv_std) = (nan::<E>(s.channels), nan::<E>(s.channels));
    normalizers(&state, 1e-3, &mut mean, &mut inv_std);
    let mut sums = vec![0.0; 2 * s.channels];
    // In two windows, to see them add up.
    let half = s.rows / 2 * s.channels;
    for range in [0..half, half..s.len()] {
        let part = ChannelShape { rows: range.len() / s.channels, channels: s.channels };
        let mut scratch = nan((rows.1.scratch)(&part, pool.threads()));
        let (x, dy) = (&x[range.clone()], &dy[range]);
        let args = BatchNormSumsArgs { x, dy, mean: &mean, inv_std: &inv_std, sums: &mut sums, scratch: &mut scratch };
        (rows.1.run)(&part, args, pool);
    }
    let mut coefficients = nan(3 * s.channels);
    for c in 0..s.channels {
        let (gamma, count) = (gamma[c].to_f64(), s.rows as f64);
        let means = GradientMeans {
            mean: mean[c].to_f64(),
            inv_std: inv_std[c].to_f64(),
            dy: gamma * sums[c] / count,
            product: gamma * sums[s.channels + c] / count,
        };
        for (i, number) in means.coefficients(gamma).into_iter().enumerate() {
            coefficients[i * s.channels + c] = E::from_f64(number);
        }
    }
    let mut dx = nan(s.len());
    let coefficients = &coefficients[..];
    (rows.2.run)(s, BatchNormInputGradientArgs { x, dy, coefficients, accumulate: false, dx: &mut dx }, pool);
    let once = dx.clone();
    (rows.2.run)(s, BatchNormInputGradientArgs { x, dy, coefficients, accumulate: true, dx: &mut dx }, pool);
    for (twice, once) in dx.iter().zip(&once) {
        assert!((*twice - (*once + *once)).abs().to_f64() <= 1e-6 * once.abs().to_f64(), "{twice} is not twice {once}");
    }
    (once, sums)
}

#[test]
fn batch_norm_rows_agree() {
    for s in channel_shapes().into_iter().filter(|s| s.rows > 2) {
        let mut random = Random::new(4);
        let (x, dy) = (shifted::<f32>(&mut random, &s), random.vector::<f32>(s.len()));
        let gamma = random.vector::<f32>(s.channels);
        let double = (&f64::channel_moments()[0], &f64::batch_norm_sums()[0], &f64::batch_norm_input_gradient()[0]);
        let inputs = (&widen(&x)[..], &widen(&dy)[..], &widen(&gamma)[..]);
        let (want, want_sums) = batch_norm_backward(double, &s, inputs, &Pool::new(1).unwrap());
        let tables = rows(f32::channel_moments()).zip(rows(f32::batch_norm_sums()));
        for ((a, b), c) in tables.zip(rows(f32::batch_norm_input_gradient())) {
            let what = format!("{} {s:?}", c.name);
            let run = |pool: &Pool| batch_norm_backward((a, b, c), &s, (&x, &dy, &gamma), pool);
            let dx = on_any_threads(&what, |pool| run(pool).0);
            assert_close(&dx, &want, Tolerance { absolute: 2e-4, relative: 1e-4 }, &what);
            let sums = run(&Pool::new(2).unwrap()).1;
            assert_close(&sums, &want_sums, Tolerance { absolute: 2e-3, relative: 1e-5 }, &what);
        }
    }
}

#[test]
fn batch_norm_gradient_agrees_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = ChannelShape { rows: 6, channels: 5 };
    let mut random = Random::new(5);
    let (x, dy, gamma) = (random.vector::<f64>(30), random.vector::<f64>(30), random.vector::<f64>(5));
    let value = |x: &[f64], gamma: &[f64]| {
        let state = moments_by_definition(x, 5);
        let (mut mean, mut inv_std) = ([0.0; 5], [0.0; 5]);
        normalizers(&state, 1e-3, &mut mean, &mut inv_std);
        let of = |(i, x): (usize, &f64)| dy[i] * gamma[i % 5] * (x - mean[i % 5]) * inv_std[i % 5];
        x.iter().enumerate().map(of).sum::<f64>()
    };
    let double = (&f64::channel_moments()[0], &f64::batch_norm_sums()[0], &f64::batch_norm_input_gradient()[0]);
    let (dx, sums) = batch_norm_backward(double, &s, (&x, &dy, &gamma), &pool);
    assert_close(&dx, &differences(&x, |x| value(x, &gamma)), Tolerance::F64_DIFFERENCES, "dx");
    assert_close(&sums[5..], &differences(&gamma, |gamma| value(&x, gamma)), Tolerance::F64_DIFFERENCES, "dgamma");
}

fn norm_shapes() -> Vec<NormShape> {
    let mut shapes = Vec::new();
    for (channels, groups) in
        [(1, 1), (4, 2), (6, 6), (7, 1), (16, 4), (24, 3), (32, 1), (33, 11), (40, 1), (64, 8), (300, 3), (520, 1)]
    {
        for (items, positions) in [(1, 1), (3, 1), (2, 2), (3, 35), (40, 1), (0, 4)] {
            shapes.push(NormShape { items, positions, channels, groups });
        }
    }
    shapes.push(NormShape { items: 700, positions: 1, channels: 40, groups: 1 });
    shapes.push(NormShape { items: 3, positions: 1, channels: 5000, groups: 1 });
    shapes.push(NormShape { items: 40, positions: 600, channels: 3, groups: 3 });
    shapes
}

const EPS: f64 = 1e-2;

struct Forward<E> {
    y: Vec<E>,
    mean: Vec<E>,
    inv_std: Vec<E>,
}

fn group_forward<E: Real>(
    row: &GroupNormForward<E>,
    s: &NormShape,
    x: &[E],
    (gamma, beta): (Option<&[E]>, Option<&[E]>),
    pool: &Pool,
) -> Forward<E> {
    let count = s.statistics_len();
    let mut it = Forward { y: nan(s.len()), mean: nan(count), inv_std: nan(count) };
    let (mean, inv_std) = (&mut it.mean, &mut it.inv_std);
    (row.run)(s, GroupNormForwardArgs { x, gamma, beta, eps: EPS, mean, inv_std, y: &mut it.y }, pool);
    it
}

/// (dx, dγ, dβ).
fn group_backward<E: Real>(
    (input, weight): (&GroupNormInputGradient<E>, &GroupNormWeightGradient<E>),
    s: &NormShape,
    (x, dy, gamma): (&[E], &[E], Option<&[E]>),
    forward: &Forward<E>,
    pool: &Pool,
) -> (Vec<E>, Vec<E>, Vec<E>) {
    let (mean, inv_std) = (&forward.mean[..], &forward.inv_std[..]);
    let (mut dx, mut dgamma, mut dbeta) = (nan(s.len()), vec![E::ZERO; s.channels], vec![E::ZERO; s.channels]);
    let mut scratch = nan((input.scratch)(s, pool.threads()));
    let (dx_of, held) = (&mut dx, &mut scratch);
    let args = GroupNormInputGradientArgs { x, dy, gamma, mean, inv_std, accumulate: false, dx: dx_of, scratch: held };
    (input.run)(s, args, pool);
    let mut scratch = nan((weight.scratch)(s, pool.threads()));
    let (dgamma_of, dbeta_of, held) = (Some(&mut dgamma[..]), Some(&mut dbeta[..]), &mut scratch);
    let args = GroupNormWeightGradientArgs { x, dy, mean, inv_std, dgamma: dgamma_of, dbeta: dbeta_of, scratch: held };
    (weight.run)(s, args, pool);
    (dx, dgamma, dbeta)
}

/// y by definition.
fn group_by_definition(s: &NormShape, x: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    let size = s.group_channels();
    for item in 0..s.items {
        for group in 0..s.groups {
            let places = || {
                (0..s.positions).flat_map(move |p| {
                    (group * size..(group + 1) * size).map(move |c| ((item * s.positions + p) * s.channels + c, c))
                })
            };
            let count = (s.positions * size) as f64;
            let mean = places().map(|(at, _)| x[at]).sum::<f64>() / count;
            let variance = places().map(|(at, _)| (x[at] - mean).powi(2)).sum::<f64>() / count;
            for (at, c) in places() {
                y[at] = (x[at] - mean) / (variance + EPS).sqrt() * gamma[c] + beta[c];
            }
        }
    }
    y
}

#[test]
fn group_norm_rows_agree_with_the_definition() {
    let pool = Pool::new(1).unwrap();
    for s in norm_shapes() {
        let mut random = Random::new(6);
        let x: Vec<f32> = random.vector::<f32>(s.len()).into_iter().map(|x| x + 3.0).collect();
        let (gamma, beta) = (random.vector::<f32>(s.channels), random.vector::<f32>(s.channels));
        let dy = random.vector::<f32>(s.len());
        for affine in [false, true] {
            let ones = vec![1.0; s.channels];
            let (gamma, beta) = (affine.then_some(&gamma[..]), affine.then_some(&beta[..]));
            let wide_gamma = gamma.map_or_else(|| ones.clone(), widen);
            let wide_beta = beta.map_or_else(|| vec![0.0; s.channels], widen);
            let wide = group_forward(
                &f64::group_norm_forward()[0],
                &s,
                &widen(&x),
                (Some(&wide_gamma), Some(&wide_beta)),
                &pool,
            );
            let want = group_by_definition(&s, &widen(&x), &wide_gamma, &wide_beta);
            assert_close(&wide.y, &want, Tolerance::F64_REORDERED, &format!("{s:?}"));
            for row in rows(f32::group_norm_forward()) {
                let what = format!("{} {s:?}", row.name);
                let y = on_any_threads(&what, |pool| group_forward(row, &s, &x, (gamma, beta), pool).y);
                assert_close(&y, &want, Tolerance::F32_REORDERED, &what);
            }
            let double = (&f64::group_norm_input_gradient()[0], &f64::group_norm_weight_gradient()[0]);
            let inputs = (&widen(&x)[..], &widen(&dy)[..], Some(&wide_gamma[..]));
            let (want_dx, want_dgamma, want_dbeta) = group_backward(double, &s, inputs, &wide, &pool);
            let forward = group_forward(&f32::group_norm_forward()[0], &s, &x, (gamma, beta), &pool);
            let both = rows(f32::group_norm_input_gradient()).zip(rows(f32::group_norm_weight_gradient()));
            for pair in both {
                let what = format!("{} {s:?}", pair.0.name);
                let all = on_any_threads(&what, |pool| {
                    let (dx, dgamma, dbeta) = group_backward(pair, &s, (&x, &dy, gamma), &forward, pool);
                    [dx, dgamma, dbeta].concat()
                });
                let tolerance = Tolerance { absolute: 1e-4, relative: 2e-5 };
                let want = [&want_dx[..], &want_dgamma[..], &want_dbeta[..]].concat();
                assert_close(&all, &want, tolerance, &what);
            }
        }
    }
}

/// The same bits as the forward's, so that a backward that keeps none loses nothing.
#[test]
fn statistics_are_those_of_the_forward() {
    for s in norm_shapes() {
        let x: Vec<f32> = Random::new(8).vector::<f32>(s.len()).into_iter().map(|x| x + 3.0).collect();
        for (forward, row) in rows(f32::group_norm_forward()).zip(rows(f32::group_norm_statistics())) {
            let what = format!("{} {s:?}", row.name);
            let count = s.statistics_len();
            let want = group_forward(forward, &s, &x, (None, None), &Pool::new(1).unwrap());
            let both = on_any_threads(&what, |pool| {
                let (mut mean, mut inv_std) = (nan(count), nan(count));
                let args = GroupNormStatisticsArgs { x: &x, eps: EPS, mean: &mut mean, inv_std: &mut inv_std };
                (row.run)(&s, args, pool);
                [mean, inv_std].concat()
            });
            if !s.is_empty() {
                assert_eq!(bits(&both), bits(&[want.mean, want.inv_std].concat()), "{what}");
            }
        }
    }
}

#[test]
fn either_of_gamma_and_beta_may_be_absent() {
    let pool = Pool::new(2).unwrap();
    for s in norm_shapes() {
        let mut random = Random::new(9);
        let (x, dy) = (random.vector::<f32>(s.len()), random.vector::<f32>(s.len()));
        let forward = group_forward(&f32::group_norm_forward()[0], &s, &x, (None, None), &pool);
        let (mean, inv_std) = (&forward.mean[..], &forward.inv_std[..]);
        for row in rows(f32::group_norm_weight_gradient()) {
            let gradients = |gamma: bool, beta: bool| {
                let (mut dgamma, mut dbeta) = (vec![0.0; s.channels], vec![0.0; s.channels]);
                let mut scratch = nan((row.scratch)(&s, pool.threads()));
                let (dgamma_of, dbeta_of) = (gamma.then_some(&mut dgamma[..]), beta.then_some(&mut dbeta[..]));
                let (x, dy, scratch) = (&x[..], &dy[..], &mut scratch[..]);
                let args =
                    GroupNormWeightGradientArgs { x, dy, mean, inv_std, dgamma: dgamma_of, dbeta: dbeta_of, scratch };
                (row.run)(&s, args, &pool);
                (bits(&dgamma), bits(&dbeta))
            };
            let both = gradients(true, true);
            let none = bits(&vec![0.0; s.channels]);
            assert_eq!(gradients(true, false), (both.0.clone(), none.clone()), "{} {s:?}", row.name);
            assert_eq!(gradients(false, true), (none, both.1), "{} {s:?}", row.name);
        }
    }
}

#[test]
fn group_norm_gradients_agree_with_differences() {
    let pool = Pool::new(1).unwrap();
    for (items, positions, channels, groups) in [(2, 3, 4, 2), (3, 1, 5, 1), (2, 4, 6, 6), (2, 1, 6, 3)] {
        let s = NormShape { items, positions, channels, groups };
        let mut random = Random::new(7);
        let (x, dy) = (random.vector::<f64>(s.len()), random.vector::<f64>(s.len()));
        let (gamma, beta) = (random.vector::<f64>(channels), random.vector::<f64>(channels));
        let forward = group_forward(&f64::group_norm_forward()[0], &s, &x, (Some(&gamma), Some(&beta)), &pool);
        let double = (&f64::group_norm_input_gradient()[0], &f64::group_norm_weight_gradient()[0]);
        let (dx, dgamma, dbeta) = group_backward(double, &s, (&x, &dy, Some(&gamma)), &forward, &pool);
        let value = |x: &[f64], gamma: &[f64], beta: &[f64]| dot(&dy, &group_by_definition(&s, x, gamma, beta));
        let close = |got: &[f64], want: &[f64]| assert_close(got, want, Tolerance::F64_DIFFERENCES, &format!("{s:?}"));
        close(&dx, &differences(&x, |x| value(x, &gamma, &beta)));
        close(&dgamma, &differences(&gamma, |gamma| value(&x, gamma, &beta)));
        close(&dbeta, &differences(&beta, |beta| value(&x, &gamma, beta)));
    }
}
