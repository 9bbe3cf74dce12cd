//! Plans of streams: a video of any length, a segment at a time, in the same bytes.
//!
//! A stream is a clip whose middle segment is repeated. A clip long enough that two segments in a row do the same
//! is planned; the first of the two is run as often as the stream goes on, and at its end the last segment, which
//! may be shorter and makes what only the end lets it make.

use crate::arena::{Lifetime, aligned, pack};
use crate::bytes::Bytes;
use crate::checker;
use crate::error::ShapeError;
use crate::graph::Graph;
use crate::ledger::{Fixed, Ledger};
use crate::plan::{NoFit, Placed, Request, Unsound, no_fit};
use crate::schedule::{Cut, Kind, Schedule, Step, What, build, needs_whole_clip};
use std::collections::HashMap;

/// Why a model cannot go through a stream.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamError {
    /// A layer makes something of the whole clip.
    #[error("{layer} needs the whole clip, so frames cannot be streamed through it: predict whole videos instead")]
    WholeClip {
        /// Its name.
        layer: String,
    },
    /// The stream has fewer frames than a layer needs.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// framefit is wrong, not the user.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// The segments of this model never come to do the same.
    #[error("segments of {segment} frames do not fit the strides of this model: use a multiple of {of}")]
    Uneven {
        /// Frames of a segment.
        segment: usize,
        /// What a segment has to be a multiple of.
        of: usize,
    },
}

/// A proof that a stream of any length fits.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    /// Source frames of a segment; the last one may have fewer.
    pub segment: usize,
    /// Bytes of the arena.
    pub arena: usize,
    /// Bytes by purpose at the peak.
    pub ledger: Ledger,
    /// The model for the clip that was planned.
    pub graph: Graph,
    /// The segments before the repeated one, that one, and some after it.
    pub placed: Placed,
    /// The repeated segment.
    pub steady: usize,
    offsets: HashMap<What, usize>,
}

/// The most segments before all do the same; a receptive field is far shorter.
const MOST_SEGMENTS: usize = 512;

impl StreamPlan {
    /// The plan of a stream in segments of `segment` frames; the request's graph may be for any number of frames.
    ///
    /// # Errors
    /// When a layer needs the whole clip, or segments never come to do the same.
    pub fn new(request: &Request<'_>, segment: usize) -> Result<Self, StreamError> {
        if let Some(id) = needs_whole_clip(request.graph) {
            return Err(StreamError::WholeClip { layer: request.graph.node(id).name.clone() });
        }
        let segment = segment.max(1);
        let of = period(request.graph);
        if !segment.is_multiple_of(of) {
            return Err(StreamError::Uneven { segment, of });
        }
        let schedule =
            |graph: &Graph| build(graph, Kind::Stream, 1, Cut::exact(segment, 0), request.dtype, request.workspaces);
        let mut segments = 4;
        let (graph, steady) = loop {
            let graph = match request.graph.with_frames(segments * segment) {
                Err(error) if segments >= MOST_SEGMENTS => return Err(error.into()),
                Err(_) => {
                    segments *= 2;
                    continue;
                }
                Ok(graph) => graph,
            };
            // The last segment does what only the end lets it do.
            let programs = schedule(&graph).programs;
            let middle = &programs[..segments - 1];
            let steady = middle.iter().rposition(|program| !alike(program, &middle[segments - 2])).map_or(0, |s| s + 1);
            if steady + 1 < segments - 1 {
                break (graph, steady);
            }
            if segments >= MOST_SEGMENTS {
                return Err(StreamError::Uneven { segment, of: MOST_SEGMENTS });
            }
            segments *= 2;
        };
        let whole = schedule(&graph);
        // Every way that a stream can end, in as many bytes as the largest takes.
        let mut buffers: Vec<(What, Lifetime)> = whole.buffers.iter().map(|b| b.what).zip(whole.lifetimes()).collect();
        for frames in (1..=(steady + 1) * segment).rev() {
            let Ok(graph) = request.graph.with_frames(frames) else { break };
            let ending = schedule(&graph);
            for (buffer, life) in ending.buffers.iter().zip(ending.lifetimes()) {
                match buffers.iter_mut().find(|(what, _)| *what == buffer.what) {
                    Some((_, known)) => {
                        known.bytes = known.bytes.max(life.bytes);
                        known.first = known.first.min(life.first);
                        known.last = known.last.max(life.last);
                    }
                    None => buffers.push((buffer.what, life)),
                }
            }
        }
        let persistent = whole.persistent();
        let mut offsets = HashMap::new();
        let mut end = 0;
        for (what, life) in &buffers[..persistent] {
            offsets.insert(*what, end);
            end = aligned(end + life.bytes);
        }
        let rest: Vec<Lifetime> = buffers[persistent..].iter().map(|(_, life)| *life).collect();
        let packing = pack(&rest);
        offsets
            .extend(buffers[persistent..].iter().map(|(what, _)| *what).zip(packing.offsets.iter().map(|o| end + o)));
        let arena = end + packing.bytes;
        let host = 2 * whole.host_bytes();
        let fixed = Fixed { schedule: Bytes(host as u64), ..(request.fixed)(1) };
        let ledger = Ledger::of(&graph, &whole, arena, &fixed);
        let placed = at(whole, &offsets);
        let plan = Self { segment, arena, ledger, graph, placed, steady, offsets };
        plan.check(&plan.graph, &plan.placed)?;
        Ok(plan)
    }

