//! Training: epochs over a data set, validation after each, checkpoints.
//!
//! Everything random depends on the seed, the epoch and the clip's number alone, so a resumed run continues to
//! the same bits as one that was never stopped.

mod checkpoint;
mod error;
mod plan;
mod settings;

pub use checkpoint::{Checkpoint, Progress};
pub use error::{NotFinite, TrainError};
pub use plan::{Plans, Resources, Wanted, fixed_bytes, plan, plan_stream};
pub use settings::{Augmentation, ClassWeights, Cutting, MOST_CLIPS, Settings};

use crate::data::{Augment, ClipRef, DataError, Dataset, Feed, Split};
use crate::engine::{Engine, IGNORED, Outcome};
use crate::models::{self, ModelSpec};
use crate::random::SplitMix64;
use framefit_core::plan::Plan;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// How well clips, or frames, were classified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Labels seen: one per clip, or one per labelled frame.
    pub labels: usize,
    /// Those that the largest logit named.
    pub correct: usize,
    /// Mean loss, each label weighted by its class weight.
    pub loss: f64,
}

impl Score {
    /// Correct labels per label.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.labels.max(1) as f64
    }

    /// Whether it classifies better, or as well with a lower loss. One whose loss is no number beats none.
    pub fn beats(&self, other: &Score) -> bool {
        let better = (self.accuracy(), -self.loss) > (other.accuracy(), -other.loss);
        self.loss.is_finite() && (better || !other.loss.is_finite())
    }
}

/// Adds up a [`Score`].
#[derive(Default)]
struct Tally {
    score: Score,
    losses: f64,
    weights: f64,
}

impl Tally {
    /// `labels`: of each clip, one, or one per frame.
    fn add(&mut self, outcome: &Outcome<'_, f32>, labels: &[Cow<'_, [u32]>], classes: usize) {
        self.losses += outcome.losses.iter().map(|&l| f64::from(l)).sum::<f64>();
        self.weights += outcome.weights.iter().map(|&w| f64::from(w)).sum::<f64>();
        let clips = labels.len();
        for (at, logits) in outcome.logits.chunks_exact(classes).enumerate() {
            let label = labels.get(at % clips).and_then(|of_clip| of_clip.get(at / clips));
            if let Some(&label) = label.filter(|&&label| label != IGNORED) {
                self.score.labels += 1;
                self.score.correct += usize::from(largest(logits) == label as usize);
            }
        }
    }

    fn score(&self) -> Score {
        Score { loss: self.losses / self.weights.max(f64::MIN_POSITIVE), ..self.score }
    }
}

/// The index of the largest logit; the first of equal ones. NaN is larger than nothing.
pub fn largest(logits: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, &value) in logits.iter().enumerate() {
        if value > best.1 {
            best = (i, value);
        }
    }
    best.0
}

/// One epoch in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochReport {
    /// From 1.
    pub epoch: usize,
    /// Over the training labels, while they were trained on.
    pub training: Score,
    /// Over the validation labels, where there are any.
    pub validation: Option<Score>,
    /// Whether the validation score is the best so far.
    pub best: bool,
    /// Seconds, validation included.
    pub seconds: f64,
}

/// What happens while training.
#[derive(Clone, Debug)]
pub enum Event {
    /// A batch has been trained on, or validated.
    Batch {
        /// From 1.
        epoch: usize,
        /// Whether it is validation.
        validating: bool,
        /// Clips of this epoch so far.
        clips: usize,
        /// Clips of this epoch in all.
        of: usize,
        /// The score of this epoch so far.
        score: Score,
    },
    /// An epoch is over, and its files are about to be written: until [`Event::Epoch`], the folder is at work.
    Saving,
    /// An epoch is over and its files are written.
    Epoch(EpochReport),
}

/// Trains one model on one data set.
pub struct Trainer {
    settings: Settings,
    dataset: Arc<Dataset>,
    engine: Engine<f32>,
    class_weights: Vec<f64>,
    ahead: usize,
    folder: PathBuf,
    progress: Progress,
}

impl Trainer {
    /// A new run, its weights initialised from the seed. Nothing is written before the first epoch ends.
    ///
    /// # Errors
    /// When the model does not fit the clips, the plan not the budget, or memory cannot be had.
    pub fn new(
        settings: Settings,
        dataset: Arc<Dataset>,
        plans: Plans,
        resources: &Resources,
        folder: &Path,
    ) -> Result<Self, TrainError> {
        let mut trainer = Self::untrained(settings, dataset, plans, resources, folder)?;
        models::initialise(&mut trainer.engine, trainer.settings.seed)?;
        Ok(trainer)
    }

