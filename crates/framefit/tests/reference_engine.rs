//! The engine's ops, whole and in segments, against PyTorch and Keras: single layers, and a block with branches
//! (`reference/pytorch/ops.py`, `reference/pytorch/more_ops.py`, `reference/keras/norms.py`). Norms with statistics of
//! clips or batches have tests of their own, and residual blocks with them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::ops::{
    Activation, AdaptivePool3d, AvgPool3d, Concat, Conv3d, ConvLayout, Dense, Function, GroupNorm, LayerNorm,
    LayerNormOver, Linear, LinearLayout, MaxPool3d, NormLayout, PoolKind, Relu,
};
use framefit::core::schedule::Cut;
use framefit::core::{Dims3, Graph, GraphBuilder, Op, Origin, Shape, ValueId};
use framefit::engine::Kernels;
use framefit::engine::probe::{self, Given, Seen};
use framefit::kernels::Isa;
use reference::{Array, Case, Cases, Element, THREADS, Tolerance, assert_within};

const CUTS: [Cut; 4] = [Cut::WHOLE, Cut::exact(1, 0), Cut::exact(2, 1), Cut::exact(3, 0)];

/// A graph, and what goes in and has to come out, laid out as `[T,N,H,W,C]`.
struct Check<'a> {
    case: &'a Case<'a>,
    graph: Graph,
    /// From the case's tensors to `[T,N,H,W,C]`.
    layout: fn(&Array) -> Array,
    /// Parameters of the graph, and the case's tensors that they are.
    params: Vec<(String, &'a str)>,
    /// At least this, besides what sums in any order need.
    tolerance: Tolerance,
}

/// PyTorch's softplus is x itself above 20, which leaves out ln(1 + e⁻ˣ), at most this.
const SOFTPLUS_THRESHOLD: Tolerance = Tolerance(2.1e-9);
const EXACT: Tolerance = Tolerance(0.0);

impl Check<'_> {
    fn everywhere(&self) {
        self.run::<f64>(Isa::Scalar);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            self.run::<f32>(isa);
        }
    }

    fn run<E: Element + framefit::engine::Element>(&self, isa: Isa) {
        let of = |tensor: &str| (self.layout)(self.case.tensor(tensor));
        let values = |tensor: &str| self.case.tensor(tensor).values.clone();
        let params: Vec<_> = self.params.iter().map(|(name, tensor)| (name.clone(), values(tensor))).collect();
        let (source, output_gradient) = (of("input").values, of("grad_output").values);
        let given = Given { source: &source, output_gradient: &output_gradient, params: &params };
        for cut in CUTS {
            let kernels = Kernels { isa, threads: THREADS };
            let seen: Seen<E> = probe::train(&self.graph, kernels, cut, &given)
                .unwrap_or_else(|error| panic!("{} {isa} {cut:?}: {error}", self.case.name));
            let what = |of: &str| format!("{} {} {isa} {cut:?}: {of}", self.case.name, E::NAME);
            let close = |of: &str, got: &[E], want: &Array| {
                assert_within(&what(of), got, want, Tolerance(E::REORDERED.0.max(self.tolerance.0)));
            };
            close("output", &seen.output, &of("output"));
            close("grad_input", &seen.source_gradient, &of("grad_input"));
            for (name, tensor) in &self.params {
                let want = self.case.get(&format!("grad_{tensor}"));
                assert_eq!(want.is_some(), seen.gradient(name).is_some(), "{}", what(name));
                if let (Some(got), Some(want)) = (seen.gradient(name), want) {
                    close(name, got, want);
                }
            }
        }
    }
}

/// The extents of `[T,N,H,W,C]`.
fn video(laid_out: &Array) -> Shape {
    match laid_out.dims[..] {
        [t, _, h, w, channels] => Shape::video(Dims3 { t, h, w }, channels),
        _ => panic!("no frames: {:?}", laid_out.dims),
    }
}

/// One layer with these of the case's tensors as its parameters.
fn layer(case: &Case<'_>, op: Op, params: &[&str], layout: fn(&Array) -> Array) {
    let tolerance = match &op {
        Op::Activation(Activation { function: Function::Softplus }) => SOFTPLUS_THRESHOLD,
        _ => EXACT,
    };
    let mut b = probe::builder(video(&layout(case.tensor("input")))).unwrap();
    b.layer("layer", op, &Origin::BuiltIn).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let params = params.iter().filter(|tensor| case.get(tensor).is_some());
    let params = params.map(|&tensor| (format!("layer.{tensor}"), tensor)).collect();
    Check { case, graph: b.finish().unwrap(), layout, params, tolerance }.everywhere();
}

/// The kernels' extents as the graph's.
fn dims(case: &Case<'_>, key: &str, absent: usize) -> Dims3 {
    let of = case.dims(key, absent);
    Dims3 { t: of.t, h: of.h, w: of.w }
}

