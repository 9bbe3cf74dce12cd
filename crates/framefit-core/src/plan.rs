//! The plan: schedules, where their buffers lie in the arena, and the knobs that led there.

use crate::arena::{Lifetime, aligned, pack};
use crate::axes::DType;
use crate::bytes::Bytes;
use crate::checker::{self, Fault};
use crate::graph::Graph;
use crate::ledger::{Fixed, Ledger, Purpose, Row};
use crate::schedule::{Cut, Keeping, Kind, ProgramId, Schedule, What, Workspaces, advances, build, most_passes};
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
    /// Where what barriers need of whole clips lies.
    pub keeping: Keeping,
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
    /// Byte offset of each buffer in the arena, or in the file.
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
#[error("{} does not fit in {budget}: the smallest plan needs {smallest}", if *.training { "training" } else { "predicting" })]
pub struct NoFit {
    /// Whether a plan that trains was asked for.
    pub training: bool,
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
        let cut = Cut { keeping: request.keeping, ..cut };
        let schedule = |kind| build(request.graph, kind, micro_batch, cut, request.dtype, request.workspaces);
        let training = request.training.then(|| place(schedule(Kind::Training)));
        let inference = place(schedule(Kind::Inference { trained: request.training }));
        let arena = training.iter().chain([&inference]).map(Placed::bytes).max().unwrap_or(0);
        let main = training.as_ref().unwrap_or(&inference);
        let host: usize = training.iter().chain([&inference]).map(|p| p.schedule.host_bytes()).sum();
        let fixed = (request.fixed)(micro_batch);
        let fixed = Fixed { schedule: Bytes(fixed.schedules(micro_batch) * host as u64), ..fixed };
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
            return Err(no_fit(request.training, budget, one.ledger));
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

