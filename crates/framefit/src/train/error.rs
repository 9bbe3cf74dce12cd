use crate::data::{DataError, Split};
use crate::engine::EngineError;
use crate::weights::WeightsError;
use framefit_core::ShapeError;
use framefit_core::plan::{NoFit, Unsound};
use std::path::PathBuf;

/// Why training, evaluation or prediction stops.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Manifest, videos or clips.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model does not fit the clips.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The plan does not fit the budget.
    #[error(transparent)]
    NoFit(#[from] Box<NoFit>),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A checkpoint.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Nothing to work on.
    #[error("the manifest has no {split} clips")]
    NoClips {
        /// Of which split.
        split: Split,
    },
    /// The loss became infinite or NaN.
    #[error(
        "the loss is no longer a number in epoch {epoch}, step {step}: lower the learning rate (--lr). The checkpoints of earlier epochs are whole"
    )]
    Diverged {
        /// From 1.
        epoch: usize,
        /// Optimizer steps so far.
        step: u64,
    },
    /// The folder of the run cannot be made.
    #[error("cannot make the folder {}: {cause}. Choose another with --out", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// A checkpoint whose classes are not the model's.
    #[error(
        "{}: the checkpoint has {found} classes, but the model has {wanted}. Use the manifest that it was trained on, or train anew",
        path.display()
    )]
    Classes {
        /// The checkpoint.
        path: PathBuf,
        /// Classes it was trained on.
        found: usize,
        /// Classes of the model.
        wanted: usize,
    },
}

impl From<Unsound> for TrainError {
    fn from(unsound: Unsound) -> Self {
        TrainError::Engine(unsound.into())
    }
}
