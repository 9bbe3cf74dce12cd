//! All rows of the losses of labelled rows and of binary outputs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, Tolerance, assert_close, differences, nan, on_any_threads, rows, widen};
use framefit_kernels::loss::*;
use framefit_kernels::{Pool, Real};

/// What a softmax cross-entropy is asked for besides the logits.
#[derive(Clone)]
struct Softmax<'a, E> {
    labels: &'a [u32],
    class_weights: Option<&'a [E]>,
    smoothing: f64,
    scale: E,
}

const IGNORED: u32 = u32::MAX;

/// \[losses, weights, dlogits\].
fn softmax<E: Real>(
    row: &SoftmaxCrossEntropy<E>,
    s: &LossShape,
    logits: &[E],
    of: &Softmax<'_, E>,
    pool: &Pool,
) -> [Vec<E>; 3] {
    let (mut losses, mut weights, mut dlogits) = (nan(s.clips), nan(s.clips), nan(logits.len()));
    let args = SoftmaxCrossEntropyArgs {
        logits,
        labels: of.labels,
        ignored: Some(IGNORED),
        class_weights: of.class_weights,
        smoothing: of.smoothing,
        scale: of.scale,
        losses: &mut losses,
        weights: &mut weights,
        dlogits: &mut dlogits,
    };
    (row.run)(s, args, pool);
    [losses, weights, dlogits]
}

fn labels(random: &mut Random, s: &LossShape) -> Vec<u32> {
    let label = |bits: u64| if bits.is_multiple_of(5) { IGNORED } else { (bits / 5 % s.classes as u64) as u32 };
    (0..s.clips).map(|_| label(random.next())).collect()
}

#[test]
fn softmax_rows_agree() {
    for classes in [1, 2, 3, 7, 16, 33, 9000] {
        for clips in [0, 1, 2, 9, 9000 / classes] {
            let s = LossShape { clips, classes };
            let mut random = Random::new(1);
            let logits: Vec<f32> = random.vector::<f32>(clips * classes).iter().map(|x| 20.0 * x).collect();
            let (labels, weights) = (labels(&mut random, &s), random.vector::<f32>(classes));
            let weights: Vec<f32> = weights.into_iter().map(|w| w.abs() + 0.5).collect();
            for (class_weights, smoothing) in
                [(None, 0.0), (Some(&weights[..]), 0.0), (None, 0.1), (Some(&weights[..]), 0.3), (None, 1.0)]
            {
                let wide = class_weights.map(widen);
                let of = Softmax { labels: &labels, class_weights: wide.as_deref(), smoothing, scale: 0.5 };
                let pool = Pool::new(1).unwrap();
                let want = softmax(&f64::softmax_cross_entropy()[0], &s, &widen(&logits), &of, &pool).concat();
                for row in rows(f32::softmax_cross_entropy()) {
                    let what = format!("{} {s:?} {smoothing}", row.name);
                    let of = Softmax { labels: &labels, class_weights, smoothing, scale: 0.5 };
                    let got = on_any_threads(&what, |pool| softmax(row, &s, &logits, &of, pool).concat());
                    assert_close(&got, &want, Tolerance::F32_REORDERED, &what);
                }
            }
        }
    }
}

#[test]
fn without_its_extras_it_is_the_cross_entropy_of_clips() {
    let pool = Pool::new(1).unwrap();
    let s = LossShape { clips: 4, classes: 3 };
    let mut random = Random::new(2);
    let (logits, weights) = (random.vector::<f32>(12), random.vector::<f32>(3));
    let (labels, class_weights) = ([0, 2, 1, 1], Some(&weights[..]));
    let of = Softmax { labels: &labels, class_weights, smoothing: 0.0, scale: 0.25 };
    let [losses, _, dlogits] = softmax(&f32::softmax_cross_entropy()[0], &s, &logits, &of, &pool);
    let (mut clip_losses, mut clip_dlogits) = (nan(4), nan(12));
    let args = CrossEntropyArgs {
        logits: &logits,
        labels: &labels,
        class_weights,
        scale: 0.25,
        losses: &mut clip_losses,
        dlogits: &mut clip_dlogits,
    };
    (f32::cross_entropy()[0].run)(&s, args, &pool);
    assert_eq!((losses, dlogits), (clip_losses, clip_dlogits));
}

