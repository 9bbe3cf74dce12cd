//! Once a schedule has been run, running it again allocates nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::axes::Order;
use framefit::core::ledger::Fixed;
use framefit::core::ops::{
    Activation, AdaptivePool3d, Add, AvgPool3d, BatchNorm, Concat, Conv3d, Dense, Dropout, DropoutUnit, Flatten,
    Function, GroupNorm, LastFrame, LayerNorm, LayerNormOver, LinearLayout, MaxPool3d, Momentum, NormLayout, NormMean,
    PoolKind, Relu, Reverse, Statistics,
};
use framefit::core::plan::{Plan, Request};
use framefit::core::schedule::Keeping;
use framefit::core::{DType, Dims3, Graph, GraphBuilder, Op, Origin, Shape};
use framefit::engine::{Engine, Kernels, Loss, LossKind, Normalisation};
use framefit::kernels::optimizer::AdamStep;
use framefit::models::{self, Family, ModelSpec};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn step(engine: &mut Engine<f32>) {
    engine.begin_step().unwrap();
    for clips in [2, 2, 1] {
        let slots = engine.training_slots(clips).unwrap();
        slots.frames.fill(77);
        slots.labels.fill(1);
        engine.accumulate(clips, 0.2).unwrap();
    }
    engine.update(AdamStep { step: 1, ..AdamStep::DEFAULT }).unwrap();
    let slots = engine.evaluation_slots(2).unwrap();
    slots.labels.fill(0);
    engine.evaluate(2).unwrap();
}

#[test]
fn steps_allocate_nothing() {
    for family in Family::ALL {
        let spec = ModelSpec {
            widths: vec![8, 16],
            filters: 3,
            hidden: 32,
            frames: 8,
            height: 20,
            width: 18,
            channels: 3,
            classes: 4,
            ..ModelSpec::of(family)
        };
        check(family.name(), &spec.build().unwrap(), Loss::default());
    }
    check("norms", &norms(), Loss { kind: LossKind::Softmax, smoothing: 0.1 });
    check("branches", &branches(), Loss { kind: LossKind::Binary, smoothing: 0.1 });
}

/// A graph with the other layers, branches among them.
fn branches() -> Graph {
    let mut b = GraphBuilder::new(Shape::video(Dims3 { t: 9, h: 6, w: 5 }, 3));
    let mut layer = |name: &str, op: Op| b.layer(name, op, &Origin::BuiltIn).unwrap();
    layer("conv1", Op::Conv3d(Conv3d::same(3, 4, Dims3::cube(3))));
    layer("silu", Op::Activation(Activation { function: Function::Silu }));
    let pool = MaxPool3d { ceil_mode: true, ..MaxPool3d::tiles(Dims3 { t: 1, h: 2, w: 2 }) };
    layer("pool", Op::MaxPool3d(pool));
    let from = b.last();
    let mut on = |inputs: &[_], name: &str, op: Op| b.layer_on(inputs, name, op, &Origin::BuiltIn).unwrap();
    let one = on(&[from], "one", Op::Conv3d(Conv3d::same(4, 4, Dims3::cube(1))));
    let one = on(&[one], "tanh", Op::Activation(Activation { function: Function::Tanh }));
    let sum = on(&[from, one], "sum", Op::Add(Add));
    let other = on(&[from], "other", Op::Conv3d(Conv3d::same(4, 2, Dims3::cube(3))));
    on(&[sum, other], "all", Op::Concat(Concat));
    let mut layer = |name: &str, op: Op| b.layer(name, op, &Origin::BuiltIn).unwrap();
    layer("groups", Op::GroupNorm(GroupNorm { groups: 3, epsilon: 1e-5, affine: true, per_frame: true }));
    layer("average", Op::AvgPool3d(AvgPool3d::tiles(Dims3 { t: 1, h: 1, w: 2 })));
    let output = [None, Some(2), None];
    layer("adaptive", Op::AdaptivePool3d(AdaptivePool3d { output, kind: PoolKind::Average }));
    let over = LayerNormOver::Frame;
    layer(
        "frames",
        Op::LayerNorm(LayerNorm { over, epsilon: 1e-5, scale: true, center: true, layout: NormLayout::PyTorch }),
    );
    layer("drop", Op::Dropout(Dropout { p: 0.3, unit: DropoutUnit::Element }));
    layer("reverse", Op::Reverse(Reverse));
    layer("flatten", Op::Flatten(Flatten { per_frame: true, order: Order::PyTorch }));
    layer("last", Op::LastFrame(LastFrame));
    let in_channels = b.shape().per_frame();
    let dense = Dense { in_channels, units: 3, bias: true, layout: LinearLayout::Keras };
    b.layer("dense", Op::Dense(dense), &Origin::BuiltIn).unwrap();
    b.finish().unwrap()
}

/// A graph with norms of every kind.
fn norms() -> Graph {
    let mut b = GraphBuilder::new(Shape::video(Dims3 { t: 8, h: 6, w: 5 }, 3));
    let mut layer = |name: &str, op: Op| {
        b.layer(name, op, &Origin::BuiltIn).unwrap();
    };
    let batch = BatchNorm {
        epsilon: 1e-5,
        momentum: Momentum::PyTorchCumulative,
        statistics: Statistics::Batch,
        scale: true,
        center: true,
        trained: true,
        layout: NormLayout::PyTorch,
    };
    layer("conv1", Op::Conv3d(Conv3d::same(3, 4, Dims3::cube(3))));
    layer("batch1", Op::BatchNorm(batch.clone()));
    layer("relu1", Op::Relu(Relu));
    layer("conv2", Op::Conv3d(Conv3d::same(4, 4, Dims3::cube(3))));
    layer("frozen", Op::BatchNorm(BatchNorm { statistics: Statistics::Moving, trained: false, ..batch }));
    layer("groups", Op::GroupNorm(GroupNorm { groups: 2, epsilon: 1e-5, affine: true, per_frame: false }));
    layer("mean", Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.9 }));
    b.finish().unwrap()
}

fn check(name: &str, graph: &Graph, loss: Loss) {
    let kernels = Kernels { threads: 3, ..Kernels::best() };
    let request = Request {
        graph,
        dtype: DType::F32,
        batch: 5,
        training: true,
        cut: None,
        keeping: Keeping::Memory,
        workspaces: &kernels,
        fixed: &no_fixed,
    };
    let plan = Plan::with_micro_batch(&request, 2);
    let mut engine = Engine::new(graph.clone(), plan, kernels, &Normalisation::uniform(0.5, 0.5, 3)).unwrap();
    models::initialise(&mut engine, 0).unwrap();
    engine.set_loss(loss);
    step(&mut engine);
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    step(&mut engine);
    assert_eq!(ALLOCATOR.peak_usage(), before, "{name}");
}
