//! What a run leaves in its folder.
//!
//! `last.safetensors` and `best.safetensors` hold the weights under the names of the PyTorch module and nothing
//! else, so that its `load_state_dict` takes them as they are; how they were made is in the files' metadata.
//! `resume.safetensors` holds the weights and the optimizer's moments.

use super::{Score, Settings, TrainError};
use crate::engine::{Engine, Tensor};
use crate::weights::{Entry, TensorFile, WeightsError, write};
use framefit_core::ParamId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub(super) const LAST: &str = "last.safetensors";
pub(super) const BEST: &str = "best.safetensors";
pub(super) const RESUME: &str = "resume.safetensors";

/// The key of the record in a file's metadata.
const KEY: &str = "framefit";

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
        serde_json::to_string(record).map_err(|cause| WeightsError::BadRecord { path: path.to_owned(), cause })?;
    Ok(write(path, entries, KEY, text)?)
}

/// The weights alone.
pub(super) fn save_weights(path: &Path, engine: &Engine<f32>, record: &Record) -> Result<(), TrainError> {
    save(path, &entries(engine, "", Tensor::Weight)?, record)
}

const FIRST: &str = "optimizer.first_moment.";
const SECOND: &str = "optimizer.second_moment.";

/// The weights and the optimizer's moments.
pub(super) fn save_all(path: &Path, engine: &Engine<f32>, record: &Record) -> Result<(), TrainError> {
    let mut all = entries(engine, "", Tensor::Weight)?;
    all.extend(entries(engine, FIRST, Tensor::FirstMoment)?);
    all.extend(entries(engine, SECOND, Tensor::SecondMoment)?);
    save(path, &all, record)
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
            path = if best.exists() { best } else { path.join(LAST) };
        }
        let file = TensorFile::open(&path)?;
        let text = file.metadata(KEY).ok_or_else(|| WeightsError::NoRecord { path: path.clone() })?;
        let record: Record = serde_json::from_str(text).map_err(|cause| WeightsError::BadRecord { path, cause })?;
        let Record { settings, classes, progress, .. } = record;
        Ok(Self { settings, classes, progress, file })
    }

    /// The checkpoint from which a run in `folder` can be resumed.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn of_run(folder: &Path) -> Result<Self, WeightsError> {
        Self::open(&folder.join(RESUME))
    }

    /// Whether `folder` holds a run.
    pub fn exists_in(folder: &Path) -> bool {
        [RESUME, LAST, BEST].iter().any(|name| folder.join(name).exists())
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
        let wanted = engine.graph().classes();
        if self.classes.len() != wanted {
            let path = self.path().to_owned();
            return Err(TrainError::Classes { path, found: self.classes.len(), wanted });
        }
        self.load(engine, "", Tensor::Weight)
    }

    pub(super) fn load_moments(&mut self, engine: &mut Engine<f32>) -> Result<(), TrainError> {
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