#[test]
fn softmax_gradient_agrees_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = LossShape { clips: 6, classes: 5 };
    let mut random = Random::new(3);
    let (logits, labels) = (random.vector::<f64>(30), [4, IGNORED, 0, 2, IGNORED, 1]);
    let weights: Vec<f64> = random.vector::<f64>(5).iter().map(|w| w.abs() + 0.5).collect();
    for (class_weights, smoothing) in [(None, 0.0), (Some(&weights[..]), 0.2), (None, 0.7)] {
        let of = Softmax { labels: &labels, class_weights, smoothing, scale: 0.25 };
        let run = |logits: &[f64]| softmax(&f64::softmax_cross_entropy()[0], &s, logits, &of, &pool);
        let total = |logits: &[f64]| 0.25 * run(logits)[0].iter().sum::<f64>();
        let [losses, weights, dlogits] = run(&logits);
        assert_close(&dlogits, &differences(&logits, total), Tolerance::F64_DIFFERENCES, "dlogits");
        assert!([1, 4].iter().all(|i| losses[*i] == 0.0 && weights[*i] == 0.0));
    }
}

/// The target that marks an output to ignore.
const MASK: f64 = -1.0;

/// \[losses, counts, dlogits\].
fn binary<E: Real>(
    row: &BinaryCrossEntropy<E>,
    s: &LossShape,
    (logits, targets): (&[E], &[E]),
    (weights, positive_weights): (Option<&[E]>, Option<&[E]>),
    pool: &Pool,
) -> [Vec<E>; 3] {
    let (mut losses, mut counts, mut dlogits) = (nan(s.clips), nan(s.clips), nan(logits.len()));
    let args = BinaryCrossEntropyArgs {
        logits,
        targets,
        ignored: Some(E::from_f64(MASK)),
        weights,
        positive_weights,
        scale: E::from_f64(0.5),
        losses: &mut losses,
        counts: &mut counts,
        dlogits: &mut dlogits,
    };
    (row.run)(s, args, pool);
    [losses, counts, dlogits]
}

fn targets(random: &mut Random, len: usize) -> Vec<f32> {
    let target = |bits: u64| [0.0, 1.0, 0.25, MASK as f32, 0.5][(bits % 5) as usize];
    (0..len).map(|_| target(random.next())).collect()
}

#[test]
fn binary_rows_agree_with_the_definition() {
    for classes in [1, 2, 7, 33, 9000] {
        for clips in [0, 1, 3, 9000 / classes] {
            let s = LossShape { clips, classes };
            let mut random = Random::new(4);
            let logits: Vec<f32> = random.vector::<f32>(clips * classes).iter().map(|x| 30.0 * x).collect();
            let targets = targets(&mut random, clips * classes);
            let [w, p] = [(); 2]
                .map(|()| random.vector::<f32>(classes).into_iter().map(|w| w.abs() + 0.5).collect::<Vec<f32>>());
            for (weights, positive) in [(None, None), (Some(&w[..]), None), (None, Some(&p[..])), (Some(&w), Some(&p))]
            {
                let (mut losses, mut counts, mut dlogits) = (vec![0.0; clips], vec![0.0; clips], Vec::new());
                for (at, (x, t)) in logits.iter().zip(&targets).enumerate() {
                    let (x, t, k) = (f64::from(*x), f64::from(*t), at % classes);
                    if t == MASK {
                        dlogits.push(0.0);
                        continue;
                    }
                    let weight = weights.map_or(1.0, |w| f64::from(w[k]));
                    let positive = positive.map_or(1.0, |p| f64::from(p[k]));
                    let probability = 1.0 / (1.0 + (-x).exp());
                    losses[at / classes] += weight * (positive * t * (-x).exp().ln_1p() + (1.0 - t) * x.exp().ln_1p());
                    counts[at / classes] += 1.0;
                    dlogits.push(0.5 * weight * ((1.0 - t) * probability - positive * t * (1.0 - probability)));
                }
                let want = [losses, counts, dlogits].concat();
                for row in rows(f32::binary_cross_entropy()) {
                    let what = format!("{} {s:?}", row.name);
                    let got = on_any_threads(&what, |pool| {
                        binary(row, &s, (&logits, &targets), (weights, positive), pool).concat()
                    });
                    assert_close(&got, &want, Tolerance::F32_REORDERED, &what);
                }
            }
        }
    }
}

