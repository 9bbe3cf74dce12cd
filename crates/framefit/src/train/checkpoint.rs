//! What a run leaves in its folder.
//!
//! `last.safetensors` and `best.safetensors` hold the weights under the names of the PyTorch module and nothing
//! else, so that its `load_state_dict` takes them as they are; how they were made is in the files' metadata.
//! `resume.safetensors` holds the weights and the optimizer's moments.

use super::{NotFinite, Score, Settings, TrainError};
use crate::engine::{Engine, Stream, Tensor};
use crate::weights::{self, Entry, TensorFile, WeightsError, write};
use framefit_core::{Graph, ParamId};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub(super) const LAST: &str = "last.safetensors";
pub(super) const BEST: &str = "best.safetensors";
pub(super) const RESUME: &str = "resume.safetensors";

/// The key of the record in a file's metadata.
const KEY: &str = "framefit";

/// The version alone, of a record that cannot be read otherwise.
#[derive(Deserialize)]
struct Version {
    version: String,
}

/// How far a run has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Epochs done.
    pub epoch: usize,
    /// Optimizer steps done.
    pub step: u64,
    /// Over the training clips of the last epoch.
    pub training: Score,
    /// Over the validation clips after the last epoch.
    pub validation: Option<Score>,
    /// The best validation so far.
    pub best: Option<Score>,
    /// The epoch of the best validation.
    pub best_epoch: usize,
}

/// How weights were made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The program's version.
    version: String,
    settings: Settings,
    classes: Vec<String>,
    progress: Progress,
}

impl Record {
    pub(super) fn new(settings: &Settings, classes: &[String], progress: &Progress) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: settings.clone(),
            classes: classes.to_vec(),
            progress: progress.clone(),
        }
    }
}

fn entries<'a>(
    engine: &'a Engine<f32>,
    prefix: &str,
    tensor: impl Fn(ParamId) -> Tensor,
) -> Result<Vec<Entry<'a>>, TrainError> {
    let params = engine.graph().params.iter().enumerate();
    params
        .map(|(index, param)| (tensor(ParamId(index)), param))
        .filter(|(tensor, param)| tensor.is_of(param))
        .map(|(tensor, param)| {
            let data = engine.tensor(tensor)?;
            let name = format!("{prefix}{}", param.name);
            Ok(Entry { name, dims: &param.dims, stored: &param.stored, data })
        })
        .collect()
}

fn save(path: &Path, entries: &[Entry<'_>], record: &Record) -> Result<(), TrainError> {
    let text =
        serde_json::to_string(record).map_err(|cause| WeightsError::Unrecorded { path: path.to_owned(), cause })?;
    Ok(write(path, entries, KEY, text)?)
}

/// The weights alone.
pub(super) fn save_weights(path: &Path, engine: &Engine<f32>, record: &Record) -> Result<(), TrainError> {
    save(path, &entries(engine, "", Tensor::Weight)?, record)
}

/// What the names of the optimizer's moments begin with, which are no part of the model.
const OPTIMIZER: &str = "optimizer.";
const FIRST: &str = "optimizer.first_moment.";
const SECOND: &str = "optimizer.second_moment.";

/// The weights and the optimizer's moments, under their names in files.
fn everything(engine: &Engine<f32>) -> Result<Vec<Entry<'_>>, TrainError> {
    let mut all = entries(engine, "", Tensor::Weight)?;
    all.extend(entries(engine, FIRST, Tensor::FirstMoment)?);
    all.extend(entries(engine, SECOND, Tensor::SecondMoment)?);
    Ok(all)
}

/// What a run is resumed from.
pub(super) fn save_all(path: &Path, engine: &Engine<f32>, record: &Record) -> Result<(), TrainError> {
    save(path, &everything(engine)?, record)
}

/// The first weight or moment that is infinite or NaN.
pub(super) fn not_finite(engine: &Engine<f32>) -> Result<Option<NotFinite>, TrainError> {
    let found = everything(engine)?.into_iter().find_map(|Entry { name, dims, stored, data }| {
        let (index, value) = weights::not_finite(dims, stored, data)?;
        Some(NotFinite::Tensor { name, index, value })
    });
    Ok(found)
}

fn names_and_extents(entries: Vec<Entry<'_>>) -> Vec<(String, &[usize])> {
    entries.into_iter().map(|entry| (entry.name, entry.dims)).collect()
}

/// A file of a run that must be there.
fn in_folder(folder: &Path, file: &'static str) -> Result<PathBuf, WeightsError> {
    let path = folder.join(file);
    if path.exists() { Ok(path) } else { Err(WeightsError::NoRun { folder: folder.to_owned(), file }) }
}

