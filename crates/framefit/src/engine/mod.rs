//! The engine: runs the schedule of a plan in its arena.
//!
//! Invariant: once a schedule has been run, running it again allocates nothing; every tensor and all scratch
//! lie in the arena, and the plan says where.

mod kernels;
mod norm;
mod recurrent;
mod run;

pub use kernels::Kernels;

use framefit_core::ledger::Fixed;
use framefit_core::plan::{Placed, Plan, Request, Unsound};
use framefit_core::schedule::{Kind, ProgramId, Step, What};
use framefit_core::{DType, Graph, Param, ParamId};
use framefit_kernels::optimizer::AdamStep;
use framefit_kernels::{AllocationFailed, Arena, Isa, Pool, Real};
use std::sync::Arc;

/// An element type that the engine computes in.
pub trait Element: Real {
    /// The same type as the plan calls it.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f64 {
    const DTYPE: DType = DType::F64;
}

/// How source pixels become values: y = (x/255 − mean\[c\]) / std\[c\].
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Normalisation {
    /// Mean of each channel.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel.
    pub std: Vec<f64>,
}

impl Normalisation {
    /// The same mean and standard deviation for each of `channels`.
    pub fn uniform(mean: f64, std: f64, channels: usize) -> Self {
        Self { mean: vec![mean; channels], std: vec![std; channels] }
    }
}

/// Why the engine cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The arena cannot be had.
    #[error("{0}: lower the batch, or give a budget with --memory")]
    Allocation(#[from] AllocationFailed),
    /// The threads cannot be started.
    #[error("cannot start {threads} threads: {cause}. Ask for fewer with --threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// A plan that does not hold: framefit is wrong, not the user.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// A step whose buffers do not fit its kernel: framefit is wrong, not the user.
    #[error("step '{step}' does not fit its buffers, please report this")]
    Step {
        /// The step in words.
        step: String,
    },
    /// A plan of another element type, or without what is asked for.
    #[error("this plan is for {what}")]
    OtherPlan {
        /// What the plan can do.
        what: &'static str,
    },
}

/// Runs plans of one model.
pub struct Engine<E: Element> {
    /// The model at each clip length, and its plan; weights lie alike in all of them.
    variants: Vec<(Graph, Plan)>,
    /// Which of them is at work.
    current: usize,
    kernels: Kernels,
    pool: Pool,
    arena: Arena,
    mean: Vec<E>,
    std: Vec<E>,
    /// Schedules used so far.
    schedules: Vec<(Key, Arc<Placed>)>,
}

/// What a schedule is for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    variant: usize,
    kind: Kind,
    clips: usize,
}

/// A tensor that lives from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensor {
    /// A parameter.
    Weight(ParamId),
    /// Its gradient, as the last micro-batch left it.
    Gradient(ParamId),
    /// The optimizer's running mean of its gradient.
    FirstMoment(ParamId),
    /// The optimizer's running mean of its squared gradient.
    SecondMoment(ParamId),
}

impl Tensor {
    /// Whether there is such a tensor of every parameter, or of trained ones alone.
    pub fn is_of(self, param: &Param) -> bool {
        match self {
            Tensor::Weight(_) => true,
            Tensor::Gradient(_) | Tensor::FirstMoment(_) | Tensor::SecondMoment(_) => param.trained,
        }
    }

    fn what(self) -> What {
        match self {
            Tensor::Weight(p) => What::Weight(p),
            Tensor::Gradient(p) => What::Gradient(p),
            Tensor::FirstMoment(p) => What::FirstMoment(p),
            Tensor::SecondMoment(p) => What::SecondMoment(p),
        }
    }
}

/// The label of a frame that has none: it counts in no loss.
pub const IGNORED: u32 = u32::MAX;

/// What a micro-batch left behind.
pub struct Outcome<'a, E> {
    /// `[N]` or `[T',N]`, each label's loss times its class weight.
    pub losses: &'a [E],
    /// `[N]` or `[T',N]`, each label's class weight; 0 where there is none.
    pub weights: &'a [E],
    /// `[N,K]` or `[T',N,K]`.
    pub logits: &'a [E],
}

/// Where the clips of a micro-batch are written before it runs.
pub struct Slots<'a> {
    /// `[T,N,H,W,C]`
    pub frames: &'a mut [u8],
    /// `[N]` or `[T',N]`, class indices, or [`IGNORED`].
    pub labels: &'a mut [u32],
}

fn nothing_fixed(_: usize) -> Fixed {
    Fixed::default()
}

impl<E: Element> Engine<E> {
    /// An engine in the arena that the plan asks for, all weights zero, all class weights one.
    ///
    /// # Errors
    /// When memory or threads cannot be had, or the plan is for another element type.
    pub fn new(graph: Graph, plan: Plan, kernels: Kernels, normalisation: &Normalisation) -> Result<Self, EngineError> {
        Self::for_lengths(vec![(graph, plan)], kernels, normalisation)
    }

