//! From arguments to what they mean.

use crate::args::{
    ClassWeightsArg, ClipArgs, FlipArg, InferenceArgs, MachineArgs, ModelArgs, ResourceArgs, Size, TrainingArgs,
};
use crate::report::Problem;
use framefit::core::Bytes;
use framefit::core::schedule::Cut;
use framefit::data::{ClipForm, DataError, Dataset, FrameSize, Labels, Length, ManifestError, VideoInfo};
use framefit::engine::{Kernels, Normalisation};
use framefit::models::ModelSpec;
use framefit::train::{Augmentation, Checkpoint, ClassWeights, Resources};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MOST_THREADS: usize = 512;

/// Covers 66 segments passing through each at most twice.
const DEFAULT_CHECKPOINTS: usize = 10;

pub fn resources(args: &ResourceArgs) -> Result<Resources, Problem> {
    let cut = cut(args.segment, args.checkpoints.unwrap_or(DEFAULT_CHECKPOINTS))?;
    on_machine(&args.machine, args.memory, cut)
}

pub fn inference_resources(args: &InferenceArgs) -> Result<Resources, Problem> {
    on_machine(&args.machine, args.memory, cut(args.segment, 0)?)
}

fn cut(segment: Option<usize>, checkpoints: usize) -> Result<Option<Cut>, Problem> {
    segment.map(|segment| Ok(Cut { segment: at_least_one("--segment", segment)?, checkpoints })).transpose()
}

fn on_machine(args: &MachineArgs, memory: Option<Bytes>, cut: Option<Cut>) -> Result<Resources, Problem> {
    let mut kernels = Kernels::best();
    if let Some(threads) = args.threads {
        if threads == 0 || threads > MOST_THREADS {
            let message = format!("write a number from 1 to {MOST_THREADS}, not {threads}");
            return Err(Problem::Flag { flag: "--threads", message });
        }
        kernels.threads = threads;
    }
    if let Some(isa) = args.isa {
        if !isa.available() {
            let message = format!("this processor has no {}; the most it has is {}", isa.name(), kernels.isa.name());
            return Err(Problem::Flag { flag: "--isa", message });
        }
        kernels.isa = isa;
    }
    let ahead = at_least_one("--ahead", args.ahead)?;
    Ok(Resources { memory, kernels, ahead, cut })
}