    /// A run continued from `folder`'s checkpoint.
    ///
    /// # Errors
    /// As [`Trainer::new`], and when there is no checkpoint or it belongs to another model.
    pub fn resume(
        settings: Settings,
        dataset: Arc<Dataset>,
        plans: Plans,
        resources: &Resources,
        folder: &Path,
    ) -> Result<Self, TrainError> {
        let mut checkpoint = Checkpoint::of_run(folder)?;
        let mut trainer = Self::untrained(settings, dataset, plans, resources, folder)?;
        checkpoint.load_all(&mut trainer.engine)?;
        trainer.progress = checkpoint.progress;
        Ok(trainer)
    }

    fn untrained(
        settings: Settings,
        dataset: Arc<Dataset>,
        plans: Plans,
        resources: &Resources,
        folder: &Path,
    ) -> Result<Self, TrainError> {
        if dataset.clips(Split::Training).is_empty() {
            let manifest = settings.manifests.first().cloned().unwrap_or_default();
            return Err(TrainError::NoClips { manifest, split: Split::Training });
        }
        extents_fit(&dataset, &settings.model)?;
        let variants = plans.into_variants();
        let mut engine = Engine::for_lengths(variants, resources.kernels, &settings.normalisation)?;
        let counts = dataset.index().class_counts(Split::Training, settings.model.classes);
        let class_weights = settings.class_weights.of(&counts);
        engine.set_class_weights(Some(&class_weights))?;
        engine.set_loss(settings.loss);
        if let Some(folder) = &resources.barrier_folder {
            engine.keep_in(folder)?;
        }
        let folder = folder.to_owned();
        let ahead = resources.ahead;
        Ok(Self { settings, dataset, engine, class_weights, ahead, folder, progress: Progress::default() })
    }

    /// The plan that is run.
    pub fn plan(&self) -> &Plan {
        self.engine.plan()
    }

    /// The engine, with its weights.
    pub fn engine(&mut self) -> &mut Engine<f32> {
        &mut self.engine
    }