    /// An engine for clips of several lengths: one model, as a graph and a plan for each length. The first is
    /// at work until another is selected.
    ///
    /// # Errors
    /// As [`Engine::new`], and when the parameters of two graphs differ.
    pub fn for_lengths(
        variants: Vec<(Graph, Plan)>,
        kernels: Kernels,
        normalisation: &Normalisation,
    ) -> Result<Self, EngineError> {
        let Some((first, _)) = variants.first() else { return Err(EngineError::OtherPlan { what: "no clip" }) };
        if variants.iter().any(|(_, plan)| plan.dtype != E::DTYPE) {
            return Err(EngineError::OtherPlan { what: "another element type" });
        }
        let same = |graph: &Graph| graph.params.iter().map(|p| &p.dims).eq(first.params.iter().map(|p| &p.dims));
        if !variants.iter().all(|(graph, _)| same(graph)) {
            return Err(EngineError::OtherPlan { what: "clips of one length: the weights depend on it" });
        }
        let threads = kernels.threads;
        let pool = Pool::new(threads).map_err(|cause| EngineError::Threads { threads, cause })?;
        let arena = Arena::new(variants.iter().map(|(_, plan)| plan.arena).max().unwrap_or(0))?;
        let convert = |v: &[f64]| v.iter().map(|&x| E::from_f64(x)).collect();
        let (mean, std) = (convert(&normalisation.mean), convert(&normalisation.std));
        let mut engine = Self { variants, current: 0, kernels, pool, arena, mean, std, schedules: Vec::new() };
        engine.set_class_weights(None)?;
        Ok(engine)
    }

    /// From now on, clips have this many frames.
    ///
    /// # Errors
    /// When the engine was not made for this length.
    pub fn select(&mut self, frames: usize) -> Result<(), EngineError> {
        let of = |(graph, _): &(Graph, Plan)| graph.shape(Graph::SOURCE).dims.t == frames;
        match self.variants.iter().position(of) {
            Some(at) => self.current = at,
            None => return Err(EngineError::OtherPlan { what: "clips of another length" }),
        }
        Ok(())
    }

    /// The model, for clips of the length at work.
    pub fn graph(&self) -> &Graph {
        &self.variants[self.current].0
    }

    /// The plan, for clips of the length at work.
    pub fn plan(&self) -> &Plan {
        &self.variants[self.current].1
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Sets the weight of each class in the loss; all one if `None`.
    ///
    /// # Errors
    /// When there are not as many as classes.
    pub fn set_class_weights(&mut self, weights: Option<&[f64]>) -> Result<(), EngineError> {
        let slot = self.persistent_mut(What::ClassWeights)?;
        match weights {
            None => slot.fill(E::ONE),
            Some(weights) if weights.len() == slot.len() => {
                for (to, &from) in slot.iter_mut().zip(weights) {
                    *to = E::from_f64(from);
                }
            }
            Some(_) => return Err(EngineError::OtherPlan { what: "another number of classes" }),
        }
        Ok(())
    }

    /// A persistent tensor, in its stored order.
    ///
    /// # Errors
    /// When the plan does not hold it: gradients and moments are there only if it trains.
    pub fn tensor(&self, tensor: Tensor) -> Result<&[E], EngineError> {
        let range = self.persistent_range(tensor.what())?;
        let bytes = self.arena.bytes().get(range).ok_or_else(|| step_error("a parameter"))?;
        bytemuck::try_cast_slice(bytes).map_err(|_| step_error("a parameter"))
    }

    /// A persistent tensor, in its stored order, to be written.
    ///
    /// # Errors
    /// When the plan does not hold it: gradients and moments are there only if it trains.
    pub fn tensor_mut(&mut self, tensor: Tensor) -> Result<&mut [E], EngineError> {
        self.persistent_mut(tensor.what())
    }

    fn persistent_range(&self, what: What) -> Result<std::ops::Range<usize>, EngineError> {
        let placed = self.plan().forward_pass();
        let id = placed.schedule.find(what).ok_or(EngineError::OtherPlan { what: "prediction only" })?;
        let offset = placed.offsets[id.0];
        Ok(offset..offset + placed.schedule.buffer(id).bytes())
    }

    fn persistent_mut(&mut self, what: What) -> Result<&mut [E], EngineError> {
        let range = self.persistent_range(what)?;
        let bytes = self.arena.bytes_mut().get_mut(range).ok_or_else(|| step_error("a parameter"))?;
        bytemuck::try_cast_slice_mut(bytes).map_err(|_| step_error("a parameter"))
    }

    /// Makes the schedules for these numbers of clips now, so that the steps to come allocate nothing.
    ///
    /// # Errors
    /// When one does not fit the arena.
    pub fn prepare(&mut self, clips: impl IntoIterator<Item = usize>) -> Result<(), EngineError> {
        for clips in clips {
            if self.plan().training_step().is_some() {
                self.placed(Kind::Training, clips)?;
            }
            self.placed(self.inference_kind(), clips)?;
        }
        Ok(())
    }

    fn inference_kind(&self) -> Kind {
        Kind::Inference { trained: self.plan().training_step().is_some() }
    }

    /// The position of a schedule in `self.schedules`.
    fn placed(&mut self, kind: Kind, clips: usize) -> Result<usize, EngineError> {
        let key = Key { variant: self.current, kind, clips };
        if let Some(at) = self.schedules.iter().position(|(k, _)| *k == key) {
            return Ok(at);
        }
        let (graph, plan) = &self.variants[self.current];
        if clips == 0 || clips > plan.micro_batch {
            return Err(EngineError::OtherPlan { what: "fewer clips at a time" });
        }
        let request = Request {
            graph,
            dtype: E::DTYPE,
            batch: plan.micro_batch,
            training: plan.training_step().is_some(),
            cut: Some(plan.cut),
            workspaces: &self.kernels,
            fixed: &nothing_fixed,
        };
        let placed = match kind {
            Kind::Training => {
                plan.training(&request, clips)?.ok_or(EngineError::OtherPlan { what: "prediction only" })?
            }
            Kind::Inference { .. } => plan.inference(&request, clips)?,
        };
        self.schedules.push((key, placed));
        Ok(self.schedules.len() - 1)
    }

    /// Where the next micro-batch of `clips` for training goes.
    ///
    /// # Errors
    /// When the plan has no such micro-batch.
    pub fn training_slots(&mut self, clips: usize) -> Result<Slots<'_>, EngineError> {
        self.slots(Kind::Training, clips)
    }

