//! Every row of the normalisations against PyTorch (`reference/pytorch/more_ops.py`) and Keras
//! (`reference/keras/norms.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::kernels::isa::Isa;
use framefit::kernels::norm::*;
use framefit::kernels::{Row, choose};
use reference::{Array, Case, Cases, Element, THREADS, assert_close, nan, pool, zeros};

/// What PyTorch and Keras call otherwise.
struct Names {
    gamma: &'static str,
    beta: &'static str,
    mean: &'static str,
    variance: &'static str,
    eps: &'static str,
}

const PYTORCH: Names =
    Names { gamma: "weight", beta: "bias", mean: "running_mean", variance: "running_var", eps: "eps" };
const KERAS: Names =
    Names { gamma: "gamma", beta: "beta", mean: "moving_mean", variance: "moving_variance", eps: "epsilon" };

/// The instruction sets of this machine.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

/// The row of an instruction set, of which these tables have one each; `f64` has the scalar row alone.
fn row<E: Element, S, R: Row<S>>(table: &'static [R], isa: Isa, shape: &S) -> &'static R {
    let row = choose(table, isa, shape);
    assert!(row.isa() == isa || E::NAME == "f64", "{} instead of a row for {isa}", row.name());
    row
}

/// x and dy: [rows,C]; the other tensors are those of the case.
struct BatchNorm<'a> {
    case: &'a Case<'a>,
    names: Names,
    input: Array,
    output: Array,
    grad_output: Array,
    grad_input: Array,
}

impl BatchNorm<'_> {
    fn check<E: Element>(&self) {
        for isa in isas() {
            self.check_on::<E>(isa);
        }
    }

    fn check_on<E: Element>(&self, isa: Isa) {
        let (case, names) = (self.case, &self.names);
        let what = |of: &str| format!("{} {} {isa}: {of}", case.name, E::NAME);
        let (x, dy): (Vec<E>, Vec<E>) = (self.input.to(), self.grad_output.to());
        let channels = *self.input.dims.last().unwrap();
        let s = ChannelShape { rows: x.len() / channels, channels };
        let (eps, training) = (case.number(names.eps), case.flag("training"));
        let or_ones = |name: &str| case.get(name).map_or(vec![E::ONE; channels], Array::to);
        let (gamma, beta) = (or_ones(names.gamma), case.get(names.beta).map_or(zeros(channels), Array::to::<E>));

        let (mut mean, mut inv_std) = (nan::<E>(channels), nan::<E>(channels));
        if training {
            let kernel = row::<E, _, _>(E::channel_moments(), isa, &s);
            let (mut state, mut scratch) = (vec![0.0; 3 * channels], nan((kernel.scratch)(&s, THREADS)));
            (kernel.run)(&s, ChannelMomentsArgs { x: &x, state: &mut state, scratch: &mut scratch }, &pool());
            normalizers(&state, eps, &mut mean, &mut inv_std);
            self.assert_statistics::<E>(&state, &what("statistics"));
        } else {
            mean = case.tensor(names.mean).to();
            let variance = case.tensor(names.variance).values.iter();
            inv_std = variance.map(|v| E::from_f64(1.0 / (v + eps).sqrt())).collect();
        }

        let scale: Vec<E> = gamma.iter().zip(&inv_std).map(|(g, i)| *g * *i).collect();
        let shift: Vec<E> = beta.iter().zip(&mean).zip(&scale).map(|((b, m), a)| *b - *m * *a).collect();
        let scale_shift = row::<E, _, _>(E::scale_shift(), isa, &s);
        let mut y = nan(s.len());
        let args = ScaleShiftArgs {
            x: Some(&x),
            scale: &scale,
            shift: Some(&shift),
            relu: false,
            accumulate: false,
            y: &mut y,
        };
        (scale_shift.run)(&s, args, &pool());
        assert_close(&what("output"), &y, &self.output);

        let kernel = row::<E, _, _>(E::batch_norm_sums(), isa, &s);
        let (mut sums, mut scratch) = (vec![0.0; 2 * channels], nan((kernel.scratch)(&s, THREADS)));
        let args = BatchNormSumsArgs {
            x: &x,
            dy: &dy,
            mean: &mean,
            inv_std: &inv_std,
            sums: &mut sums,
            scratch: &mut scratch,
        };
        (kernel.run)(&s, args, &pool());
        let (dbeta, dgamma) = sums.split_at(channels);
        for (name, got) in [(names.gamma, dgamma), (names.beta, dbeta)] {
            if let Some(want) = case.get(&format!("grad_{name}")) {
                let got: Vec<E> = got.iter().map(|&v| E::from_f64(v)).collect();
                assert_close(&what(name), &got, want);
            }
        }

        let mut dx = nan(s.len());
        if training {
            let mut coefficients = nan(3 * channels);
            for c in 0..channels {
                let (gamma, count) = (gamma[c].to_f64(), s.rows as f64);
                let (dy, product) = (gamma * sums[c] / count, gamma * sums[channels + c] / count);
                let means = GradientMeans { mean: mean[c].to_f64(), inv_std: inv_std[c].to_f64(), dy, product };
                for (i, number) in means.coefficients(gamma).into_iter().enumerate() {
                    coefficients[i * channels + c] = E::from_f64(number);
                }
            }
            let coefficients = &coefficients[..];
            let args = BatchNormInputGradientArgs { x: &x, dy: &dy, coefficients, accumulate: false, dx: &mut dx };
            (row::<E, _, _>(E::batch_norm_input_gradient(), isa, &s).run)(&s, args, &pool());
        } else {
            let (x, y) = (Some(&dy[..]), &mut dx[..]);
            let args = ScaleShiftArgs { x, scale: &scale, shift: None, relu: false, accumulate: false, y };
            (scale_shift.run)(&s, args, &pool());
        }
        assert_close(&what("grad_input"), &dx, &self.grad_input);
    }

    /// The running statistics, which take the new ones from the moments.
    fn assert_statistics<E: Element>(&self, state: &[f64], what: &str) {
        let (case, names) = (self.case, &self.names);
        let Some(before) = case.get(names.mean) else { return };
        let channels = before.values.len();
        let (count, mean, squares) = (state[0], &state[channels..2 * channels], &state[2 * channels..]);
        // PyTorch's variance is that of a sample, and its momentum the share of what is new.
        let pytorch = names.mean == PYTORCH.mean;
        let share = match case.attribute("momentum").as_f64() {
            Some(momentum) if pytorch => momentum,
            Some(momentum) => 1.0 - momentum,
            None => 1.0 / case.number("call"),
        };
        let divisor = if pytorch { count - 1.0 } else { count };
        let variance: Vec<f64> = squares.iter().map(|sum| sum / divisor).collect();
        for (name, new) in [(names.mean, mean), (names.variance, variance.as_slice())] {
            let before = &case.tensor(name).values;
            let after = before.iter().zip(new).map(|(old, new)| E::from_f64((1.0 - share) * old + share * new));
            assert_close(what, &after.collect::<Vec<E>>(), case.tensor(&format!("{name}_after")));
        }
    }
}

