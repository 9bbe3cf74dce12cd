//! Which frames of which value exist, and which are held, at each boundary between segments.

use super::Cut;
use crate::axes::Window;
use crate::graph::{Graph, NodeId, ValueId};
use crate::ops::Op;

/// The windows of every value at every boundary.
pub(super) struct Segments {
    /// Segments of the clip.
    pub(super) count: usize,
    /// For each value, the one whose bytes it lies in.
    pub(super) root: Vec<ValueId>,
    /// For each node, whether its output lies in its input's bytes.
    pub(super) in_place: Vec<bool>,
    /// For each value, whether all of it is kept from its first frame on: what is made of the whole clip, and
    /// all that follows from it.
    pub(super) whole: Vec<bool>,
    /// For each value, whether its buffer holds every frame although segments make them one after the other.
    kept: Vec<bool>,
    /// `made[s][v]`: frames of value v that exist at the boundary before segment s.
    made: Vec<Vec<usize>>,
    /// `low[s][v]`: the first of them that segment s or a later one reads.
    low: Vec<Vec<usize>>,
}

impl Segments {
    pub(super) fn new(graph: &Graph, cut: Cut) -> Self {
        let frames = graph.shape(Graph::SOURCE).dims.t;
        let length = cut.segment.clamp(1, frames.max(1));
        let count = frames.div_ceil(length).max(1);
        let values = graph.values.len();

        let mut root: Vec<ValueId> = (0..values).map(ValueId).collect();
        let mut whole = vec![false; values];
        let mut in_place = vec![false; graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            // What a backward still reads, or the next frame, must not be overwritten; nor the source, whose held
            // frames are normalised anew.
            let maker = graph.values[node.input.0].made_by.map(|maker| &graph.node(maker).op);
            let read_later = maker.is_none_or(|op| op.backward_reads().output && !op.in_place());
            in_place[index] = node.op.in_place() && (!read_later || matches!(node.op, Op::Flatten(_)));
            if in_place[index] {
                root[node.output.0] = root[node.input.0];
            }
            whole[node.output.0] = whole[node.input.0] || node.op.sums_over_time();
        }

        let mut kept = vec![false; values];
        kept[root[graph.output.0].0] = true;

        let mut made = vec![vec![0; values]];
        let mut low = vec![vec![0; values]];
        for segment in 1..=count {
            let mut now = vec![0; values];
            now[Graph::SOURCE.0] = (segment * length).min(frames);
            for node in &graph.nodes {
                let time = node.op.time(graph.shape(node.input), graph.shape(node.output));
                now[node.output.0] = time.emit(now[node.input.0]);
            }
            let mut needed = now.clone();
            for (index, node) in graph.nodes.iter().enumerate() {
                if in_place[index] || node.op.sums_over_time() {
                    continue;
                }
                let time = node.op.time(graph.shape(node.input), graph.shape(node.output));
                let from = &mut needed[root[node.input.0].0];
                *from = (*from).min(time.keep(now[node.output.0]));
            }
            made.push(now);
            low.push(needed);
        }
        Self { count, root, in_place, whole, kept, made, low }
    }

    /// Frames of a value that segment `s` makes.
    pub(super) fn made(&self, value: ValueId, s: usize) -> Window {
        Window { lo: self.made[s][value.0], hi: self.made[s + 1][value.0] }
    }

    /// Frames of a value held at the boundary before segment `s`.
    pub(super) fn held(&self, value: ValueId, s: usize) -> Window {
        let root = self.root[value.0];
        Window { lo: self.low[s][root.0], hi: self.made[s][root.0] }
    }

    /// Frames of a value that lie in its buffer during segment `s`: those held, and those made.
    pub(super) fn present(&self, value: ValueId, s: usize) -> Window {
        let root = self.root[value.0];
        if self.whole[root.0] || self.kept[root.0] {
            return Window::whole(self.made[self.count][root.0]);
        }
        Window { lo: self.low[s][root.0], hi: self.made[s + 1][root.0] }
    }

    /// Whether a value's buffer holds every frame from the first on.
    pub(super) fn lasts(&self, value: ValueId) -> bool {
        let root = self.root[value.0];
        self.whole[root.0] || self.kept[root.0]
    }

    /// The last frame that a recurrent layer has made at the boundary before segment `s`.
    pub(super) fn last_made(&self, value: ValueId, s: usize) -> Window {
        let hi = self.made[s][value.0];
        Window { lo: hi.saturating_sub(1), hi }
    }

    /// The most frames that lie in a value's buffer at once.
    pub(super) fn most_present(&self, value: ValueId) -> usize {
        (0..self.count).map(|s| self.present(value, s).len()).max().unwrap_or(0)
    }

    /// The most frames of a value held at a boundary.
    pub(super) fn most_held(&self, value: ValueId) -> usize {
        if self.whole[self.root[value.0].0] {
            return 0;
        }
        (0..self.count).map(|s| self.held(value, s).len()).max().unwrap_or(0)
    }

    /// Whether there is a segment that makes frames of a value which its reader makes nothing of.
    pub(super) fn unread(&self, graph: &Graph, value: ValueId) -> bool {
        let root = self.root[value.0];
        let nodes = graph.nodes.iter().enumerate();
        let mut readers = nodes.filter(|(i, n)| self.root[n.input.0] == root && !self.in_place[*i]);
        readers.any(|(_, n)| {
            let sums = n.op.sums_over_time();
            (0..self.count).any(|s| !sums && !self.made(root, s).is_empty() && self.made(n.output, s).is_empty())
        })
    }

    /// Frames of its input that a node reads in segment `s`.
    pub(super) fn reads(&self, graph: &Graph, id: NodeId, s: usize) -> Window {
        let node = graph.node(id);
        if node.op.sums_over_time() {
            return if self.whole[node.input.0] {
                Window::whole(graph.shape(node.input).dims.t)
            } else {
                self.made(node.input, s)
            };
        }
        if self.whole[node.output.0] {
            return Window::whole(graph.shape(node.input).dims.t);
        }
        let time = node.op.time(graph.shape(node.input), graph.shape(node.output));
        let reads = time.reads(self.made(node.output, s));
        if reads.is_empty() {
            // Outputs of nothing but padding.
            let lo = self.present(node.input, s).lo;
            return Window { lo, hi: lo };
        }
        reads
    }
}
