//! The plan: schedules, where their buffers lie in the arena, and the knobs that led there.

use crate::arena::{Lifetime, aligned, pack};
use crate::axes::DType;
use crate::bytes::Bytes;
use crate::checker::{self, Fault};
use crate::graph::Graph;
use crate::ledger::{Fixed, Ledger, Purpose, Row};
use crate::schedule::{Cut, Kind, Schedule, Workspaces, advances, build};
use std::sync::Arc;

/// What a plan is made from.
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// The type of activations and weights.
    pub dtype: DType,
    /// Clips whose gradients make one optimizer step.
    pub batch: usize,
    /// Whether the plan trains; else it only predicts.
    pub training: bool,
    /// How the clip is cut, where the user says so.
    pub cut: Option<Cut>,
    /// The engine's word on scratch.
    pub workspaces: &'a dyn Workspaces,
    /// What lies outside the arena, for a micro-batch of this many clips.
    pub fixed: &'a dyn Fn(usize) -> Fixed,
}

/// A schedule and where its buffers lie.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The steps.
    pub schedule: Schedule,
    /// Byte offset of each buffer in the arena.
    pub offsets: Vec<usize>,
}

/// A proof that a training step, or a forward pass, fits.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Most clips that go through the model at once.
    pub micro_batch: usize,
    /// How the clip is cut.
    pub cut: Cut,
    /// The type of activations and weights.
    pub dtype: DType,
    /// Bytes of the arena.
    pub arena: usize,
    /// Bytes by purpose at the peak.
    pub ledger: Ledger,
    training: Option<Arc<Placed>>,
    inference: Arc<Placed>,
}

/// Nothing fits the budget.
#[derive(Clone, Debug, thiserror::Error)]
#[error("training does not fit in {budget}: the smallest plan needs {smallest}")]
pub struct NoFit {
    /// What was given.
    pub budget: Bytes,
    /// The peak of the smallest plan.
    pub smallest: Bytes,
    /// What holds it up, largest first.
    pub largest: Vec<Row>,
}

/// The checker found a fault in a plan: framefit is wrong, not the user.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the plan for micro-batches of {clips} clips is unsound, please report this: {fault}")]
pub struct Unsound {
    /// Clips of the schedule at fault.
    pub clips: usize,
    /// What is wrong.
    pub fault: Fault,
}

impl Plan {
    /// The plan that takes `micro_batch` clips at a time.
    pub fn with_micro_batch(request: &Request<'_>, micro_batch: usize) -> Self {
        Self::with(request, micro_batch, request.cut.unwrap_or(Cut::WHOLE))
    }

    /// The plan that takes `micro_batch` clips at a time, each cut like this.
    pub fn with(request: &Request<'_>, micro_batch: usize, cut: Cut) -> Self {
        let schedule = |kind| build(request.graph, kind, micro_batch, cut, request.dtype, request.workspaces);
        let training = request.training.then(|| place(schedule(Kind::Training)));
        let inference = place(schedule(Kind::Inference { trained: request.training }));
        let arena = training.iter().chain([&inference]).map(Placed::bytes).max().unwrap_or(0);
        let main = training.as_ref().unwrap_or(&inference);
        // A second one of each, for the last and smaller micro-batch.
        let host: usize = training.iter().chain([&inference]).map(|p| 2 * p.schedule.host_bytes()).sum();
        let fixed = Fixed { schedule: Bytes(host as u64), ..(request.fixed)(micro_batch) };
        let ledger = Ledger::of(request.graph, &main.schedule, arena, &fixed);
        let (training, inference) = (training.map(Arc::new), Arc::new(inference));
        Self { micro_batch, cut, dtype: request.dtype, arena, ledger, training, inference }
    }

    /// The plan within the budget that recomputes least: the largest micro-batch of whole clips that fits, else
    /// one clip at a time in segments. Without a budget, the whole batch at once.
    ///
    /// # Errors
    /// When not even one clip at a time, frame by frame, fits.
    pub fn fit(request: &Request<'_>, budget: Option<Bytes>) -> Result<Self, Box<NoFit>> {
        let batch = request.batch.max(1);
        let Some(budget) = budget else { return Ok(Self::with_micro_batch(request, batch)) };
        let one = Self::with_micro_batch(request, 1);
        if one.ledger.peak <= budget {
            return Ok(Self::largest_micro_batch(request, budget, one));
        }
        if request.cut.is_some() {
            return Err(no_fit(budget, one));
        }
        Self::in_segments(request, budget, one)
    }

    /// The largest micro-batch that fits, given that one clip does, in equal shares: 8 clips by 5 at a time are
    /// two passes, and so are 4 and 4.
    fn largest_micro_batch(request: &Request<'_>, budget: Bytes, one: Self) -> Self {
        let batch = request.batch.max(1);
        // The peak grows with the micro-batch, so halving finds the largest that fits.
        let (mut fits, mut best, mut above) = (1, one, batch + 1);
        while fits + 1 < above {
            let middle = fits.midpoint(above);
            let plan = Self::with_micro_batch(request, middle);
            if plan.ledger.peak <= budget {
                (fits, best) = (middle, plan);
            } else {
                above = middle;
            }
        }
        let even = batch.div_ceil(batch.div_ceil(fits));
        if even != fits {
            let plan = Self::with_micro_batch(request, even);
            if plan.ledger.peak <= budget {
                best = plan;
            }
        }
        best
    }

