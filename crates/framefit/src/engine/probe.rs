//! A graph forward and back on real numbers, for tests against references: values take the place of the normalised
//! frames, and a given gradient of the output that of the loss. All other steps are those of a plan as it is run.
//!
//! No part of what the library promises. The gradient of the source is that of the output of the graph's first
//! layer, a convolution by one, which [`builder`] puts there: before it the schedule has no gradients.

use super::run::{Call, elements};
use super::{Element, Engine, EngineError, Kernels, Normalisation, Numbers, Tensor, step_error};
use framefit_core::ledger::Fixed;
use framefit_core::ops::Conv3d;
use framefit_core::plan::{Plan, Request};
use framefit_core::schedule::{Action, Cut, Kind, Role, Step};
use framefit_core::{Dims3, Graph, GraphBuilder, Op, Origin, ParamId, Shape, ShapeError};
use framefit_kernels::Arena;

/// The first layer of a graph by [`builder`].
const LAYER: &str = "probe";

/// What goes in.
pub struct Given<'a> {
    /// x: `[T,N,H,W,C]`, all frames of all clips.
    pub source: &'a [f64],
    /// dy: `[T',N,H',W',K]`; none for [`predict`].
    pub output_gradient: &'a [f64],
    /// Every parameter by its name, in the user's order.
    pub params: &'a [(String, Vec<f64>)],
}

/// What comes out.
pub struct Seen<E> {
    /// y: `[T',N,H',W',K]`
    pub output: Vec<E>,
    /// dx: `[T,N,H,W,C]`; NaN where no step gave it, as in [`predict`].
    pub source_gradient: Vec<E>,
    /// Every trained parameter's gradient by its name, in the user's order.
    pub gradients: Vec<(String, Vec<E>)>,
    /// Every parameter afterwards, in the user's order: moving statistics have moved.
    pub params: Vec<(String, Vec<E>)>,
}

impl<E> Seen<E> {
    /// The gradient of a trained parameter.
    pub fn gradient(&self, name: &str) -> Option<&[E]> {
        self.gradients.iter().find(|(n, _)| n == name).map(|(_, values)| &**values)
    }

    /// A parameter afterwards.
    pub fn param(&self, name: &str) -> Option<&[E]> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, values)| &**values)
    }
}

/// A graph that hands its source on, and has its gradient.
///
/// # Errors
/// When the source is too large.
pub fn builder(source: Shape) -> Result<GraphBuilder, ShapeError> {
    let mut builder = GraphBuilder::new(source);
    let channels = source.channels;
    let one = Conv3d { groups: channels, bias: false, ..Conv3d::same(channels, channels, Dims3::cube(1)) };
    builder.layer(LAYER, Op::Conv3d(one), &Origin::BuiltIn)?;
    Ok(builder)
}

/// Forward and back of one micro-batch whose clips are cut like this.
///
/// # Errors
/// When the plan is unsound, a step does not fit its buffers, or what is given does not fit the graph.
pub fn train<E: Element>(graph: &Graph, kernels: Kernels, cut: Cut, given: &Given<'_>) -> Result<Seen<E>, EngineError> {
    run(graph, kernels, cut, Kind::Training, given, Before::default())
}

/// The same, where moving statistics have taken in so many batches before.
///
/// # Errors
/// As [`train`].
pub fn train_after<E: Element>(
    batches: u64,
    graph: &Graph,
    kernels: Kernels,
    cut: Cut,
    given: &Given<'_>,
) -> Result<Seen<E>, EngineError> {
    run(graph, kernels, cut, Kind::Training, given, Before { batches, ..Before::default() })
}

/// The same as [`train`], where `keys` say what is dropped of each clip.
///
/// # Errors
/// As [`train`].
pub fn train_with_keys<E: Element>(
    keys: &[u64],
    graph: &Graph,
    kernels: Kernels,
    cut: Cut,
    given: &Given<'_>,
) -> Result<Seen<E>, EngineError> {
    run(graph, kernels, cut, Kind::Training, given, Before { keys: Some(keys), ..Before::default() })
}

/// Forward of one micro-batch, as when evaluating.
///
/// # Errors
/// As [`train`].
pub fn predict<E: Element>(
    graph: &Graph,
    kernels: Kernels,
    cut: Cut,
    given: &Given<'_>,
) -> Result<Seen<E>, EngineError> {
    run(graph, kernels, cut, Kind::Inference { trained: true }, given, Before::default())
}

