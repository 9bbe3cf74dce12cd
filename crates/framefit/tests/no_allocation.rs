//! Once a schedule has been run, running it again allocates nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit::core::ledger::Fixed;
use framefit::core::plan::{Plan, Request};
use framefit::core::{DType, Dims3};
use framefit::engine::{Engine, Kernels, Normalisation};
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
            family,
            widths: vec![8, 16],
            filters: 3,
            kernel: Dims3::cube(3),
            pool: Dims3::cube(2),
            hidden: 32,
            frames: 8,
            height: 20,
            width: 18,
            channels: 3,
            classes: 4,
        };
        let graph = spec.build().unwrap();
        let kernels = Kernels { threads: 3, ..Kernels::best() };
        let request = Request {
            graph: &graph,
            dtype: DType::F32,
            batch: 5,
            training: true,
            cut: None,
            workspaces: &kernels,
            fixed: &no_fixed,
        };
        let plan = Plan::with_micro_batch(&request, 2);
        let mut engine = Engine::new(graph.clone(), plan, kernels, &Normalisation::uniform(0.5, 0.5, 3)).unwrap();
        models::initialise(&mut engine, 0).unwrap();
        step(&mut engine);
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        step(&mut engine);
        assert_eq!(ALLOCATOR.peak_usage(), before, "{family}");
    }
}
