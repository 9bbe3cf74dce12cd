//! `framefit train`.

use super::{plan, print, print_json};
use crate::args::TrainArgs;
use crate::progress::Progress;
use crate::report::Problem;
use crate::resolve::{self, Extents};
use crate::words::{budget, count, percent, thousands};
use framefit::core::plan::Plan;
use framefit::core::{Bytes, Graph};
use framefit::data::{ClipSpec, Dataset, FrameSize, Manifest, Split};
use framefit::kernels::resident::peak_resident_bytes;
use framefit::train::{Checkpoint, Event, Resources, Settings, TrainError, Trainer};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: TrainArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::resources(&args.resources)?;
    let job = match &args.resume {
        Some(folder) => resumed(&args, folder)?,
        None => new(&args)?,
    };
    let graph = job.settings.model.build()?;
    let (dataset, plan, resources) = fit(&job, &args, &resources)?;
    eprint!("{}", preamble(&job, &graph, &dataset, &plan, &resources));

    let planned = plan.ledger.peak;
    let document = plan::json(&job.settings.model, &graph, &plan, job.settings.batch, &resources);
    let make = if args.resume.is_some() { Trainer::resume } else { Trainer::new };
    let mut trainer = make(job.settings.clone(), dataset, plan, &resources, &job.folder)?;
    let done = trainer.progress().epoch;
    if done >= job.settings.epochs {
        eprintln!("{} done already; ask for more with --epochs", count(done, "epoch"));
    }

    let mut log = Log::new(&job.folder, &document, args.resume.is_some());
    let mut progress = Progress::new(job.settings.epochs, true);
    let mut written: Result<(), Problem> = Ok(());
    trainer.run(&mut |event| {
        progress.event(&event);
        if let Event::Epoch(report) = &event {
            log.line(&json!(report));
            if args.json && written.is_ok() {
                written = print_json(report);
            }
        }
    })?;
    progress.finish();
    written?;
    finish(&trainer, &job, planned, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// What will be trained on what, and in how much memory.
fn preamble(job: &Job, graph: &Graph, dataset: &Dataset, plan: &Plan, resources: &Resources) -> String {
    let shape = dataset.shape();
    let mut text = format!(
        "{} for training, {} for validation: {} of {}x{}x{}\n{}: {}\n",
        count(dataset.clips(Split::Training).len(), "clip"),
        thousands(dataset.clips(Split::Validation).len() as u64),
        count(shape.frames, "frame"),
        shape.height,
        shape.width,
        shape.channels,
        if dataset.classes().len() == 1 {
            "1 class".to_owned()
        } else {
            format!("{} classes", dataset.classes().len())
        },
        dataset.classes().join(", "),
    );
    let left_out = dataset.index().left_out();
    if !left_out.is_empty() {
        let frames: usize = left_out.iter().map(|l| l.frames).sum();
        let (frames, rows) = (count(frames, "frame"), count(left_out.len(), "row"));
        text.push_str(&format!("left out: {frames} at the ends of {rows}, too few for a clip\n"));
    }
    let of = resources.memory.map_or_else(String::new, |b| format!(" of {}", budget(b)));
    text.push_str(&format!(
        "{}, {}; {} at a time, planned peak {}{of}\n",
        job.settings.model.family,
        count(graph.param_count() as usize, "parameter"),
        count(plan.micro_batch, "clip"),
        plan.ledger.peak,
    ));
    if let Some(cut) = plan::cut(graph, plan) {
        text.push_str(&format!("{cut}\n"));
    }
    text
}

struct Job {
    settings: Settings,
    folder: PathBuf,
    manifest: Manifest,
}

fn new(args: &TrainArgs) -> Result<Job, Problem> {
    let training = &args.training;
    let spec = resolve::clip_spec(args.clip.clip, args.clip.size, args.clip.channels)?;
    let normalisation = resolve::normalisation(training, args.clip.channels)?;
    let batch = resolve::at_least_one("--batch", training.batch)?;
    let epochs = resolve::at_least_one("--epochs", training.epochs.unwrap_or(10))?;
    let learning_rate = resolve::positive("--lr", training.lr, false)?;
    let weight_decay = resolve::positive("--weight-decay", training.weight_decay, true)?;
    let folder = match (&args.out, args.manifests.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(manifest)) => resolve::new_run(manifest),
        (None, None) => PathBuf::from("runs/run"),
    };
    if Checkpoint::exists_in(&folder) {
        return Err(Problem::Occupied { path: folder });
    }
    let manifest = Manifest::read(&args.manifests).map_err(framefit::data::DataError::from)?;
    let infos = framefit::data::probe(&manifest)?;
    let shape = spec.shape(&manifest, &infos).map_err(framefit::data::DataError::from)?;
    let extents = Extents { frames: shape.frames, height: shape.height, width: shape.width, channels: shape.channels };
    let model = resolve::model(&args.model, extents, manifest.classes.len())?;
    let settings = Settings {
        manifests: args.manifests.clone(),
        model,
        resized: args.clip.size.is_some(),
        normalisation,
        epochs,
        batch,
        learning_rate,
        weight_decay,
        class_weights: resolve::class_weights(training.class_weights),
        augmentation: resolve::augmentation(&training.flip),
        seed: training.seed,
    };
    Ok(Job { settings, folder, manifest })
}