/// What lies before a run.
#[derive(Clone, Copy, Default)]
struct Before<'a> {
    batches: u64,
    keys: Option<&'a [u64]>,
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn run<E: Element>(
    graph: &Graph,
    kernels: Kernels,
    cut: Cut,
    kind: Kind,
    given: &Given<'_>,
    before: Before<'_>,
) -> Result<Seen<E>, EngineError> {
    let clips = given.source.len() / graph.shape(Graph::SOURCE).per_clip();
    let request = Request {
        graph,
        dtype: E::DTYPE,
        batch: clips,
        training: true,
        cut: Some(cut),
        keeping: cut.keeping,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with(&request, clips, cut);
    plan.check(&request)?;
    let normalisation = Normalisation::uniform(0.0, 1.0, graph.shape(Graph::SOURCE).channels);
    let mut engine = Engine::<E>::new(graph.clone(), plan, kernels, &normalisation)?;
    // NaN everywhere: what is read before it is written shows.
    engine.arena.bytes_mut().fill(0xFF);
    set_params(&mut engine, given)?;
    graph.node_ids().for_each(|layer| engine.set_batches(layer, before.batches));

    let at = engine.placed(kind, clips)?;
    let placed = engine.schedules[at].1.clone();
    let mut tape = Tape {
        source: Frames::of(graph.shape(Graph::SOURCE), clips, given.source),
        output_gradient: Frames::of(graph.shape(graph.output), clips, given.output_gradient),
        output: Frames::nan(graph.shape(graph.output), clips),
        source_gradient: Frames::nan(graph.shape(Graph::SOURCE), clips),
    };
    let Engine { pool, mean, std, arena, batches, filed, .. } = &mut engine;
    let numbers = Numbers { keys: before.keys, ..Numbers::default() };
    let call =
        Call { graph, kernels: &kernels, pool, mean, std, placed: &placed, numbers, batches, filed: filed.as_ref() };
    for step in placed.schedule.begin.iter().chain(placed.schedule.micro_steps()) {
        tape.run(&call, step, kind, arena).ok_or_else(|| EngineError::Step { step: step.describe(graph) })?;
    }

    let (gradients, params) = (read(&engine, Tensor::Gradient)?, read(&engine, Tensor::Weight)?);
    Ok(Seen { output: tape.output.values, source_gradient: tape.source_gradient.values, gradients, params })
}

/// Fills the parameters; the first layer's are ones unless they are given.
fn set_params<E: Element>(engine: &mut Engine<E>, given: &Given<'_>) -> Result<(), EngineError> {
    let params = engine.graph().params.clone();
    if let Some((name, _)) = given.params.iter().find(|(name, _)| params.iter().all(|p| p.name != *name)) {
        return Err(step_error(&format!("{name}, which the graph does not have")));
    }
    for (index, param) in params.iter().enumerate() {
        let values = match given.params.iter().find(|(name, _)| *name == param.name) {
            Some((_, values)) => values.clone(),
            None if param.name == format!("{LAYER}.weight") => vec![1.0; param.len()],
            None => return Err(step_error(&format!("{}, which is not given", param.name))),
        };
        if values.len() != param.len() {
            return Err(step_error(&format!("{} of {} numbers, given {}", param.name, param.len(), values.len())));
        }
        let weight = engine.tensor_mut(Tensor::Weight(ParamId(index)))?;
        param.stored.each(0, values.len(), |user, stored| weight[stored] = E::from_f64(values[user]));
    }
    Ok(())
}

/// One tensor of every parameter that has it, in the user's order.
fn read<E: Element>(engine: &Engine<E>, tensor: fn(ParamId) -> Tensor) -> Result<Vec<(String, Vec<E>)>, EngineError> {
    let params = engine.graph().params.iter().enumerate();
    let there = params.filter(|(index, param)| tensor(ParamId(*index)).is_of(param));
    there
        .map(|(index, param)| {
            let stored = engine.tensor(tensor(ParamId(index)))?;
            let mut values = vec![E::ZERO; stored.len()];
            param.stored.each(0, stored.len(), |user, at| values[user] = stored[at]);
            Ok((param.name.clone(), values))
        })
        .collect()
}

/// A value of the whole clip.
struct Frames<E> {
    frame: usize,
    values: Vec<E>,
}

impl<E: Element> Frames<E> {
    fn of(shape: &Shape, clips: usize, values: &[f64]) -> Self {
        Self { frame: shape.per_frame() * clips, values: values.iter().map(|&v| E::from_f64(v)).collect() }
    }

    fn nan(shape: &Shape, clips: usize) -> Self {
        Self::of(shape, clips, &vec![f64::NAN; shape.per_clip() * clips])
    }

    /// Takes what a step has in the window of this role.
    fn take(&mut self, call: &Call<'_, E>, step: &Step, role: Role, arena: &mut Arena) -> Option<()> {
        let window = step.access(role)?.window;
        let [from] = elements::<E, 1>(call.placed, step, [role], arena)?;
        self.values.get_mut(window.lo * self.frame..window.hi * self.frame)?.copy_from_slice(from);
        Some(())
    }

    /// Puts what it has in the window of this role there.
    fn put(&self, call: &Call<'_, E>, step: &Step, role: Role, arena: &mut Arena) -> Option<()> {
        let window = step.access(role)?.window;
        let [to] = elements::<E, 1>(call.placed, step, [role], arena)?;
        to.copy_from_slice(self.values.get(window.lo * self.frame..window.hi * self.frame)?);
        Some(())
    }
}

/// What is put into a run, and what is taken out of it.
struct Tape<E> {
    source: Frames<E>,
    output_gradient: Frames<E>,
    output: Frames<E>,
    source_gradient: Frames<E>,
}

impl<E: Element> Tape<E> {
    fn run(&mut self, call: &Call<'_, E>, step: &Step, kind: Kind, arena: &mut Arena) -> Option<()> {
        match step.action {
            Action::Normalise => self.source.put(call, step, Role::Output, arena),
            Action::Loss => {
                self.output.take(call, step, Role::Input, arena)?;
                match kind {
                    Kind::Training => self.output_gradient.put(call, step, Role::InputGradient, arena),
                    Kind::Inference { .. } | Kind::Stream => Some(()),
                }
            }
            Action::WeightGradient if call.graph.node(step.node?).name == LAYER => {
                self.source_gradient.take(call, step, Role::OutputGradient, arena)?;
                call.run(step, arena)
            }
            _ => call.run(step, arena),
        }
    }
}
