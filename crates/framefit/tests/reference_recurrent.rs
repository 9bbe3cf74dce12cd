//! Recurrent layers through the engine, on every instruction set, against PyTorch (`reference/pytorch/recurrent.py`)
//! and Keras (`reference/keras/recurrent.py`, `reference/keras/conv_lstm.py`): outputs and all gradients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::axes::Order;
use framefit::core::ops::{
    Add, Cell, Concat, Flatten, GateFunction, LastFrame, Recurrent, RecurrentLayout, Reverse, StateFunction, same,
};
use framefit::core::schedule::Cut;
use framefit::core::{Dims3, Graph, GraphBuilder, Op, Origin, Shape, ValueId};
use framefit::engine::probe::{self, Given, Seen};
use framefit::engine::{self, Kernels};
use framefit::kernels::Isa;
use reference::{Array, Case, Cases, Element, THREADS, WithoutKernel, assert_close};
use serde_json::Value;

/// An element type of the engine with its tolerance.
trait Number: Element + engine::Element {}

impl Number for f32 {}
impl Number for f64 {}

/// By name, in the user's order.
type Params = Vec<(String, Vec<f64>)>;
type Gradients = Vec<(String, Array)>;

/// A graph, what goes in and what must come out.
struct Check {
    what: String,
    graph: Graph,
    cut: Cut,
    /// `[T,N,H,W,C]`
    source: Array,
    /// `[T',N,H',W',K]`
    output_gradient: Array,
    params: Params,
    output: Array,
    source_gradient: Array,
    gradients: Gradients,
}

impl Check {
    fn seen<E: Number>(&self, isa: Isa) -> Seen<E> {
        let given =
            Given { source: &self.source.values, output_gradient: &self.output_gradient.values, params: &self.params };
        probe::train(&self.graph, Kernels { isa, threads: THREADS }, self.cut, &given).unwrap()
    }

    fn on<E: Number>(&self, isa: Isa) {
        let what = |of: &str| format!("{} {} {isa}: {of}", self.what, E::NAME);
        let seen = self.seen::<E>(isa);
        assert_close(&what("output"), &seen.output, &self.output);
        assert_close(&what("gradient of the input"), &seen.source_gradient, &self.source_gradient);
        // The probe's own weight apart.
        assert_eq!(seen.gradients.len(), self.gradients.len() + 1, "{}", self.what);
        for (name, want) in &self.gradients {
            assert_close(&what(&format!("gradient of {name}")), seen.gradient(name).unwrap(), want);
        }
    }

    fn everywhere(&self) {
        self.on::<f64>(Isa::Scalar);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            self.on::<f32>(isa);
        }
    }
}

fn add(b: &mut GraphBuilder, on: &[ValueId], name: &str, op: Op) -> ValueId {
    b.layer_on(on, name, op, &Origin::BuiltIn).unwrap()
}

fn reverse(b: &mut GraphBuilder, on: ValueId) -> ValueId {
    add(b, &[on], "reverse", Op::Reverse(Reverse))
}

/// N, T and the rest of `[N,T,..]` as `[T,N,..]`.
fn frames_first(array: &Array) -> Array {
    let mut order: Vec<usize> = (0..array.dims.len()).collect();
    order.swap(0, 1);
    array.permuted(&order)
}

/// The parameters of a graph by the case, which has each under the name that `theirs` makes of its name in the graph;
/// and their gradients.
fn params(case: &Case<'_>, graph: &Graph, theirs: impl Fn(&str) -> String) -> (Params, Gradients) {
    let names: Vec<String> = graph.params.iter().map(|p| p.name.clone()).filter(|n| n != "probe.weight").collect();
    let values = names.iter().map(|name| (name.clone(), case.tensor(&theirs(name)).values.clone()));
    let gradients = names.iter().map(|name| (name.clone(), case.tensor(&format!("grad_{}", theirs(name))).clone()));
    (values.collect(), gradients.collect())
}

/// The halves of a bidirectional layer of Keras keep their names.
fn without_layer(ours: &str) -> String {
    ours.strip_prefix("rnn.").unwrap_or(ours).to_owned()
}

/// Extents of height and width, as the graph has them.
fn extents(case: &Case<'_>, key: &str, time: usize) -> Dims3 {
    let dims = case.dims(key, time);
    Dims3 { t: dims.t, h: dims.h, w: dims.w }
}

