//! `framefit plan`: the summary, the ledger, the peak and its moment.

use super::{print, print_json, summary};
use crate::args::PlanArgs;
use crate::machine::free_memory;
use crate::report::Problem;
use crate::resolve;
use crate::table::{Align, aligned};
use crate::words::{budget, count, thousands};
use framefit::core::ledger::{Ledger, Purpose};
use framefit::core::plan::Plan;
use framefit::core::schedule::advances;
use framefit::core::{Bytes, Graph, Order};
use framefit::data::DataMemory;
use framefit::models::ModelSpec;
use framefit::train::{Plans, Resources, TrainError, Wanted, fixed_bytes, plan as make_plan};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &PlanArgs) -> Result<ExitCode, Problem> {
    let spec = resolve::model_of_clip(&args.model, &args.clip)?;
    let batch = resolve::batch(args.batch)?;
    let graph = spec.build()?;
    let resources = resolve::resources(&args.resources)?;
    let data = assumed(&graph, &resources, args.keeping.keep_frames.unwrap_or_default());
    let wanted = Wanted { model: &spec, lengths: &[], batch, training: true };
    let (plans, resources) = within_memory(&wanted, &resources, &data)?;
    let plan = plans.longest();
    if args.json {
        print_json(&json(&spec, &graph, plan, batch, &resources))?;
    } else {
        print(&text(&graph, plan, batch, &resources, args.all))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan, and the resources it was made for: where no budget is named and the whole batch at once would take
/// more memory than is free, what is free is the budget.
pub fn within_memory(
    wanted: &Wanted<'_>,
    resources: &Resources,
    data: &DataMemory,
) -> Result<(Plans, Resources), TrainError> {
    let fixed = fixed_bytes(resources, Some(data));
    let plans = make_plan(wanted, resources, &fixed)?;
    match (resources.memory, free_memory()) {
        (None, Some(free)) if plans.peak() > free => {
            let whole = plans.peak();
            eprintln!("note: all at once it would take {whole}; the budget is the {free} that are free, see --memory");
            let resources = Resources { memory: Some(free), ..resources.clone() };
            Ok((make_plan(wanted, &resources, &fixed)?, resources))
        }
        _ => Ok((plans, resources.clone())),
    }
}

/// Without videos to look at: clips decoded ahead, and one H.264 decoder for frames of this size.
fn assumed(graph: &Graph, resources: &Resources, kept: Bytes) -> DataMemory {
    let source = graph.shape(Graph::SOURCE);
    DataMemory {
        kept: kept.0,
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
    let cut = cut(graph, plan).map_or_else(String::new, |cut| format!("{cut}\n"));
    format!(
        "{}\na batch of {}{}: {clips}\n{cut}f32, Adam, {}, {}\n\n{}",
        summary::table(graph),
        count(batch, "clip"),
        micro_batches(plan, batch),
        count(resources.kernels.threads, "thread"),
        resources.kernels.isa.name(),
        ledger(&plan.ledger, resources.memory, all)
    )
}

/// How the batch is passed, in words; nothing where it is passed at once.
fn micro_batches(plan: &Plan, batch: usize) -> String {
    let most = if batch.is_multiple_of(plan.micro_batch) { "" } else { "at most " };
    match batch.div_ceil(plan.micro_batch) {
        1 => String::new(),
        passes => format!(" in {} micro-batches of {most}{}", thousands(passes as u64), plan.micro_batch),
    }
}

fn segments(graph: &Graph, plan: &Plan) -> usize {
    graph.shape(Graph::SOURCE).dims.t.div_ceil(plan.cut.segment).max(1)
}

/// How clips are cut, in words; nothing where they are not.
pub fn cut(graph: &Graph, plan: &Plan) -> Option<String> {
    let segments = segments(graph, plan);
    if segments == 1 {
        return None;
    }
    let passes = 1.0 + advances(segments, plan.cut.checkpoints) as f64 / segments as f64;
    Some(format!(
        "{segments} segments of {}, {}: the exact gradient by {passes:.1} forward passes",
        count(plan.cut.segment, "frame"),
        count(plan.cut.checkpoints.min(segments - 1), "checkpoint"),
    ))
}

/// Rows below this share of the peak are only summed up, unless all are asked for.
const SHOWN: u64 = 100;

/// The ledger: purposes, what is largest in them, the peak and its moment.
fn ledger(ledger: &Ledger, memory: Option<Bytes>, all: bool) -> String {
    let least = if all { Bytes(1) } else { Bytes(ledger.peak.0 / SHOWN) };
    let least_sum = if all { Bytes(1) } else { Bytes(1024) };
    let row = |name: String, part: String, sum: String, of: String| vec![name, part, sum, of];
    let mut rows = Vec::new();
    for (purpose, bytes) in ledger.by_purpose() {
        if bytes >= least_sum {
            rows.push(row(purpose.to_string(), String::new(), bytes.to_string(), String::new()));
        }
        let parts = parts(ledger, purpose, all);
        let alone = parts.len() == 1;
        for (name, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes >= least && (all || !alone)) {
            rows.push(row(format!("  {name}"), bytes.to_string(), String::new(), String::new()));
        }
    }
    let of = memory.map_or_else(String::new, |b| format!("of {}", budget(b)));
    rows.push(row(String::new(), String::new(), String::new(), String::new()));
    rows.push(row("planned peak of the process".to_owned(), String::new(), ledger.peak.to_string(), of));
    let columns = [Align::Left, Align::Right, Align::Right, Align::Left];
    format!("memory at the peak ({})\n{}", ledger.moment, aligned(&columns, &rows))
}

/// The rows of one purpose; states that are kept of the same value are one row, unless all are asked for.
fn parts(ledger: &Ledger, purpose: Purpose, all: bool) -> Vec<(String, Bytes)> {
    let mut parts: Vec<(String, usize, Bytes)> = Vec::new();
    for row in ledger.rows.iter().filter(|r| r.purpose == purpose) {
        let kept = row.name.split_once(", state ").filter(|_| purpose == Purpose::Checkpoints && !all);
        let name = kept.map_or(row.name.as_str(), |(value, _)| value);
        match parts.iter_mut().find(|(n, ..)| kept.is_some() && n == name) {
            Some((_, states, bytes)) => {
                *states += 1;
                bytes.0 += row.bytes.0;
            }
            None => parts.push((name.to_owned(), 1, row.bytes)),
        }
    }
    let named = |(name, states, bytes)| match (states, purpose == Purpose::Checkpoints && !all) {
        (states, true) => (format!("{name}, {}", count(states, "state")), bytes),
        _ => (name, bytes),
    };
    parts.into_iter().map(named).collect()
}
