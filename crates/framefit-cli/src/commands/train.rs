//! `framefit train`.

use super::{plan, print, print_json, say};
use crate::args::{CuttingArg, TrainArgs};
use crate::interrupt::{Interrupt, Stopping};
use crate::progress::Progress;
use crate::report::{Asked, Problem};
use crate::resolve::{self, Extents};
use crate::words::{budget, count, percent, thousands};
use framefit::core::Bytes;
use framefit::core::schedule::Cut;
use framefit::data::{ClipForm, DataError, Dataset, FrameSize, Labels, Length, Split, VideoInfo, probe};
use framefit::kernels::resident::peak_resident_bytes;
use framefit::models::Family;
use framefit::train::{
    Checkpoint, Cutting, Event, Plans, Resources, Settings, TrainError, Trainer, Wanted, extents_fit,
};
use serde_json::json;
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: TrainArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::resources(&args.resources, args.cutting.cutting)?;
    let mut job = match &args.resume {
        Some(folder) => resumed(&args, folder)?,
        None => new(&args)?,
    };
    let resources = match job.settings.cutting {
        Cutting::Truncated(own) if args.resources.segment.is_some_and(|segment| segment != own) => {
            let own = count(own, "frame");
            let message = format!("the gradient of this run is truncated in segments of {own}: leave it out");
            return Err(Problem::Flag { flag: "--segment", message });
        }
        Cutting::Truncated(segment) => Resources { cut: Some(Cut::truncated(segment)), ..resources },
        Cutting::Exact | Cutting::Independent(_) => resources,
    };
    let (dataset, plans, resources) = fit(&mut job, &args, &resources)?;
    say(&preamble(&job, &dataset, &plans, &resources));

    let planned = plans.peak();
    let asking = plan::Asking {
        graph: plans.graph(),
        batch: job.settings.batch,
        cutting: job.settings.cutting,
        resources: &resources,
    };
    let document = plan::json(&job.settings.model, plans.longest(), &asking);
    let make = if args.resume.is_some() { Trainer::resume } else { Trainer::new };
    let mut log = Log::of(&mut job, &args)?;
    let mut trainer =
        make(job.settings.clone(), dataset, plans, &resources, &job.folder).inspect_err(|_| log.give_up())?;
    log.begin(&document)?;
    let done = trainer.progress().epoch;
    if done >= job.settings.epochs {
        say(&format!("{} done already; ask for more with --epochs\n", count(done, "epoch")));
    }

    let mut progress = Progress::new(job.settings.epochs, true);
    let interrupt = Interrupt::watch(done, stopping(&progress, &job.folder));
    let mut writing = None;
    let mut written: Result<(), Problem> = Ok(());
    trainer.run(&mut |event| {
        progress.event(&event);
        match &event {
            Event::Batch { .. } => {}
            Event::Saving => writing = Some(interrupt.writing()),
            Event::Epoch(report) => {
                log.line(&json!(report));
                if args.json && written.is_ok() {
                    written = print_json(report);
                }
                if let Some(writing) = writing.take() {
                    interrupt.written(writing, report.epoch);
                }
            }
        }
    })?;
    drop(progress);
    written?;
    finish(&trainer, &job, planned, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// What is said when Ctrl-C is pressed.
fn stopping(progress: &Progress, folder: &Path) -> impl Fn(Stopping) + Send + Sync + 'static {
    let (bar, folder) = (progress.bar(), folder.to_owned());
    move |stopping| match stopping {
        Stopping::WhenWritten => {
            bar.suspend(|| say("stopping when the files of this epoch are written; Ctrl-C again stops at once\n"));
        }
        Stopping::Now { epochs } => {
            bar.finish_and_clear();
            let shown = folder.display();
            say(&match epochs {
                0 => format!("stopped: {shown} holds no finished epoch\n"),
                _ => format!("stopped: {shown} holds epoch {epochs}, go on with framefit train --resume {shown}\n"),
            });
            // What the second Ctrl-C has interrupted.
            Checkpoint::remove_unfinished_in(&folder);
        }
    }
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
        listed(dataset.classes()),
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
    text.push_str(&plan::cutting_lines(job.settings.cutting, graph, plan));
    text
}

