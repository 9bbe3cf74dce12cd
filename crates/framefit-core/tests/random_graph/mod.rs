//! Random graphs of all ops, with branches, for tests of this crate and of those above it.

use framefit_core::axes::Order;
use framefit_core::ops::{
    Activation, AdaptivePool3d, Add, AvgPool3d, BatchNorm, Cell, Concat, Conv3d, ConvLayout, Dense, Dropout,
    DropoutUnit, Flatten, Function, GateFunction, GlobalAvgPool3d, GroupNorm, LastFrame, LayerNorm, LayerNormOver,
    Linear, LinearLayout, MaxPool3d, Momentum, NormLayout, NormMean, PoolKind, Recurrent, RecurrentLayout, Relu,
    Reverse, StateFunction, Statistics,
};
use framefit_core::{Dims3, Graph, GraphBuilder, Op, Origin, Shape, ShapeError, ValueId};

pub const CLASSES: usize = 3;

/// Draws of a linear congruential generator (Knuth's MMIX).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A graph, and what comparisons have to know of it.
#[allow(dead_code, reason = "each test reads what its comparisons depend on")]
pub struct Made {
    pub graph: Graph,
    /// Batch statistics depend on which clips go together.
    pub batch_statistics: bool,
}

fn conv(random: &mut Random, shape: &Shape) -> Op {
    let kernel = Dims3 {
        t: if shape.dims.t >= 3 { 1 + 2 * random.below(2) } else { 1 },
        h: if shape.dims.h >= 3 { 1 + random.below(3) } else { 1 },
        w: 1,
    };
    let groups = if random.below(4) == 0 { shape.channels } else { 1 };
    let padding = Dims3 { t: random.below(kernel.t + 1), h: kernel.h / 2, w: 0 };
    Op::Conv3d(Conv3d {
        in_channels: shape.channels,
        out_channels: groups * (1 + random.below(3)),
        kernel,
        stride: Dims3 { t: 1 + random.below(2), h: 1 + random.below(2), w: 1 },
        padding,
        padding_end: if random.coin() { padding } else { Dims3 { t: random.below(kernel.t + 1), ..padding } },
        dilation: Dims3 { t: if kernel.t == 3 && shape.dims.t > 5 { 1 + random.below(2) } else { 1 }, h: 1, w: 1 },
        groups,
        bias: random.coin(),
        layout: if groups == 1 && random.coin() { ConvLayout::KerasConv3d } else { ConvLayout::Conv3d },
    })
}

/// A convolution that keeps all extents, for branches that meet again.
fn same(random: &mut Random, shape: &Shape, channels: usize) -> Op {
    let kernel = Dims3 { t: 1 + 2 * random.below(2), h: 1 + 2 * random.below(2), w: 1 };
    Op::Conv3d(Conv3d::same(shape.channels, channels, kernel))
}

fn pool(random: &mut Random, shape: &Shape) -> Op {
    let t = (2 + random.below(2)).min(shape.dims.t);
    let kernel = Dims3 { t, h: 2.min(shape.dims.h), w: 1 };
    let stride = Dims3 { t: 1 + random.below(3), h: kernel.h, w: 1 };
    let padding = Dims3 { t: random.below(t / 2 + 1), h: 0, w: 0 };
    let ceil_mode = random.coin();
    if random.coin() {
        return Op::MaxPool3d(MaxPool3d { kernel, stride, padding, ceil_mode });
    }
    Op::AvgPool3d(AvgPool3d { kernel, stride, padding, ceil_mode, count_include_pad: random.coin() })
}

fn adaptive(random: &mut Random, shape: &Shape, whole_clip: bool) -> Op {
    let extent = |random: &mut Random, of: usize| (!random.coin()).then(|| 1 + random.below(of));
    let frames = extent(random, shape.dims.t).filter(|_| whole_clip);
    let output = [frames, extent(random, shape.dims.h), None];
    let kind = if random.coin() { PoolKind::Average } else { PoolKind::Maximum };
    Op::AdaptivePool3d(AdaptivePool3d { output, kind })
}

