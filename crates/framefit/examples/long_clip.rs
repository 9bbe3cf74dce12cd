//! One training step of the 40-filter ConvLSTM on a clip of 135×240 frames, with a label per frame, inside a
//! budget; and, with `--compare`, its gradients against those of a run that keeps everything.
//!
//!     cargo run --release -p framefit --example long_clip -- FRAMES MEMORY [--compare]

use framefit::core::{Bytes, Graph, ParamId};
use framefit::engine::{Engine, Kernels, Normalisation, Tensor};
use framefit::kernels::optimizer::AdamStep;
use framefit::kernels::resident::{peak_resident_bytes, reset_peak};
use framefit::models::{self, Family, ModelSpec};
use framefit::train::{Plans, Resources, Wanted, fixed_bytes, plan};
use std::error::Error;
use std::time::Instant;

fn spec(frames: usize) -> ModelSpec {
    ModelSpec { frames, height: 135, width: 240, channels: 1, classes: 9, ..ModelSpec::of(Family::ConvLstm) }
}

fn planned(frames: usize, memory: Option<Bytes>) -> Result<Plans, Box<dyn Error>> {
    let resources = Resources { memory, kernels: Kernels::best(), ahead: 1, cut: None, barrier_folder: None };
    let spec = spec(frames);
    let wanted = Wanted { model: &spec, lengths: &[frames], batch: 1, training: true };
    Ok(plan(&wanted, &resources, &fixed_bytes(&resources, None))?)
}

/// A bright square that moves over a dim, uneven ground; the label says which third it is in, by rows and columns.
fn fill(engine: &mut Engine<f32>, frames: usize) -> Result<(), Box<dyn Error>> {
    let slots = engine.training_slots(1)?;
    let (height, width) = (135, 240);
    for t in 0..frames {
        let (top, left) = (t * 3 % (height - 20), t * 7 % (width - 20));
        let frame = &mut slots.frames[t * height * width..(t + 1) * height * width];
        for (at, pixel) in frame.iter_mut().enumerate() {
            let (y, x) = (at / width, at % width);
            let inside = (top..top + 20).contains(&y) && (left..left + 20).contains(&x);
            *pixel = if inside { 230 } else { 20 + ((x * 7 + y * 13) % 23) as u8 };
        }
        slots.labels[t] = ((top / 45).min(2) * 3 + (left / 80).min(2)) as u32;
    }
    Ok(())
}

/// What a step leaves behind.
struct Stepped {
    gradients: Vec<Vec<f32>>,
    loss: f64,
}

fn step(plans: Plans, frames: usize) -> Result<Stepped, Box<dyn Error>> {
    let mut engine =
        Engine::<f32>::for_lengths(plans.into_variants(), Kernels::best(), &Normalisation::uniform(0.0, 1.0, 1))?;
    models::initialise(&mut engine, 0)?;
    let started = Instant::now();
    engine.begin_step()?;
    fill(&mut engine, frames)?;
    let outcome = engine.accumulate(1, 1.0 / frames as f64)?;
    let loss = outcome.losses.iter().map(|&l| f64::from(l)).sum::<f64>() / frames as f64;
    let trained: Vec<usize> = {
        let graph: &Graph = engine.graph();
        (0..graph.params.len()).filter(|&i| graph.params[i].trained).collect()
    };
    let gradients = trained
        .iter()
        .map(|&i| Ok(engine.tensor(Tensor::Gradient(ParamId(i)))?.to_vec()))
        .collect::<Result<Vec<_>, framefit::engine::EngineError>>()?;
    engine.update(AdamStep { step: 1, ..AdamStep::DEFAULT })?;
    let seconds = started.elapsed().as_secs_f64();
    let peak = peak_resident_bytes().map_or_else(|| "unknown".to_owned(), |p| Bytes(p).to_string());
    println!(
        "{frames} frames: loss {loss:.6}, {seconds:.1} s ({:.3} s per frame), measured peak {peak}",
        seconds / frames as f64
    );
    Ok(Stepped { gradients, loss })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: long_clip FRAMES MEMORY [--compare]";
    let frames: usize = args.first().ok_or(usage)?.parse()?;
    let memory: Bytes = args.get(1).ok_or(usage)?.parse()?;
    let plans = planned(frames, Some(memory))?;
    let cut = plans.longest().cut;
    println!(
        "planned peak {} of {memory}; segments of {} frames, {} checkpoints",
        plans.peak(),
        cut.segment,
        cut.checkpoints
    );
    let Stepped { gradients, loss } = step(plans, frames)?;
    if args.iter().any(|a| a == "--compare") {
        reset_peak();
        let Stepped { gradients: whole, loss: other } = step(planned(frames, None)?, frames)?;
        let mut worst: f64 = 0.0;
        for (a, b) in gradients.iter().zip(&whole) {
            let scale = b.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let off = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0f32, f32::max);
            worst = worst.max(f64::from(off / scale.max(f32::MIN_POSITIVE)));
        }
        println!(
            "largest difference of a gradient, relative to its largest value: {worst:.1e}; of the loss: {:.1e}",
            (loss - other).abs()
        );
    }
    Ok(())
}
