//! From settings and a data set to a plan.

use super::TrainError;
use crate::data::DataMemory;
use crate::engine::Kernels;
use crate::weights::BLOCK;
use framefit_core::ledger::Fixed;
use framefit_core::plan::{Plan, Request};
use framefit_core::schedule::Cut;
use framefit_core::{Bytes, DType, Graph};
use framefit_kernels::resident::resident_bytes;
use framefit_kernels::threads::WORKER_STACK;

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
        data_pipeline: Bytes(data.map_or(0, DataMemory::total)),
    }
}

/// The plan that trains `graph` with `batch` clips a step within the budget, proved by the checker.
///
/// # Errors
/// When nothing fits the budget.
pub fn plan_training(graph: &Graph, batch: usize, resources: &Resources, fixed: &Fixed) -> Result<Plan, TrainError> {
    plan(graph, batch, true, resources, fixed)
}

/// The plan that classifies up to `batch` clips at a time within the budget, proved by the checker.
///
/// # Errors
/// When nothing fits the budget.
pub fn plan_inference(graph: &Graph, batch: usize, resources: &Resources, fixed: &Fixed) -> Result<Plan, TrainError> {
    plan(graph, batch, false, resources, fixed)
}

fn plan(graph: &Graph, batch: usize, training: bool, resources: &Resources, fixed: &Fixed) -> Result<Plan, TrainError> {
    let of = |_: usize| fixed.clone();
    let request = Request {
        graph,
        dtype: DType::F32,
        batch,
        training,
        cut: resources.cut,
        workspaces: &resources.kernels,
        fixed: &of,
    };
    let plan = Plan::fit(&request, resources.memory)?;
    plan.check(&request)?;
    Ok(plan)
}