fn recurrent(random: &mut Random, shape: &Shape) -> Op {
    let cell = [Cell::Lstm, Cell::GruResetAfter, Cell::GruResetBefore][random.below(3)];
    let activation = if random.below(4) == 0 { StateFunction::Relu } else { StateFunction::Tanh };
    let recurrent_activation = if random.coin() { GateFunction::Sigmoid } else { GateFunction::HardSigmoid };
    let (filters, bias) = (1 + random.below(3), random.coin());
    let unit_forget_bias = cell == Cell::Lstm;
    let recurrent_dropout = if random.below(4) == 0 { 0.3 } else { 0.0 };
    if shape.dims.h * shape.dims.w == 1 && random.coin() {
        let layout = match cell {
            Cell::GruResetBefore => RecurrentLayout::Keras,
            _ if random.coin() => RecurrentLayout::PyTorch { layer: 0, reverse: false },
            _ => RecurrentLayout::Keras,
        };
        let plain = Recurrent::features(cell, shape.channels, filters, layout);
        return Op::Recurrent(Recurrent {
            activation,
            recurrent_activation,
            bias,
            unit_forget_bias,
            recurrent_dropout,
            ..plain
        });
    }
    let stride = Dims3 { t: 1, h: 1 + random.below(2), w: 1 };
    Op::Recurrent(Recurrent {
        cell,
        in_channels: shape.channels,
        filters,
        kernel: Dims3 { t: 1, h: 2 + random.below(2), w: 1 },
        stride,
        padding: Dims3 { t: 0, h: 1, w: 0 },
        padding_end: Dims3 { t: 0, h: random.below(2), w: 0 },
        dilation: Dims3::cube(1),
        activation,
        recurrent_activation,
        bias,
        unit_forget_bias,
        recurrent_dropout,
        layout: if cell == Cell::Lstm { RecurrentLayout::KerasConvLstm2d } else { RecurrentLayout::ConvCell },
    })
}

fn function(random: &mut Random) -> Function {
    let all = [
        Function::Tanh,
        Function::Sigmoid,
        Function::Silu,
        Function::GeluTanh,
        Function::Elu { alpha: 0.7 },
        Function::LeakyRelu { slope: 0.1 },
        Function::Softplus,
    ];
    all[random.below(all.len())]
}

fn norm(random: &mut Random, shape: &Shape) -> Op {
    let layout = if random.coin() { NormLayout::PyTorch } else { NormLayout::Keras };
    let (scale, center) = (random.below(4) > 0, random.below(4) > 0);
    match random.below(3) {
        0 => {
            let over = if random.coin() { LayerNormOver::Channels } else { LayerNormOver::Frame };
            Op::LayerNorm(LayerNorm { over, epsilon: 1e-2, scale, center: scale && center, layout })
        }
        1 => Op::GroupNorm(GroupNorm {
            groups: if shape.channels.is_multiple_of(2) { 2 } else { 1 },
            epsilon: 1e-2,
            affine: random.coin(),
            per_frame: true,
        }),
        _ => Op::BatchNorm(BatchNorm {
            epsilon: 1e-2,
            momentum: Momentum::Keras(0.9),
            statistics: Statistics::Moving,
            scale: true,
            center: true,
            trained: random.coin(),
            layout,
        }),
    }
}

