//! Which frames of which value exist, and which are held, at each boundary between segments; and in which stage a
//! value is made.

use super::{Cut, Cutting, Keeping, Kind};
use crate::axes::Window;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::ops::{Fold, Op};
use crate::time::TimeMap;
use std::collections::HashMap;

/// The windows of every value at every boundary.
pub(super) struct Segments {
    /// Segments of the clip.
    pub(super) count: usize,
    /// Stages: one more than there are barriers on the longest way to the output.
    pub(super) stages: usize,
    /// Whether every segment stands alone but for the state it starts from: nothing is made of the whole clip.
    pub(super) alone: bool,
    /// For each value, the one whose bytes it lies in.
    pub(super) root: Vec<ValueId>,
    /// For each node, which of its inputs lies in the same bytes as its output.
    pub(super) shared: Vec<Option<usize>>,
    /// For each value, whether all of it is kept from its first frame on: what is made of the whole clip, and
    /// all that follows from it.
    pub(super) whole: Vec<bool>,
    /// For each value, the stage in which it is made.
    stage: Vec<usize>,
    /// For each node, whether it needs all of its input before it makes any output.
    barrier: Vec<bool>,
    /// For each node, whether it takes its share of every segment and makes its output when the clip is over.
    sums: Vec<bool>,
    /// For each root, whether its buffer holds every frame although segments make them one after the other.
    kept: Vec<bool>,
    /// For each root, whether what is kept of it lies in a file, and its buffer holds a window.
    filed: Vec<bool>,
    /// For each root, whether the buffer of its gradient does.
    gradient_kept: Vec<bool>,
    /// For each root, whether its gradient lies in a file until the stage before is reversed.
    gradient_filed: Vec<bool>,
    /// `made[s][v]`: frames of value v that exist at the boundary before segment s.
    made: Vec<Vec<usize>>,
    /// `low[s][v]`: the first of them that segment s or a later one of the same stage reads.
    low: Vec<Vec<usize>>,
    /// `hulls[stage][s]`: the frames of values made before that a segment of a stage reads.
    hulls: Vec<Vec<HashMap<ValueId, Window>>>,
    /// For each root, what does not depend on the segment.
    extents: Vec<Extents>,
}

/// What all segments say of a value together.
#[derive(Clone, Copy, Default)]
struct Extents {
    present: usize,
    gradient_present: usize,
    held: usize,
    unread: bool,
    readers: usize,
}

/// The first layer that makes something of the whole clip, so that a segment cannot stand alone: neither streams
/// nor truncated gradients are possible with it.
pub fn needs_whole_clip(graph: &Graph) -> Option<NodeId> {
    graph.node_ids().find(|&id| match &graph.node(id).op {
        Op::GlobalAvgPool3d(_) | Op::Linear(_) | Op::LastFrame(_) | Op::Reverse(_) => true,
        Op::GroupNorm(op) => !op.per_frame,
        Op::AdaptivePool3d(op) => op.output[0].is_some(),
        // Their statistics are moving ones, or those of a segment.
        Op::NormMean(_) | Op::BatchNorm(_) => false,
        Op::Conv3d(_)
        | Op::MaxPool3d(_)
        | Op::AvgPool3d(_)
        | Op::Relu(_)
        | Op::Activation(_)
        | Op::Flatten(_)
        | Op::Dense(_)
        | Op::Recurrent(_)
        | Op::LayerNorm(_)
        | Op::Dropout(_)
        | Op::Add(_)
        | Op::Concat(_) => false,
    })
}

/// Which frames of one of its inputs a node reads. Beyond a barrier, all of the input is there: its frames are made
/// one by one like those of any other layer, in the next stage.
fn time(graph: &Graph, node: &Node, input: ValueId) -> TimeMap {
    let shape = graph.shape(input);
    match node.op.fold() {
        Fold::Barrier => TimeMap::identity(shape.dims.t),
        Fold::Frames | Fold::Sum | Fold::Recurrent => node.op.time(shape, graph.shape(node.output)),
    }
}