/// The extents of a clip.
#[derive(Clone, Copy)]
pub struct Extents {
    pub frames: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

pub fn model(args: &ModelArgs, clip: Extents, classes: usize) -> Result<ModelSpec, Problem> {
    let zero = [
        ("--widths", args.widths.contains(&0) || args.widths.is_empty()),
        ("--hidden", args.hidden == 0),
        ("--clip", clip.frames == 0),
        ("--channels", clip.channels == 0),
        ("--classes", classes == 0),
    ];
    if let Some((flag, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
        return Err(Problem::Flag { flag, message: "must be at least 1".to_owned() });
    }
    Ok(ModelSpec {
        family: args.model,
        widths: args.widths.clone(),
        filters: args.filters,
        kernel: args.kernel,
        pool: args.pool,
        hidden: args.hidden,
        frames: clip.frames,
        height: clip.height,
        width: clip.width,
        channels: clip.channels,
        classes,
    })
}

pub fn model_of_clip(args: &ModelArgs, clip: &ClipArgs) -> Result<ModelSpec, Problem> {
    let Size { height, width } = clip.size;
    let extents = Extents { frames: clip.clip, height, width, channels: clip.channels };
    model(args, extents, clip.classes)
}

pub fn normalisation(args: &TrainingArgs, channels: usize) -> Result<Normalisation, Problem> {
    let spread = |flag: &'static str, values: &[f64]| match values {
        [one] => Ok(vec![*one; channels]),
        each if each.len() == channels => Ok(each.to_vec()),
        _ => {
            let message = format!("write one number, or {channels}: one per channel");
            Err(Problem::Flag { flag, message })
        }
    };
    let (mean, std) = (spread("--mean", &args.mean)?, spread("--std", &args.std)?);
    if mean.iter().any(|m| !m.is_finite()) {
        return Err(Problem::Flag { flag: "--mean", message: "must be a number".to_owned() });
    }
    if std.iter().any(|s| !s.is_finite() || *s <= 0.0) {
        return Err(Problem::Flag { flag: "--std", message: "must be more than 0".to_owned() });
    }
    Ok(Normalisation { mean, std })
}

pub fn augmentation(flips: &[FlipArg]) -> Augmentation {
    Augmentation {
        flip_horizontal: flips.contains(&FlipArg::Horizontal),
        flip_vertical: flips.contains(&FlipArg::Vertical),
    }
}

pub fn class_weights(arg: ClassWeightsArg) -> ClassWeights {
    match arg {
        ClassWeightsArg::None => ClassWeights::None,
        ClassWeightsArg::Balanced => ClassWeights::Balanced,
    }
}

pub fn at_least_one(flag: &'static str, value: usize) -> Result<usize, Problem> {
    if value == 0 {
        return Err(Problem::Flag { flag, message: "must be at least 1".to_owned() });
    }
    Ok(value)
}

/// Clips of one optimizer step. A model is refused whose values, of this many clips, cannot be addressed.
const MOST_CLIPS: usize = 1 << 16;

pub fn batch(clips: usize) -> Result<usize, Problem> {
    if clips == 0 || clips > MOST_CLIPS {
        let message = format!("write a number from 1 to {MOST_CLIPS}, not {clips}");
        return Err(Problem::Flag { flag: "--batch", message });
    }
    Ok(clips)
}

pub fn positive(flag: &'static str, value: f64, zero: bool) -> Result<f64, Problem> {
    if !value.is_finite() || value < 0.0 || (value == 0.0 && !zero) {
        let rule = if zero { "at least 0" } else { "more than 0" };
        return Err(Problem::Flag { flag, message: format!("must be {rule}, not {value}") });
    }
    Ok(value)
}

pub fn clip_form(length: Length, size: Option<Size>, channels: usize) -> Result<ClipForm, Problem> {
    if let Length::Frames(frames) = length {
        at_least_one("--clip", frames)?;
    }
    if !matches!(channels, 1 | 3) {
        let message = format!("videos have 3 channels (RGB) or are turned to 1 (grey), not {channels}");
        return Err(Problem::Flag { flag: "--channels", message });
    }
    let size = size.map(|s| FrameSize { height: s.height, width: s.width });
    Ok(ClipForm { length, size, channels })
}

/// The data set of videos that have been probed.
pub fn dataset(labels: Labels, infos: Vec<VideoInfo>, form: ClipForm, keep: Bytes) -> Result<Arc<Dataset>, Problem> {
    Ok(Arc::new(Dataset::with_infos(labels, infos, form, keep.0)?))
}

/// The manifest for a run that is there: the one named now, else the one that the run was trained with.
pub fn manifest_of_run(
    named: &[PathBuf],
    checkpoint: &Checkpoint,
    run: &Path,
    command: &'static str,
) -> Result<Labels, Problem> {
    let recorded = named.is_empty();
    let files = if recorded { &checkpoint.settings.manifests } else { named };
    Labels::read_with_classes(files, &checkpoint.classes).map_err(|cause| match cause {
        ManifestError::Read { .. } if recorded => {
            Problem::ManifestOfRun { run: run.to_owned(), command, cause: Box::new(cause) }
        }
        cause => DataError::from(cause).into(),
    })
}

/// runs/NAME-N, for the first N from 1 that is not there yet.
pub fn new_run(manifest: &Path) -> PathBuf {
    let folder = std::path::absolute(manifest).ok();
    let name = folder.as_deref().and_then(Path::parent).and_then(Path::file_name);
    let name = name.map_or_else(|| "run".to_owned(), |n| n.to_string_lossy().into_owned());
    (1u32..)
        .map(|n| Path::new("runs").join(format!("{name}-{n}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| Path::new("runs").join(name))
}