#[test]
fn binary_gradient_agrees_with_differences() {
    let pool = Pool::new(1).unwrap();
    let s = LossShape { clips: 4, classes: 3 };
    let mut random = Random::new(5);
    let (logits, targets) = (random.vector::<f64>(12), widen(&targets(&mut random, 12)));
    let positive: Vec<f64> = random.vector::<f64>(3).iter().map(|w| w.abs() + 0.5).collect();
    let run = |logits: &[f64]| {
        binary(&f64::binary_cross_entropy()[0], &s, (logits, &targets), (None, Some(&positive)), &pool)
    };
    let total = |logits: &[f64]| 0.5 * run(logits)[0].iter().sum::<f64>();
    assert_close(&run(&logits)[2], &differences(&logits, total), Tolerance::F64_DIFFERENCES, "dlogits");
}

#[test]
fn binary_cross_entropy_is_stable_for_large_logits() {
    let s = LossShape { clips: 4, classes: 1 };
    let (logits, targets) = ([1e4_f32, -1e4, 1e4, f32::INFINITY], [1.0, 1.0, 0.0, 1.0]);
    let pool = Pool::new(1).unwrap();
    let [losses, _, dlogits] = binary(&f32::binary_cross_entropy()[0], &s, (&logits, &targets), (None, None), &pool);
    assert_eq!(losses, [0.0, 1e4, 1e4, 0.0]);
    assert_eq!(dlogits, [0.0, -0.5, 0.5, 0.0]);
}

/// Labels as targets of their own: one at the label, or the label itself, drawn towards one half.
#[test]
fn labelled_binary_rows_are_binary_rows_of_their_targets() {
    for classes in [1, 2, 3, 7, 33, 9000] {
        for clips in [0, 1, 2, 9, 9000 / classes] {
            let s = LossShape { clips, classes };
            let mut random = Random::new(6);
            let logits: Vec<f32> = random.vector::<f32>(clips * classes).iter().map(|x| 20.0 * x).collect();
            let labels = labels(&mut random, &LossShape { clips, classes: classes.max(2) });
            let weights: Vec<f32> = random.vector::<f32>(classes).iter().map(|w| w.abs() + 0.5).collect();
            for (positive_weights, smoothing) in [(None, 0.0), (Some(&weights[..]), 0.0), (Some(&weights[..]), 0.3)] {
                let target = |label: u32, k: usize| {
                    let hit = if classes == 1 { label == 1 } else { label as usize == k };
                    if label == IGNORED { MASK } else { f64::from(u8::from(hit)) * (1.0 - smoothing) + smoothing / 2.0 }
                };
                let targets: Vec<f64> =
                    labels.iter().flat_map(|label| (0..classes).map(|k| target(*label, k))).collect();
                let wide = positive_weights.map(widen);
                let [losses, counts, dlogits] = binary(
                    &f64::binary_cross_entropy()[0],
                    &s,
                    (&widen(&logits), &targets),
                    (None, wide.as_deref()),
                    &Pool::new(1).unwrap(),
                );
                let mean = |x: &Vec<f64>| x.iter().map(|x| x / classes as f64).collect::<Vec<_>>();
                let want = [mean(&losses), mean(&counts), mean(&dlogits)].concat();
                for row in rows(f32::labelled_binary_cross_entropy()) {
                    let what = format!("{} {s:?} {smoothing}", row.name);
                    let got = on_any_threads(&what, |pool| {
                        let (mut losses, mut weights, mut dlogits) = (nan(clips), nan(clips), nan(logits.len()));
                        let args = LabelledBinaryCrossEntropyArgs {
                            logits: &logits,
                            labels: &labels,
                            ignored: Some(IGNORED),
                            positive_weights,
                            smoothing,
                            scale: 0.5,
                            losses: &mut losses,
                            weights: &mut weights,
                            dlogits: &mut dlogits,
                        };
                        (row.run)(&s, args, pool);
                        [losses, weights, dlogits].concat()
                    });
                    assert_close(&got, &want, Tolerance::F32_REORDERED, &what);
                }
            }
        }
    }
}
