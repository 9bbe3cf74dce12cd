//! The probe: what it puts in and takes out, of a graph whose numbers are known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::ops::Conv3d;
use framefit::core::schedule::Cut;
use framefit::core::{Dims3, Op, Origin, Shape};
use framefit::engine::Kernels;
use framefit::engine::probe::{self, Given};
use framefit::kernels::Isa;

/// y = 3·(x before) + 2·x, over T frames of two clips.
#[test]
fn a_convolution_along_time_and_its_gradients_in_any_cut() {
    let kernels = Kernels { isa: Isa::Scalar, threads: 1 };
    let mut b = probe::builder(Shape::video(Dims3 { t: 4, h: 1, w: 1 }, 1)).unwrap();
    let kernel = Dims3 { t: 2, h: 1, w: 1 };
    let (before, none) = (Dims3 { t: 1, h: 0, w: 0 }, Dims3::cube(0));
    let conv = Conv3d { padding: before, padding_end: none, ..Conv3d::same(1, 1, kernel) };
    b.layer("conv", Op::Conv3d(conv), &Origin::BuiltIn).unwrap();
    let graph = b.finish().unwrap();
    // Clip 0 is 1, 2, 3, 4; clip 1 is ten times that.
    let source = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
    let output_gradient = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.0];
    let params = [("conv.weight".to_owned(), vec![3.0, 2.0]), ("conv.bias".to_owned(), vec![0.25])];
    let given = Given { source: &source, output_gradient: &output_gradient, params: &params };
    for cut in [Cut::WHOLE, Cut::exact(1, 0), Cut::exact(3, 2)] {
        let seen = probe::train::<f64>(&graph, kernels, cut, &given).unwrap();
        assert_eq!(seen.output, [2.25, 20.25, 7.25, 70.25, 12.25, 120.25, 17.25, 170.25]);
        assert_eq!(seen.source_gradient, [2.0, 0.0, 0.0, 3.0, 1.5, 2.0, 1.0, 0.0]);
        assert_eq!(seen.gradient("conv.weight").unwrap(), [20.0 + 1.5, 1.0 + 30.0 + 2.0]);
        assert_eq!(seen.gradient("conv.bias").unwrap(), [2.5]);
        assert_eq!(seen.param("conv.bias").unwrap(), [0.25]);
        let predicted = probe::predict::<f64>(&graph, kernels, cut, &given).unwrap();
        assert_eq!(predicted.output, seen.output);
        assert!(predicted.source_gradient.iter().all(|v| v.is_nan()));
    }
}

#[test]
fn a_parameter_that_is_missing_or_unknown_is_named() {
    let kernels = Kernels { isa: Isa::Scalar, threads: 1 };
    let mut b = probe::builder(Shape::video(Dims3::cube(1), 1)).unwrap();
    b.layer("conv", Op::Conv3d(Conv3d::same(1, 1, Dims3::cube(1))), &Origin::BuiltIn).unwrap();
    let graph = b.finish().unwrap();
    let named = |params: &[(String, Vec<f64>)]| {
        let given = Given { source: &[1.0], output_gradient: &[1.0], params };
        probe::train::<f64>(&graph, kernels, Cut::WHOLE, &given).map(drop).unwrap_err().to_string()
    };
    let weight = ("conv.weight".to_owned(), vec![1.0]);
    assert!(named(std::slice::from_ref(&weight)).contains("conv.bias, which is not given"));
    assert!(named(&[weight, ("conv.beta".to_owned(), vec![1.0])]).contains("conv.beta, which the graph does not have"));
}