impl Segments {
    pub(super) fn new(graph: &Graph, cut: Cut, kind: Kind, kept: Keeping) -> Self {
        let frames = graph.shape(Graph::SOURCE).dims.t;
        let length = cut.segment.clamp(1, frames.max(1));
        let count = frames.div_ceil(length).max(1);
        let values = graph.values.len();
        let alone = kind == Kind::Stream || (cut.cutting == Cutting::Truncated && kind == Kind::Training);
        let staged = count > 1 && !alone;
        let predicts = kind != Kind::Training;

        let mut whole = vec![false; values];
        let mut stage = vec![0; values];
        let mut barrier = vec![false; graph.nodes.len()];
        let mut sums = vec![false; graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            let of_whole = node.inputs.iter().any(|v| whole[v.0]);
            let sums_segments = node.op.fold() == Fold::Sum && !(alone && matches!(node.op, Op::NormMean(_)));
            sums[index] = sums_segments && !of_whole;
            // Moving statistics are known before the first frame.
            let known = predicts && matches!(node.op, Op::BatchNorm(_));
            barrier[index] = node.op.fold() == Fold::Barrier && !known;
            whole[node.output.0] = of_whole || sums[index];
            let before = node.inputs.iter().map(|v| stage[v.0]).max().unwrap_or(0);
            stage[node.output.0] = before + usize::from(staged && barrier[index] && !of_whole);
        }
        let stages = 1 + stage.iter().copied().max().unwrap_or(0);
        for value in 0..values {
            if whole[value] {
                stage[value] = stages - 1;
            }
        }

        let mut made = vec![vec![0; values]];
        for segment in 1..=count {
            let mut now = vec![0; values];
            now[Graph::SOURCE.0] = (segment * length).min(frames);
            for node in &graph.nodes {
                // Nothing of a stream tells that it ends, before it does.
                let goes_on = kind == Kind::Stream && segment < count;
                let emit = |v: &ValueId| {
                    let time = time(graph, node, *v);
                    if goes_on { time.emit_going_on(now[v.0]) } else { time.emit(now[v.0]) }
                };
                now[node.output.0] = node.inputs.iter().map(emit).min().unwrap_or(0);
            }
            made.push(now);
        }

        let mut this = Self {
            count,
            stages,
            alone,
            root: (0..values).map(ValueId).collect(),
            shared: vec![None; graph.nodes.len()],
            whole,
            stage,
            barrier,
            sums,
            kept: vec![false; values],
            filed: vec![kept == Keeping::File; values],
            gradient_kept: vec![false; values],
            gradient_filed: vec![false; values],
            made,
            low: Vec::new(),
            hulls: Vec::new(),
            extents: Vec::new(),
        };
        this.share(graph, predicts);
        this.keep(graph, kind, kept);
        this.read_back(graph);
        this.extents = (0..values).map(|v| this.extents_of(graph, ValueId(v))).collect();
        this
    }

    fn extents_of(&self, graph: &Graph, value: ValueId) -> Extents {
        let root = self.root[value.0];
        let segments = || 0..self.count;
        let present = (0..self.stages)
            .flat_map(|stage| segments().map(move |s| (stage, s)))
            .map(|(stage, s)| self.present(root, stage, s).len())
            .max();
        let gradient_present = segments().map(|s| self.gradient_present(root, s).len()).max();
        let held = segments().map(|s| self.held(root, s).len()).max();
        let readers = |id: &NodeId| {
            let inputs = graph.node(*id).inputs.iter().enumerate();
            inputs.filter(|(at, v)| self.root[v.0] == root && self.shared[id.0] != Some(*at)).count()
        };
        let idle = |id: &NodeId| {
            let output = graph.node(*id).output;
            segments().any(|s| !self.made(root, s).is_empty() && self.made(output, s).is_empty())
        };
        Extents {
            present: present.unwrap_or(0),
            gradient_present: gradient_present.unwrap_or(0),
            held: if self.lasts(root) || self.filed(root) { 0 } else { held.unwrap_or(0) },
            unread: graph.node_ids().any(|id| readers(&id) > 0 && !self.sums[id.0] && idle(&id)),
            readers: graph.node_ids().map(|id| readers(&id)).sum(),
        }
    }

