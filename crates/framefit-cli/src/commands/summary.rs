//! `framefit summary`: layers, shapes and parameters, as the user's framework shows them.

use super::{print, print_json};
use crate::args::SummaryArgs;
use crate::report::Problem;
use crate::resolve;
use crate::table::{Align, aligned};
use crate::words::thousands;
use framefit::core::ops::ConvLayout;
use framefit::core::{Dims3, Graph, NodeId, Op, Order, Shape};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &SummaryArgs) -> Result<ExitCode, Problem> {
    let spec = resolve::model_of_clip(&args.model, &args.clip)?;
    let graph = spec.build()?;
    let order = spec.family.order();
    if args.json {
        print_json(&json!({
            "model": spec,
            "layers": layers(&graph, order),
            "parameters": graph.param_count(),
            "trainable": graph.trained_count(),
            "non_trainable": graph.param_count() - graph.trained_count(),
        }))?;
    } else {
        print(&table(&graph, order))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A layer as the user writes it: what framefit computes as one may be several.
struct Layer {
    name: String,
    kind: &'static str,
    /// Behind the kind, such as the kernel.
    detail: String,
    output: String,
    parameters: u64,
    trainable: u64,
    operations: u64,
}

impl Layer {
    /// A layer without parameters that is computed with the one before it.
    fn view(name: String, kind: &'static str, output: String) -> Self {
        Self { name, kind, detail: String::new(), output, parameters: 0, trainable: 0, operations: 0 }
    }
}

fn listed(graph: &Graph, order: Order) -> Vec<Layer> {
    let mut listed = Vec::new();
    // From Keras's Reshape on, a frame is a vector of channels.
    let mut reshaped = false;
    for id in graph.node_ids() {
        let node = graph.node(id);
        let output = graph.shape(node.output);
        let shown = if reshaped { frames_of_vectors(output) } else { output.text(order, "N") };
        let mut layer = Layer { detail: detail(&node.op), ..of_node(graph, id, shown) };
        if let (Order::Keras, Op::AdaptivePool3d(_)) = (order, &node.op) {
            layer.kind = "AveragePooling3D";
        }
        if let Op::NormMean(_) = node.op {
            let number = node.name.strip_prefix("batch_normalization").unwrap_or_default();
            let normalised = graph.shape(node.input()).text(order, "N");
            let (pooled, vectors) = (output.text(order, "N"), frames_of_vectors(output));
            listed.push(Layer { kind: "BatchNormalization", output: normalised, ..layer });
            listed.push(Layer::view(format!("average_pooling3d{number}"), "AveragePooling3D", pooled));
            listed.push(Layer::view(format!("reshape{number}"), "Reshape", vectors));
            reshaped = true;
        } else {
            listed.push(layer);
        }
    }
    listed
}

fn of_node(graph: &Graph, id: NodeId, output: String) -> Layer {
    let node = graph.node(id);
    let params = || node.params.iter().map(|&p| graph.param(p));
    Layer {
        name: node.name.clone(),
        kind: node.op.kind(),
        detail: String::new(),
        output,
        parameters: params().map(|p| p.len() as u64).sum(),
        trainable: params().filter(|p| p.trained).map(|p| p.len() as u64).sum(),
        operations: graph.operations(id).forward,
    }
}

fn frames_of_vectors(shape: &Shape) -> String {
    format!("Nx{}x{}", shape.dims.t, shape.per_frame())
}

fn detail(op: &Op) -> String {
    let frame = |k: Dims3| format!(" {}x{}", k.h, k.w);
    match op {
        Op::Conv3d(c) => {
            let kernel = match c.layout {
                ConvLayout::Conv2d | ConvLayout::KerasConv2d => frame(c.kernel),
                ConvLayout::Conv3d | ConvLayout::KerasConv3d => format!(" {}", c.kernel),
            };
            if c.groups > 1 { format!("{kernel}, {} groups", c.groups) } else { kernel }
        }
        Op::MaxPool3d(p) => format!(" {}", p.kernel),
        Op::AvgPool3d(p) => format!(" {}", p.kernel),
        Op::Recurrent(c) => {
            let kernel = if c.kernel.h * c.kernel.w > 1 { frame(c.kernel) } else { String::new() };
            let dropout = c.recurrent_dropout;
            if dropout > 0.0 { format!("{kernel}, recurrent dropout {dropout}") } else { kernel }
        }
        Op::Dropout(d) => format!(" {}", d.p),
        Op::GroupNorm(n) => format!(" {}", n.groups),
        Op::AdaptivePool3d(_)
        | Op::GlobalAvgPool3d(_)
        | Op::Relu(_)
        | Op::Activation(_)
        | Op::Flatten(_)
        | Op::Linear(_)
        | Op::Dense(_)
        | Op::NormMean(_)
        | Op::BatchNorm(_)
        | Op::LayerNorm(_)
        | Op::Add(_)
        | Op::Concat(_)
        | Op::Reverse(_)
        | Op::LastFrame(_) => String::new(),
    }
}

/// The layers with their output shapes, parameters and operations.
pub fn layers(graph: &Graph, order: Order) -> Vec<Value> {
    let json = |layer: Layer| {
        json!({
            "name": layer.name,
            "kind": layer.kind,
            "output": layer.output,
            "parameters": layer.parameters,
            "trainable": layer.trainable,
            "forward_operations": layer.operations,
        })
    };
    listed(graph, order).into_iter().map(json).collect()
}

/// The same as a table, and the sums.
pub fn table(graph: &Graph, order: Order) -> String {
    let layers = listed(graph, order);
    let operations: u64 = layers.iter().map(|layer| layer.operations).sum();
    let unit = Unit::of(operations);
    let mut rows = vec![["layer", "kind", "output", "parameters", unit.name].map(str::to_owned).to_vec()];
    let mut row = |name: &str, kind: String, output: String, parameters: String, operations: String| {
        rows.push(vec![name.to_owned(), kind, output, parameters, operations]);
    };
    let none = String::new;
    row("clip", none(), graph.shape(Graph::SOURCE).text(order, "N"), none(), none());
    for layer in layers {
        let kind = format!("{}{}", layer.kind, layer.detail);
        row(&layer.name, kind, layer.output, thousands(layer.parameters), unit.text(layer.operations));
    }
    let (all, trained) = (graph.param_count(), graph.trained_count());
    row("total", none(), none(), thousands(all), unit.text(operations));
    row("trainable", none(), none(), thousands(trained), none());
    row("non-trainable", none(), none(), thousands(all - trained), none());
    aligned(&[Align::Left, Align::Left, Align::Left, Align::Right, Align::Right], &rows)
}

/// What operations are counted in.
struct Unit {
    name: &'static str,
    tenth: f64,
}

impl Unit {
    /// The unit in which a sum has at most six digits.
    fn of(operations: u64) -> Self {
        match operations {
            0..1_000_000_000_000 => Self { name: "MFLOP", tenth: 1e5 },
            _ => Self { name: "GFLOP", tenth: 1e8 },
        }
    }

    /// With one decimal; nothing for layers that compute nothing.
    fn text(&self, operations: u64) -> String {
        let tenths = (operations as f64 / self.tenth).round() as u64;
        if operations == 0 { String::new() } else { format!("{}.{}", thousands(tenths / 10), tenths % 10) }
    }
}