/// Ops that need the whole clip before they make anything.
fn barrier(random: &mut Random, shape: &Shape) -> Op {
    let layout = if random.coin() { NormLayout::PyTorch } else { NormLayout::Keras };
    match random.below(4) {
        0 => Op::Reverse(Reverse),
        1 => Op::GroupNorm(GroupNorm {
            groups: if random.coin() { shape.channels } else { 1 },
            epsilon: 1e-2,
            affine: random.coin(),
            per_frame: false,
        }),
        _ => Op::BatchNorm(BatchNorm {
            epsilon: 1e-2,
            momentum: if layout == NormLayout::Keras { Momentum::Keras(0.9) } else { Momentum::PyTorch(0.1) },
            statistics: Statistics::Batch,
            scale: random.coin(),
            center: random.coin(),
            trained: true,
            layout,
        }),
    }
}

fn dropout(random: &mut Random) -> Op {
    let units =
        [DropoutUnit::Element, DropoutUnit::Channel, DropoutUnit::ClipChannel, DropoutUnit::ElementOfEveryFrame];
    Op::Dropout(Dropout { p: 0.3, unit: units[random.below(units.len())] })
}

/// What a graph may have.
#[derive(Clone, Copy)]
pub struct Allowed {
    /// Ops that need the whole clip, and labels of clips.
    pub whole_clip: bool,
    /// max, ReLU and the like.
    pub kinks: bool,
}

struct Maker<'a> {
    random: &'a mut Random,
    b: GraphBuilder,
    named: usize,
    batch_statistics: bool,
    allowed: Allowed,
}

impl Maker<'_> {
    fn add(&mut self, inputs: &[ValueId], op: Op) -> Result<ValueId, ShapeError> {
        self.named += 1;
        let batch =
            matches!(&op, Op::NormMean(_)) || matches!(&op, Op::BatchNorm(op) if op.statistics == Statistics::Batch);
        let kinked = matches!(&op, Op::Relu(_) | Op::MaxPool3d(_))
            || matches!(&op, Op::Activation(a) if matches!(a.function, Function::LeakyRelu { .. }))
            || matches!(&op, Op::AdaptivePool3d(a) if a.kind == PoolKind::Maximum)
            || matches!(&op, Op::Recurrent(r) if r.activation == StateFunction::Relu
                || r.recurrent_activation != GateFunction::Sigmoid);
        if kinked && !self.allowed.kinks {
            return Ok(self.b.last());
        }
        let added = self.b.layer_on(inputs, &format!("layer{}", self.named), op, &Origin::BuiltIn)?;
        self.batch_statistics |= batch;
        Ok(added)
    }

    /// A layer that a draw gives; a draw that does not fit is passed over.
    fn draw(&mut self) {
        let last = self.b.last();
        let shape = *self.b.shape();
        let op = match self.random.below(13) {
            0 => Op::Relu(Relu),
            1 => pool(self.random, &shape),
            2 | 3 => recurrent(self.random, &shape),
            4 => Op::Dense(Dense {
                in_channels: shape.channels,
                units: 1 + self.random.below(3),
                bias: self.random.coin(),
                layout: if self.random.coin() { LinearLayout::PyTorch } else { LinearLayout::Keras },
            }),
            5 => Op::Activation(Activation { function: function(self.random) }),
            6 => norm(self.random, &shape),
            7 => dropout(self.random),
            8 if self.allowed.whole_clip => barrier(self.random, &shape),
            9 => adaptive(self.random, &shape, self.allowed.whole_clip),
            10 | 11 => return self.branches(last, &shape),
            _ => conv(self.random, &shape),
        };
        let _ = self.add(&[last], op);
    }

    /// A few layers side by side, and their sum or all of their channels.
    fn branches(&mut self, from: ValueId, shape: &Shape) {
        let channels = if self.random.coin() { shape.channels } else { 1 + self.random.below(3) };
        let mut ends = Vec::new();
        if channels == shape.channels && self.random.coin() {
            ends.push(from);
        }
        for _ in 0..2 {
            let op = same(self.random, shape, channels);
            let Ok(mut end) = self.add(&[from], op) else { return };
            for _ in 0..self.random.below(3) {
                let shape = *self.b.shape_of(end);
                let op = match self.random.below(4) {
                    0 if self.allowed.whole_clip => barrier(self.random, &shape),
                    1 => Op::Activation(Activation { function: function(self.random) }),
                    2 => Op::Relu(Relu),
                    _ => same(self.random, &shape, channels),
                };
                if let Ok(next) = self.add(&[end], op) {
                    // A layer passed over gives what was last made, which may be of another branch.
                    if next.0 > end.0 {
                        end = next;
                    }
                }
            }
            ends.push(end);
        }
        let op = if self.random.coin() { Op::Add(Add) } else { Op::Concat(Concat) };
        let joined = self.add(&ends, op);
        assert!(joined.is_ok(), "{joined:?}");
    }
}

