//! The ledger: the bytes of a plan by purpose and by layer, at the moment of its peak.

use crate::axes::DType;
use crate::bytes::Bytes;
use crate::graph::Graph;
use crate::schedule::{Held, Schedule, What};
use serde::Serialize;
use std::fmt;

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Parameters.
    Weights,
    /// Gradients of the parameters.
    Gradients,
    /// Moments.
    OptimizerState,
    /// Values between layers and their gradients.
    Activations,
    /// States that are kept for the backward pass.
    Checkpoints,
    /// The state at the boundary of two segments, and its gradient.
    States,
    /// Scratch of the kernels.
    Workspace,
    /// Frames and labels of the micro-batch.
    Input,
    /// Decoders, frames decoded ahead, frames kept.
    DataPipeline,
    /// The program itself: code, threads, and what writing a checkpoint takes.
    Runtime,
    /// Bytes of the arena between buffers at the moment of the peak.
    Unused,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Purpose::Weights => "weights",
            Purpose::Gradients => "gradients",
            Purpose::OptimizerState => "optimizer state",
            Purpose::Activations => "activations",
            Purpose::Checkpoints => "checkpoints",
            Purpose::States => "states",
            Purpose::Workspace => "workspace",
            Purpose::Input => "input",
            Purpose::DataPipeline => "data pipeline",
            Purpose::Runtime => "runtime",
            Purpose::Unused => "unused",
        })
    }
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What for.
    pub purpose: Purpose,
    /// Whose bytes, such as `conv1` or `conv1.weight`.
    pub name: String,
    /// How many.
    pub bytes: Bytes,
    /// Element type, where it is a tensor.
    pub dtype: Option<DType>,
}

/// What lies outside the arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// The program: code, threads' stacks, allocator.
    pub runtime: Bytes,
    /// The schedules of the plan; worked out with it.
    pub schedule: Bytes,
    /// Copying one tensor at a time while a checkpoint is read or written.
    pub saving: Bytes,
    /// All that decoding may hold.
    pub data_pipeline: Bytes,
    /// Lengths of clips besides the planned one: the schedule of each is held, too.
    pub more_lengths: usize,
}

impl Fixed {
    /// Schedules held at once, given how many clips go through the model at once: of each length one for the last
    /// and smaller micro-batch, too; where there is none, room for one that is being made.
    pub(crate) fn schedules(&self, micro_batch: usize) -> u64 {
        let more = self.more_lengths as u64;
        if micro_batch > 1 { 2 * (1 + more) } else { 2 + more }
    }
}

/// The bytes of a plan at its peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Lines, by purpose, then in the order of the model.
    pub rows: Vec<Row>,
    /// Their sum: the planned peak of resident memory.
    pub peak: Bytes,
    /// The step in which most of the arena is in use.
    pub moment: String,
}

impl Ledger {
    /// Sums up a packed schedule and what lies outside the arena.
    pub fn of(graph: &Graph, schedule: &Schedule, arena: usize, fixed: &Fixed) -> Self {
        let lifetimes = schedule.lifetimes();
        let live = |step: usize| {
            lifetimes.iter().enumerate().filter(move |(_, l)| l.first <= step && step <= l.last && l.bytes > 0)
        };
        let mut places: Vec<usize> = schedule.distinct_steps().map(|s| s.place).collect();
        places.sort_unstable();
        places.dedup();
        let peak_step = places
            .into_iter()
            .map(|place| (live(place).map(|(_, l)| l.bytes).sum::<usize>(), place))
            .max_by_key(|&(bytes, place)| (bytes, std::cmp::Reverse(place)))
            .map_or(0, |(_, place)| place);
        let mut rows: Vec<Row> = live(peak_step)
            .map(|(index, life)| {
                let buffer = &schedule.buffers[index];
                let (purpose, name) = describe(graph, buffer.what);
                Row { purpose, name, bytes: Bytes(life.bytes as u64), dtype: Some(buffer.dtype) }
            })
            .collect();
        let used: u64 = rows.iter().map(|r| r.bytes.0).sum();
        let fixed_rows = [
            (Purpose::DataPipeline, "decoders and frames", fixed.data_pipeline.0),
            (Purpose::Runtime, "program and threads", fixed.runtime.0),
            (Purpose::Runtime, "the schedule", fixed.schedule.0),
            (Purpose::Runtime, "reading and writing checkpoints", fixed.saving.0),
            (Purpose::Unused, "between buffers", (arena as u64).saturating_sub(used)),
        ];
        for (purpose, name, bytes) in fixed_rows {
            if bytes > 0 {
                rows.push(Row { purpose, name: name.to_owned(), bytes: Bytes(bytes), dtype: None });
            }
        }
        rows.sort_by_key(|r| r.purpose);
        let peak = Bytes(rows.iter().map(|r| r.bytes.0).sum());
        let moment =
            schedule.distinct_steps().find(|s| s.place == peak_step).map_or_else(String::new, |s| s.describe(graph));
        Self { rows, peak, moment }
    }