/// The first of them, where there are many.
fn listed(classes: &[String]) -> String {
    const SHOWN: usize = 12;
    match classes.len() {
        0..=SHOWN => classes.join(", "),
        all => format!("{} and {} more", classes[..SHOWN].join(", "), thousands((all - SHOWN) as u64)),
    }
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
    labels_fit(args.model.model, &labels, true)?;
    let (length, cutting) = length(args, labels.per_frame())?;
    let form = resolve::clip_form(length, args.clip.size, args.clip.channels)?;
    let infos = probe(labels.manifest())?;
    let shape = form.shape(&labels, &infos).map_err(DataError::from)?;
    let extents = Extents { frames: shape.frames, height: shape.height, width: shape.width, channels: shape.channels };
    let model = resolve::model(&args.model, extents, labels.manifest().classes.len())?;
    let settings = Settings {
        manifests: args.manifests.clone(),
        model,
        whole_videos: length == Length::Whole,
        cutting,
        resized: args.clip.size.is_some(),
        normalisation,
        epochs,
        batch,
        learning_rate,
        weight_decay,
        class_weights: resolve::class_weights(training.class_weights),
        loss: resolve::loss(training)?,
        augmentation: resolve::augmentation(&training.flip),
        seed: training.seed,
    };
    Ok(Job { settings, folder, labels, infos })
}