    /// One clip at a time in segments: of all lengths, halved from the clip's, the one that needs the fewest
    /// passes through segments; of equal ones the longest.
    fn in_segments(request: &Request<'_>, budget: Bytes, whole: Self) -> Result<Self, Box<NoFit>> {
        let frames = request.graph.shape(Graph::SOURCE).dims.t;
        let mut smallest = whole;
        let mut best: Option<(f64, Self)> = None;
        let mut segment = frames;
        while segment > 1 {
            segment = segment.div_ceil(2);
            let segments = frames.div_ceil(segment);
            let with = |checkpoints| Self::with(request, 1, Cut { segment, checkpoints });
            let least = with(0);
            if least.ledger.peak < smallest.ledger.peak {
                smallest = least.clone();
            }
            if least.ledger.peak > budget {
                continue;
            }
            let mut fitting = least;
            let (mut fits, mut above) = (0, segments);
            while fits + 1 < above {
                let middle = fits.midpoint(above);
                let plan = with(middle);
                if plan.ledger.peak <= budget {
                    (fits, fitting) = (middle, plan);
                } else {
                    above = middle;
                }
            }
            let passes = if request.training { advances(segments, fits) as f64 / segments as f64 } else { 0.0 };
            if best.as_ref().is_none_or(|(least, _)| passes < *least) {
                best = Some((passes, fitting));
            } else {
                // Shorter segments hold more states in the same bytes only as long as segments are what is large.
                break;
            }
        }
        match best {
            Some((_, plan)) => Ok(plan),
            None => Err(no_fit(budget, smallest)),
        }
    }

    /// The training step for `clips` at a time, at most [`Plan::micro_batch`]; `None` for a plan that predicts.
    ///
    /// # Errors
    /// When it does not lie within the arena.
    pub fn training(&self, request: &Request<'_>, clips: usize) -> Result<Option<Arc<Placed>>, Unsound> {
        let Some(whole) = &self.training else { return Ok(None) };
        self.smaller(whole, request, Kind::Training, clips).map(Some)
    }

    /// The forward pass for `clips` at a time, at most [`Plan::micro_batch`].
    ///
    /// # Errors
    /// When it does not lie within the arena.
    pub fn inference(&self, request: &Request<'_>, clips: usize) -> Result<Arc<Placed>, Unsound> {
        self.smaller(&self.inference, request, Kind::Inference { trained: request.training }, clips)
    }

    /// The same buffers, each no larger, at the same offsets; so what was apart stays apart.
    fn smaller(
        &self,
        whole: &Arc<Placed>,
        request: &Request<'_>,
        kind: Kind,
        clips: usize,
    ) -> Result<Arc<Placed>, Unsound> {
        let clips = clips.min(whole.schedule.clips);
        if clips == whole.schedule.clips {
            return Ok(whole.clone());
        }
        let schedule = build(request.graph, kind, clips, self.cut, request.dtype, request.workspaces);
        let fits = schedule.buffers.len() == whole.schedule.buffers.len()
            && schedule
                .buffers
                .iter()
                .zip(&whole.schedule.buffers)
                .all(|(a, b)| a.what == b.what && a.bytes() <= b.bytes());
        let placed = if fits { Placed { schedule, offsets: whole.offsets.clone() } } else { place(schedule) };
        if placed.bytes() > self.arena {
            let fault = Fault::TooLarge { bytes: placed.bytes(), arena: self.arena };
            return Err(Unsound { clips, fault });
        }
        Ok(Arc::new(placed))
    }

    /// The training step of a whole micro-batch; `None` for a plan that predicts.
    pub fn training_step(&self) -> Option<&Placed> {
        self.training.as_deref()
    }

    /// The forward pass of a whole micro-batch.
    pub fn forward_pass(&self) -> &Placed {
        &self.inference
    }

    /// Proves every schedule of the plan with the independent checker.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Unsound> {
        for clips in [self.micro_batch, 1] {
            for placed in self.training(request, clips)?.into_iter().chain([self.inference(request, clips)?]) {
                checker::check(request.graph, &placed.schedule, &placed.offsets, self.arena)
                    .map_err(|fault| Unsound { clips, fault })?;
            }
        }
        Ok(())
    }
}

fn no_fit(budget: Bytes, smallest: Plan) -> Box<NoFit> {
    let mut largest = smallest.ledger.rows;
    largest.retain(|r| r.purpose != Purpose::Unused);
    largest.sort_by_key(|r| std::cmp::Reverse(r.bytes));
    largest.truncate(5);
    Box::new(NoFit { budget, smallest: smallest.ledger.peak, largest })
}

impl Placed {
    fn bytes(&self) -> usize {
        let ends = self.offsets.iter().zip(&self.schedule.buffers).map(|(&offset, b)| offset + b.bytes());
        aligned(ends.max().unwrap_or(0))
    }
}

/// Persistent buffers one after the other from the start, so that they lie alike for every schedule of the
/// plan; the others packed above them.
fn place(schedule: Schedule) -> Placed {
    let lifetimes = schedule.lifetimes();
    let (persistent, transient) = lifetimes.split_at(schedule.persistent());
    let mut offsets = Vec::with_capacity(lifetimes.len());
    let mut end = 0;
    for Lifetime { bytes, .. } in persistent {
        offsets.push(end);
        end = aligned(end + bytes);
    }
    offsets.extend(pack(transient).offsets.into_iter().map(|offset| end + offset));
    Placed { schedule, offsets }
}
