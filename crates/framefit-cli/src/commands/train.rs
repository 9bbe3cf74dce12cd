//! `framefit train`.

use super::{plan, print, print_json};
use crate::args::TrainArgs;
use crate::progress::Progress;
use crate::report::Problem;
use crate::resolve::{self, Extents};
use crate::words::{budget, count, percent, thousands};
use framefit::core::Bytes;
use framefit::data::{ClipForm, DataError, Dataset, FrameSize, Labels, Length, Split, VideoInfo, probe};
use framefit::kernels::resident::peak_resident_bytes;
use framefit::models::Family;
use framefit::train::{Checkpoint, Event, Plans, Resources, Settings, TrainError, Trainer, Wanted};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: TrainArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::resources(&args.resources)?;
    let mut job = match &args.resume {
        Some(folder) => resumed(&args, folder)?,
        None => new(&args)?,
    };
    let (dataset, plans, resources) = fit(&mut job, &args, &resources)?;
    eprint!("{}", preamble(&job, &dataset, &plans, &resources));

    let planned = plans.peak();
    let document = plan::json(&job.settings.model, plans.graph(), plans.longest(), job.settings.batch, &resources);
    let make = if args.resume.is_some() { Trainer::resume } else { Trainer::new };
    let mut trainer = make(job.settings.clone(), dataset, plans, &resources, &job.folder)?;
    let done = trainer.progress().epoch;
    if done >= job.settings.epochs {
        eprintln!("{} done already; ask for more with --epochs", count(done, "epoch"));
    }

    let log = Log::open(&job.folder, &document, args.resume.is_some())?;
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
fn preamble(job: &Job, dataset: &Dataset, plans: &Plans, resources: &Resources) -> String {
    let (graph, plan) = (plans.graph(), plans.longest());
    let shape = dataset.shape();
    let up_to = if job.settings.whole_videos { "up to " } else { "" };
    let mut text = format!(
        "{} for training, {} for validation: {up_to}{} of {}x{}x{}\n{}: {}\n",
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
        plans.peak(),
    ));
    if let Some(cut) = plan::cut(graph, plan) {
        text.push_str(&format!("{cut}\n"));
    }
    text
}

struct Job {
    settings: Settings,
    folder: PathBuf,
    labels: Labels,
    /// What is known of each video: they are opened once, whatever is tried afterwards.
    infos: Vec<VideoInfo>,
}

