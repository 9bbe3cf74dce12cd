//! Frames in, results out, segment by segment, for streams of any length.

use super::run::{self, Call};
use super::{Element, EngineError, Kernels, Normalisation, Numbers, step_error};
use framefit_core::plan::{Placed, Request};
use framefit_core::schedule::{Action, Keeping, Role, Step, What};
use framefit_core::stream::{StreamError, StreamPlan};
use framefit_core::{Graph, ParamId};
use framefit_kernels::{Arena, Pool};

/// Runs a stream through a model: every frame that is pushed is used, and results come as soon as the frames that
/// they depend on are there. They are those of the whole stream as one clip.
pub struct Stream<E: Element> {
    plan: StreamPlan,
    machine: Machine<E>,
    /// Segments run so far.
    segments: usize,
    /// Frames of the segment to come that are there.
    filled: usize,
    /// Frames of results handed out so far.
    made: usize,
}

/// What steps run on.
struct Machine<E: Element> {
    kernels: Kernels,
    pool: Pool,
    arena: Arena,
    mean: Vec<E>,
    std: Vec<E>,
}

/// Results of consecutive frames.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a, E> {
    /// The frame, in the time axis of the output, of the first result.
    pub first: usize,
    /// `[T',K]`.
    pub logits: &'a [E],
}

impl<E: Element> Stream<E> {
    /// A stream at its start, all weights zero.
    ///
    /// # Errors
    /// When memory or threads cannot be had.
    pub fn new(plan: StreamPlan, kernels: Kernels, normalisation: &Normalisation) -> Result<Self, EngineError> {
        let threads = kernels.threads;
        let pool = Pool::new(threads).map_err(|cause| EngineError::Threads { threads, cause })?;
        let arena = Arena::new(plan.arena)?;
        let convert = |v: &[f64]| v.iter().map(|&x| E::from_f64(x)).collect();
        let (mean, std) = (convert(&normalisation.mean), convert(&normalisation.std));
        let machine = Machine { kernels, pool, arena, mean, std };
        Ok(Self { plan, machine, segments: 0, filled: 0, made: 0 })
    }

    /// The model, for a clip of some length.
    pub fn graph(&self) -> &Graph {
        &self.plan.graph
    }

    /// The plan.
    pub fn plan(&self) -> &StreamPlan {
        &self.plan
    }

    /// A parameter, in its stored order, to be written.
    ///
    /// # Errors
    /// When the plan does not hold it.
    pub fn weight_mut(&mut self, param: ParamId) -> Result<&mut [E], EngineError> {
        let placed = &self.plan.placed;
        let id = placed.schedule.find(What::Weight(param)).ok_or_else(|| step_error("a parameter"))?;
        let offset = placed.offsets[id.0];
        let range = offset..offset + placed.schedule.buffer(id).bytes();
        let bytes = self.machine.arena.bytes_mut().get_mut(range).ok_or_else(|| step_error("a parameter"))?;
        bytemuck::try_cast_slice_mut(bytes).map_err(|_| step_error("a parameter"))
    }

    /// Back to the start, for another stream.
    pub fn restart(&mut self) {
        (self.segments, self.filled, self.made) = (0, 0, 0);
    }