/// Items of P positions and C channels; the tensors are laid out as [I,P,C].
struct GroupNorm<'a> {
    case: &'a Case<'a>,
    names: Names,
    shape: NormShape,
    layout: fn(&Array) -> Array,
}

impl GroupNorm<'_> {
    fn check<E: Element>(&self) {
        for isa in isas() {
            self.check_on::<E>(isa);
        }
    }

    fn check_on<E: Element>(&self, isa: Isa) {
        let (case, names, s) = (self.case, &self.names, &self.shape);
        let what = |of: &str| format!("{} {} {isa}: {of}", case.name, E::NAME);
        let of = |tensor: &str| (self.layout)(case.tensor(tensor));
        let (x, dy): (Vec<E>, Vec<E>) = (of("input").to(), of("grad_output").to());
        let gamma: Option<Vec<E>> = case.get(names.gamma).map(Array::to);
        let beta: Option<Vec<E>> = case.get(names.beta).map(Array::to);
        let (mut mean, mut inv_std) = (nan::<E>(s.statistics_len()), nan::<E>(s.statistics_len()));
        let mut y = nan(s.len());
        let args = GroupNormForwardArgs {
            x: &x,
            gamma: gamma.as_deref(),
            beta: beta.as_deref(),
            eps: case.number(names.eps),
            mean: &mut mean,
            inv_std: &mut inv_std,
            y: &mut y,
        };
        (row::<E, _, _>(E::group_norm_forward(), isa, s).run)(s, args, &pool());
        assert_close(&what("output"), &y, &of("output"));

        let kernel = row::<E, _, _>(E::group_norm_input_gradient(), isa, s);
        let (mut dx, mut scratch) = (nan(s.len()), nan((kernel.scratch)(s, THREADS)));
        let args = GroupNormInputGradientArgs {
            x: &x,
            dy: &dy,
            gamma: gamma.as_deref(),
            mean: &mean,
            inv_std: &inv_std,
            accumulate: false,
            dx: &mut dx,
            scratch: &mut scratch,
        };
        (kernel.run)(s, args, &pool());
        assert_close(&what("grad_input"), &dx, &of("grad_input"));

        let kernel = row::<E, _, _>(E::group_norm_weight_gradient(), isa, s);
        let (mut dgamma, mut dbeta) = (zeros(s.channels), zeros(s.channels));
        let mut scratch = nan((kernel.scratch)(s, THREADS));
        let args = GroupNormWeightGradientArgs {
            x: &x,
            dy: &dy,
            mean: &mean,
            inv_std: &inv_std,
            dgamma: Some(&mut dgamma),
            dbeta: Some(&mut dbeta),
            scratch: &mut scratch,
        };
        (kernel.run)(s, args, &pool());
        for (name, got) in [(names.gamma, dgamma), (names.beta, dbeta)] {
            if let Some(want) = case.get(&format!("grad_{name}")) {
                assert_close(&what(name), &got, want);
            }
        }
    }
}