pub fn random_graph(random: &mut Random, allowed: Allowed) -> Made {
    let dims = Dims3 { t: 3 + random.below(10), h: 2 + random.below(5), w: 1 + random.below(2) };
    let b = GraphBuilder::new(Shape::video(dims, 1 + random.below(2)));
    let mut maker = Maker { random, b, named: 0, batch_statistics: false, allowed };
    for _ in 0..1 + maker.random.below(6) {
        maker.draw();
    }
    let per_clip = allowed.whole_clip && maker.random.coin();
    let norm_mean = maker.random.below(4) == 0;
    if norm_mean {
        let last = maker.b.last();
        maker.add(&[last], Op::NormMean(NormMean { epsilon: 1e-2, momentum: 0.9 })).unwrap();
    }
    if per_clip {
        head_of_clips(&mut maker)
    } else {
        head_of_frames(&mut maker)
    }
    let batch_statistics = maker.batch_statistics;
    Made { graph: maker.b.finish().unwrap(), batch_statistics }
}

fn head_of_frames(maker: &mut Maker<'_>) {
    let order = if maker.random.coin() { Order::PyTorch } else { Order::Keras };
    let last = maker.b.last();
    let mut last = maker.add(&[last], Op::Flatten(Flatten { per_frame: true, order })).unwrap();
    if maker.random.coin() {
        let features = maker.b.shape_of(last).per_frame();
        let layout = RecurrentLayout::PyTorch { layer: 0, reverse: false };
        let lstm = Recurrent::features(Cell::Lstm, features, 2, layout);
        last = maker.add(&[last], Op::Recurrent(lstm)).unwrap();
        if maker.allowed.whole_clip && maker.random.coin() {
            last = maker.add(&[last], Op::LastFrame(LastFrame)).unwrap();
        }
    }
    let in_channels = maker.b.shape_of(last).per_frame();
    let layout = if maker.random.coin() { LinearLayout::PyTorch } else { LinearLayout::Keras };
    maker.add(&[last], Op::Dense(Dense { in_channels, units: CLASSES, bias: true, layout })).unwrap();
}

fn head_of_clips(maker: &mut Maker<'_>) {
    let mut last = maker.b.last();
    if maker.random.coin() {
        last = maker.add(&[last], Op::GlobalAvgPool3d(GlobalAvgPool3d)).unwrap();
    }
    let order = if maker.random.coin() { Order::PyTorch } else { Order::Keras };
    last = maker.add(&[last], Op::Flatten(Flatten { per_frame: false, order })).unwrap();
    let layout = match order {
        Order::PyTorch => LinearLayout::PyTorch,
        Order::Keras => LinearLayout::Keras,
    };
    if maker.random.coin() {
        let in_features = maker.b.shape_of(last).per_clip();
        let linear = Linear { in_features, out_features: 4, bias: true, layout };
        last = maker.add(&[last], Op::Linear(linear)).unwrap();
        last = maker.add(&[last], Op::Activation(Activation { function: Function::Tanh })).unwrap();
    }
    let in_features = maker.b.shape_of(last).per_clip();
    let bias = maker.random.coin();
    maker.add(&[last], Op::Linear(Linear { in_features, out_features: CLASSES, bias, layout })).unwrap();
}
