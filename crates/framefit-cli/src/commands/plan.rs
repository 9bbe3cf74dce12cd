//! `framefit plan`: the summary, the ledger, the peak and its moment.

use super::{print, print_json, say, summary};
use crate::args::{CuttingArg, PlanArgs};
use crate::machine::free_memory;
use crate::report::{Asked, Problem};
use crate::resolve;
use crate::table::{Align, aligned};
use crate::words::{budget, count, thousands};
use framefit::core::ledger::{Ledger, Purpose};
use framefit::core::plan::Plan;
use framefit::core::schedule::{self, advances};
use framefit::core::{Bytes, Graph, Order};
use framefit::data::DataMemory;
use framefit::models::ModelSpec;
use framefit::train::{Cutting, Plans, Resources, TrainError, Wanted, fixed_bytes, plan as make_plan};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &PlanArgs) -> Result<ExitCode, Problem> {
    let spec = resolve::model_of_clip(&args.model, &args.clip)?;
    let batch = resolve::batch(args.batch)?;
    let graph = spec.build()?;
    resolve::cutting_fits(args.cutting.cutting, spec.family.labels_frames())?;
    let resources = resolve::resources(&args.resources, args.cutting.cutting)?;
    let cutting = match (args.cutting.cutting, resources.cut) {
        (CuttingArg::Truncated, Some(cut)) => Cutting::Truncated(cut.segment),
        (CuttingArg::Independent, _) => Cutting::Independent(spec.frames),
        (CuttingArg::Exact | CuttingArg::Truncated, _) => Cutting::Exact,
    };
    let data = assumed(&graph, &resources, args.keeping.keep_frames.unwrap_or_default());
    let wanted = Wanted { model: &spec, lengths: &[], batch, training: true };
    let asked = Asked::of(Some(spec.family), &resources);
    let (plans, resources) = within_memory(&wanted, &resources, &data).map_err(|error| asked.problem(error))?;
    let plan = plans.longest();
    if args.json {
        print_json(&json(&spec, plan, &Asking { graph: &graph, batch, cutting, resources: &resources }))?;
    } else {
        let shown = Shown { graph: &graph, order: spec.family.order(), plan, batch, cutting, all: args.all };
        print(&text(&shown, &resources))?;
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
            say(&format!(
                "note: all at once it would take {whole}; the budget is the {free} that are free, see --memory\n"
            ));
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
        ring: match resources.ahead as u64 {
            0 => 0,
            ahead => (ahead + 1) * source.per_clip() as u64,
        },
        decoder: framefit::data::source::assumed_decoder_bytes(source.dims.h, source.dims.w),
        tables: 0,
    }
}

/// What a plan was made for.
pub struct Asking<'a> {
    pub graph: &'a Graph,
    /// Clips of one optimizer step.
    pub batch: usize,
    pub cutting: Cutting,
    pub resources: &'a Resources,
}

/// The plan as JSON, for `framefit plan` and for the record of a run.
pub fn json(spec: &ModelSpec, plan: &Plan, asking: &Asking<'_>) -> Value {
    let Asking { graph, batch, cutting, resources } = *asking;
    json!({
        "model": spec,
        "layers": summary::layers(graph, spec.family.order()),
        "parameters": graph.param_count(),
        "trainable": graph.trained_count(),
        "non_trainable": graph.param_count() - graph.trained_count(),
        "batch": batch,
        "micro_batch": plan.micro_batch,
        "cutting": match cutting {
            Cutting::Exact => "exact",
            Cutting::Truncated(_) => "truncated",
            Cutting::Independent(_) => "independent",
        },
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

struct Shown<'a> {
    graph: &'a Graph,
    order: Order,
    plan: &'a Plan,
    batch: usize,
    cutting: Cutting,
    /// Every row of the ledger.
    all: bool,
}

fn text(shown: &Shown<'_>, resources: &Resources) -> String {
    let Shown { graph, order, plan, batch, cutting, all } = *shown;
    let clips = graph.shape(Graph::SOURCE).text(order, &plan.micro_batch.to_string());
    let cut = cutting_lines(cutting, graph, plan);
    format!(
        "{}\na batch of {}{}: {clips}\n{cut}f32, Adam, {}, {}\n\n{}",
        summary::table(graph, order),
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

/// Forward passes through the clip that a training step takes, the one before each backward among them.
pub fn passes(plans: &Plans) -> f64 {
    passes_of(plans.graph(), plans.longest())
}

fn passes_of(graph: &Graph, plan: &Plan) -> f64 {
    let segments = segments(graph, plan);
    if segments == 1 || plan.cut.cutting == schedule::Cutting::Truncated {
        return 1.0;
    }
    // All stages but the last are gone through once more, to make what the next one starts from.
    let stages = plan.training_step().map_or(1, |placed| placed.schedule.passes.len().div_ceil(2));
    let ahead = (stages - 1) as f64 / stages as f64;
    1.0 + ahead + advances(segments, plan.cut.checkpoints) as f64 / segments as f64
}

/// What is done to the gradient where videos are cut, and how clips are: a line for each that there is.
pub fn cutting_lines(cutting: Cutting, graph: &Graph, plan: &Plan) -> String {
    let pieces = match cutting {
        Cutting::Independent(frames) => Some(format!(
            "independent: clips of {} that start from nothing, so this is not the gradient of whole videos",
            count(frames, "frame"),
        )),
        Cutting::Exact | Cutting::Truncated(_) => None,
    };
    let lines = cut(graph, plan).into_iter().chain(pieces);
    lines.map(|line| format!("{line}\n")).collect()
}

/// How clips are cut, in words; nothing where they are not.
fn cut(graph: &Graph, plan: &Plan) -> Option<String> {
    let segments = segments(graph, plan);
    let (number, frames) = (thousands(segments as u64), count(plan.cut.segment, "frame"));
    if plan.cut.cutting == schedule::Cutting::Truncated {
        return Some(format!(
            "truncated: {number} segments of {frames}; the state goes on from one to the next, its gradient does not, \
             so this is not the gradient of the whole clip"
        ));
    }
    if segments == 1 {
        return None;
    }
    let placed = plan.training_step().unwrap_or(plan.forward_pass());
    let filed = match placed.schedule.file_bytes() {
        0 => String::new(),
        bytes => format!("; {} of values of whole clips in a file", Bytes(bytes as u64)),
    };
    Some(format!(
        "exact: {number} segments of {frames}, {}; the gradient of the whole clip by {:.1} forward passes{filed}",
        count(plan.cut.checkpoints.min(segments - 1), "checkpoint"),
        passes_of(graph, plan),
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