/// Cases that begin with states which an engine never begins a clip with.
const STATES: &str = "it begins with given states";

fn cell_of(case: &Case<'_>, after: bool) -> Cell {
    match case.op {
        "lstm" => Cell::Lstm,
        "gru" if after => Cell::GruResetAfter,
        "gru" => Cell::GruResetBefore,
        other => panic!("{other}"),
    }
}

fn pytorch(case: &Case<'_>) {
    let (hidden, both) = (case.size("hidden_size"), case.flag("bidirectional"));
    let order = |array: &Array| if case.flag("batch_first") { frames_first(array) } else { array.clone() };
    let source = order(case.tensor("input"));
    let dims = Dims3 { t: source.dims[0], h: 1, w: 1 };
    let mut b = probe::builder(Shape::video(dims, case.size("input_size"))).unwrap();
    for layer in 0..case.size("num_layers") {
        let x = b.last();
        let features = b.shape().channels;
        let one = |reverse| {
            let layout = RecurrentLayout::PyTorch { layer, reverse };
            let bias = case.flag("bias");
            Op::Recurrent(Recurrent { bias, ..Recurrent::features(cell_of(case, true), features, hidden, layout) })
        };
        let forward = add(&mut b, &[x], "rnn", one(false));
        if both {
            let reversed = reverse(&mut b, x);
            let backward = add(&mut b, &[reversed], "rnn", one(true));
            let backward = reverse(&mut b, backward);
            add(&mut b, &[forward, backward], "concat", Op::Concat(Concat));
        }
    }
    let graph = b.finish().unwrap();
    let (params, gradients) = params(case, &graph, without_layer);
    let check = Check {
        what: case.name.to_owned(),
        graph,
        cut: Cut::WHOLE,
        source,
        output_gradient: order(case.tensor("grad_output")),
        params,
        output: order(case.tensor("output")),
        source_gradient: order(case.tensor("grad_input")),
        gradients,
    };
    check.everywhere();
    if case.name.ends_with("1_layer") {
        as_maps(case, &check);
        flattened(&check);
    }
}

/// The same layer on frames with a position for each clip, by a cell of 1×1 convolutions.
fn as_maps(case: &Case<'_>, check: &Check) {
    let [t, clips, channels] = check.source.dims[..] else { panic!("{:?}", check.source.dims) };
    let mut b = probe::builder(Shape::video(Dims3 { t, h: 1, w: clips }, channels)).unwrap();
    let layout = RecurrentLayout::ConvCell;
    let cell = cell_of(case, true);
    add(
        &mut b,
        &[ValueId(1)],
        "rnn",
        Op::Recurrent(Recurrent::features(cell, channels, case.size("hidden_size"), layout)),
    );
    let graph = b.finish().unwrap();
    let renamed = |name: &str| match name {
        "rnn.weight_ih_l0" => "rnn.input.weight",
        "rnn.weight_hh_l0" => "rnn.hidden.weight",
        "rnn.bias_ih_l0" => "rnn.bias",
        "rnn.bias_hh_l0" => "rnn.hidden.bias",
        other => panic!("{other}"),
    };
    let mut params: Vec<_> =
        check.params.iter().map(|(name, values)| (renamed(name).to_owned(), values.clone())).collect();
    let mut gradients: Vec<_> =
        check.gradients.iter().map(|(name, values)| (renamed(name).to_owned(), values.clone())).collect();
    if cell == Cell::Lstm {
        // One bias, the sum of both.
        let (_, of_state) = params.pop().unwrap();
        let bias = &mut params.iter_mut().find(|(name, _)| name == "rnn.bias").unwrap().1;
        bias.iter_mut().zip(of_state).for_each(|(a, b)| *a += b);
        gradients.pop();
    }
    let check = Check {
        what: format!("{} on maps", case.name),
        graph,
        cut: Cut::WHOLE,
        source: check.source.clone(),
        output_gradient: check.output_gradient.clone(),
        params,
        output: check.output.clone(),
        source_gradient: check.source_gradient.clone(),
        gradients,
    };
    check.everywhere();
}