    /// One clip at a time in segments: of several lengths, the one that needs the fewest passes through segments;
    /// of equal ones the longest.
    fn in_segments(request: &Request<'_>, budget: Bytes, whole: Self) -> Result<Self, Box<NoFit>> {
        let sizes = Sizes::new(request);
        // What plans took beyond what was estimated for them.
        let mut margin = 0;
        for _ in 0..MOST_CORRECTIONS {
            let Some((cut, estimate)) = sizes.fewest_passes(Bytes(budget.0.saturating_sub(margin))) else { break };
            let plan = Self::with(request, 1, cut);
            if plan.ledger.peak <= budget {
                return Ok(plan);
            }
            margin += plan.ledger.peak.0.saturating_sub(estimate.0).max(1);
        }
        let smallest = sizes.smallest().map_or(whole, |cut| Self::with(request, 1, cut));
        if smallest.ledger.peak <= budget {
            Ok(smallest)
        } else {
            Err(no_fit(request.training, budget, smallest.ledger))
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

/// Lengths of segments to try, the longest first: the clip's, halved and halved again, and those between.
fn lengths(frames: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut length = frames;
    while length > 1 {
        let half = length.div_ceil(2);
        lengths.extend([(3 * length).div_ceil(4), half]);
        length = half;
    }
    lengths.retain(|&l| l < frames);
    lengths.dedup();
    lengths
}

/// A segment is not passed through more often than this, whatever a budget would save by it.
const MOST_PASSES: usize = 24;

/// The fewest states with which no segment is passed through too often.
fn fewest_slots(segments: usize) -> usize {
    (0..).find(|&slots| most_passes(segments, slots) <= MOST_PASSES).unwrap_or(0)
}

/// The peaks of plans of one clip in segments, without building the steps of every segment: segments in the middle
/// of a clip are alike, so a shorter clip says what they take, and what is held for the whole clip grows with its
/// frames.
struct Sizes<'a> {
    request: &'a Request<'a>,
    fixed: Fixed,
}

/// How often an estimate that was too low is corrected.
const MOST_CORRECTIONS: usize = 6;

/// Segments of the shorter clips.
const SAMPLED: [usize; 2] = [12, 16];

impl<'a> Sizes<'a> {
    fn new(request: &'a Request<'a>) -> Self {
        Self { request, fixed: (request.fixed)(1) }
    }

    fn frames(&self) -> usize {
        self.request.graph.shape(Graph::SOURCE).dims.t
    }

    /// The fewest states for segments of a length.
    fn fewest(&self, segment: usize) -> usize {
        if self.request.training { fewest_slots(self.frames().div_ceil(segment)) } else { 0 }
    }

    /// Of all cuts that fit, the one with the fewest passes through segments; and its peak.
    fn fewest_passes(&self, budget: Bytes) -> Option<(Cut, Bytes)> {
        let mut best: Option<(f64, Cut, Bytes)> = None;
        for segment in lengths(self.frames()) {
            let segments = self.frames().div_ceil(segment);
            let peak = |slots: usize| self.peak(Cut::exact(segment, slots));
            let mut fits = self.fewest(segment);
            let mut fitting = peak(fits);
            if fitting > budget {
                continue;
            }
            let mut above = if self.request.training { segments.max(fits + 1) } else { fits + 1 };
            while fits + 1 < above {
                let middle = fits.midpoint(above);
                let of_middle = peak(middle);
                if of_middle <= budget {
                    (fits, fitting) = (middle, of_middle);
                } else {
                    above = middle;
                }
            }
            let passes = if self.request.training { advances(segments, fits) as f64 / segments as f64 } else { 0.0 };
            // The longest segments come first, and stay first among equals.
            if best.as_ref().is_none_or(|(least, ..)| passes < *least) {
                best = Some((passes, Cut::exact(segment, fits), fitting));
            }
        }
        best.map(|(_, cut, peak)| (cut, peak))
    }

    /// The cut that needs least.
    fn smallest(&self) -> Option<Cut> {
        let cuts = lengths(self.frames()).into_iter().map(|segment| Cut::exact(segment, self.fewest(segment)));
        cuts.min_by_key(|&cut| self.peak(cut))
    }

    /// The peak of a plan with this cut, nearly.
    fn peak(&self, cut: Cut) -> Bytes {
        let request = self.request;
        let cut = Cut { keeping: request.keeping, ..cut };
        let frames = self.frames();
        let segments = frames.div_ceil(cut.segment);
        let exact = || Plan::with(request, 1, cut).ledger.peak;
        if segments <= SAMPLED[1] {
            return exact();
        }
        let rest = frames - (segments - 1) * cut.segment;
        let sample = |count: usize, kind| {
            let graph = request.graph.with_frames((count - 1) * cut.segment + rest).ok()?;
            // Few enough states that segments are passed through again, where they will be.
            let slots = if cut.checkpoints + 1 < segments { cut.checkpoints.min(2) } else { count - 1 };
            Some(build(&graph, kind, 1, Cut { checkpoints: slots, ..cut }, request.dtype, request.workspaces))
        };
        let of_kind = |kind: Kind| -> Option<(usize, u64)> {
            let (short, long) = (sample(SAMPLED[0], kind)?, sample(SAMPLED[1], kind)?);
            let (more, left) = (SAMPLED[1] - SAMPLED[0], segments - SAMPLED[1]);
            let grown = |short: usize, long: usize| long + long.saturating_sub(short) * left / more;
            let lifetimes = long.lifetimes();
            let mut rest = 0;
            let mut buffers = Vec::new();
            for (buffer, life) in long.buffers.iter().zip(lifetimes) {
                let Some(id) = short.find(buffer.what) else {
                    // A state that the shorter clip has no use for.
                    continue;
                };
                let bytes = aligned(grown(short.buffer(id).bytes(), life.bytes));
                if buffer.what.is_persistent() { rest += bytes } else { buffers.push(Lifetime { bytes, ..life }) }
            }
            let state = |s: &Schedule| -> usize {
                let of_slot = |b: &&crate::schedule::Buffer| matches!(b.what, What::Checkpoint(_, 0));
                s.buffers.iter().filter(of_slot).map(|b| aligned(b.bytes())).sum()
            };
            let known = long.buffers.iter().filter_map(|b| match b.what {
                What::Checkpoint(_, slot) if short.find(b.what).is_some() => Some(slot + 1),
                _ => None,
            });
            let further = cut.checkpoints.saturating_sub(known.max().unwrap_or(0));
            let arena = rest + pack(&buffers).bytes + further * state(&long);
            let turns = |n: usize, slots: usize| advances(n, slots) as usize + 3 * n;
            let micro = size_of::<ProgramId>();
            let steps = |s: &Schedule| s.host_bytes() - s.micro.capacity() * micro;
            let host = grown(steps(&short), steps(&long)) + turns(segments, cut.checkpoints) * micro;
            Some((arena, host as u64))
        };
        let training = request.training.then(|| of_kind(Kind::Training));
        let inference = of_kind(Kind::Inference { trained: request.training });
        let (arena, host) = match (training, inference) {
            (Some(Some(t)), Some(i)) => (t.0.max(i.0), t.1 + i.1),
            (None, Some(i)) => i,
            _ => return exact(),
        };
        let Fixed { runtime, saving, data_pipeline, .. } = &self.fixed;
        Bytes(runtime.0 + saving.0 + data_pipeline.0 + arena as u64 + self.fixed.schedules(1) * host)
    }
}

pub(crate) fn no_fit(training: bool, budget: Bytes, smallest: Ledger) -> Box<NoFit> {
    let mut largest = smallest.rows;
    largest.retain(|r| r.purpose != Purpose::Unused);
    largest.sort_by_key(|r| std::cmp::Reverse(r.bytes));
    largest.truncate(5);
    Box::new(NoFit { training, budget, smallest: smallest.peak, largest })
}

impl Placed {
    fn bytes(&self) -> usize {
        let arena = self.offsets.iter().zip(&self.schedule.buffers).filter(|(_, b)| !b.in_file());
        let ends = arena.map(|(&offset, b)| offset + b.bytes());
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
    let mut filed = 0;
    for (offset, buffer) in offsets.iter_mut().zip(&schedule.buffers).filter(|(_, b)| b.in_file()) {
        *offset = filed;
        filed = aligned(filed + buffer.bytes());
    }
    Placed { schedule, offsets }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        BatchNorm, Cell, Conv3d, Dense, GateFunction, LinearLayout, Momentum, NormLayout, NormMean, Op, Recurrent,
        RecurrentLayout, Relu, StateFunction, Statistics,
    };
    use crate::schedule::KernelRequest;
    use crate::{Dims3, GraphBuilder, Origin, Shape};

    struct Scratch;

    impl Workspaces for Scratch {
        fn bytes(&self, request: &KernelRequest<'_>) -> usize {
            100 * request.made.len()
        }
    }

    fn graph(frames: usize, barrier: bool) -> Graph {
        let at = Origin::BuiltIn;
        let mut b = GraphBuilder::new(Shape::video(Dims3 { t: frames, h: 6, w: 7 }, 2));
        b.layer("conv", Op::Conv3d(Conv3d::same(2, 3, Dims3::cube(3))), &at).unwrap();
        if barrier {
            let norm = BatchNorm {
                epsilon: 1e-3,
                momentum: Momentum::Keras(0.99),
                statistics: Statistics::Batch,
                scale: true,
                center: true,
                trained: true,
                layout: NormLayout::Keras,
            };
            b.layer("bn", Op::BatchNorm(norm), &at).unwrap();
            b.layer("relu", Op::Relu(Relu), &at).unwrap();
        }
        let lstm = Recurrent {
            cell: Cell::Lstm,
            in_channels: 3,
            filters: 4,
            kernel: Dims3 { t: 1, h: 3, w: 3 },
            stride: Dims3::cube(1),
            padding: Dims3 { t: 0, h: 1, w: 1 },
            padding_end: Dims3 { t: 0, h: 1, w: 1 },
            dilation: Dims3::cube(1),
            activation: StateFunction::Tanh,
            recurrent_activation: GateFunction::Sigmoid,
            bias: true,
            unit_forget_bias: true,
            recurrent_dropout: 0.0,
            layout: RecurrentLayout::KerasConvLstm2d,
        };
        b.layer("lstm", Op::Recurrent(lstm), &at).unwrap();
        b.layer("norm", Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.99 }), &at).unwrap();
        let dense = Dense { in_channels: 4, units: 3, bias: true, layout: LinearLayout::Keras };
        b.layer("dense", Op::Dense(dense), &at).unwrap();
        b.finish().unwrap()
    }