    /// Takes the next frame, `[H,W,C]`, and calls `results` with those that have become ready.
    ///
    /// # Errors
    /// When the frame has another size.
    pub fn push(&mut self, frame: &[u8], results: &mut dyn FnMut(Made<'_, E>)) -> Result<(), EngineError> {
        let size = self.graph().shape(Graph::SOURCE).per_frame();
        if frame.len() != size {
            return Err(EngineError::OtherPlan { what: "frames of another size" });
        }
        if self.filled == self.plan.segment {
            // Only now is it known that this segment is not the stream's last.
            self.go_on(results)?;
        }
        let slot = self.slot(size).ok_or_else(|| step_error("loading a frame"))?;
        slot.copy_from_slice(frame);
        self.filled += 1;
        Ok(())
    }

    /// Where the next frame goes.
    fn slot(&mut self, size: usize) -> Option<&mut [u8]> {
        let start = frames_at(&self.plan.placed)?;
        let at = start + (self.held(self.segments)? + self.filled) * size;
        self.machine.arena.bytes_mut().get_mut(at..at + size)
    }

    /// Ends the stream: the results that waited for frames to come.
    ///
    /// # Errors
    /// When the stream has fewer frames than the model needs.
    pub fn finish(&mut self, results: &mut dyn FnMut(Made<'_, E>)) -> Result<(), StreamFailed> {
        let (clip, program) = self.plan.ending(self.segments * self.plan.segment + self.filled);
        let graph = self.plan.graph.with_frames(clip).map_err(StreamError::from)?;
        let request = Request {
            graph: &graph,
            dtype: E::DTYPE,
            batch: 1,
            training: false,
            cut: None,
            keeping: Keeping::Memory,
            workspaces: &self.machine.kernels,
            fixed: &super::nothing_fixed,
        };
        let placed = self.plan.place_ending(&request).map_err(StreamError::from)?;
        let Self { machine, made, .. } = self;
        Ok(machine.play(&graph, &placed, program, made, results)?)
    }

    /// Runs a segment that others follow.
    fn go_on(&mut self, results: &mut dyn FnMut(Made<'_, E>)) -> Result<(), EngineError> {
        let program = self.segments.min(self.plan.steady);
        let Self { plan, machine, made, .. } = self;
        machine.play(&plan.graph, &plan.placed, program, made, results)?;
        self.hold().ok_or_else(|| step_error("loading a frame"))?;
        self.segments += 1;
        self.filled = 0;
        Ok(())
    }

    /// Frames of earlier segments that a segment reads.
    fn held(&self, segment: usize) -> Option<usize> {
        let program = segment.min(self.plan.steady);
        let load = steps(&self.plan.placed, program).iter().find(|s| s.action == Action::Load)?;
        let window = load.access(Role::Frames)?.window;
        (program * self.plan.segment).checked_sub(window.lo)
    }

    /// Moves the frames that the next segment still reads to the front.
    fn hold(&mut self) -> Option<()> {
        let size = self.graph().shape(Graph::SOURCE).per_frame();
        let (there, held) = (self.held(self.segments)? + self.plan.segment, self.held(self.segments + 1)?);
        let start = frames_at(&self.plan.placed)?;
        let bytes = self.machine.arena.bytes_mut().get_mut(start..start + there * size)?;
        bytes.copy_within(there.checked_sub(held)? * size.., 0);
        Some(())
    }
}

impl<E: Element> Machine<E> {
    /// Runs one segment and hands out its results.
    fn play(
        &mut self,
        graph: &Graph,
        placed: &Placed,
        program: usize,
        made: &mut usize,
        results: &mut dyn FnMut(Made<'_, E>),
    ) -> Result<(), EngineError> {
        let Self { kernels, pool, arena, mean, std } = self;
        let call =
            Call { graph, kernels, pool, mean, std, placed, numbers: Numbers::default(), batches: &[], filed: None };
        for step in steps(placed, program) {
            call.run(step, arena).ok_or_else(|| EngineError::Step { step: step.describe(graph) })?;
        }
        let Some(report) = steps(placed, program).iter().find(|s| s.action == Action::Report) else { return Ok(()) };
        let [logits] = run::elements::<E, 1>(placed, report, [Role::Input], arena)
            .ok_or_else(|| step_error("reading the results"))?;
        if !logits.is_empty() {
            results(Made { first: *made, logits });
            *made += logits.len() / graph.classes().max(1);
        }
        Ok(())
    }
}

/// Why a stream could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamFailed {
    /// Its length does not fit the model.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A step failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

fn steps(placed: &Placed, program: usize) -> &[Step] {
    let schedule = &placed.schedule;
    schedule.micro.get(program).map_or(&[], |id| &schedule.programs[id.0])
}

fn frames_at(placed: &Placed) -> Option<usize> {
    placed.schedule.find(What::Frames).map(|id| placed.offsets[id.0])
}
