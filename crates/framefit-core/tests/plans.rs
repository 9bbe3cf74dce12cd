//! Plans of built graphs: sound by the independent checker, within their bounds, and refused when broken.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use framefit_core::checker::{Fault, check};
use framefit_core::ledger::{Fixed, Purpose};
use framefit_core::ops::{
    Conv3d, ConvLstm2d, Dense, Flatten, GateFunction, GlobalAvgPool3d, Linear, MaxPool3d, NormMean, Relu, StateFunction,
};
use framefit_core::plan::{Plan, Request};
use framefit_core::schedule::{Action, Cut, KernelRequest, Mode, ProgramId, Role, Schedule, Step, What, Workspaces};
use framefit_core::{Bytes, DType, Dims3, Graph, GraphBuilder, Op, Origin, Shape};

/// Scratch that grows with the clips, so that plans of different sizes differ.
struct Scratch(usize);

impl Workspaces for Scratch {
    fn bytes(&self, request: &KernelRequest<'_>) -> usize {
        match request.op {
            Op::Conv3d(_) => self.0 * request.clips,
            Op::ConvLstm2d(_) => 7 * self.0 * request.made.len(),
            Op::MaxPool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Flatten(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::NormMean(_) => 0,
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

fn random_graph(random: &mut Random) -> Graph {
    let at = Origin::BuiltIn;
    let dims = Dims3 { t: 1 + random.below(12), h: 1 + random.below(12), w: 1 + random.below(12) };
    let mut b = GraphBuilder::new(Shape::video(dims, 1 + random.below(4)));
    for i in 0..random.below(7) {
        let shape = *b.shape();
        let op = match random.below(6) {
            0 => Op::Relu(Relu),
            2 => Op::ConvLstm2d(ConvLstm2d {
                in_channels: shape.channels,
                filters: 1 + random.below(4),
                kernel: Dims3 { t: 1, h: 3, w: 3 },
                stride: Dims3::cube(1),
                padding: Dims3 { t: 0, h: 1, w: 1 },
                activation: StateFunction::Tanh,
                recurrent_activation: GateFunction::Sigmoid,
                bias: random.below(2) == 0,
                unit_forget_bias: true,
            }),
            3 => Op::Dense(Dense { in_channels: shape.channels, units: 1 + random.below(4), bias: true }),
            1 if shape.dims.t > 1 && shape.dims.h > 1 && shape.dims.w > 1 => {
                Op::MaxPool3d(MaxPool3d::tiles(Dims3::cube(2)))
            }
            _ => Op::Conv3d(Conv3d::same(shape.channels, 1 + random.below(5), Dims3::cube(3))),
        };
        b.layer(&format!("layer{i}"), op, &at).unwrap();
    }
    if random.below(3) == 0 {
        b.layer("norm", Op::NormMean(NormMean { epsilon: 1e-3, momentum: 0.99 }), &at).unwrap();
    }
    if random.below(3) == 0 {
        // A label per frame.
        let dense = Dense { in_channels: b.shape().channels, units: 3, bias: true };
        b.layer("dense", Op::Dense(dense), &at).unwrap();
        return b.finish().unwrap();
    }
    if random.below(2) == 0 {
        b.layer("mean", Op::GlobalAvgPool3d(GlobalAvgPool3d), &at).unwrap();
    }
    b.layer("flatten", Op::Flatten(Flatten), &at).unwrap();
    if random.below(2) == 0 {
        let in_features = b.shape().per_clip();
        b.layer("fc1", Op::Linear(Linear { in_features, out_features: 7, bias: random.below(2) == 0 }), &at).unwrap();
        b.layer("relu", Op::Relu(Relu), &at).unwrap();
    }
    let in_features = b.shape().per_clip();
    b.layer("fc2", Op::Linear(Linear { in_features, out_features: 3, bias: true }), &at).unwrap();
    b.finish().unwrap()
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn request<'a>(graph: &'a Graph, scratch: &'a Scratch, batch: usize) -> Request<'a> {
    Request { graph, dtype: DType::F32, batch, training: true, cut: None, workspaces: scratch, fixed: &no_fixed }
}

#[test]
fn random_plans_pass_the_independent_checker() {
    let mut random = Random(3);
    for trial in 0..400 {
        let graph = random_graph(&mut random);
        let scratch = Scratch(random.below(3000));
        let batch = 1 + random.below(5);
        let request = request(&graph, &scratch, batch);
        let plan = Plan::with_micro_batch(&request, batch);
        plan.check(&request).unwrap_or_else(|e| panic!("trial {trial}: {e}"));
        let outside = plan.ledger.total(Purpose::Runtime).0;
        assert_eq!((plan.ledger.peak.0 - outside) as usize, plan.arena, "the ledger adds up to the arena");
    }
}

/// The steps of a micro-batch as one program.
fn whole_micro(schedule: &mut Schedule) -> &mut Vec<Step> {
    let steps = schedule.micro_steps().cloned().collect();
    schedule.programs = vec![steps];
    schedule.micro = vec![ProgramId(0)];
    &mut schedule.programs[0]
}

#[test]
fn plans_of_any_cut_pass_the_independent_checker() {
    let mut random = Random(29);
    for trial in 0..400 {
        let graph = random_graph(&mut random);
        let scratch = Scratch(random.below(300));
        let request = request(&graph, &scratch, 2);
        let cut = Cut { segment: 1 + random.below(6), checkpoints: random.below(4) };
        let plan = Plan::with(&request, 2, cut);
        plan.check(&request).unwrap_or_else(|e| panic!("trial {trial}, {cut:?}: {e}"));
    }
}

#[test]
fn the_checker_finds_every_kind_of_break() {
    let mut random = Random(11);
    let (mut overlaps, mut missing) = (0, 0);
    for _ in 0..200 {
        let graph = random_graph(&mut random);
        let scratch = Scratch(512);
        let request = request(&graph, &scratch, 2);
        let plan = Plan::with_micro_batch(&request, 2);
        let good = plan.training_step().unwrap();

        // Any buffer moved onto one that is alive at the same time.
        let lifetimes = good.schedule.lifetimes();
        let a = random.below(lifetimes.len());
        let b = random.below(lifetimes.len());
        let (x, y) = (lifetimes[a], lifetimes[b]);
        if a != b && x.bytes > 0 && y.bytes > 0 && x.first <= y.last && y.first <= x.last {
            let mut offsets = good.offsets.clone();
            offsets[a] = offsets[b];
            assert!(check(&graph, &good.schedule, &offsets, plan.arena * 2).is_err());
            overlaps += 1;
        }

        // A gradient that nobody makes.
        let mut schedule = good.schedule.clone();
        let steps = whole_micro(&mut schedule);
        let at = steps.iter().rposition(|s| s.action == Action::WeightGradient).unwrap();
        steps.remove(at);
        let fault = check(&graph, &schedule, &good.offsets, plan.arena).unwrap_err();
        assert!(matches!(fault, Fault::Missing { what: "gradient", .. }), "{fault}");
        missing += 1;

        // A step left out: what it should have written is read.
        let mut schedule = good.schedule.clone();
        let steps = whole_micro(&mut schedule);
        let made = |s: &Step| s.access(Role::Output).is_some_and(|a| a.mode == Mode::Write);
        let at = steps.iter().position(|s| matches!(s.action, Action::Forward { .. }) && made(s));
        if let Some(at) = at {
            steps.remove(at);
            let fault = check(&graph, &schedule, &good.offsets, plan.arena).unwrap_err();
            assert!(matches!(fault, Fault::Stale { .. }), "{fault}");
        }

        // An arena one line too small.
        let fault = check(&graph, &good.schedule, &good.offsets, plan.arena - 64);
        let training_needs = good.offsets.iter().zip(&good.schedule.buffers).map(|(o, b)| o + b.bytes()).max();
        if training_needs.unwrap() > plan.arena - 64 {
            assert!(matches!(fault, Err(Fault::OutOfBounds { .. })));
        }
    }
    assert!(overlaps > 20 && missing == 200);
}

#[test]
fn a_budget_takes_the_largest_micro_batch_that_fits_in_equal_shares() {
    let graph = random_graph(&mut Random(5));
    let scratch = Scratch(0);
    let request = request(&graph, &scratch, 8);
    let whole = Plan::fit(&request, None).unwrap();
    assert_eq!(whole.micro_batch, 8);
    let five = Plan::with_micro_batch(&request, 5);
    let budget = five.ledger.peak;
    let plan = Plan::fit(&request, Some(budget)).unwrap();
    assert_eq!(plan.micro_batch, 4, "two passes of four, not one of five and one of three");
    assert!(plan.ledger.peak <= budget);
    let one = Plan::with_micro_batch(&request, 1).ledger.peak;
    assert_eq!(Plan::fit(&request, Some(one)).unwrap().micro_batch, 1);
    let whole_clips = Request { cut: Some(Cut::WHOLE), ..request };
    let no = Plan::fit(&whole_clips, Some(Bytes(one.0 - 1))).unwrap_err();
    assert_eq!(no.smallest, one);
    assert!(!no.largest.is_empty());
}

#[test]
fn lowering_the_budget_never_raises_the_planned_peak() {
    let mut random = Random(23);
    for _ in 0..20 {
        let graph = random_graph(&mut random);
        let scratch = Scratch(random.below(1000));
        let request = request(&graph, &scratch, 9);
        let peaks: Vec<u64> = (1..=9).map(|n| Plan::with_micro_batch(&request, n).ledger.peak.0).collect();
        let mut last = u64::MAX;
        for budget in peaks.iter().rev() {
            if let Ok(plan) = Plan::fit(&request, Some(Bytes(*budget))) {
                assert!(plan.ledger.peak.0 <= *budget && plan.ledger.peak.0 <= last);
                last = plan.ledger.peak.0;
            }
        }
    }
}

#[test]
fn a_smaller_micro_batch_uses_the_same_places() {
    let graph = random_graph(&mut Random(9));
    let scratch = Scratch(100);
    let request = request(&graph, &scratch, 6);
    let plan = Plan::with_micro_batch(&request, 6);
    for clips in 1..6 {
        let placed = plan.training(&request, clips).unwrap().unwrap();
        assert_eq!(placed.offsets, plan.training_step().unwrap().offsets);
        assert_eq!(placed.schedule.clips, clips);
        check(&graph, &placed.schedule, &placed.offsets, plan.arena).unwrap();
    }
    let weight = |p: &framefit_core::plan::Placed| {
        let id = p.schedule.find(What::Weight(framefit_core::ParamId(0))).unwrap();
        p.offsets[id.0]
    };
    assert_eq!(weight(plan.training_step().unwrap()), weight(plan.forward_pass()));
}

#[test]
fn the_largest_rows_are_those_of_the_peak_moment() {
    let mut b = GraphBuilder::new(Shape::video(Dims3 { t: 60, h: 230, w: 230 }, 3));
    let at = Origin::BuiltIn;
    b.layer("conv1", Op::Conv3d(Conv3d::same(3, 32, Dims3::cube(3))), &at).unwrap();
    b.layer("relu1", Op::Relu(Relu), &at).unwrap();
    b.layer("pool1", Op::MaxPool3d(MaxPool3d::tiles(Dims3::cube(2))), &at).unwrap();
    b.layer("mean", Op::GlobalAvgPool3d(GlobalAvgPool3d), &at).unwrap();
    b.layer("fc", Op::Linear(Linear { in_features: 32, out_features: 20, bias: true }), &at).unwrap();
    let graph = b.finish().unwrap();
    let scratch = Scratch(0);
    let request = request(&graph, &scratch, 1);
    let plan = Plan::with_micro_batch(&request, 1);
    let conv1 = 60 * 230 * 230 * 32 * 4;
    let at_peak: Vec<u64> =
        plan.ledger.rows.iter().filter(|r| r.name.starts_with("conv1")).map(|r| r.bytes.0).collect();
    assert!(at_peak.iter().filter(|&&b| b == conv1).count() == 2, "value and gradient of conv1: {at_peak:?}");
    assert_eq!(plan.ledger.moment, "pool1, gradient of its input");
    assert!(plan.ledger.total(Purpose::Activations).0 < 3 * conv1);
}