fn new(args: &TrainArgs) -> Result<Job, Problem> {
    let training = &args.training;
    let normalisation = resolve::normalisation(training, args.clip.channels)?;
    let batch = resolve::batch(training.batch)?;
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
    can_be_recorded(&args.manifests)?;
    let labels = Labels::read(&args.manifests).map_err(DataError::from)?;
    labels_fit(args.model.model, &labels)?;
    let length = match args.clip.clip {
        Some(frames) => Length::Frames(frames),
        None if labels.per_frame() => Length::Whole,
        None => Length::Frames(DEFAULT_FRAMES),
    };
    let form = resolve::clip_form(length, args.clip.size, args.clip.channels)?;
    let infos = probe(labels.manifest())?;
    let shape = form.shape(&labels, &infos).map_err(DataError::from)?;
    let extents = Extents { frames: shape.frames, height: shape.height, width: shape.width, channels: shape.channels };
    let model = resolve::model(&args.model, extents, labels.manifest().classes.len())?;
    let settings = Settings {
        manifests: args.manifests.clone(),
        model,
        whole_videos: length == Length::Whole,
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
    Ok(Job { settings, folder, labels, infos })
}

/// Checkpoints hold the paths of the manifests as text.
fn can_be_recorded(manifests: &[PathBuf]) -> Result<(), Problem> {
    match manifests.iter().find(|path| path.to_str().is_none()) {
        Some(path) => Err(Problem::PathText { path: path.clone() }),
        None => Ok(()),
    }
}

fn resumed(args: &TrainArgs, folder: &Path) -> Result<Job, Problem> {
    let checkpoint = Checkpoint::of_run(folder)?;
    let labels = resolve::manifest_of_run(&args.manifests, &checkpoint, folder, "framefit train --resume")?;
    let mut settings = checkpoint.settings;
    if let Some(epochs) = args.training.epochs {
        settings.epochs = epochs;
    }
    if !args.manifests.is_empty() {
        settings.manifests = args.manifests.clone();
    }
    can_be_recorded(&settings.manifests)?;
    labels_fit(settings.model.family, &labels)?;
    let infos = probe(labels.manifest())?;
    Ok(Job { settings, folder: folder.to_owned(), labels, infos })
}

/// The clips as the settings' model takes them.
pub fn clip_form(settings: &Settings) -> ClipForm {
    let model = &settings.model;
    let size = settings.resized.then_some(FrameSize { height: model.height, width: model.width });
    let length = if settings.whole_videos { Length::Whole } else { Length::Frames(model.frames) };
    ClipForm { length, size, channels: model.channels }
}

/// Frames of a clip with one label, where the user does not say.
const DEFAULT_FRAMES: usize = 16;

/// A model with a label per frame needs a manifest with one, and the other way round.
pub fn labels_fit(family: Family, labels: &Labels) -> Result<(), Problem> {
    let message = match (family.labels_frames(), labels.per_frame()) {
        (true, false) => {
            format!(
                "{family} labels every frame: give a manifest with the columns video,frame,label, not one label per clip"
            )
        }
        (false, true) => {
            format!("{family} gives one label per clip, but the manifest has one per frame: use --model convlstm")
        }
        _ => return Ok(()),
    };
    Err(Problem::Flag { flag: "--model", message })
}

/// The data set with as many frames kept as asked for, and the plan beside it. Where both do not fit the
/// budget, nothing is kept, and frames are decoded again in every epoch.
fn fit(job: &mut Job, args: &TrainArgs, resources: &Resources) -> Result<(Arc<Dataset>, Plans, Resources), Problem> {
    let keep = args.keeping.keep_frames;
    let form = clip_form(&job.settings);
    let (labels, infos) = (&job.labels, &job.infos);
    let open = |keep| resolve::dataset(labels.clone(), infos.clone(), form, keep);
    let dataset = open(keep)?;
    if job.settings.whole_videos {
        job.settings.model.frames = dataset.longest();
    }
    let plan = |dataset: &Dataset| {
        // A batch never has more clips than there are.
        let batch = job.settings.batch.min(dataset.clips(Split::Training).len()).max(1);
        let lengths = [Split::Training, Split::Validation].map(|split| dataset.lengths(split)).concat();
        let wanted = Wanted { model: &job.settings.model, lengths: &lengths, batch, training: true };
        plan::within_memory(&wanted, resources, &dataset.memory_bytes(resources.ahead))
    };
    match plan(&dataset) {
        Err(TrainError::NoFit(_)) if keep > Bytes(0) => {
            drop(dataset);
            let dataset = open(Bytes(0))?;
            let (plans, resources) = plan(&dataset)?;
            Ok((dataset, plans, resources))
        }
        planned => {
            let (plans, resources) = planned?;
            Ok((dataset, plans, resources))
        }
    }
}

/// `log.jsonl` in the run's folder: the plan, then a line per epoch.
struct Log {
    path: PathBuf,
}

impl Log {
    /// Begins the log, or goes on with it. A folder that cannot be written to is found out here, and not after
    /// the first epoch.
    fn open(folder: &Path, plan: &serde_json::Value, resumed: bool) -> Result<Self, Problem> {
        let path = folder.join("log.jsonl");
        let failed = |cause| Problem::Write { path: path.clone(), cause };
        std::fs::create_dir_all(folder).map_err(|cause| Problem::Write { path: folder.to_owned(), cause })?;
        let mut file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        if !resumed {
            file.set_len(0).and_then(|()| writeln!(file, "{}", json!({ "plan": plan }))).map_err(failed)?;
        }
        Ok(Self { path })
    }

    /// A line that cannot be written is no reason to lose a run.
    fn line(&self, value: &serde_json::Value) {
        let file = File::options().append(true).open(&self.path);
        if let Err(cause) = file.and_then(|mut file| writeln!(file, "{value}")) {
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
            "folder": job.folder.to_string_lossy(),
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