    /// Where the next micro-batch of `clips` for evaluation goes.
    ///
    /// # Errors
    /// When the plan has no such micro-batch.
    pub fn evaluation_slots(&mut self, clips: usize) -> Result<Slots<'_>, EngineError> {
        let kind = self.inference_kind();
        self.slots(kind, clips)
    }

    fn slots(&mut self, kind: Kind, clips: usize) -> Result<Slots<'_>, EngineError> {
        let at = self.placed(kind, clips)?;
        let placed = &self.schedules[at].1;
        run::slots(placed, &mut self.arena).ok_or_else(|| step_error("load"))
    }

    /// Clears the gradients: the next micro-batches add to zero.
    ///
    /// # Errors
    /// When the plan does not train.
    pub fn begin_step(&mut self) -> Result<(), EngineError> {
        let at = self.placed(Kind::Training, self.plan().micro_batch)?;
        self.run(at, Phase::Begin, Numbers::default())
    }

    /// Forward and backward of the clips in the slots. `scale` multiplies every clip's loss in the gradient:
    /// the reciprocal of the sum of the batch's class weights, for their mean.
    ///
    /// # Errors
    /// When the plan does not train.
    pub fn accumulate(&mut self, clips: usize, scale: f64) -> Result<Outcome<'_, E>, EngineError> {
        let at = self.placed(Kind::Training, clips)?;
        self.run(at, Phase::Micro, Numbers { scale, ..Numbers::default() })?;
        self.outcome(at)
    }

    /// The optimizer's step from the gradients accumulated so far.
    ///
    /// # Errors
    /// When the plan does not train.
    pub fn update(&mut self, step: AdamStep) -> Result<(), EngineError> {
        let at = self.placed(Kind::Training, self.plan().micro_batch)?;
        self.run(at, Phase::Update, Numbers { adam: step, ..Numbers::default() })
    }

    /// Forward of the clips in the slots, and each clip's loss.
    ///
    /// # Errors
    /// When the plan has no such micro-batch.
    pub fn evaluate(&mut self, clips: usize) -> Result<Outcome<'_, E>, EngineError> {
        let kind = self.inference_kind();
        let at = self.placed(kind, clips)?;
        self.run(at, Phase::Micro, Numbers::default())?;
        self.outcome(at)
    }

    fn run(&mut self, at: usize, phase: Phase, numbers: Numbers) -> Result<(), EngineError> {
        let graph = &self.variants[self.current].0;
        let placed = &self.schedules[at].1;
        let schedule = &placed.schedule;
        let (once, micro): (&[Step], &[ProgramId]) = match phase {
            Phase::Begin => (&schedule.begin, &[]),
            Phase::Micro => (&[], &schedule.micro),
            Phase::Update => (&schedule.update, &[]),
        };
        for step in once.iter().chain(micro.iter().flat_map(|id| &schedule.programs[id.0])) {
            let call = run::Call {
                graph,
                kernels: &self.kernels,
                pool: &self.pool,
                mean: &self.mean,
                std: &self.std,
                placed,
                numbers,
            };
            call.run(step, &mut self.arena).ok_or_else(|| EngineError::Step { step: step.describe(graph) })?;
        }
        Ok(())
    }

    fn outcome(&mut self, at: usize) -> Result<Outcome<'_, E>, EngineError> {
        let placed = &self.schedules[at].1;
        run::outcome::<E>(placed, &mut self.arena).ok_or_else(|| step_error("reading the losses"))
    }
}

enum Phase {
    Begin,
    Micro,
    Update,
}

/// The numbers that change from step to step.
#[derive(Clone, Copy)]
struct Numbers {
    scale: f64,
    adam: AdamStep,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { scale: 1.0, adam: AdamStep::DEFAULT }
    }
}

fn step_error(step: &str) -> EngineError {
    EngineError::Step { step: step.to_owned() }
}