/// The frames of a clip, and what cutting a video does to its gradient.
fn length(args: &TrainArgs, per_frame: bool) -> Result<(Length, Cutting), Problem> {
    let flag = |flag: &'static str, message: &str| Err(Problem::Flag { flag, message: message.to_owned() });
    resolve::cutting_fits(args.cutting.cutting, per_frame)?;
    match (args.cutting.cutting, args.clip.clip) {
        (_, clip) if !per_frame => Ok((Length::Frames(clip.unwrap_or(DEFAULT_FRAMES)), Cutting::Exact)),
        (CuttingArg::Exact, None) => Ok((Length::Whole, Cutting::Exact)),
        (CuttingArg::Exact, Some(_)) => flag(
            "--clip",
            "with a label per frame the whole video is the clip, and its gradient exact. To train on pieces, which \
             changes the gradient, add --cutting independent; to carry the state from piece to piece, leave --clip \
             out and add --cutting truncated --segment FRAMES",
        ),
        (CuttingArg::Independent, Some(frames)) => Ok((Length::Frames(frames), Cutting::Independent(frames))),
        (CuttingArg::Independent, None) => flag("--clip", "--cutting independent needs it: the frames of each piece"),
        (CuttingArg::Truncated, None) => {
            let segment = args.resources.segment.unwrap_or(1);
            Ok((Length::Whole, Cutting::Truncated(segment)))
        }
        (CuttingArg::Truncated, Some(_)) => {
            flag("--clip", "--cutting truncated takes whole videos, in segments of --segment frames")
        }
    }
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
    labels_fit(settings.model.family, &labels, false)?;
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

/// A model with a label per frame needs a manifest with one, and the other way round. `choice`: whether the
/// arguments say which model it is.
pub fn labels_fit(family: Family, labels: &Labels, choice: bool) -> Result<(), Problem> {
    if family.labels_frames() == labels.per_frame() {
        return Ok(());
    }
    Err(Problem::LabelsPer { family, per_frame: labels.per_frame(), choice })
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
    extents_fit(&dataset, &job.settings.model)?;
    dataset.check_frames(job.settings.model.fewest_frames())?;
    let plan = |dataset: &Dataset, resources: &Resources| {
        // Clips go together that have as many frames.
        let batch = job.settings.batch.min(most_alike(dataset)).max(1);
        let lengths = [Split::Training, Split::Validation].map(|split| dataset.lengths(split)).concat();
        let wanted = Wanted { model: &job.settings.model, lengths: &lengths, batch, training: true };
        plan::within_memory(&wanted, resources, &dataset.memory_bytes(resources.ahead))
    };
    let asked = Asked::of(args.resume.is_none().then_some(job.settings.model.family), resources);
    let planned = plan(&dataset, resources);
    let cut = matches!(&planned, Ok((plans, _)) if plan::passes(plans) > 1.0);
    if !cut && !matches!(planned, Err(TrainError::NoFit(_))) {
        let (plans, resources) = planned.map_err(|error| asked.problem(error))?;
        return Ok((dataset, plans, resources));
    }
    // Frames kept and decoded ahead take what the plan could use. Decoding each clip where it goes costs time once,
    // passing through the model again costs it for every pass.
    let thrifty = Resources { ahead: 0, ..resources.clone() };
    let without = if keep > Bytes(0) { open(Bytes(0))? } else { dataset.clone() };
    match (planned, plan(&without, &thrifty)) {
        (Ok((plans, resources)), Ok((others, _))) if plan::passes(&plans) <= plan::passes(&others) => {
            Ok((dataset, plans, resources))
        }
        (Ok((plans, resources)), Err(_)) => Ok((dataset, plans, resources)),
        (_, others) => {
            // That nothing is decoded ahead has been tried.
            let asked = Asked { ahead: 0, ..asked };
            let (plans, resources) = others.map_err(|error| asked.problem(error))?;
            Ok((without, plans, resources))
        }
    }
}

/// The most clips of one length.
pub fn most_alike(dataset: &Dataset) -> usize {
    let of = |split: Split| {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        dataset.clips(split).iter().for_each(|clip| *counts.entry(clip.frames).or_default() += 1);
        counts.into_values().max().unwrap_or(0)
    };
    Split::ALL.into_iter().map(of).max().unwrap_or(0)
}

/// `log.jsonl` in the run's folder: the plan, then a line per epoch. While it is open, it is locked, and with it
/// the folder: no other process trains into it.
struct Log {
    path: PathBuf,
    file: File,
    resumed: bool,
    /// Whether the folder was made for it.
    new_folder: bool,
}

impl Log {
    /// Takes the run's folder. One that cannot be written to, or that another process trains into, is found out
    /// here, and not after the first epoch.
    fn of(job: &mut Job, args: &TrainArgs) -> Result<Self, Problem> {
        let new_folder = make_folder(job, args)?;
        let path = job.folder.join("log.jsonl");
        let failed = |cause| Problem::Write { path: path.clone(), cause };
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        // A system that cannot lock a file there is no reason not to train.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Problem::Busy { path: job.folder.clone() });
        }
        let resumed = args.resume.is_some();
        if !resumed && Checkpoint::exists_in(&job.folder) {
            return Err(Problem::Occupied { path: job.folder.clone() });
        }
        Ok(Self { path, file, resumed, new_folder })
    }

    /// Writes the plan into the log of a new run.
    fn begin(&mut self, plan: &serde_json::Value) -> Result<(), Problem> {
        if self.resumed {
            return Ok(());
        }
        self.file
            .set_len(0)
            .and_then(|()| self.write(&json!({ "plan": plan })))
            .map_err(|cause| Problem::Write { path: self.path.clone(), cause })
    }

    /// Leaves nothing behind of a new run that does not begin.
    fn give_up(&self) {
        if let Some(folder) = self.path.parent().filter(|_| self.new_folder) {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// A line that cannot be written is no reason to lose a run.
    fn line(&mut self, value: &serde_json::Value) {
        if let Err(cause) = self.write(value) {
            say(&format!("{}: cannot write: {cause}\n", self.path.display()));
        }
    }

    /// The whole line, or nothing of it.
    fn write(&mut self, value: &serde_json::Value) -> std::io::Result<()> {
        let before = self.file.metadata()?.len();
        self.file.write_all(format!("{value}\n").as_bytes()).inspect_err(|_| {
            let _ = self.file.set_len(before);
        })
    }
}

/// The run's folder, and whether it was not there. A folder that was not named is one that no other process has
/// made meanwhile.
fn make_folder(job: &mut Job, args: &TrainArgs) -> Result<bool, Problem> {
    let failed = |path: &Path, cause| Problem::Write { path: path.to_owned(), cause };
    if let Some(parent) = job.folder.parent() {
        std::fs::create_dir_all(parent).map_err(|cause| failed(parent, cause))?;
    }
    loop {
        match std::fs::create_dir(&job.folder) {
            Ok(()) => return Ok(true),
            Err(cause) if cause.kind() != ErrorKind::AlreadyExists || job.folder.is_file() => {
                return Err(failed(&job.folder, cause));
            }
            Err(_) => match args.manifests.first() {
                Some(manifest) if args.out.is_none() && args.resume.is_none() => {
                    job.folder = resolve::new_run(manifest)
                }
                _ => return Ok(false),
            },
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
    say(&format!("{measured}planned {planned}; weights in {}\n", job.folder.display()));
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
