//! Plans of built graphs: sound by the independent checker, within their bounds, and refused when broken.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod random_graph;

use framefit_core::checker::{Fault, check};
use framefit_core::ledger::{Fixed, Purpose};
use framefit_core::ops::{Conv3d, GlobalAvgPool3d, Linear, LinearLayout, MaxPool3d, Relu};
use framefit_core::plan::{Plan, Request};
use framefit_core::schedule::{
    Action, Cut, Keeping, KernelRequest, Mode, ProgramId, Role, Schedule, Step, What, Workspaces,
};
use framefit_core::stream::{StreamError, StreamPlan};
use framefit_core::{Bytes, DType, Dims3, Graph, GraphBuilder, Op, Origin, Shape};
use random_graph::{Allowed, Random};

/// Scratch that grows with the clips, so that plans of different sizes differ.
struct Scratch(usize);

impl Workspaces for Scratch {
    fn bytes(&self, request: &KernelRequest<'_>) -> usize {
        match request.op {
            Op::Conv3d(_) => self.0 * request.clips,
            Op::Recurrent(_) => 7 * self.0 * request.made.len(),
            Op::BatchNorm(_) | Op::GroupNorm(_) => self.0,
            Op::MaxPool3d(_)
            | Op::AvgPool3d(_)
            | Op::AdaptivePool3d(_)
            | Op::GlobalAvgPool3d(_)
            | Op::Relu(_)
            | Op::Activation(_)
            | Op::Flatten(_)
            | Op::Linear(_)
            | Op::Dense(_)
            | Op::NormMean(_)
            | Op::LayerNorm(_)
            | Op::Dropout(_)
            | Op::Add(_)
            | Op::Concat(_)
            | Op::Reverse(_)
            | Op::LastFrame(_) => 0,
        }
    }
}

fn random_graph(random: &mut Random) -> Graph {
    random_graph::random_graph(random, Allowed { whole_clip: true, kinks: true }).graph
}

fn no_fixed(_: usize) -> Fixed {
    Fixed::default()
}

fn request<'a>(graph: &'a Graph, scratch: &'a Scratch, batch: usize) -> Request<'a> {
    Request {
        graph,
        dtype: DType::F32,
        batch,
        training: true,
        cut: None,
        keeping: Keeping::Memory,
        workspaces: scratch,
        fixed: &no_fixed,
    }
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
        let cut = Cut::exact(1 + random.below(6), random.below(4));
        for keeping in [Keeping::Memory, Keeping::File] {
            let request = Request { keeping, ..request };
            let plan = Plan::with(&request, 2, cut);
            plan.check(&request).unwrap_or_else(|e| panic!("trial {trial}, {cut:?}: {e}"));
        }
    }
}

#[test]
fn plans_of_segments_that_stand_alone_pass_the_independent_checker() {
    let mut random = Random(41);
    for trial in 0..300 {
        let made = random_graph::random_graph(&mut random, Allowed { whole_clip: false, kinks: true });
        let scratch = Scratch(random.below(300));
        let request = request(&made.graph, &scratch, 2);
        let cut = Cut::truncated(1 + random.below(6));
        let plan = Plan::with(&request, 2, cut);
        plan.check(&request).unwrap_or_else(|e| panic!("trial {trial}, {cut:?}: {e}"));
    }
}

#[test]
fn streams_of_any_length_pass_the_independent_checker() {
    let mut random = Random(43);
    let mut planned = 0;
    for trial in 0..150 {
        let made = random_graph::random_graph(&mut random, Allowed { whole_clip: false, kinks: true });
        let scratch = Scratch(random.below(300));
        let request = Request { training: false, ..request(&made.graph, &scratch, 1) };
        let segment = 1 + random.below(6);
        let plan = match StreamPlan::new(&request, segment) {
            Ok(plan) => plan,
            // Strides that the segment is no multiple of.
            Err(StreamError::Uneven { .. }) => continue,
            Err(error) => panic!("trial {trial}, {segment}: {error}"),
        };
        planned += 1;
        for frames in [segment * (plan.steady + 3) + 1, segment * 20, 2 * segment, segment] {
            let (clip, last) = plan.ending(frames);
            let Ok(graph) = made.graph.with_frames(clip) else { continue };
            let placed = plan.place_ending(&Request { graph: &graph, ..request }).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(placed.schedule.programs.len(), last + 1);
        }
    }
    assert!(planned > 100, "{planned}");
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
    b.layer(
        "fc",
        Op::Linear(Linear { in_features: 32, out_features: 20, bias: true, layout: LinearLayout::PyTorch }),
        &at,
    )
    .unwrap();
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
