//! `framefit summary`: layers, shapes and parameters.

use super::{print, print_json};
use crate::args::SummaryArgs;
use crate::report::Problem;
use crate::resolve;
use crate::table::{Align, aligned};
use crate::words::thousands;
use framefit::core::{Graph, Op, Order};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &SummaryArgs) -> Result<ExitCode, Problem> {
    let spec = resolve::model_of_clip(&args.model, &args.clip)?;
    let graph = spec.build()?;
    if args.json {
        print_json(&json!({ "model": spec, "layers": layers(&graph), "parameters": graph.param_count() }))?;
    } else {
        print(&table(&graph))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The layers with their output shapes, parameters and operations.
pub fn layers(graph: &Graph) -> Vec<Value> {
    graph
        .node_ids()
        .map(|id| {
            let node = graph.node(id);
            json!({
                "name": node.name,
                "kind": node.op.kind(),
                "output": graph.shape(node.output).text(Order::PyTorch, "N"),
                "parameters": parameters(graph, id),
                "forward_operations": graph.operations(id).forward,
            })
        })
        .collect()
}

fn parameters(graph: &Graph, id: framefit::core::NodeId) -> u64 {
    graph.node(id).params.iter().map(|&p| graph.param(p).len() as u64).sum()
}

/// The same as a table, extents in PyTorch's order.
pub fn table(graph: &Graph) -> String {
    let mut rows = vec![["layer", "kind", "output", "parameters", "MFLOP"].map(str::to_owned).to_vec()];
    let source = graph.shape(Graph::SOURCE).text(Order::PyTorch, "N");
    rows.push(vec!["clip".to_owned(), String::new(), source, String::new(), String::new()]);
    let mut operations = 0;
    for id in graph.node_ids() {
        let node = graph.node(id);
        let forward = graph.operations(id).forward;
        operations += forward;
        let params = parameters(graph, id);
        let kind = match &node.op {
            Op::Conv3d(c) if c.groups > 1 => format!("{} {}, {} groups", node.op.kind(), c.kernel, c.groups),
            Op::Conv3d(c) => format!("{} {}", node.op.kind(), c.kernel),
            Op::MaxPool3d(p) => format!("{} {}", node.op.kind(), p.kernel),
            Op::ConvLstm2d(c) => format!("{} {}x{}", node.op.kind(), c.kernel.h, c.kernel.w),
            Op::NormMean(_) => "BatchNorm, frame mean".to_owned(),
            Op::GlobalAvgPool3d(_) | Op::Relu(_) | Op::Flatten(_) | Op::Linear(_) | Op::Dense(_) => {
                node.op.kind().to_owned()
            }
        };
        let output = graph.shape(node.output).text(Order::PyTorch, "N");
        let params = if params == 0 { String::new() } else { thousands(params) };
        rows.push(vec![node.name.clone(), kind, output, params, mega(forward)]);
    }
    rows.push(vec!["total".to_owned(), String::new(), String::new(), thousands(graph.param_count()), mega(operations)]);
    aligned(&[Align::Left, Align::Left, Align::Left, Align::Right, Align::Right], &rows)
}

/// Millions with one decimal; nothing for layers that compute nothing.
fn mega(operations: u64) -> String {
    let tenths = (operations as f64 / 1e5).round() as u64;
    if operations == 0 { String::new() } else { format!("{}.{}", thousands(tenths / 10), tenths % 10) }
}