    /// What is said where the plan does not fit.
    pub fn no_fit(&self, budget: Bytes) -> Box<NoFit> {
        no_fit(false, budget, self.ledger.clone())
    }

    /// For a stream that ends after this many frames: the frames of the clip whose last segment ends it, and which
    /// of its segments that is.
    pub fn ending(&self, frames: usize) -> (usize, usize) {
        let segments = frames.div_ceil(self.segment);
        let last = segments.saturating_sub(1).min(self.steady + 1);
        let rest = frames - segments.saturating_sub(1) * self.segment;
        (last * self.segment + rest, last)
    }

    /// The schedule of the clip that ends a stream, in the same bytes.
    ///
    /// # Errors
    /// When it does not fit: framefit is wrong.
    pub fn place_ending(&self, request: &Request<'_>) -> Result<Placed, Unsound> {
        let cut = Cut::exact(self.segment, 0);
        let schedule = build(request.graph, Kind::Stream, 1, cut, request.dtype, request.workspaces);
        let placed = at(schedule, &self.offsets);
        self.check(request.graph, &placed)?;
        Ok(placed)
    }

    fn check(&self, graph: &Graph, placed: &Placed) -> Result<(), Unsound> {
        checker::check(graph, &placed.schedule, &placed.offsets, self.arena)
            .map_err(|fault| Unsound { clips: 1, fault })
    }
}

fn at(schedule: Schedule, offsets: &HashMap<What, usize>) -> Placed {
    // A buffer that no plan has heard of lies beyond every arena, which the checker refuses.
    let of = |what: &What| offsets.get(what).copied().unwrap_or(usize::MAX / 2);
    let offsets = schedule.buffers.iter().map(|b| of(&b.what)).collect();
    Placed { schedule, offsets }
}

/// Whether two programs do the same in the same bytes, whatever frames they stand for.
fn alike(a: &[Step], b: &[Step]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            a.action == b.action
                && a.node == b.node
                && a.accesses.len() == b.accesses.len()
                && a.accesses.iter().zip(&b.accesses).all(|(x, y)| {
                    (x.role, x.buffer, x.mode, x.window.len()) == (y.role, y.buffer, y.mode, y.window.len())
                        && x.window.lo - x.base == y.window.lo - y.base
                })
        })
}

/// Source frames after which every layer is where it was: the least that all strides over time divide.
pub fn period(graph: &Graph) -> usize {
    let mut strides = vec![1; graph.values.len()];
    for node in &graph.nodes {
        let time = node.op.time(graph.shape(node.input()), graph.shape(node.output));
        strides[node.output.0] = strides[node.input().0] * time.stride;
    }
    strides.into_iter().fold(1, |all, stride| all / common(all, stride) * stride)
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}
