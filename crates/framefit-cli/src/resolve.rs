//! From arguments to what they mean.

use crate::args::{
    ClassWeightsArg, ClipArgs, CuttingArg, FlipArg, InferenceArgs, LossArg, MachineArgs, ModelArgs, NormArg,
    ResourceArgs, Size, TrainingArgs,
};
use crate::report::Problem;
use crate::words::thousands;
use framefit::core::Bytes;
use framefit::core::schedule::Cut;
use framefit::data::{ClipForm, DataError, Dataset, FrameSize, Labels, Length, ManifestError, VideoInfo};
use framefit::engine::{Kernels, Loss, LossKind, Normalisation};
use framefit::models::{Family, ModelSpec, NormPlace};
use framefit::train::{Augmentation, Checkpoint, ClassWeights, MOST_CLIPS, Resources};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MOST_THREADS: usize = 512;

/// More is more than any decoder needs, and their bytes can be counted.
const MOST_AHEAD: usize = 1 << 16;

const MOST_CHECKPOINTS: usize = 1 << 16;

/// Covers 66 segments passing through each at most twice.
const DEFAULT_CHECKPOINTS: usize = 10;

pub fn resources(args: &ResourceArgs, cutting: CuttingArg) -> Result<Resources, Problem> {
    let cut = match (cutting, args.segment) {
        (CuttingArg::Truncated, Some(segment)) => Some(Cut::truncated(at_least_one("--segment", segment)?)),
        (CuttingArg::Truncated, None) => {
            let message = "--cutting truncated needs it: the frames after which the gradient is cut".to_owned();
            return Err(Problem::Flag { flag: "--segment", message });
        }
        (CuttingArg::Exact | CuttingArg::Independent, segment) => {
            cut(segment, args.checkpoints.unwrap_or(DEFAULT_CHECKPOINTS))?
        }
    };
    let resources = on_machine(&args.machine, args.memory, cut)?;
    if let Some(folder) = args.barrier_folder.as_ref().filter(|folder| !folder.is_dir()) {
        let message = format!("there is no folder {}", folder.display());
        return Err(Problem::Flag { flag: "--barrier-folder", message });
    }
    Ok(Resources { barrier_folder: args.barrier_folder.clone(), ..resources })
}

/// Only models with a label per frame can be trained on less than their clips.
pub fn cutting_fits(cutting: CuttingArg, per_frame: bool) -> Result<(), Problem> {
    match cutting {
        CuttingArg::Truncated | CuttingArg::Independent if !per_frame => {
            let message = "clips with one label each are trained whole; it is for a label per frame".to_owned();
            Err(Problem::Flag { flag: "--cutting", message })
        }
        CuttingArg::Exact | CuttingArg::Truncated | CuttingArg::Independent => Ok(()),
    }
}

pub fn loss(args: &TrainingArgs) -> Result<Loss, Problem> {
    let smoothing = args.label_smoothing;
    if !(0.0..=1.0).contains(&smoothing) {
        let message = format!("write a share from 0 to 1, not {smoothing}");
        return Err(Problem::Flag { flag: "--label-smoothing", message });
    }
    let kind = match args.loss {
        LossArg::Softmax => LossKind::Softmax,
        LossArg::Binary => LossKind::Binary,
    };
    Ok(Loss { kind, smoothing })
}

pub fn inference_resources(args: &InferenceArgs) -> Result<Resources, Problem> {
    on_machine(&args.machine, args.memory, cut(args.segment, 0)?)
}

fn cut(segment: Option<usize>, checkpoints: usize) -> Result<Option<Cut>, Problem> {
    let checkpoints = within("--checkpoints", checkpoints, 0..=MOST_CHECKPOINTS)?;
    segment.map(|segment| Ok(Cut::exact(at_least_one("--segment", segment)?, checkpoints))).transpose()
}