    /// Which outputs lie in their input's bytes.
    fn share(&mut self, graph: &Graph, predicts: bool) {
        let readers = |v: ValueId| graph.nodes.iter().flat_map(|n| &n.inputs).filter(|&&i| i == v).count();
        // For each value, whether nothing else reads the bytes that it lies in.
        let mut sole: Vec<bool> = (0..graph.values.len()).map(|v| readers(ValueId(v)) == 1).collect();
        // For each value, whether a backward still reads the bytes that it lies in, or the next frame does. The
        // source's held frames are normalised anew.
        let mut read_later = vec![true; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            read_later[node.output.0] = node.op.backward_reads().output;
            let views = match node.op {
                Op::Flatten(_) => true,
                Op::Dropout(_) => predicts,
                _ => false,
            };
            let overwrites = node.op.in_place() || matches!(node.op, Op::Add(_));
            let candidate = node.inputs.iter().position(|&input| {
                let alike = (0..self.made.len()).all(|s| self.made[s][input.0] == self.made[s][node.output.0])
                    && self.whole[input.0] == self.whole[node.output.0]
                    && self.stage[input.0] == self.stage[node.output.0];
                views || (overwrites && !read_later[input.0] && sole[input.0] && alike)
            });
            let Some(input) = candidate else { continue };
            self.shared[index] = Some(input);
            self.root[node.output.0] = self.root[node.inputs[input].0];
            sole[node.output.0] &= sole[node.inputs[input].0];
            read_later[node.output.0] |= read_later[node.inputs[input].0];
        }
    }

    /// Which values and gradients are held for the whole clip.
    fn keep(&mut self, graph: &Graph, kind: Kind, kept: Keeping) {
        if kind != Kind::Stream {
            let output = self.root[graph.output.0];
            self.kept[output.0] = true;
            self.gradient_kept[output.0] = true;
            self.filed[output.0] = false;
        }
        if self.alone {
            return;
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let output = self.root[node.output.0];
            let home = self.home(graph, NodeId(index));
            if self.stands_between(graph, NodeId(index)) {
                let filed = kept == Keeping::File && output != self.root[graph.output.0];
                self.gradient_filed[output.0] = filed;
                self.gradient_kept[output.0] |= !filed;
            }
            for &input in &node.inputs {
                let root = self.root[input.0];
                // The source is normalised anew.
                if root == Graph::SOURCE
                    || self.whole[input.0]
                    || self.shared[index].is_some_and(|i| node.inputs[i] == input)
                {
                    continue;
                }
                let gathered = self.whole[node.output.0] && !self.sums[index];
                if home > self.stage[input.0] || gathered {
                    self.kept[root.0] = true;
                    self.filed[root.0] &= !gathered;
                    self.gradient_kept[root.0] |= !self.stands_between(graph, NodeId(index));
                }
            }
        }
    }