/// The same layer after a Flatten of frames whose rows are the features.
fn flattened(check: &Check) {
    let [t, _, features] = check.source.dims[..] else { panic!("{:?}", check.source.dims) };
    let mut b = probe::builder(Shape::video(Dims3 { t, h: features, w: 1 }, 1)).unwrap();
    b.layer("flatten", Op::Flatten(Flatten { per_frame: true, order: Order::PyTorch }), &Origin::BuiltIn).unwrap();
    let node = &check.graph.nodes[1];
    b.layer(&node.name, node.op.clone(), &Origin::BuiltIn).unwrap();
    let check = Check {
        what: format!("{} of flattened frames", check.what),
        graph: b.finish().unwrap(),
        cut: Cut::WHOLE,
        source: check.source.clone(),
        output_gradient: check.output_gradient.clone(),
        params: check.params.clone(),
        output: check.output.clone(),
        source_gradient: check.source_gradient.clone(),
        gradients: check.gradients.clone(),
    };
    check.everywhere();
}

#[test]
fn lstm_and_gru_are_pytorchs() {
    let cases = Cases::of("pytorch/recurrent");
    cases.assert_ops(&["lstm", "gru"]);
    cases.check("lstm", 8, &[("lstm_states", STATES), ("lstm_2_layers_states", STATES)], pytorch);
    cases.check("gru", 8, &[("gru_states", STATES), ("gru_2_layers_states", STATES)], pytorch);
}

/// One layer of Keras in both or one direction, its sequence or its last frame.
fn keras_graph(case: &Case<'_>, source: Shape, op: Recurrent) -> Graph {
    let text = |key: &str| case.attribute(key).as_str();
    let last = case.attribute("return_sequences") == &Value::Bool(false);
    let backwards = case.attribute("go_backwards") == &Value::Bool(true);
    let mut b = probe::builder(source).unwrap();
    let x = b.last();
    let ends = |b: &mut GraphBuilder, h: ValueId| if last { add(b, &[h], "last", Op::LastFrame(LastFrame)) } else { h };
    match text("merge_mode") {
        None => {
            let x = if backwards { reverse(&mut b, x) } else { x };
            let h = add(&mut b, &[x], "rnn", Op::Recurrent(op));
            ends(&mut b, h);
        }
        Some(mode) => {
            let forward = add(&mut b, &[x], "forward", Op::Recurrent(op.clone()));
            let forward = ends(&mut b, forward);
            let reversed = reverse(&mut b, x);
            let backward = add(&mut b, &[reversed], "backward", Op::Recurrent(op));
            let backward = if last { ends(&mut b, backward) } else { reverse(&mut b, backward) };
            let merged = match mode {
                "concat" => Op::Concat(Concat),
                "sum" => Op::Add(Add),
                other => panic!("{other}"),
            };
            add(&mut b, &[forward, backward], "merge", merged);
        }
    }
    b.finish().unwrap()
}

fn keras(case: &Case<'_>, source: Shape, op: Recurrent) {
    let order = |array: &Array| {
        if array.dims.len() == case.tensor("input").dims.len() { frames_first(array) } else { array.clone() }
    };
    let graph = keras_graph(case, source, op);
    let (params, gradients) = params(case, &graph, without_layer);
    let check = Check {
        what: case.name.to_owned(),
        graph,
        cut: Cut::WHOLE,
        source: order(case.tensor("input")),
        output_gradient: order(case.tensor("grad_output")),
        params,
        output: order(case.tensor("output")),
        source_gradient: order(case.tensor("grad_input")),
        gradients,
    };
    check.everywhere();
}

fn keras_features(case: &Case<'_>) {
    let [_, t, features] = case.tensor("input").dims[..] else { panic!("{}", case.name) };
    let after = case.attribute("reset_after") == &Value::Bool(true);
    assert_eq!(case.attribute("activation").as_str(), Some("tanh"));
    assert_eq!(case.attribute("recurrent_activation").as_str(), Some("sigmoid"));
    let layer = Recurrent::features(cell_of(case, after), features, case.size("units"), RecurrentLayout::Keras);
    let op = Recurrent { bias: case.flag("use_bias"), ..layer };
    keras(case, Shape::video(Dims3 { t, h: 1, w: 1 }, features), op);
}

#[test]
fn lstm_and_gru_are_kerass() {
    let cases = Cases::of("keras/recurrent");
    cases.assert_ops(&["lstm", "gru"]);
    let states: [WithoutKernel; 2] = [("gru_states", STATES), ("gru_reset_before_states", STATES)];
    cases.check("lstm", 5, &[("lstm_states", STATES)], keras_features);
    cases.check("gru", 10, &states, keras_features);
}