fn on_machine(args: &MachineArgs, memory: Option<Bytes>, cut: Option<Cut>) -> Result<Resources, Problem> {
    let mut kernels = Kernels::best();
    if let Some(threads) = args.threads {
        kernels.threads = within("--threads", threads, 1..=MOST_THREADS)?;
    }
    if let Some(isa) = args.isa {
        if !isa.available() {
            let message = format!("this processor has no {}; the most it has is {}", isa.name(), kernels.isa.name());
            return Err(Problem::Flag { flag: "--isa", message });
        }
        kernels.isa = isa;
    }
    let ahead = within("--ahead", args.ahead, 0..=MOST_AHEAD)?;
    Ok(Resources { memory, kernels, ahead, cut, barrier_folder: None })
}

/// The extents of a clip.
#[derive(Clone, Copy)]
pub struct Extents {
    pub frames: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

/// The options that say more about a model of this family.
pub fn model_flags(family: Family) -> &'static [&'static str] {
    match family {
        Family::Cnn3d | Family::Cnn3dSeparable | Family::Cnn3dFlatten => {
            &["--widths", "--hidden", "--kernel", "--pool"]
        }
        Family::ConvLstm => &["--filters", "--kernel", "--stride", "--norm", "--recurrent-dropout"],
        Family::CnnLstm => &["--widths", "--hidden", "--kernel", "--stride"],
    }
}

pub fn model(args: &ModelArgs, clip: Extents, classes: usize) -> Result<ModelSpec, Problem> {
    let family = args.model;
    let given = [
        ("--widths", args.widths.is_some()),
        ("--hidden", args.hidden.is_some()),
        ("--pool", args.pool.is_some()),
        ("--filters", args.filters.is_some()),
        ("--stride", args.stride.is_some()),
        ("--norm", args.norm.is_some()),
        ("--recurrent-dropout", args.recurrent_dropout.is_some()),
    ];
    let has = model_flags(family);
    if let Some((flag, _)) = given.iter().find(|(flag, given)| *given && !has.contains(flag)) {
        let message = format!("{family} has no such thing; what it has is set by {}", has.join(", "));
        return Err(Problem::Flag { flag, message });
    }
    let default = ModelSpec::of(family);
    let widths = args.widths.clone().unwrap_or(default.widths);
    let (filters, hidden) = (args.filters.unwrap_or(default.filters), args.hidden.unwrap_or(default.hidden));
    let zero = [
        ("--widths", widths.contains(&0) || widths.is_empty()),
        ("--filters", filters == 0),
        ("--hidden", hidden == 0),
        ("--stride", args.stride == Some(0)),
        ("--clip", clip.frames == 0),
        ("--channels", clip.channels == 0),
        ("--classes", classes == 0),
    ];
    if let Some((flag, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
        return Err(Problem::Flag { flag, message: "must be at least 1".to_owned() });
    }
    let recurrent_dropout = args.recurrent_dropout.unwrap_or(default.recurrent_dropout);
    if !(0.0..1.0).contains(&recurrent_dropout) {
        let message = format!("write a probability from 0 to below 1, not {recurrent_dropout}");
        return Err(Problem::Flag { flag: "--recurrent-dropout", message });
    }
    Ok(ModelSpec {
        family,
        widths,
        filters,
        kernel: args.kernel,
        stride: args.stride.unwrap_or(default.stride),
        norm: args.norm.map_or(default.norm, |norm| match norm {
            NormArg::Before => NormPlace::Before,
            NormArg::After => NormPlace::After,
            NormArg::None => NormPlace::None,
        }),
        recurrent_dropout,
        pool: args.pool.unwrap_or(default.pool),
        hidden,
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

pub fn batch(clips: usize) -> Result<usize, Problem> {
    within("--batch", clips, 1..=MOST_CLIPS)
}

fn within(flag: &'static str, value: usize, range: RangeInclusive<usize>) -> Result<usize, Problem> {
    if range.contains(&value) {
        return Ok(value);
    }
    let [from, to] = [range.start(), range.end()].map(|&n| thousands(n as u64));
    Err(Problem::Flag { flag, message: format!("write a number from {from} to {to}, not {value}") })
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
