use crate::data::{DataError, Split};
use crate::engine::{EngineError, StreamFailed};
use crate::weights::{Place, WeightsError};
use framefit_core::ShapeError;
use framefit_core::plan::{NoFit, Unsound};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

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
    /// A stream.
    #[error(transparent)]
    Stream(Box<StreamFailed>),
    /// A checkpoint.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A model whose segments cannot be trained by themselves.
    #[error(
        "{layer} needs the whole clip, so its gradient cannot be truncated: leave --cutting truncated out, and the \
         gradient is exact, in segments where that is needed"
    )]
    Truncated {
        /// The first such layer.
        layer: String,
    },
    /// Nothing to work on.
    #[error(
        "{}: it has no {split} clips. Give rows the split '{split}', or name another manifest",
        manifest.display()
    )]
    NoClips {
        /// The manifest.
        manifest: PathBuf,
        /// Of which split.
        split: Split,
    },
    /// Videos that are not as the model was trained on.
    #[error(
        "{} is {}, but the model takes {}. Give it videos of that size, or train with --size to have every video resized",
        video.display(),
        Frame(*got),
        Frame(*want)
    )]
    Extents {
        /// The first video.
        video: PathBuf,
        /// Its height, width and channels, as they are loaded.
        got: [usize; 3],
        /// The model's.
        want: [usize; 3],
    },
    /// A number that training made is infinite or NaN. What was written before is whole.
    #[error(
        "training diverged in epoch {epoch}, step {step}: {what}. Train anew with a lower learning rate (--lr, which \
         was {learning_rate:?}) and with --mean and --std that fit the pixels; {}",
        Written { epoch: *kept, folder }
    )]
    Diverged {
        /// From 1.
        epoch: usize,
        /// Optimizer steps so far.
        step: u64,
        /// Which number.
        what: NotFinite,
        /// Adam's.
        learning_rate: f64,
        /// The epoch of the files in the folder; 0 where there are none.
        kept: usize,
        /// The folder of the run.
        folder: PathBuf,
    },
    /// A clip that the model has no finite output for.
    #[error(
        "{}, frames {} to {}: the model's output is {value}. Use weights of an earlier epoch, or train anew with a \
         lower learning rate (--lr)",
        video.display(),
        frames.start,
        frames.end
    )]
    Output {
        /// The video.
        video: PathBuf,
        /// The clip's frames.
        frames: Range<usize>,
        /// A logit or the loss.
        value: f32,
    },
    /// An epoch is trained, and its files cannot be written.
    #[error("epoch {epoch} is not saved: {cause}. {}", Onwards { epoch: *kept, folder })]
    Save {
        /// From 1.
        epoch: usize,
        /// Which, and why.
        cause: Box<WeightsError>,
        /// The epoch of the files in the folder; 0 where there are none.
        kept: usize,
        /// The folder of the run.
        folder: PathBuf,
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

impl From<StreamFailed> for TrainError {
    fn from(error: StreamFailed) -> Self {
        TrainError::Stream(Box::new(error))
    }
}

impl From<Unsound> for TrainError {
    fn from(unsound: Unsound) -> Self {
        TrainError::Engine(unsound.into())
    }
}

/// A number that is infinite or NaN.
#[derive(Clone, Debug, PartialEq)]
pub enum NotFinite {
    /// The mean loss of the training clips so far.
    Loss {
        /// The loss.
        value: f64,
    },
    /// A weight, or one of the optimizer's moments.
    Tensor {
        /// The tensor, as it is called in files.
        name: String,
        /// Where, in the user's axes.
        index: Vec<usize>,
        /// The value.
        value: f32,
    },
    /// What the model makes of a validation clip.
    Validation {
        /// The video.
        video: PathBuf,
        /// The clip's frames.
        frames: Range<usize>,
        /// A logit or the loss.
        value: f32,
    },
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotFinite::Loss { value } => write!(f, "the training loss is {value}"),
            NotFinite::Tensor { name, index, value } => write!(f, "'{name}'{} is {value}", Place(index)),
            NotFinite::Validation { video, frames, value } => write!(
                f,
                "validation is no number, the model's output for {}, frames {} to {}, is {value}",
                video.display(),
                frames.start,
                frames.end
            ),
        }
    }
}

/// 135x240x1
struct Frame([usize; 3]);

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [height, width, channels] = self.0;
        write!(f, "{height}x{width}x{channels}")
    }
}

/// What a run has written before it stopped.
struct Written<'a> {
    epoch: usize,
    folder: &'a Path,
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.display();
        match self.epoch {
            0 => write!(f, "{folder} holds no finished epoch"),
            epoch => write!(f, "{folder} holds epoch {epoch}, whole"),
        }
    }
}

/// How to go on once there is room.
struct Onwards<'a> {
    epoch: usize,
    folder: &'a Path,
}

impl fmt::Display for Onwards<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch {
            0 => write!(f, "Then train anew: no epoch is whole"),
            epoch => write!(f, "Then go on from epoch {epoch} with --resume {}", self.folder.display()),
        }
    }
}