    /// What was reached so far.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Trains up to the epoch that the settings name, and reports on the way.
    ///
    /// # Errors
    /// When a video cannot be read, a file cannot be written, or a loss or a weight is no longer a number; the
    /// files of earlier epochs are whole then.
    pub fn run(&mut self, observe: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|cause| TrainError::Folder { path: self.folder.clone(), cause })?;
        Checkpoint::remove_unfinished_in(&self.folder);
        while self.progress.epoch < self.settings.epochs {
            let epoch = self.progress.epoch + 1;
            let started = Instant::now();
            let training = self.train_epoch(epoch, observe)?;
            if let Some(what) = checkpoint::not_finite(&self.engine)? {
                return Err(self.diverged(epoch, what));
            }
            let validation = self.validate(epoch, observe)?;
            let best = validation.is_some_and(|v| self.progress.best.is_none_or(|b| v.beats(&b)));
            let mut progress = Progress { epoch, training, validation, ..self.progress.clone() };
            if best {
                (progress.best, progress.best_epoch) = (validation, epoch);
            }
            observe(Event::Saving);
            self.save(&progress, best)?;
            self.progress = progress;
            let seconds = started.elapsed().as_secs_f64();
            observe(Event::Epoch(EpochReport { epoch, training, validation, best, seconds }));
        }
        Ok(())
    }

    fn train_epoch(&mut self, epoch: usize, observe: &mut dyn FnMut(Event)) -> Result<Score, TrainError> {
        let mut order = self.dataset.clips(Split::Training).to_vec();
        crate::data::shuffle(&mut order, self.settings.seed, epoch as u64);
        let clips = order.len();
        let augment = self.settings.augmentation;
        let augment = Augment { horizontal: augment.flip_horizontal, vertical: augment.flip_vertical };
        let dataset = self.dataset.clone();
        let mut feed = Feed::new(&dataset, order.clone(), self.ahead)?;
        let mut tally = Tally::default();
        let classes = self.settings.model.classes;
        let mut done = 0;
        for batch in order.chunks(self.settings.batch) {
            let total: f64 = batch.iter().map(|clip| self.weight(clip)).sum();
            done += batch.len();
            self.engine.begin_step()?;
            for alike in batch.chunk_by(|a, b| a.frames == b.frames) {
                self.engine.select(alike[0].frames)?;
                for micro in alike.chunks(self.engine.plan().micro_batch) {
                    let draws = Draws { seed: self.settings.seed, epoch: epoch as u64, augment };
                    draws.fill(&mut feed, micro.len(), self.engine.training_slots(micro.len())?)?;
                    // A batch without a labelled frame has no gradient.
                    let scale = if total > 0.0 { 1.0 / total } else { 0.0 };
                    let outcome = self.engine.accumulate(micro.len(), scale)?;
                    let labels = micro.iter().map(|clip| labels_of(&self.dataset, clip)).collect::<Vec<_>>();
                    tally.add(&outcome, &labels, classes);
                }
            }
            self.progress.step += 1;
            let score = tally.score();
            if !score.loss.is_finite() {
                return Err(self.diverged(epoch, NotFinite::Loss { value: score.loss }));
            }
            self.engine.update(self.settings.adam(self.progress.step))?;
            observe(Event::Batch { epoch, validating: false, clips: done, of: clips, score });
        }
        Ok(tally.score())
    }

    /// The weights of a clip's labels in the mean loss.
    fn weight(&self, clip: &ClipRef) -> f64 {
        let weight = |label: u32| self.settings.loss.weight(&self.class_weights, label);
        labels_of(&self.dataset, clip).iter().map(|&label| weight(label)).sum()
    }

    fn validate(&mut self, epoch: usize, observe: &mut dyn FnMut(Event)) -> Result<Option<Score>, TrainError> {
        let clips = self.dataset.clips(Split::Validation);
        if clips.is_empty() {
            return Ok(None);
        }
        let of = clips.len();
        let evaluation = Evaluation { dataset: &self.dataset, clips, ahead: self.ahead };
        let mut clips = 0;
        let mut seen = |_: Seen<'_>, score: Score| {
            clips += 1;
            observe(Event::Batch { epoch, validating: true, clips, of, score });
            ControlFlow::Continue(())
        };
        match evaluation.run(&mut self.engine, &mut seen) {
            Err(TrainError::Output { video, frames, value }) => {
                Err(self.diverged(epoch, NotFinite::Validation { video, frames, value }))
            }
            score => score.map(Some),
        }
    }

    fn diverged(&self, epoch: usize, what: NotFinite) -> TrainError {
        let Progress { step, epoch: kept, .. } = self.progress;
        let (learning_rate, folder) = (self.settings.learning_rate, self.folder.clone());
        TrainError::Diverged { epoch, step, what, learning_rate, kept, folder }
    }

    /// What a resumed run needs comes last: before it is there, the epoch is done again.
    fn save(&self, progress: &Progress, best: bool) -> Result<(), TrainError> {
        let record = checkpoint::Record::new(&self.settings, self.dataset.classes(), progress);
        let at = |name| self.folder.join(name);
        let save = || {
            if best {
                checkpoint::save_weights(&at(checkpoint::BEST), &self.engine, &record)?;
            }
            checkpoint::save_weights(&at(checkpoint::LAST), &self.engine, &record)?;
            checkpoint::save_all(&at(checkpoint::RESUME), &self.engine, &record)
        };
        save().map_err(|error| match error {
            TrainError::Weights(cause) => TrainError::Save {
                epoch: progress.epoch,
                cause: Box::new(cause),
                kept: self.progress.epoch,
                folder: self.folder.clone(),
            },
            other => other,
        })
    }
}

// The data side and the engine name a missing label apart, since neither imports the other.
const _: () = assert!(crate::data::IGNORE == IGNORED);

/// Whether a data set's frames are those that the model takes.
///
/// # Errors
/// When they are of another size.
pub fn extents_fit(dataset: &Dataset, model: &ModelSpec) -> Result<(), TrainError> {
    let shape = dataset.shape();
    let got = [shape.height, shape.width, shape.channels];
    let want = [model.height, model.width, model.channels];
    if got == want {
        return Ok(());
    }
    let manifest = dataset.manifest();
    let video = manifest.rows.first().map(|row| manifest.path(row.video).to_owned()).unwrap_or_default();
    Err(TrainError::Extents { video, got, want })
}

/// The labels of a clip: its own, or one per frame.
fn labels_of<'a>(dataset: &'a Dataset, clip: &ClipRef) -> Cow<'a, [u32]> {
    match dataset.labels_of(clip) {
        Some(labels) => Cow::Borrowed(labels),
        None => Cow::Owned(vec![clip.label as u32]),
    }
}