/// ConvLSTM2D with the settings of a case; those that a stateful case does not name are Keras's defaults.
fn conv_lstm(case: &Case<'_>) -> (Shape, Recurrent) {
    let [_, t, h, w, channels] = case.tensor("input").dims[..] else { panic!("{}", case.name) };
    let pair = |key: &str, absent: usize| match case.attribute(key) {
        Value::Null => Dims3 { t: 1, h: absent, w: absent },
        _ => extents(case, key, 1),
    };
    let (kernel, stride, dilation) = (pair("kernel_size", 1), pair("strides", 1), pair("dilation_rate", 1));
    let zeros = |extent, kernel, stride, dilation| match case.attribute("padding").as_str() {
        Some("same") => same(extent, kernel, stride, dilation),
        Some("valid") => (0, 0),
        other => panic!("{other:?}"),
    };
    let (top, bottom) = zeros(h, kernel.h, stride.h, dilation.h);
    let (left, right) = zeros(w, kernel.w, stride.w, dilation.w);
    let activation = match case.attribute("activation").as_str() {
        None | Some("tanh") => StateFunction::Tanh,
        Some("relu") => StateFunction::Relu,
        other => panic!("{other:?}"),
    };
    let recurrent_activation = match case.attribute("recurrent_activation").as_str() {
        None | Some("sigmoid") => GateFunction::Sigmoid,
        Some("hard_sigmoid") => GateFunction::HardSigmoid,
        Some("keras_2_hard_sigmoid") => GateFunction::HardSigmoidKeras2,
        other => panic!("{other:?}"),
    };
    let layout = RecurrentLayout::KerasConvLstm2d;
    let op = Recurrent {
        kernel,
        stride,
        dilation,
        padding: Dims3 { t: 0, h: top, w: left },
        padding_end: Dims3 { t: 0, h: bottom, w: right },
        activation,
        recurrent_activation,
        bias: case.attribute("use_bias") != &Value::Bool(false),
        ..Recurrent::features(Cell::Lstm, channels, case.size("filters"), layout)
    };
    (Shape::video(Dims3 { t, h, w }, channels), op)
}

fn keras_maps(case: &Case<'_>) {
    let (source, op) = conv_lstm(case);
    keras(case, source, op);
}

#[test]
fn conv_lstm_is_kerass() {
    let cases = Cases::of("keras/conv_lstm");
    cases.assert_ops(&["conv_lstm2d"]);
    cases.check("conv_lstm2d", 16, &[], keras_maps);
}

#[test]
fn directions_and_ends_of_a_conv_lstm_are_kerass() {
    let cases = Cases::of("keras/conv_lstm_sequences");
    cases.assert_ops(&["conv_lstm2d"]);
    let without = [
        ("conv_lstm_states", STATES),
        ("conv_lstm_states_last_frame", STATES),
        ("conv_lstm_states_stride_2", STATES),
        ("conv_lstm_stateful_call_1", "both calls are one clip"),
        ("conv_lstm_stateful_call_2", "both calls are one clip"),
    ];
    cases.check("conv_lstm2d", 7, &without, keras_maps);
}

/// Calls of a stateful layer are one clip whose gradients are cut between them.
#[test]
fn a_stateful_conv_lstm_is_one_longer_clip() {
    let cases = Cases::of("keras/conv_lstm_sequences");
    let all = cases.all();
    let calls: Vec<&Case<'_>> = all.iter().filter(|case| case.name.contains("stateful")).collect();
    let [first, second] = calls[..] else { panic!("{}", calls.len()) };
    let (source, op) = conv_lstm(first);
    let frames = source.dims.t;
    let longer = Shape::video(Dims3 { t: 2 * frames, ..source.dims }, source.channels);
    let graph = keras_graph(first, longer, op);
    let joined = |tensor: &str| {
        let (a, b) = (frames_first(first.tensor(tensor)), frames_first(second.tensor(tensor)));
        let dims = [&[2 * frames], &a.dims[1..]].concat();
        Array { dims, values: [a.values, b.values].concat() }
    };
    let (params, gradients) = params(first, &graph, without_layer);
    let (same_params, more) = self::params(second, &graph, without_layer);
    assert_eq!(params, same_params);
    let sum = |a: &Array, b: &Array| {
        let values = a.values.iter().zip(&b.values).map(|(a, b)| a + b).collect();
        Array { dims: a.dims.clone(), values }
    };
    let gradients = gradients.iter().zip(&more).map(|((name, a), (_, b))| (name.clone(), sum(a, b))).collect();
    let check = Check {
        what: "conv_lstm_stateful".to_owned(),
        graph,
        cut: Cut::truncated(frames),
        source: joined("input"),
        output_gradient: joined("grad_output"),
        params,
        output: joined("output"),
        source_gradient: joined("grad_input"),
        gradients,
    };
    check.everywhere();
}

