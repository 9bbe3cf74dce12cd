//! The engine: runs the schedule of a plan in its arena.
//!
//! Invariant: once a schedule has been run, running it again allocates nothing; every tensor and all scratch
//! lie in the arena, and the plan says where.

mod filed;
mod kernels;
mod ops;
#[doc(hidden)]
pub mod probe;
mod run;
mod stream;

use filed::Filed;
pub use filed::FiledError;
pub use kernels::Kernels;
pub use ops::{Loss, LossKind};
pub use stream::{Made, Stream, StreamFailed};

use framefit_core::ledger::Fixed;
use framefit_core::plan::{Placed, Plan, Request, Unsound};
use framefit_core::schedule::{Kind, ProgramId, Step, What};
use framefit_core::{DType, Graph, NodeId, Param, ParamId};
use framefit_kernels::optimizer::AdamStep;
use framefit_kernels::{AllocationFailed, Arena, Isa, Pool, Real};
use std::cell::Cell;
use std::path::Path;
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
    /// The file of a plan that keeps values of whole clips there.
    #[error(transparent)]
    Filed(#[from] FiledError),
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
    loss: Loss,
    /// One for each clip of the largest micro-batch.
    keys: Vec<u64>,
    /// Schedules used so far.
    schedules: Vec<(Key, Arc<Placed>)>,
    /// For each layer, how many batches its moving statistics have taken in.
    batches: Vec<Cell<u64>>,
    /// What plans keep of whole clips outside the arena.
    filed: Option<Filed>,
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
    /// `[N]`, what a clip's random zeros depend on: a clip drawn anew needs another key. Training alone reads them.
    pub keys: &'a mut [u64],
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
        let keys = vec![0; variants.iter().map(|(_, plan)| plan.micro_batch).max().unwrap_or(0)];
        let batches = vec![Cell::new(0); first.nodes.len()];
        let (current, loss, schedules) = (0, Loss::default(), Vec::new());
        let mut engine =
            Self { variants, current, kernels, pool, arena, mean, std, loss, keys, schedules, batches, filed: None };
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

    /// Makes the file for plans that keep what barriers need of whole clips there, in this folder. Until then, their
    /// steps fail.
    ///
    /// # Errors
    /// When there is no space.
    pub fn keep_in(&mut self, folder: &Path) -> Result<(), EngineError> {
        let of_plan = |plan: &Plan| {
            let placed = plan.training_step().into_iter().chain([plan.forward_pass()]);
            placed.map(|p| p.schedule.file_bytes() as u64).max().unwrap_or(0)
        };
        let bytes = self.variants.iter().map(|(_, plan)| of_plan(plan)).max().unwrap_or(0);
        if bytes > 0 && self.filed.as_ref().is_none_or(|filed| filed.bytes() < bytes) {
            self.filed = Some(Filed::new(folder, bytes)?);
        }
        Ok(())
    }

    /// Sets the loss; softmax cross-entropy without smoothing until then.
    pub fn set_loss(&mut self, loss: Loss) {
        self.loss = loss;
    }

    /// How many batches a layer's moving statistics have taken in: PyTorch's `num_batches_tracked`. It tells how
    /// much the next one weighs where they are the mean of all batches.
    pub fn batches(&self, layer: NodeId) -> u64 {
        self.batches.get(layer.0).map_or(0, Cell::get)
    }

    /// Sets that number, such as to go on from saved statistics.
    pub fn set_batches(&mut self, layer: NodeId, batches: u64) {
        if let Some(slot) = self.batches.get_mut(layer.0) {
            slot.set(batches);
        }
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
            keeping: plan.cut.keeping,
            workspaces: &self.kernels,
            fixed: &nothing_fixed,
        };
        let placed = match kind {
            Kind::Training => {
                plan.training(&request, clips)?.ok_or(EngineError::OtherPlan { what: "prediction only" })?
            }
            Kind::Inference { .. } | Kind::Stream => plan.inference(&request, clips)?,
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
        let keys = self.keys.get_mut(..clips).ok_or_else(|| step_error("load"))?;
        let (frames, labels) = run::slots(placed, &mut self.arena).ok_or_else(|| step_error("load"))?;
        Ok(Slots { frames, labels, keys })
    }

    /// Clears the gradients: the next micro-batches add to zero.
    ///
    /// # Errors
    /// When the plan does not train.
    pub fn begin_step(&mut self) -> Result<(), EngineError> {
        let at = self.placed(Kind::Training, self.plan().micro_batch)?;
        self.run(at, Phase::Begin)
    }

    /// Forward and backward of the clips in the slots. `scale` multiplies every clip's loss in the gradient:
    /// the reciprocal of the sum of the batch's class weights, for their mean.
    ///
    /// # Errors
    /// When the plan does not train.
    pub fn accumulate(&mut self, clips: usize, scale: f64) -> Result<Outcome<'_, E>, EngineError> {
        let at = self.placed(Kind::Training, clips)?;
        self.run(at, Phase::Micro { clips, scale })?;
        self.outcome(at)
    }

    /// The optimizer's step from the gradients accumulated so far.
    ///
    /// # Errors
    /// When the plan does not train.
    pub fn update(&mut self, step: AdamStep) -> Result<(), EngineError> {
        let at = self.placed(Kind::Training, self.plan().micro_batch)?;
        self.run(at, Phase::Update(step))
    }

    /// Forward of the clips in the slots, and each clip's loss.
    ///
    /// # Errors
    /// When the plan has no such micro-batch.
    pub fn evaluate(&mut self, clips: usize) -> Result<Outcome<'_, E>, EngineError> {
        let kind = self.inference_kind();
        let at = self.placed(kind, clips)?;
        self.run(at, Phase::Micro { clips, scale: 1.0 })?;
        self.outcome(at)
    }

    fn run(&mut self, at: usize, phase: Phase) -> Result<(), EngineError> {
        let graph = &self.variants[self.current].0;
        let placed = &self.schedules[at].1;
        let schedule = &placed.schedule;
        let nothing = Numbers { loss: self.loss, ..Numbers::default() };
        let (once, micro, numbers): (&[Step], &[ProgramId], Numbers<'_>) = match phase {
            Phase::Begin => (&schedule.begin, &[], nothing),
            Phase::Micro { clips, scale } => {
                let training = self.schedules[at].0.kind == Kind::Training;
                let keys = self.keys.get(..clips).filter(|_| training);
                (&[], &schedule.micro, Numbers { scale, keys, ..nothing })
            }
            Phase::Update(adam) => (&schedule.update, &[], Numbers { adam, ..nothing }),
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
                batches: &self.batches,
                filed: self.filed.as_ref(),
            };
            if call.run(step, &mut self.arena).is_none() {
                return Err(match self.filed.as_ref().and_then(Filed::failure) {
                    Some(failure) => failure.into(),
                    None => EngineError::Step { step: step.describe(graph) },
                });
            }
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
    Micro { clips: usize, scale: f64 },
    Update(AdamStep),
}

/// What changes from step to step.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    scale: f64,
    adam: AdamStep,
    loss: Loss,
    /// `[N]`, of the micro-batch; only where training.
    keys: Option<&'a [u64]>,
}

impl Default for Numbers<'_> {
    fn default() -> Self {
        Self { scale: 1.0, adam: AdamStep::DEFAULT, loss: Loss::default(), keys: None }
    }
}

fn step_error(step: &str) -> EngineError {
    EngineError::Step { step: step.to_owned() }
}