/// One classified clip.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Which.
    pub clip: &'a ClipRef,
    /// `[K]`, or `[T',K]` where frames have labels.
    pub logits: &'a [f32],
    /// One label, or `[T']`.
    pub labels: &'a [u32],
}

/// Clips to be classified by a trained engine.
pub struct Evaluation<'a> {
    /// Where they come from.
    pub dataset: &'a Arc<Dataset>,
    /// Which.
    pub clips: &'a [ClipRef],
    /// Clips decoded ahead.
    pub ahead: usize,
}

impl Evaluation<'_> {
    /// Classifies every clip, until `seen`, called with each and with the score so far, breaks off.
    ///
    /// # Errors
    /// When a video cannot be read, or what the model makes of a clip is no number.
    pub fn run(
        &self,
        engine: &mut Engine<f32>,
        seen: &mut dyn FnMut(Seen<'_>, Score) -> ControlFlow<()>,
    ) -> Result<Score, TrainError> {
        let classes = engine.graph().classes();
        let mut feed = Feed::new(self.dataset, self.clips.to_vec(), self.ahead)?;
        let draws = Draws { seed: 0, epoch: 0, augment: Augment::default() };
        let mut tally = Tally::default();
        let mut of_clip = Vec::new();
        for alike in self.clips.chunk_by(|a, b| a.frames == b.frames) {
            engine.select(alike[0].frames)?;
            for micro in alike.chunks(engine.plan().micro_batch) {
                draws.fill(&mut feed, micro.len(), engine.evaluation_slots(micro.len())?)?;
                let outcome = engine.evaluate(micro.len())?;
                let labels = micro.iter().map(|clip| labels_of(self.dataset, clip)).collect::<Vec<_>>();
                if let Some((place, value)) = not_finite(&outcome, micro.len(), classes) {
                    let clip = &micro[place];
                    let video = self.dataset.manifest().path(clip.video).to_owned();
                    return Err(TrainError::Output { video, frames: clip.start..clip.start + clip.frames, value });
                }
                tally.add(&outcome, &labels, classes);
                for (place, (clip, labels)) in micro.iter().zip(&labels).enumerate() {
                    of_clip.clear();
                    let rows = outcome.logits.chunks_exact(classes);
                    rows.skip(place).step_by(micro.len()).for_each(|row| of_clip.extend_from_slice(row));
                    if seen(Seen { clip, logits: &of_clip, labels }, tally.score()).is_break() {
                        return Ok(tally.score());
                    }
                }
            }
        }
        Ok(tally.score())
    }
}

/// The first of `clips` with a logit or a loss that is infinite or NaN, and that number.
fn not_finite(outcome: &Outcome<'_, f32>, clips: usize, classes: usize) -> Option<(usize, f32)> {
    let of = |values: &[f32], each: usize| {
        let at = values.iter().position(|value| !value.is_finite())?;
        Some((at / each % clips, values[at]))
    };
    of(outcome.logits, classes).or_else(|| of(outcome.losses, 1))
}

/// What is drawn for each clip of an epoch.
struct Draws {
    seed: u64,
    epoch: u64,
    augment: Augment,
}

impl Draws {
    /// The next clips, into the slots of a micro-batch.
    fn fill(&self, feed: &mut Feed<'_>, clips: usize, slots: crate::engine::Slots<'_>) -> Result<(), DataError> {
        let Self { seed, epoch, augment } = *self;
        for place in 0..clips {
            let draw = |clip: &ClipRef| augment.draw(seed, epoch, clip.number);
            let clip = feed.fill((place, clips), draw, slots.frames, slots.labels)?;
            if let Some(key) = slots.keys.get_mut(place) {
                *key = SplitMix64::of(&[seed, epoch, clip.number as u64, DROPOUT]).next();
            }
        }
        Ok(())
    }
}

/// Sets the draws of dropout apart from others of the same clip and epoch.
const DROPOUT: u64 = 0x6472_6f70;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_beats_nothing() {
        let score = |correct, loss| Score { labels: 4, correct, loss };
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!score(4, bad).beats(&score(0, 9.0)));
            assert!(!score(4, bad).beats(&score(0, bad)));
            assert!(score(0, 9.0).beats(&score(4, bad)));
        }
        assert!(score(3, 9.0).beats(&score(2, 1.0)) && score(3, 1.0).beats(&score(3, 9.0)));
        assert!(!score(3, 1.0).beats(&score(3, 1.0)));
        assert_eq!([&[f32::NAN, -2.0, -1.0][..], &[1.0, f32::NAN], &[f32::NAN; 2]].map(largest), [2, 0, 0]);
    }
}
