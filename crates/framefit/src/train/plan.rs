//! From settings and a data set to a plan.

use super::TrainError;
use crate::data::DataMemory;
use crate::engine::{Kernels, StreamFailed};
use crate::models::ModelSpec;
use crate::weights::BLOCK;
use framefit_core::ledger::Fixed;
use framefit_core::plan::{Plan, Request};
use framefit_core::schedule::{Cut, Cutting, Keeping, needs_whole_clip};
use framefit_core::stream::{StreamPlan, period};
use framefit_core::{Bytes, DType, Graph};
use framefit_kernels::resident::{resident_bytes, return_free_memory};
use framefit_kernels::threads::WORKER_STACK;
use std::path::PathBuf;

/// What a run may use. It changes how long a run takes, not what it computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// The budget: bytes the process may hold, resident, in all.
    pub memory: Option<Bytes>,
    /// Kernels and threads.
    pub kernels: Kernels,
    /// Clips decoded ahead.
    pub ahead: usize,
    /// How clips are cut into segments; the plan chooses where it is not said.
    pub cut: Option<Cut>,
    /// The folder of a file for what barriers need of whole clips; in memory where there is none.
    pub barrier_folder: Option<PathBuf>,
}

/// Resident bytes that a program of this kind grows by between planning and its first step, apart from what the
/// ledger lists: pages of its own code that are first run then, and the allocator's own.
const GROWTH: u64 = 6 << 20;

/// Resident bytes of a program that has just started, where the system does not tell.
const UNKNOWN_RUNTIME: u64 = 16 << 20;

/// What lies outside the arena: measured for this process, known for its data.
pub fn fixed_bytes(resources: &Resources, data: Option<&DataMemory>) -> Fixed {
    let stacks = (resources.kernels.threads * WORKER_STACK) as u64;
    Fixed {
        runtime: Bytes(resident_bytes().unwrap_or(UNKNOWN_RUNTIME) + GROWTH + stacks),
        saving: Bytes(2 * BLOCK as u64),
        schedule: Bytes(0),
        data_pipeline: Bytes(data.map_or(0, DataMemory::total)),
        more_lengths: 0,
    }
}

/// The model at each clip length of a data set, the longest first, and its plan.
pub struct Plans(Vec<(Graph, Plan)>);

impl Plans {
    /// The longest clips' model.
    pub fn graph(&self) -> &Graph {
        &self.0[0].0
    }

    /// The plan that needs most: that of the longest clips.
    pub fn longest(&self) -> &Plan {
        &self.0[0].1
    }

    /// The planned peak of the whole process.
    pub fn peak(&self) -> Bytes {
        self.0.iter().map(|(_, plan)| plan.ledger.peak).max().unwrap_or(Bytes(0))
    }

    /// Graphs and plans, the longest first.
    pub fn into_variants(self) -> Vec<(Graph, Plan)> {
        self.0
    }
}

/// What is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The model, with the frames of the longest clip.
    pub model: &'a ModelSpec,
    /// Frames of clips, each once.
    pub lengths: &'a [usize],
    /// Clips of one optimizer step, or of one forward pass.
    pub batch: usize,
    /// Whether the plan trains.
    pub training: bool,
}

/// The plans within the budget, one for each length of clips, all cut alike and proved by the checker.
///
/// # Errors
/// When a clip does not fit the model, or nothing fits the budget.
pub fn plan(wanted: &Wanted<'_>, resources: &Resources, fixed: &Fixed) -> Result<Plans, TrainError> {
    let mut lengths = wanted.lengths.to_vec();
    lengths.push(wanted.model.frames);
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.dedup();
    let more_lengths = lengths.len() - 1;
    let source = wanted.model.source().per_clip() as u64;
    let of = |micro_batch: usize| {
        // Decoded on demand, a clip that goes to its place among others is held once more.
        let held = if resources.ahead == 0 && micro_batch > 1 { source } else { 0 };
        Fixed { data_pipeline: Bytes(fixed.data_pipeline.0 + held), more_lengths, ..fixed.clone() }
    };
    let keeping = if resources.barrier_folder.is_some() { Keeping::File } else { Keeping::Memory };
    let mut plans: Vec<(Graph, Plan)> = Vec::new();
    for frames in lengths {
        let graph = ModelSpec { frames, ..wanted.model.clone() }.build()?;
        let truncated = resources.cut.is_some_and(|cut| cut.cutting == Cutting::Truncated);
        if let Some(layer) = needs_whole_clip(&graph).filter(|_| truncated) {
            return Err(TrainError::Truncated { layer: graph.node(layer).name.clone() });
        }
        let request = Request {
            graph: &graph,
            dtype: DType::F32,
            batch: wanted.batch,
            training: wanted.training,
            cut: resources.cut,
            keeping,
            workspaces: &resources.kernels,
            fixed: &of,
        };
        let plan = match plans.first() {
            None => Plan::fit(&request, resources.memory)?,
            Some((_, longest)) => Plan::with(&request, longest.micro_batch, longest.cut),
        };
        plan.check(&Request { cut: Some(plan.cut), ..request })?;
        plans.push((graph, plan));
    }
    // What was tried and thrown away must not stay resident beside the plan.
    return_free_memory();
    Ok(Plans(plans))
}

/// Frames of a stream's segment, where memory allows.
const STREAM_SEGMENT: usize = 16;

/// The plan of a stream through a model with a label per frame: segments as long as memory allows, up to 16 frames or
/// those that were asked for.
///
/// # Errors
/// When a layer needs the whole clip, or not even a frame at a time fits the budget.
pub fn plan_stream(model: &ModelSpec, resources: &Resources, fixed: &Fixed) -> Result<StreamPlan, TrainError> {
    let graph = model.build()?;
    let of = |_: usize| fixed.clone();
    let request = Request {
        graph: &graph,
        dtype: DType::F32,
        batch: 1,
        training: false,
        cut: None,
        keeping: Keeping::Memory,
        workspaces: &resources.kernels,
        fixed: &of,
    };
    let unit = period(&graph);
    let mut segment = resources.cut.map_or((STREAM_SEGMENT / unit).max(1) * unit, |cut| cut.segment);
    loop {
        let plan = StreamPlan::new(&request, segment).map_err(StreamFailed::from)?;
        let Some(budget) = resources.memory.filter(|&budget| plan.ledger.peak > budget) else { return Ok(plan) };
        if segment <= unit || resources.cut.is_some() {
            return Err(plan.no_fit(budget).into());
        }
        segment = (segment / unit / 2).max(1) * unit;
    }
}