#[test]
fn convolutions() {
    Cases::of("pytorch/ops").check("conv3d", 22, &[], |case| {
        let padding = dims(case, "padding", 0);
        let conv = Conv3d {
            in_channels: case.size("in_channels"),
            out_channels: case.size("out_channels"),
            kernel: dims(case, "kernel", 1),
            stride: dims(case, "stride", 1),
            padding,
            padding_end: padding,
            dilation: dims(case, "dilation", 1),
            groups: case.size("groups"),
            bias: case.flag("bias"),
            layout: ConvLayout::Conv3d,
        };
        layer(case, Op::Conv3d(conv), &["weight", "bias"], Array::frames);
    });
}

#[test]
fn matrices() {
    Cases::of("pytorch/ops").check("linear", 3, &[], |case| {
        let (features, units, bias) = (case.size("in_features"), case.size("out_features"), case.flag("bias"));
        let layout = LinearLayout::PyTorch;
        let linear = Linear { in_features: features, out_features: units, bias, layout };
        layer(case, Op::Linear(linear), &["weight", "bias"], Array::frames);
        let dense = Dense { in_channels: features, units, bias, layout };
        layer(case, Op::Dense(dense.clone()), &["weight", "bias"], Array::frames);
        // The rows as frames of one clip.
        layer(case, Op::Dense(dense), &["weight", "bias"], |rows| rows.frames().permuted(&[1, 0, 2, 3, 4]));
    });
}

#[test]
fn poolings() {
    let cases = Cases::of("pytorch/pooling");
    let dilated = ("max_pool3d_dilation_2", "windows have no dilation");
    for (op, count, left_out) in
        [("max_pool3d", 5, vec![dilated]), ("max_pool2d", 1, vec![]), ("max_pool1d", 1, vec![])]
    {
        cases.check(op, count, &left_out, |case| {
            let (kernel, stride, padding) =
                (dims(case, "kernel", 1), dims(case, "stride", 1), dims(case, "padding", 0));
            let pool = MaxPool3d { kernel, stride, padding, ceil_mode: case.flag("ceil_mode") };
            layer(case, Op::MaxPool3d(pool), &[], Array::frames);
        });
    }
    for (op, count) in [("avg_pool3d", 11), ("avg_pool2d", 4), ("avg_pool1d", 3)] {
        let divided = |case: &Case<'_>| !case.attribute("divisor_override").is_null();
        let left_out = cases.all().iter().filter(|case| case.op == op && divided(case)).count();
        cases.check(op, count, &[], |case| {
            // The graph has no divisor of its own.
            if divided(case) {
                return;
            }
            let pool = AvgPool3d {
                kernel: dims(case, "kernel", 1),
                stride: dims(case, "stride", 1),
                padding: dims(case, "padding", 0),
                ceil_mode: case.flag("ceil_mode"),
                count_include_pad: case.flag("count_include_pad"),
            };
            layer(case, Op::AvgPool3d(pool), &[], Array::frames);
        });
        assert!(left_out < count / 2, "{left_out} of {op} left out");
    }
    for (op, kind) in [("adaptive_avg_pool3d", PoolKind::Average), ("adaptive_max_pool3d", PoolKind::Maximum)] {
        cases.check(op, 7, &[], |case| {
            let asked = case.attribute("output_size").as_array().unwrap();
            let output = [0, 1, 2].map(|axis| asked[axis].as_u64().map(|size| size as usize));
            layer(case, Op::AdaptivePool3d(AdaptivePool3d { output, kind }), &[], Array::frames);
        });
    }
}

#[test]
fn activations() {
    let function = |case: &Case<'_>| {
        Some(match case.op {
            "relu6" => Function::Relu6,
            "leaky_relu" => Function::LeakyRelu { slope: case.number("negative_slope") },
            "elu" => Function::Elu { alpha: case.number("alpha") },
            "selu" => Function::Selu,
            "gelu" if case.attribute("approximate") == "tanh" => Function::GeluTanh,
            "gelu" => Function::Gelu,
            "silu" => Function::Silu,
            "sigmoid" => Function::Sigmoid,
            "hardsigmoid" => Function::HardSigmoid,
            "hardswish" => Function::HardSwish,
            "tanh" => Function::Tanh,
            "softplus" if case.number("beta") == 1.0 => Function::Softplus,
            _ => return None,
        })
    };
    let cases = Cases::of("pytorch/activations");
    cases.check("relu", 1, &[], |case| layer(case, Op::Relu(Relu), &[], Array::frames));
    let with_function = cases.all().into_iter().filter_map(|case| function(&case).map(|f| (case, f)));
    let checked = with_function.map(|(case, function)| {
        layer(&case, Op::Activation(Activation { function }), &[], Array::frames);
    });
    assert_eq!(checked.count(), 14);
}

