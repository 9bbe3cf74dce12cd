//! `framefit eval`.

use super::{print, print_json};
use crate::args::{EvalArgs, SplitArg};
use crate::commands::train::{clip_form, labels_fit, most_alike};
use crate::progress::Progress;
use crate::report::{Asked, Problem};
use crate::resolve;
use crate::table::{Align, aligned};
use crate::words::{count, percent, thousands};
use framefit::core::Bytes;
use framefit::data::{ClipRef, Dataset, Split, probe};
use framefit::engine::Engine;
use framefit::train::{
    Checkpoint, Evaluation, Resources, Score, Seen, TrainError, Wanted, extents_fit, fixed_bytes, largest, plan,
};
use serde_json::json;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: &EvalArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::inference_resources(&args.resources)?;
    let batch = resolve::batch(args.batch)?;
    let mut checkpoint = Checkpoint::open(&args.run)?;
    let labels = resolve::manifest_of_run(&args.manifests, &checkpoint, &args.run, "framefit eval")?;
    labels_fit(checkpoint.settings.model.family, &labels, false)?;
    let form = clip_form(&checkpoint.settings);
    let infos = probe(labels.manifest())?;
    // Every clip is used once, so keeping frames would serve nothing.
    let dataset = resolve::dataset(labels, infos, form, Bytes(0))?;
    extents_fit(&dataset, &checkpoint.settings.model)?;
    let (name, split, clips) = choose(&dataset, args.split);
    if clips.is_empty() {
        let manifests = if args.manifests.is_empty() { &checkpoint.settings.manifests } else { &args.manifests };
        let manifest = manifests.first().cloned().unwrap_or_default();
        return Err(TrainError::NoClips { manifest, split }.into());
    }
    let mut engine = engine(&mut checkpoint, &dataset, batch.min(clips.len()), &resources)?;

    let classes = checkpoint.classes.len();
    let mut confusion = vec![vec![0usize; classes]; classes];
    let counts = dataset.index().class_counts(Split::Training, classes);
    let weights = checkpoint.settings.class_weights.of(&counts);
    // The loss is comparable with training's only where the training clips are there to weight it.
    let weights = if counts.iter().sum::<usize>() == 0 { vec![1.0; classes] } else { weights };
    engine.set_class_weights(Some(&weights))?;
    let progress = Progress::of_clips(clips.len());
    let evaluation = Evaluation { dataset: &dataset, clips: &clips, ahead: resources.ahead };
    let mut done = 0;
    let score = evaluation.run(&mut engine, &mut |seen: Seen<'_>, _| {
        for (&label, logits) in seen.labels.iter().zip(seen.logits.chunks_exact(classes)) {
            if let Some(cell) = confusion.get_mut(label as usize).and_then(|row| row.get_mut(largest(logits))) {
                *cell += 1;
            }
        }
        done += 1;
        progress.clips(done);
        ControlFlow::Continue(())
    })?;
    drop(progress);

    if args.json {
        print_json(&json!({
            "split": name,
            "clips": clips.len(),
            "labels": score.labels,
            "correct": score.correct,
            "accuracy": score.accuracy(),
            "loss": score.loss,
            "classes": checkpoint.classes,
            "confusion": confusion,
        }))?;
    } else {
        let noun = if dataset.per_frame() { "frame" } else { "clip" };
        print(&text(name, noun, &score, &checkpoint.classes, &confusion))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is evaluated, in words and clips.
fn choose(dataset: &Dataset, split: Option<SplitArg>) -> (&'static str, Split, Vec<ClipRef>) {
    let all = || Split::ALL.iter().flat_map(|&s| dataset.clips(s).to_vec()).collect::<Vec<_>>();
    let of = |split| dataset.clips(split).to_vec();
    match split {
        Some(SplitArg::Training) => ("training", Split::Training, of(Split::Training)),
        Some(SplitArg::Validation) => ("validation", Split::Validation, of(Split::Validation)),
        Some(SplitArg::Test) => ("test", Split::Test, of(Split::Test)),
        None if !dataset.clips(Split::Validation).is_empty() => {
            ("validation", Split::Validation, of(Split::Validation))
        }
        Some(SplitArg::All) | None => ("all", Split::Training, all()),
    }
}

/// An engine that classifies with the checkpoint's weights.
pub fn engine(
    checkpoint: &mut Checkpoint,
    dataset: &Arc<Dataset>,
    batch: usize,
    resources: &Resources,
) -> Result<Engine<f32>, Problem> {
    if checkpoint.settings.whole_videos {
        checkpoint.settings.model.frames = dataset.longest();
    }
    dataset.check_frames(checkpoint.settings.model.fewest_frames())?;
    let fixed = fixed_bytes(resources, Some(&dataset.memory_bytes(resources.ahead)));
    let lengths = Split::ALL.map(|split| dataset.lengths(split)).concat();
    let wanted = Wanted {
        model: &checkpoint.settings.model,
        lengths: &lengths,
        batch: batch.min(most_alike(dataset)),
        training: false,
    };
    let asked = Asked::of(None, resources);
    let variants = plan(&wanted, resources, &fixed).map_err(|error| asked.problem(error))?.into_variants();
    let mut engine = Engine::for_lengths(variants, resources.kernels, &checkpoint.settings.normalisation)?;
    engine.set_loss(checkpoint.settings.loss);
    checkpoint.load_weights(&mut engine)?;
    Ok(engine)
}

fn text(name: &str, noun: &str, score: &Score, classes: &[String], confusion: &[Vec<usize>]) -> String {
    let mut rows = vec![["class", &format!("{noun}s"), "recall", "precision"].map(str::to_owned).to_vec()];
    for (k, class) in classes.iter().enumerate() {
        let right = confusion[k][k];
        let labelled: usize = confusion[k].iter().sum();
        let predicted: usize = confusion.iter().map(|row| row[k]).sum();
        let share = |of: usize| if of == 0 { "-".to_owned() } else { percent(right as f64 / of as f64) };
        rows.push(vec![class.clone(), thousands(labelled as u64), share(labelled), share(predicted)]);
    }
    format!(
        "{name} accuracy {} ({} of {}), loss {:.4}\n\n{}",
        percent(score.accuracy()),
        thousands(score.correct as u64),
        count(score.labels, noun),
        score.loss,
        aligned(&[Align::Left, Align::Right, Align::Right, Align::Right], &rows)
    )
}
