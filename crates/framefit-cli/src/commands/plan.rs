//! `framefit plan`: the summary, the ledger, the peak and its moment.

use super::{print, print_json, summary};
use crate::args::PlanArgs;
use crate::report::Problem;
use crate::resolve;
use crate::table::{Align, aligned};
use framefit::core::ledger::Ledger;
use framefit::core::plan::Plan;
use framefit::core::schedule::advances;
use framefit::core::{Bytes, Graph, Order};
use framefit::data::DataMemory;
use framefit::models::ModelSpec;
use framefit::train::{Resources, fixed_bytes, plan_training};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &PlanArgs) -> Result<ExitCode, Problem> {
    let spec = resolve::model_of_clip(&args.model, &args.clip)?;
    let batch = resolve::at_least_one("--batch", args.batch)?;
    let graph = spec.build()?;
    let resources = resolve::resources(&args.resources)?;
    let fixed = fixed_bytes(&resources, Some(&assumed(&graph, &resources)));
    let plan = plan_training(&graph, batch, &resources, &fixed)?;
    if args.json {
        print_json(&json(&spec, &graph, &plan, batch, &resources))?;
    } else {
        print(&text(&graph, &plan, batch, &resources, args.all))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Without videos to look at: clips decoded ahead, and one H.264 decoder for frames of this size.
fn assumed(graph: &Graph, resources: &Resources) -> DataMemory {
    let source = graph.shape(Graph::SOURCE);
    DataMemory {
        kept: 0,
        ring: (resources.ahead as u64 + 1) * source.per_clip() as u64,
        decoder: framefit::data::source::assumed_decoder_bytes(source.dims.h, source.dims.w),
        tables: 0,
    }
}

/// The plan as JSON, for `framefit plan` and for the record of a run.
pub fn json(spec: &ModelSpec, graph: &Graph, plan: &Plan, batch: usize, resources: &Resources) -> Value {
    json!({
        "model": spec,
        "layers": summary::layers(graph),
        "parameters": graph.param_count(),
        "batch": batch,
        "micro_batch": plan.micro_batch,
        "segments": segments(graph, plan),
        "segment": plan.cut.segment.min(graph.shape(Graph::SOURCE).dims.t),
        "checkpoints": if segments(graph, plan) > 1 { plan.cut.checkpoints } else { 0 },
        "threads": resources.kernels.threads,
        "isa": resources.kernels.isa.name(),
        "arena": plan.arena,
        "budget": resources.memory,
        "peak": plan.ledger.peak,
        "moment": plan.ledger.moment,
        "ledger": plan.ledger.rows,
    })
}

fn text(graph: &Graph, plan: &Plan, batch: usize, resources: &Resources, all: bool) -> String {
    let clips = graph.shape(Graph::SOURCE).text(Order::PyTorch, &plan.micro_batch.to_string());
    let passes = batch.div_ceil(plan.micro_batch);
    let batches = match passes {
        1 => format!("a batch of {batch}"),
        _ => format!("a batch of {batch} in {passes} micro-batches of {}", plan.micro_batch),
    };
    let cut = cut(graph, plan);
    format!(
        "{}\n{batches}: {clips}{cut}, f32, Adam, {} threads, {}\n\n{}",
        summary::table(graph),
        resources.kernels.threads,
        resources.kernels.isa.name(),
        ledger(&plan.ledger, resources.memory, all)
    )
}

fn segments(graph: &Graph, plan: &Plan) -> usize {
    graph.shape(Graph::SOURCE).dims.t.div_ceil(plan.cut.segment).max(1)
}

/// How clips are cut, in words; nothing where they are not.
pub fn cut(graph: &Graph, plan: &Plan) -> String {
    let segments = segments(graph, plan);
    if segments == 1 {
        return String::new();
    }
    let passes = advances(segments, plan.cut.checkpoints) as f64 / segments as f64;
    format!(
        ", in {segments} segments of {} frames with {} checkpoints (exact gradient, each segment forward {:.1} times)",
        plan.cut.segment,
        plan.cut.checkpoints.min(segments - 1),
        1.0 + passes
    )
}

/// Rows of the ledger that are shown one by one unless all are asked for.
const SHOWN: usize = 8;

/// The ledger: purposes, what is largest in them, the peak and its moment.
pub fn ledger(ledger: &Ledger, budget: Option<Bytes>, all: bool) -> String {
    let mut largest: Vec<_> = ledger.rows.iter().map(|r| r.bytes).collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    let least = if all { Bytes(1) } else { largest.get(SHOWN - 1).copied().unwrap_or(Bytes(1)) };
    let mut rows = Vec::new();
    for (purpose, bytes) in ledger.by_purpose() {
        let mut inside = ledger.rows.iter().filter(|r| r.purpose == purpose).peekable();
        rows.push(vec![purpose.to_string(), bytes.to_string()]);
        let alone = ledger.rows.iter().filter(|r| r.purpose == purpose).count() == 1;
        for row in inside.by_ref().filter(|r| r.bytes >= least && (all || !alone)) {
            rows.push(vec![format!("  {}", row.name), format!("{}           ", row.bytes)]);
        }
    }
    let of = budget.map_or_else(String::new, |b| format!(" of {b}"));
    rows.push(vec!["peak".to_owned(), format!("{}{of}", ledger.peak)]);
    let last = rows.pop();
    let mut text = format!("memory at the peak ({})\n", ledger.moment);
    text.push_str(&aligned(&[Align::Left, Align::Right], &rows));
    if let Some(last) = last {
        text.push_str(&format!("\nplanned peak of the whole process: {}\n", last[1]));
    }
    text
}