#[test]
fn norms_of_frames() {
    let cases = Cases::of("pytorch/norms");
    let of_frames = cases.all().into_iter().find(|case| case.name == "group_norm_frames").unwrap();
    let group_norm = GroupNorm {
        groups: of_frames.size("num_groups"),
        epsilon: of_frames.number("eps"),
        affine: of_frames.flag("affine"),
        per_frame: true,
    };
    layer(&of_frames, Op::GroupNorm(group_norm.clone()), &["weight", "bias"], Array::frames);
    // Its clips as frames of one clip.
    let as_frames = |clips: &Array| clips.frames().permuted(&[1, 0, 2, 3, 4]);
    layer(&of_frames, Op::GroupNorm(group_norm), &["weight", "bias"], as_frames);

    cases.check("layer_norm", 5, &[], |case| {
        let affine = case.flag("elementwise_affine");
        let whole_frames = case.name == "layer_norm_whole_frames";
        let norm = LayerNorm {
            over: if whole_frames { LayerNormOver::Frame } else { LayerNormOver::Channels },
            epsilon: case.number("eps"),
            scale: affine,
            center: affine && case.flag("bias"),
            layout: NormLayout::PyTorch,
        };
        // Clips of frames of what is normalised.
        let layout: fn(&Array) -> Array = match case.tensor("input").dims.len() {
            5 if whole_frames => |x| x.permuted(&[1, 0, 3, 4, 2]),
            5 => |x| x.permuted(&[1, 0, 2, 3, 4]),
            _ => |x| {
                let [n, t, c] = x.dims[..] else { panic!("{:?}", x.dims) };
                Array { dims: vec![n, t, 1, 1, c], values: x.values.clone() }.permuted(&[1, 0, 2, 3, 4])
            },
        };
        layer(case, Op::LayerNorm(norm), &["weight", "bias"], layout);
    });
}

#[test]
fn norms_of_frames_of_keras() {
    Cases::of("keras/norms").check("layer_norm", 3, &[], |case| {
        let norm = LayerNorm {
            over: if case.attribute("axis").is_array() { LayerNormOver::Frame } else { LayerNormOver::Channels },
            epsilon: case.number("epsilon"),
            scale: case.flag("scale"),
            center: case.flag("center"),
            layout: NormLayout::Keras,
        };
        let layout = |x: &Array| {
            let dims = match x.dims[..] {
                [n, t, h, w, c] => vec![n, t, h, w, c],
                [n, t, w, c] => vec![n, t, 1, w, c],
                [n, t, c] => vec![n, t, 1, 1, c],
                _ => panic!("{:?}", x.dims),
            };
            Array { dims, values: x.values.clone() }.permuted(&[1, 0, 2, 3, 4])
        };
        layer(case, Op::LayerNorm(norm), &["gamma", "beta"], layout);
    });
}

/// Adds layers by name, as a module has them.
struct Module {
    b: GraphBuilder,
}

impl Module {
    fn add(&mut self, name: &str, inputs: &[ValueId], op: Op) -> ValueId {
        self.b.layer_on(inputs, name, op, &Origin::BuiltIn).unwrap()
    }

    fn conv(&mut self, name: &str, x: ValueId, units: usize, kernel: usize) -> ValueId {
        let channels = self.b.shape_of(x).channels;
        self.add(name, &[x], Op::Conv3d(Conv3d::same(channels, units, Dims3::cube(kernel))))
    }

    fn check(self, case: &Case<'_>) {
        let graph = self.b.finish().unwrap();
        let own = graph.params.iter().filter(|p| case.get(&p.name).is_some());
        let names: Vec<String> = own.map(|p| p.name.clone()).collect();
        let params = names.iter().map(|name| (name.clone(), name.as_str())).collect();
        Check { case, graph, layout: Array::frames, params, tolerance: EXACT }.everywhere();
    }
}

#[test]
fn inception_blocks() {
    Cases::of("pytorch/blocks").check("inception", 1, &[], |case| {
        let widths: Vec<usize> =
            case.attribute("widths").as_array().unwrap().iter().map(|w| w.as_u64().unwrap() as usize).collect();
        let mut m = Module { b: probe::builder(video(&case.tensor("input").frames())).unwrap() };
        let (x, one) = (m.b.last(), Dims3::cube(1));
        let first = m.conv("branch1", x, widths[0], 1);
        let second = m.conv("branch2.reduce", x, widths[1], 1);
        let second = m.add("branch2.relu", &[second], Op::Relu(Relu));
        let second = m.conv("branch2.conv", second, widths[2], 3);
        let pool = MaxPool3d { kernel: Dims3::cube(3), stride: one, padding: one, ceil_mode: false };
        let third = m.add("branch3.pool", &[x], Op::MaxPool3d(pool));
        let third = m.conv("branch3.project", third, widths[3], 1);
        let all = m.add("concat", &[first, second, third], Op::Concat(Concat));
        m.add("relu", &[all], Op::Relu(Relu));
        m.check(case);
    });
}