#[test]
fn batch_norm_is_pytorchs() {
    for (op, count) in [("batch_norm3d", 11), ("batch_norm2d", 2), ("batch_norm1d", 2)] {
        Cases::of("pytorch/norms").check(op, count, &[], |case| {
            let of = |tensor: &str| case.tensor(tensor).frames();
            let norm = BatchNorm {
                case,
                names: PYTORCH,
                input: of("input"),
                output: of("output"),
                grad_output: of("grad_output"),
                grad_input: of("grad_input"),
            };
            norm.check::<f64>();
            norm.check::<f32>();
        });
    }
}

#[test]
fn batch_norm_is_keras() {
    Cases::of("keras/norms").check("batch_norm", 11, &[], |case| {
        let of = |tensor: &str| case.tensor(tensor).clone();
        let norm = BatchNorm {
            case,
            names: KERAS,
            input: of("input"),
            output: of("output"),
            grad_output: of("grad_output"),
            grad_input: of("grad_input"),
        };
        norm.check::<f64>();
        norm.check::<f32>();
    });
}

/// Over the whole of a clip: an item is a clip, its positions are those of all frames.
#[test]
fn group_norm_and_instance_norm_are_pytorchs() {
    for (op, count) in [("group_norm", 5), ("instance_norm3d", 1)] {
        Cases::of("pytorch/norms").check(op, count, &[], |case| {
            let (items, channels) = (case.tensor("input").dims[0], case.tensor("input").dims[1]);
            let groups = if op == "group_norm" { case.size("num_groups") } else { channels };
            let positions = case.tensor("input").dims[2..].iter().product();
            let shape = NormShape { items, positions, channels, groups };
            let norm = GroupNorm { case, names: PYTORCH, shape, layout: Array::channels_last };
            norm.check::<f64>();
            norm.check::<f32>();
        });
    }
}

fn layer_norm(case: &Case<'_>, names: Names, channels: usize) {
    let items = case.tensor("input").values.len() / channels;
    let shape = NormShape { items, positions: 1, channels, groups: 1 };
    let norm = GroupNorm { case, names, shape, layout: Array::clone };
    norm.check::<f64>();
    norm.check::<f32>();
}

#[test]
fn layer_norm_is_pytorchs() {
    Cases::of("pytorch/norms").check("layer_norm", 5, &[], |case| {
        let shape = case.attribute("normalized_shape").as_array().unwrap();
        layer_norm(case, PYTORCH, shape.iter().map(|size| size.as_u64().unwrap() as usize).product());
    });
}

#[test]
fn layer_norm_is_keras() {
    Cases::of("keras/norms").check("layer_norm", 3, &[], |case| {
        let first = match case.attribute("axis").as_array() {
            Some(axes) => axes[0].as_u64().unwrap() as usize,
            None => case.tensor("input").dims.len() - 1,
        };
        layer_norm(case, KERAS, case.tensor("input").dims[first..].iter().product());
    });
}

#[test]
fn every_op_has_a_test() {
    let pytorch = ["batch_norm3d", "batch_norm2d", "batch_norm1d", "group_norm", "layer_norm", "instance_norm3d"];
    for (file, ops, count) in [("pytorch/norms", &pytorch[..], 26), ("keras/norms", &["batch_norm", "layer_norm"], 14)]
    {
        let cases = Cases::of(file);
        cases.assert_ops(ops);
        assert_eq!(cases.all().len(), count);
    }
}
