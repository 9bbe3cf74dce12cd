//! What holds for every kernel table, and how rows are chosen.
#![allow(clippy::unwrap_used)]

use framefit_kernels::conv::{ConvShape, Dims3, Window};
use framefit_kernels::{Isa, Real, Row, choose};

/// (name, instruction set) of each row.
fn listed<S, R: Row<S>>(table: &'static [R]) -> Vec<(&'static str, Isa)> {
    table.iter().map(|row| (row.name(), row.isa())).collect()
}

fn tables<E: Real>() -> Vec<Vec<(&'static str, Isa)>> {
    vec![
        listed(E::conv_forward()),
        listed(E::conv_input_gradient()),
        listed(E::conv_weight_gradient()),
        listed(E::max_pool_forward()),
        listed(E::max_pool_backward()),
        listed(E::avg_pool_forward()),
        listed(E::avg_pool_backward()),
        listed(E::adaptive_max_pool_forward()),
        listed(E::adaptive_max_pool_backward()),
        listed(E::adaptive_avg_pool_forward()),
        listed(E::adaptive_avg_pool_backward()),
        listed(E::mean_forward()),
        listed(E::mean_backward()),
        listed(E::linear_forward()),
        listed(E::linear_input_gradient()),
        listed(E::linear_weight_gradient()),
        listed(E::relu_forward()),
        listed(E::relu_backward()),
        listed(E::activation_forward()),
        listed(E::activation_backward()),
        listed(E::channel_moments()),
        listed(E::scale_shift()),
        listed(E::batch_norm_sums()),
        listed(E::batch_norm_input_gradient()),
        listed(E::group_norm_forward()),
        listed(E::group_norm_statistics()),
        listed(E::group_norm_input_gradient()),
        listed(E::group_norm_weight_gradient()),
        listed(E::dropout()),
        listed(E::addition()),
        listed(E::channel_copy()),
        listed(E::frame_copy()),
        listed(E::frame_reversal()),
        listed(E::lstm_forward()),
        listed(E::lstm_backward()),
        listed(E::gru_forward()),
        listed(E::gru_backward()),
        listed(E::gru_gates_forward()),
        listed(E::gru_gates_backward()),
        listed(E::gru_state_forward()),
        listed(E::gru_state_backward()),
        listed(E::cross_entropy()),
        listed(E::softmax_cross_entropy()),
        listed(E::binary_cross_entropy()),
        listed(E::labelled_binary_cross_entropy()),
        listed(E::adam()),
        listed(E::frames_normalize()),
    ]
}

#[test]
fn names_follow_the_rule_and_are_unique() {
    let mut names = Vec::new();
    for (element, tables) in [("f32", tables::<f32>()), ("f64", tables::<f64>())] {
        for (name, isa) in tables.into_iter().flatten() {
            let (kernel, detail) = name.split_once("__").unwrap();
            assert!(kernel.ends_with(element), "{name}");
            assert!(detail.split('_').next() == Some(isa.name()), "{name}");
            names.push(name);
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn tables_are_ordered_and_end_with_one_scalar_row() {
    for table in tables::<f32>().into_iter().chain(tables::<f64>()) {
        assert_eq!(table.last().unwrap().1, Isa::Scalar, "{table:?}");
        assert_eq!(table.iter().filter(|row| row.1 == Isa::Scalar).count(), 1, "{table:?}");
    }
}

#[test]
fn choice_keeps_to_the_limit_and_to_what_a_row_handles() {
    let dims = Dims3::cube(1);
    let dense = ConvShape {
        clips: 1,
        channels: 4,
        out_channels: 4,
        groups: 1,
        input: dims,
        output: dims,
        kernel: dims,
        stride: dims,
        padding: Dims3::cube(0),
        dilation: dims,
        x: Window { lo: 0, hi: 1 },
        y: Window { lo: 0, hi: 1 },
    };
    let depthwise = ConvShape { groups: 4, ..dense.clone() };
    for limit in Isa::ALL {
        for shape in [&dense, &depthwise] {
            let row = choose(f32::conv_forward(), limit, shape);
            assert!(row.isa() <= limit && row.isa().available() && row.handles(shape), "{} {limit}", row.name);
        }
        assert!(!choose(f32::conv_forward(), limit, &dense).name.ends_with("depthwise"));
    }
    assert_eq!(choose(f32::conv_forward(), Isa::Scalar, &dense).name, "conv_forward_f32__scalar");
    let best = choose(f32::conv_forward(), Isa::best(), &depthwise);
    assert!(best.isa() == Isa::Scalar || best.name.ends_with("depthwise"), "{}", best.name);
}

#[test]
fn instruction_sets_are_named() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse(), Ok(isa));
    }
    assert_eq!("sse".parse::<Isa>().unwrap_err().text, "sse");
    assert!(Isa::best().available());
}
