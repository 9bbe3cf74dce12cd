//! Every row of the activations against PyTorch (`reference/pytorch/more_ops.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::kernels::activation::*;
use reference::{Case, Cases, Element, Tolerance, WithoutKernel, assert_within, nan, pool, rows};

const WITHOUT_KERNEL: &[WithoutKernel] = &[
    ("softplus_2", "softplus has no beta"),
    ("mish", "no such activation"),
    ("hardtanh", "no such activation"),
    ("prelu", "no activation has a trained slope"),
    ("softmax", "the softmax is a part of the cross-entropy alone"),
    ("log_softmax", "the softmax is a part of the cross-entropy alone"),
];

/// PyTorch's softplus is x itself above 20, which leaves out ln(1 + e⁻ˣ), at most this.
const SOFTPLUS_THRESHOLD: Tolerance = Tolerance(2.1e-9);

fn activation(case: &Case<'_>) -> Option<Activation> {
    Some(match case.op {
        "relu" => Activation::Relu,
        "relu6" => Activation::Relu6,
        "leaky_relu" => Activation::LeakyRelu { slope: case.number("negative_slope") },
        "elu" => Activation::Elu { alpha: case.number("alpha") },
        "selu" => Activation::Selu,
        "gelu" if case.attribute("approximate") == "tanh" => Activation::GeluTanh,
        "gelu" => Activation::Gelu,
        "silu" => Activation::Silu,
        "sigmoid" => Activation::Sigmoid,
        "hardsigmoid" => Activation::HardSigmoid,
        "hardswish" => Activation::HardSwish,
        "tanh" => Activation::Tanh,
        "softplus" if case.number("beta") == 1.0 => Activation::Softplus,
        _ => return None,
    })
}

fn check<E: Element>(case: &Case<'_>, activation: Activation) {
    let tolerance = match activation {
        Activation::Softplus => Tolerance(E::REORDERED.0.max(SOFTPLUS_THRESHOLD.0)),
        _ => E::REORDERED,
    };
    let (x, dy): (Vec<E>, Vec<E>) = (case.tensor("input").to(), case.tensor("grad_output").to());
    let len = x.len();
    for row in rows(E::activation_forward(), &len) {
        let mut y = nan(len);
        (row.run)(&len, ActivationForwardArgs { activation, x: Some(&x), y: &mut y }, &pool());
        assert_within(&format!("{} {}", case.name, row.name), &y, case.tensor("output"), tolerance);
    }
    // What is not read is not given.
    let y: Vec<E> = if activation.reads_output() { case.tensor("output").to() } else { Vec::new() };
    let x = if activation.reads_input() { x } else { Vec::new() };
    for row in rows(E::activation_backward(), &len) {
        let mut dx = nan(len);
        let args = ActivationBackwardArgs { activation, x: &x, y: &y, dy: Some(&dy), accumulate: false, dx: &mut dx };
        (row.run)(&len, args, &pool());
        assert_within(&format!("{} {}", case.name, row.name), &dx, case.tensor("grad_input"), tolerance);
    }
}

#[test]
fn activations_are_pytorchs() {
    let cases = Cases::of("pytorch/activations");
    let mut checked = 0;
    for case in cases.all() {
        let listed = WITHOUT_KERNEL.iter().any(|(name, _)| case.name == *name);
        match activation(&case) {
            Some(activation) => {
                assert!(!listed, "{} has a kernel", case.name);
                check::<f64>(&case, activation);
                check::<f32>(&case, activation);
                checked += 1;
            }
            None => assert!(listed, "{} has neither a kernel nor a reason", case.name),
        }
    }
    assert_eq!((checked, cases.all().len()), (15, 15 + WITHOUT_KERNEL.len()));
}