/// Some rows of a weight or a bias, those of which a sign is −1 negated; K rows for each gate.
fn gates(array: &Array, hidden: usize, order: &[(usize, f64)]) -> Vec<f64> {
    let one = array.values.len() / array.dims[0] * hidden;
    order.iter().flat_map(|&(gate, sign)| array.values[gate * one..][..one].iter().map(move |v| sign * v)).collect()
}

/// Of `[K,C,kH,kW]` the channels in a range.
fn channels(array: &Array, range: std::ops::Range<usize>) -> Array {
    let [k, c, h, w] = array.dims[..] else { panic!("{:?}", array.dims) };
    let rows = array.values.chunks_exact(c * h * w);
    let values = rows.flat_map(|row| row[range.start * h * w..range.end * h * w].to_vec()).collect();
    Array { dims: vec![k, range.len(), h, w], values }
}

/// The tensors of a cell, or with the prefix `grad_` their gradients, as a [`RecurrentLayout::ConvCell`] has them.
fn conv_cell_tensors(case: &Case<'_>, prefix: &str) -> Vec<(String, Array)> {
    let (c, k) = (case.size("in_channels"), case.size("hidden"));
    let of = |name: &str| case.tensor(&format!("{prefix}{name}"));
    // The cell's gates are i, f, o, g, and z, r with z the other way round than in other GRUs: σ(−x) = 1 − σ(x).
    let sources: &[(&str, &[(usize, f64)])] = match case.op {
        "conv_lstm" => &[("conv", &[(0, 1.0), (1, 1.0), (3, 1.0), (2, 1.0)])],
        "conv_gru" => &[("gates", &[(1, 1.0), (0, -1.0)]), ("candidate", &[(0, 1.0)])],
        other => panic!("{other}"),
    };
    let joined = |of: &dyn Fn(&str) -> Array| {
        let values: Vec<f64> = sources.iter().flat_map(|(name, order)| gates(&of(name), k, order)).collect();
        Array { dims: vec![values.len()], values }
    };
    vec![
        ("rnn.input.weight".to_owned(), joined(&|name| channels(of(&format!("{name}.weight")), 0..c))),
        ("rnn.hidden.weight".to_owned(), joined(&|name| channels(of(&format!("{name}.weight")), c..c + k))),
        ("rnn.bias".to_owned(), joined(&|name| of(&format!("{name}.bias")).clone())),
    ]
}

fn conv_cell(case: &Case<'_>) {
    let source = case.tensor("input").frames();
    let [t, _, h, w, channels] = source.dims[..] else { unreachable!() };
    let cell = if case.op == "conv_lstm" { Cell::Lstm } else { Cell::GruResetBefore };
    let padding = extents(case, "padding", 0);
    let op = Recurrent {
        kernel: extents(case, "kernel", 1),
        padding,
        padding_end: padding,
        ..Recurrent::features(cell, channels, case.size("hidden"), RecurrentLayout::ConvCell)
    };
    let mut b = probe::builder(Shape::video(Dims3 { t, h, w }, channels)).unwrap();
    b.layer("rnn", Op::Recurrent(op), &Origin::BuiltIn).unwrap();
    let params = conv_cell_tensors(case, "").into_iter().map(|(name, array)| (name, array.values)).collect();
    let check = Check {
        what: case.name.to_owned(),
        graph: b.finish().unwrap(),
        cut: Cut::WHOLE,
        source,
        output_gradient: case.tensor("grad_output").frames(),
        params,
        output: case.tensor("output").frames(),
        source_gradient: case.tensor("grad_input").frames(),
        gradients: conv_cell_tensors(case, "grad_"),
    };
    check.everywhere();
}

#[test]
fn cells_of_convolutions_are_pytorchs() {
    let cases = Cases::of("pytorch/conv_recurrent");
    cases.assert_ops(&["conv_lstm", "conv_gru"]);
    cases.check("conv_lstm", 4, &[("conv_lstm_states", STATES)], conv_cell);
    cases.check("conv_gru", 4, &[("conv_gru_states", STATES)], conv_cell);
}