/// A file of weights and how they were made.
pub struct Checkpoint {
    /// The settings of the run.
    pub settings: Settings,
    /// Names of the classes, in the order of the logits.
    pub classes: Vec<String>,
    /// How far the run had come.
    pub progress: Progress,
    file: TensorFile,
}

impl Checkpoint {
    /// Opens a file of weights that framefit wrote, or the best (else the last) weights in a run's folder.
    ///
    /// # Errors
    /// When it cannot be read or was not written by framefit.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mut path: PathBuf = path.to_owned();
        if path.is_dir() {
            let best = path.join(BEST);
            path = if best.exists() { best } else { in_folder(&path, LAST)? };
        }
        let file = TensorFile::open(&path)?;
        let text = file.metadata(KEY).ok_or_else(|| WeightsError::NoRecord { path: path.clone() })?;
        let record: Record = serde_json::from_str(text).map_err(|cause| {
            let version = serde_json::from_str(text).map_or_else(|_| "?".to_owned(), |Version { version }| version);
            WeightsError::BadRecord { path: path.clone(), version, cause }
        })?;
        if let Some(rule) = record.settings.fault() {
            return Err(WeightsError::BadSettings { path, rule });
        }
        let Record { settings, classes, progress, .. } = record;
        Ok(Self { settings, classes, progress, file })
    }

    /// The checkpoint from which a run in `folder` can be resumed.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn of_run(folder: &Path) -> Result<Self, WeightsError> {
        Self::open(&in_folder(folder, RESUME)?)
    }

    /// Whether `folder` holds a run.
    pub fn exists_in(folder: &Path) -> bool {
        [RESUME, LAST, BEST].iter().any(|name| folder.join(name).exists())
    }

    /// Whether `folder` holds a run that can be resumed.
    pub fn can_be_resumed_from(folder: &Path) -> bool {
        folder.join(RESUME).exists()
    }

    /// Removes what a run that was killed has left in its folder half-written. No other may be at work there.
    pub fn remove_unfinished_in(folder: &Path) {
        for name in [BEST, LAST, RESUME] {
            weights::remove_unfinished(&folder.join(name));
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads the weights into the engine.
    ///
    /// # Errors
    /// When they are of another model.
    pub fn load_weights(&mut self, engine: &mut Engine<f32>) -> Result<(), TrainError> {
        self.fits(engine.graph())?;
        self.load(engine, "", Tensor::Weight)
    }

    /// Reads the weights into a stream.
    ///
    /// # Errors
    /// When they are of another model.
    pub fn load_into_stream(&mut self, stream: &mut Stream<f32>) -> Result<(), TrainError> {
        self.fits(stream.graph())?;
        let params = stream.graph().params.clone();
        for (index, param) in params.iter().enumerate() {
            let to = stream.weight_mut(ParamId(index))?;
            self.file.read(&param.name, &param.dims, &param.stored, to)?;
        }
        Ok(())
    }

    /// Whether the file's weights are those of a model.
    fn fits(&self, graph: &Graph) -> Result<(), TrainError> {
        let wanted = graph.classes();
        if self.classes.len() != wanted {
            let path = self.path().to_owned();
            return Err(TrainError::Classes { path, found: self.classes.len(), wanted });
        }
        let model: Vec<(String, &[usize])> =
            graph.params.iter().map(|param| (param.name.clone(), param.dims.as_slice())).collect();
        Ok(self.file.check(&model, |name| name.starts_with(OPTIMIZER))?)
    }

    /// Reads weights and moments into the engine.
    pub(super) fn load_all(&mut self, engine: &mut Engine<f32>) -> Result<(), TrainError> {
        let all = names_and_extents(everything(engine)?);
        self.file.check(&all, |_| false)?;
        self.load_weights(engine)?;
        self.load(engine, FIRST, Tensor::FirstMoment)?;
        self.load(engine, SECOND, Tensor::SecondMoment)
    }

    fn load(
        &mut self,
        engine: &mut Engine<f32>,
        prefix: &str,
        tensor: impl Fn(ParamId) -> Tensor,
    ) -> Result<(), TrainError> {
        let params = engine.graph().params.clone();
        for (index, param) in params.iter().enumerate() {
            let tensor = tensor(ParamId(index));
            if !tensor.is_of(param) {
                continue;
            }
            let to = engine.tensor_mut(tensor)?;
            self.file.read(&format!("{prefix}{}", param.name), &param.dims, &param.stored, to)?;
        }
        Ok(())
    }
}