fn resumed(args: &TrainArgs, folder: &Path) -> Result<Job, Problem> {
    let checkpoint = Checkpoint::of_run(folder)?;
    let mut settings = checkpoint.settings;
    if let Some(epochs) = args.training.epochs {
        settings.epochs = epochs;
    }
    if !args.manifests.is_empty() {
        settings.manifests = args.manifests.clone();
    }
    let manifest = Manifest::read_with_classes(&settings.manifests, &checkpoint.classes)
        .map_err(framefit::data::DataError::from)?;
    Ok(Job { settings, folder: folder.to_owned(), manifest })
}

/// The clips as the settings' model takes them.
pub fn clip_spec(settings: &Settings) -> ClipSpec {
    let model = &settings.model;
    let size = settings.resized.then_some(FrameSize { height: model.height, width: model.width });
    ClipSpec { frames: model.frames, size, channels: model.channels }
}

/// The data set with as many frames kept as asked for, and the plan beside it. Where both do not fit the
/// budget, nothing is kept, and frames are decoded again in every epoch.
fn fit(job: &Job, args: &TrainArgs, resources: &Resources) -> Result<(Arc<Dataset>, Plan, Resources), Problem> {
    let open = |keep| resolve::dataset(job.manifest.clone(), clip_spec(&job.settings), keep);
    let graph = job.settings.model.build()?;
    let plan = |dataset: &Dataset| {
        // A batch never has more clips than there are.
        let batch = job.settings.batch.min(dataset.clips(Split::Training).len()).max(1);
        plan::within_memory(&graph, batch, resources, &dataset.memory_bytes(resources.ahead))
    };
    let keep = args.keeping.keep_frames;
    let dataset = open(keep)?;
    match plan(&dataset) {
        Err(TrainError::NoFit(_)) if keep > Bytes(0) => {
            drop(dataset);
            let dataset = open(Bytes(0))?;
            let (plan, resources) = plan(&dataset)?;
            Ok((dataset, plan, resources))
        }
        planned => {
            let (plan, resources) = planned?;
            Ok((dataset, plan, resources))
        }
    }
}

/// `log.jsonl` in the run's folder: the plan, then a line per epoch.
struct Log {
    path: PathBuf,
    head: Option<String>,
}

impl Log {
    fn new(folder: &Path, plan: &serde_json::Value, resumed: bool) -> Self {
        let head = (!resumed).then(|| json!({ "plan": plan }).to_string());
        Self { path: folder.join("log.jsonl"), head }
    }

    /// A log that cannot be written is no reason to lose a run.
    fn line(&mut self, value: &serde_json::Value) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file| {
            if let Some(head) = self.head.take() {
                writeln!(file, "{head}")?;
            }
            writeln!(file, "{value}")
        });
        if let Err(cause) = written {
            eprintln!("{}: cannot write: {cause}", self.path.display());
        }
    }
}

fn finish(trainer: &Trainer, job: &Job, planned: Bytes, json: bool) -> Result<(), Problem> {
    let progress = trainer.progress();
    let peak = peak_resident_bytes().map(Bytes);
    if json {
        return print_json(&json!({
            "epochs": progress.epoch,
            "training": progress.training,
            "validation": progress.validation,
            "best": progress.best,
            "best_epoch": progress.best_epoch,
            "planned_peak": planned,
            "measured_peak": peak,
            "folder": job.folder,
        }));
    }
    let measured = peak.map_or_else(String::new, |p| format!("measured peak {p}, "));
    eprintln!("{measured}planned {planned}; weights in {}", job.folder.display());
    match (progress.validation, progress.best) {
        (Some(last), Some(best)) => print(&format!(
            "validation accuracy {} after {} (best {} in epoch {})\n",
            percent(last.accuracy()),
            count(progress.epoch, "epoch"),
            percent(best.accuracy()),
            progress.best_epoch,
        )),
        _ => print(&format!(
            "training accuracy {} after {} (the manifest has no validation clips)\n",
            percent(progress.training.accuracy()),
            count(progress.epoch, "epoch"),
        )),
    }
}