    /// From which frame on each value is still read.
    fn read_back(&mut self, graph: &Graph) {
        self.low.push(vec![0; graph.values.len()]);
        for segment in 1..=self.count {
            let now = &self.made[segment];
            let mut needed = now.clone();
            for (index, node) in graph.nodes.iter().enumerate() {
                let home = self.home(graph, NodeId(index));
                for (at, &input) in node.inputs.iter().enumerate() {
                    if self.shared[index] == Some(at) || self.sums[index] || home != self.stage[input.0] {
                        continue;
                    }
                    let from = &mut needed[self.root[input.0].0];
                    *from = (*from).min(time(graph, node, input).keep(now[node.output.0]));
                }
            }
            self.low.push(needed);
        }
        for value in 0..graph.values.len() {
            let held = (1..self.count).any(|s| self.low[s][value] < self.made[s][value]);
            self.gradient_kept[value] |= self.kept[value] && held;
        }
        for value in 0..graph.values.len() {
            self.filed[value] &= self.kept[value] && !self.whole[value];
            // A gradient that later stages add to is in memory, whatever is in the file.
            self.gradient_filed[value] &= !self.gradient_kept[value] && !self.whole[value];
        }
        self.hulls =
            (0..self.stages).map(|stage| (0..self.count).map(|s| self.hulls_of(graph, stage, s)).collect()).collect();
    }

    /// The frames of the source, and of values in the file, that a segment of a stage reads.
    fn hulls_of(&self, graph: &Graph, stage: usize, s: usize) -> HashMap<ValueId, Window> {
        let mut hulls = HashMap::new();
        let elsewhere = |root: ValueId| root == Graph::SOURCE || self.filed[root.0];
        for root in (0..graph.values.len()).map(ValueId).filter(|&v| elsewhere(v) && self.root[v.0] == v) {
            if self.stage[root.0] == stage {
                hulls.insert(root, Window { lo: self.low[s][root.0], hi: self.made[s + 1][root.0] });
            }
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            let late = self.whole[node.output.0] && !self.sums[id.0];
            let home = self.home(graph, id) == stage;
            // The gradient of a barrier's input is made in the stage of that input, frame by frame.
            if !home || (late && s + 1 < self.count) {
                continue;
            }
            for (at, &input) in node.inputs.iter().enumerate() {
                let (root, reads) = (self.root[input.0], self.reads(graph, id, at, s));
                if elsewhere(root) && self.stage[root.0] != stage && !reads.is_empty()
                    || root == Graph::SOURCE && !reads.is_empty()
                {
                    let hull = hulls.entry(root).or_insert(reads);
                    *hull = if hull.is_empty() {
                        reads
                    } else {
                        Window { lo: hull.lo.min(reads.lo), hi: hull.hi.max(reads.hi) }
                    };
                }
            }
        }
        hulls
    }

    /// Whether a node's output belongs to another stage than its input: its backward is in two parts.
    pub(super) fn stands_between(&self, graph: &Graph, id: NodeId) -> bool {
        let node = graph.node(id);
        self.barrier[id.0] && self.stage[node.input().0] != self.stage[node.output.0]
    }

    /// Whether a node needs all of its input before it makes any output.
    pub(super) fn is_barrier(&self, id: NodeId) -> bool {
        self.barrier[id.0]
    }

    /// Whether a node takes its share of every segment and makes its output when the clip is over.
    pub(super) fn sums(&self, id: NodeId) -> bool {
        self.sums[id.0]
    }

    /// The stage in which a value is made.
    pub(super) fn stage_of(&self, value: ValueId) -> usize {
        self.stage[value.0]
    }

    /// The stage in which a node runs forward.
    pub(super) fn home(&self, graph: &Graph, id: NodeId) -> usize {
        let node = graph.node(id);
        if self.sums[id.0] {
            return node.inputs.iter().map(|v| self.stage[v.0]).max().unwrap_or(0);
        }
        self.stage[node.output.0]
    }

    /// Whether a value needs no making in a stage: it was made before, and all of it is there.
    pub(super) fn is_there(&self, graph: &Graph, value: ValueId, stage: usize, first: bool) -> bool {
        let root = self.root[value.0];
        let made_in = self.stage[root.0];
        self.kept[root.0] && root != self.root[graph.output.0] && !self.alone && (made_in < stage || !first)
    }