    /// Bytes by purpose, in the order of [`Purpose`]; purposes without bytes are left out.
    pub fn by_purpose(&self) -> Vec<(Purpose, Bytes)> {
        let mut sums: Vec<(Purpose, Bytes)> = Vec::new();
        for row in &self.rows {
            match sums.last_mut() {
                Some((purpose, sum)) if *purpose == row.purpose => sum.0 += row.bytes.0,
                _ => sums.push((row.purpose, row.bytes)),
            }
        }
        sums
    }

    /// Bytes for one purpose.
    pub fn total(&self, purpose: Purpose) -> Bytes {
        Bytes(self.rows.iter().filter(|r| r.purpose == purpose).map(|r| r.bytes.0).sum())
    }
}

fn describe(graph: &Graph, what: What) -> (Purpose, String) {
    let param = |p: crate::graph::ParamId| graph.param(p).name.clone();
    let value = |v: crate::graph::ValueId| {
        graph.values[v.0].made_by.map_or_else(|| "frames".to_owned(), |n| graph.node(n).name.clone())
    };
    let node = |n: crate::graph::NodeId| graph.node(n).name.clone();
    let held_name = |held: Held| match held {
        Held::Window(v) => value(v),
        Held::Hidden(n) => format!("{}, h", node(n)),
        Held::Cell(n) => format!("{}, c", node(n)),
    };
    match what {
        What::Weight(p) => (Purpose::Weights, param(p)),
        What::ClassWeights => (Purpose::Weights, "class weights".to_owned()),
        What::Gradient(p) => (Purpose::Gradients, param(p)),
        What::FirstMoment(p) => (Purpose::OptimizerState, format!("{}, first moment", param(p))),
        What::SecondMoment(p) => (Purpose::OptimizerState, format!("{}, second moment", param(p))),
        What::Value(v) | What::Passing(v) => (Purpose::Activations, value(v)),
        What::Filed(v) => (Purpose::Activations, format!("{}, in the file", value(v))),
        What::ValueGradient(v) | What::FiledGradient(v) | What::FetchedGradient(v) => {
            (Purpose::Activations, format!("{}, gradient", value(v)))
        }
        What::State(held) => (Purpose::States, held_name(held)),
        What::StateGradient(held) | What::Handed(held) => (Purpose::States, format!("{}, gradient", held_name(held))),
        What::Checkpoint(held, slot) => (Purpose::Checkpoints, format!("{}, state {}", held_name(held), slot + 1)),
        What::Gates(n) => (Purpose::Activations, format!("{}, gates", node(n))),
        What::HiddenGates(n) => (Purpose::Activations, format!("{}, products with the state", node(n))),
        What::Cells(n) | What::PassingCells(n) => (Purpose::Activations, format!("{}, cells", node(n))),
        What::Means(n) => (Purpose::Activations, format!("{}, means of frames", node(n))),
        What::Moments(n) | What::Statistics(n) | What::Sums(n) | What::Coefficients(n) => {
            (Purpose::Activations, format!("{}, statistics", node(n)))
        }
        What::Workspace(n, _) => (Purpose::Workspace, node(n)),
        What::Frames => (Purpose::Input, "frames as decoded".to_owned()),
        What::Labels => (Purpose::Input, "labels".to_owned()),
        What::Losses | What::LossWeights => (Purpose::Input, "losses".to_owned()),
    }
}