    fn fixed(_: usize) -> Fixed {
        Fixed { runtime: Bytes(1000), ..Fixed::default() }
    }

    fn request(graph: &Graph) -> Request<'_> {
        Request {
            graph,
            dtype: DType::F32,
            batch: 1,
            training: true,
            cut: None,
            keeping: Keeping::Memory,
            workspaces: &Scratch,
            fixed: &fixed,
        }
    }

    #[test]
    fn peaks_estimated_from_shorter_clips_are_those_of_the_plans() {
        for barrier in [false, true] {
            let graph = graph(611, barrier);
            let request = request(&graph);
            let sizes = Sizes::new(&request);
            for (segment, slots) in [(1, 11), (2, 40), (5, 7), (13, 46), (30, 3)] {
                let cut = Cut::exact(segment, slots);
                let (estimate, peak) = (sizes.peak(cut).0 as f64, Plan::with(&request, 1, cut).ledger.peak.0 as f64);
                assert!((estimate / peak - 1.0).abs() < 0.05, "{cut:?}: {estimate} for {peak}");
            }
        }
    }

    #[test]
    fn a_smaller_budget_never_takes_fewer_passes() {
        let graph = graph(611, false);
        let request = request(&graph);
        let passes = |plan: &Plan| advances(611usize.div_ceil(plan.cut.segment.min(611)), plan.cut.checkpoints);
        let whole = Plan::fit(&request, None).unwrap();
        let share = |part: f64| Plan::fit(&request, Some(Bytes((whole.ledger.peak.0 as f64 * part) as u64)));
        let plans: Vec<Plan> = [0.8, 0.5, 0.35].into_iter().map(|part| share(part).unwrap()).collect();
        assert!(plans.windows(2).all(|two| two[1].ledger.peak <= two[0].ledger.peak));
        assert!(plans.iter().all(|plan| passes(plan) as f64 / 611.0 <= MOST_PASSES as f64));
        let refused = share(0.01).unwrap_err();
        let smallest = Plan::fit(&request, Some(refused.smallest)).unwrap();
        assert!(smallest.ledger.peak <= refused.smallest);
    }
}