    /// Whether a value is made, the first time its stage is gone through, for stages or layers to come.
    pub(super) fn is_kept(&self, graph: &Graph, value: ValueId) -> bool {
        let root = self.root[value.0];
        self.kept[root.0] && root != self.root[graph.output.0] && !self.alone
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

    /// Frames of a value that lie in its buffer during segment `s` of a stage: those held, and those made.
    pub(super) fn present(&self, value: ValueId, stage: usize, s: usize) -> Window {
        let root = self.root[value.0];
        if root == Graph::SOURCE || self.filed[root.0] {
            return self.hulls[stage][s].get(&root).copied().unwrap_or(Window { lo: 0, hi: 0 });
        }
        self.windowed(root, self.lasts(root), s)
    }

    /// The same of its gradient.
    pub(super) fn gradient_present(&self, value: ValueId, s: usize) -> Window {
        let root = self.root[value.0];
        self.windowed(root, self.gradient_lasts(root), s)
    }

    fn windowed(&self, root: ValueId, lasts: bool, s: usize) -> Window {
        if lasts {
            return Window::whole(self.made[self.count][root.0]);
        }
        Window { lo: self.low[s][root.0], hi: self.made[s + 1][root.0] }
    }

    /// Whether a value's buffer holds every frame from the first on.
    pub(super) fn lasts(&self, value: ValueId) -> bool {
        let root = self.root[value.0];
        self.whole[root.0] || (self.kept[root.0] && !self.filed[root.0])
    }

    /// Whether what is kept of a value lies in a file.
    pub(super) fn filed(&self, value: ValueId) -> bool {
        self.filed[self.root[value.0].0]
    }

    /// Whether a value's gradient lies in a file until the stage before is reversed.
    pub(super) fn gradient_filed(&self, value: ValueId) -> bool {
        self.gradient_filed[self.root[value.0].0]
    }

    /// Whether the buffer of its gradient does.
    pub(super) fn gradient_lasts(&self, value: ValueId) -> bool {
        let root = self.root[value.0];
        self.whole[root.0] || self.gradient_kept[root.0]
    }

    /// The last frame that a recurrent layer has made at the boundary before segment `s`.
    pub(super) fn last_made(&self, value: ValueId, s: usize) -> Window {
        let hi = self.made[s][value.0];
        Window { lo: hi.saturating_sub(1), hi }
    }

    /// The most frames that lie in a value's buffer at once.
    pub(super) fn most_present(&self, value: ValueId) -> usize {
        self.extents[value.0].present
    }

    /// The same of its gradient.
    pub(super) fn most_gradient_present(&self, value: ValueId) -> usize {
        self.extents[value.0].gradient_present
    }

    /// The most frames of a value held at a boundary.
    pub(super) fn most_held(&self, value: ValueId) -> usize {
        self.extents[value.0].held
    }

    /// Whether there is a segment that makes frames of a value which a reader makes nothing of.
    pub(super) fn unread(&self, value: ValueId) -> bool {
        self.extents[value.0].unread
    }

    /// How many times the bytes of a value are read, by layers that do not write there.
    pub(super) fn readers(&self, value: ValueId) -> usize {
        self.extents[value.0].readers
    }

    /// Frames of one of its inputs that a node reads in segment `s`.
    pub(super) fn reads(&self, graph: &Graph, id: NodeId, input: usize, s: usize) -> Window {
        let node = graph.node(id);
        let value = node.inputs[input];
        let all = Window::whole(graph.shape(value).dims.t);
        if self.sums[id.0] {
            return if self.whole[value.0] { all } else { self.made(value, s) };
        }
        if self.whole[node.output.0] {
            return all;
        }
        let made = self.made(node.output, s);
        if matches!(node.op, Op::Reverse(_)) {
            return Window { lo: all.hi - made.hi, hi: all.hi - made.lo };
        }
        let reads = time(graph, node, value).reads(made);
        if reads.is_empty() {
            // Outputs of nothing but padding.
            let lo = self.windowed(self.root[value.0], self.lasts(value), s).lo;
            return Window { lo, hi: lo };
        }
        reads
    }
}
