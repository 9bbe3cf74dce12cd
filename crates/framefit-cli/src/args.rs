//! Arguments as they are typed.

use clap::{Args, Parser, Subcommand, ValueEnum};
use framefit::core::bytes::UnreadableBytes;
use framefit::core::{Bytes, Dims3};
use framefit::kernels::Isa;
use framefit::models::Family;
use std::path::PathBuf;

/// Train video models on whole clips inside the memory you have
#[derive(Debug, Parser)]
#[command(
    name = "framefit",
    bin_name = "framefit",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model on labelled videos
    Train(TrainArgs),
    /// Show what training would take, before anything is trained
    Plan(PlanArgs),
    /// Show a model's layers, shapes and parameters
    Summary(SummaryArgs),
    /// Measure a trained model on labelled videos
    Eval(EvalArgs),
    /// Classify videos with a trained model
    Predict(PredictArgs),
    /// Say what the bytes of a PyTorch out-of-memory message are
    Explain(ExplainArgs),
}

#[derive(Debug, Args)]
#[command(override_usage = "framefit train [OPTIONS] <MANIFEST> [MANIFEST]\n       \
                            framefit train --resume <FOLDER> [OPTIONS] [MANIFEST]...")]
pub struct TrainArgs {
    /// CSV with the columns video,label[,start_frame,end_frame][,split], or video,frame,label[,split] for a label
    /// per frame; or two files: training, validation
    #[arg(required_unless_present = "resume", num_args = 1..=2, value_name = "MANIFEST")]
    pub manifests: Vec<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub clip: DataClipArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    pub cutting: CuttingArgs,
    #[command(flatten)]
    pub resources: ResourceArgs,
    #[command(flatten)]
    pub keeping: KeepingArgs,
    /// Folder for weights and logs [default: runs/<name of the manifest's folder>-<number>]
    #[arg(long, value_name = "FOLDER", help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Continue the run in this folder, with its own settings
    #[arg(
        long,
        value_name = "FOLDER",
        help_heading = "Run",
        conflicts_with_all = [
            "out", "model", "widths", "filters", "kernel", "stride", "norm", "recurrent_dropout", "pool", "hidden", "cutting", "clip", "size", "channels", "batch", "lr",
            "weight_decay", "class_weights", "loss", "label_smoothing", "flip", "mean", "std", "seed",
        ]
    )]
    pub resume: Option<PathBuf>,
    /// Results as one JSON object per epoch, and one at the end
    #[arg(long, help_heading = "Run")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Show every row of the ledger
    #[arg(long)]
    pub all: bool,
    /// Everything as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub clip: ClipArgs,
    /// Clips of one optimizer step
    #[arg(long, value_name = "CLIPS", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 1, help_heading = "Training")]
    pub batch: usize,
    #[command(flatten)]
    pub cutting: CuttingArgs,
    #[command(flatten)]
    pub resources: ResourceArgs,
    #[command(flatten)]
    pub keeping: PlannedKeepingArgs,
}

#[derive(Debug, Args)]
pub struct SummaryArgs {
    /// Everything as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub clip: ClipArgs,
}

#[derive(Debug, Args)]
pub struct EvalArgs {
    /// The folder of a run (its best weights, else its last), or a file of weights
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The manifest, or two: training, validation [default: those of the run]
    #[arg(num_args = 0..=2, value_name = "MANIFEST")]
    pub manifests: Vec<PathBuf>,
    /// Which clips [default: validation where there are any, else all]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub split: Option<SplitArg>,
    /// Clips at a time
    #[arg(long, value_name = "CLIPS", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 8)]
    pub batch: usize,
    /// Results as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub resources: InferenceArgs,
}

#[derive(Debug, Args)]
pub struct PredictArgs {
    /// The folder of a run (its best weights, else its last), or a file of weights
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Videos: H.264 in MP4 or MOV, .npy, or folders of images; with a label per frame also - for standard input, as
    /// YUV4MPEG2 (such as from ffmpeg -f yuv4mpegpipe)
    #[arg(required = true, value_name = "VIDEO")]
    pub videos: Vec<PathBuf>,
    /// Standard input is raw frames of this height and width, RGB or grey as the model takes them
    #[arg(long, value_name = "HxW", value_parser = parse_size)]
    pub raw: Option<Size>,
    /// The colours of YUV4MPEG2 on standard input, which it does not tell
    #[arg(long, value_enum, value_name = "MATRIX", default_value_t = MatrixArg::Bt601)]
    pub matrix: MatrixArg,
    /// Clips at a time
    #[arg(long, value_name = "CLIPS", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 8)]
    pub batch: usize,
    /// Results as one JSON object per clip, with the probability of every class
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub resources: InferenceArgs,
}

/// The model is described by --clip and --size; all that says more about it has no meaning without them.
#[derive(Debug, Args)]
#[command(
    after_help = "With --clip and --size, the message is compared with the tensors of the model that these options \
                  describe; without them, it is only read.",
    mut_args(|arg| match arg.get_id().as_str() {
        "log" | "json" | "clip" | "size" => arg,
        _ => arg.requires("clip"),
    })
)]
pub struct ExplainArgs {
    /// A file with the message, or - for standard input
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// Results as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Frames of a clip
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = whole::<usize>, requires = "size", help_heading = "Clip")]
    pub clip: Option<usize>,
    /// Height and width of a frame
    #[arg(long, value_name = "HxW", value_parser = parse_size, requires = "clip", help_heading = "Clip")]
    pub size: Option<Size>,
    /// Channels of a frame
    #[arg(long, value_name = "C", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 3, help_heading = "Clip")]
    pub channels: usize,
    /// Number of classes
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 20, help_heading = "Clip")]
    pub classes: usize,
    /// Clips of a batch
    #[arg(long, value_name = "CLIPS", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 1, help_heading = "Clip")]
    pub batch: usize,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// cnn3d (mean over time and space), cnn3d-separable (depthwise separable convolutions), cnn3d-flatten
    /// (all features to the first linear layer); with a label per frame: convlstm, cnn-lstm (convolutions of
    /// every frame, an LSTM over their features)
    #[arg(long, value_name = "NAME", default_value_t = Family::Cnn3d)]
    pub model: Family,
    /// Output channels of each convolution block of the cnn3d models and cnn-lstm [default: 32,64]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub widths: Option<Vec<usize>>,
    /// Filters of convlstm [default: 40]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub filters: Option<usize>,
    /// Kernel of the convolutions, 3 or TxHxW, odd
    #[arg(long, value_name = "K", allow_negative_numbers = true, default_value = "3", value_parser = parse_kernel)]
    pub kernel: Dims3,
    /// Step of the convolutions over height and width, of convlstm [default: 1] and cnn-lstm [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub stride: Option<usize>,
    /// Where convlstm normalises its batches: before or after the mean of each frame [default: before]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub norm: Option<NormArg>,
    /// Drop elements of convlstm's states before their products with this probability while training, each gate its
    /// own, in all frames of a clip the same [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number)]
    pub recurrent_dropout: Option<f64>,
    /// Max pooling after each convolution of the cnn3d models, 2 or TxHxW [default: 2]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = parse_dims)]
    pub pool: Option<Dims3>,
    /// Features between the two linear layers of the cnn3d models [default: 512], or of cnn-lstm's LSTM
    /// [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub hidden: Option<usize>,
}

/// A clip whose extents must be said.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clip")]
pub struct ClipArgs {
    /// Frames of a clip
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub clip: usize,
    /// Height and width of a frame
    #[arg(long, value_name = "HxW", value_parser = parse_size)]
    pub size: Size,
    /// Channels of a frame: 3 (RGB) or 1 (grey)
    #[arg(long, value_name = "C", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 3)]
    pub channels: usize,
    /// Number of classes
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub classes: usize,
}

/// A clip whose extents come from the videos.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clip")]
pub struct DataClipArgs {
    /// Frames of a clip [default: 16; with a label per frame, the whole video]
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub clip: Option<usize>,
    /// Resize every frame to this height and width; without it, frames stay as they are
    #[arg(long, value_name = "HxW", value_parser = parse_size)]
    pub size: Option<Size>,
    /// Channels of a frame: 3 (RGB) or 1 (grey)
    #[arg(long, value_name = "C", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 3)]
    pub channels: usize,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub struct TrainingArgs {
    /// Passes over the training clips [default: 10, or what the resumed run had]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub epochs: Option<usize>,
    /// Clips of one optimizer step
    #[arg(long, value_name = "CLIPS", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 8)]
    pub batch: usize,
    /// Adam's learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3, allow_negative_numbers = true, value_parser = number)]
    pub lr: f64,
    /// Adam's weight decay, added to the gradient
    #[arg(long, value_name = "RATE", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number)]
    pub weight_decay: f64,
    /// Weights of the classes in the loss: balanced makes rare classes count as much as common ones
    #[arg(long, value_enum, value_name = "HOW", default_value_t = ClassWeightsArg::None)]
    pub class_weights: ClassWeightsArg,
    /// Cross-entropy of one class of several, or of each class by itself
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = LossArg::Softmax)]
    pub loss: LossArg,
    /// Share of each target that is spread over all classes
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, default_value_t = 0.0)]
    pub label_smoothing: f64,
    /// Flip half of the training clips, the same for all frames of a clip; horizontal,vertical draws both
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DIRECTION")]
    pub flip: Vec<FlipArg>,
    /// Subtracted from pixels (0 to 1): one number, or one per channel
    #[arg(long, value_name = "MEAN", allow_negative_numbers = true, value_parser = number, value_delimiter = ',', default_values_t = [0.5])]
    pub mean: Vec<f64>,
    /// Pixels are divided by it after that: one number, or one per channel
    #[arg(long, value_name = "STD", allow_negative_numbers = true, value_parser = number, value_delimiter = ',', default_values_t = [0.5])]
    pub std: Vec<f64>,
    /// Initial weights, the order of clips and flips depend on it alone
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = whole::<u64>, default_value_t = 0)]
    pub seed: u64,
}

/// How the gradient of a video is cut.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub struct CuttingArgs {
    /// With a label per frame: exact takes the gradient through the whole video; truncated carries the state over
    /// segments of --segment frames, and cuts its gradient; independent makes clips of --clip frames that start from
    /// nothing
    #[arg(long, value_enum, value_name = "HOW", default_value_t = CuttingArg::Exact)]
    pub cutting: CuttingArg,
}

/// What training may use.
#[derive(Debug, Args)]
#[command(next_help_heading = "Resources")]
pub struct ResourceArgs {
    /// Memory the whole process may hold, such as 12GB or 800MiB: batches and clips go through in parts that
    /// fit, with the same gradient [default: what is free, where the whole batch at once would take more]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Source frames taken through the model at once; the gradient stays that of the whole clip
    /// [default: the whole clip where it fits]
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub segment: Option<usize>,
    /// States kept between segments for the backward pass; fewer take less memory and more time [default: 10]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>, requires = "segment")]
    pub checkpoints: Option<usize>,
    /// Keep what batch normalisation needs of whole clips in a file in this folder, where clips are cut
    /// [default: in memory]
    #[arg(long, value_name = "FOLDER")]
    pub barrier_folder: Option<PathBuf>,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// What classifying may use.
#[derive(Debug, Args)]
#[command(next_help_heading = "Resources")]
pub struct InferenceArgs {
    /// Memory the whole process may hold, such as 12GB or 800MiB: clips go through in parts that fit
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Source frames taken through the model at once [default: the whole clip where it fits]
    #[arg(long, value_name = "FRAMES", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub segment: Option<usize>,
    #[command(flatten)]
    pub machine: MachineArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Resources")]
pub struct MachineArgs {
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub threads: Option<usize>,
    /// Most recent instruction set to use: scalar, avx2, avx512 [default: what the processor has]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<Isa>,
    /// Clips decoded ahead; with 0, each is decoded when it is needed, to where it goes
    #[arg(long, value_name = "CLIPS", allow_negative_numbers = true, value_parser = whole::<usize>, default_value_t = 4)]
    pub ahead: usize,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Resources")]
pub struct KeepingArgs {
    /// Decoded frames kept in memory between epochs; none with 0, and where the budget has no room for them
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes_or_none)]
    pub keep_frames: Bytes,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Resources")]
pub struct PlannedKeepingArgs {
    /// Decoded frames kept in memory between epochs, counted in full [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes_or_none)]
    pub keep_frames: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CuttingArg {
    Exact,
    Truncated,
    Independent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NormArg {
    Before,
    After,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LossArg {
    Softmax,
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MatrixArg {
    Bt601,
    Bt709,
    Bt2020,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClassWeightsArg {
    None,
    Balanced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlipArg {
    Horizontal,
    Vertical,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitArg {
    Training,
    Validation,
    Test,
    All,
}

/// Height and width in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub height: usize,
    pub width: usize,
}

fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    text.trim().parse::<u64>().ok().and_then(|n| n.try_into().ok()).ok_or_else(|| "write a whole number".to_owned())
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| "write a number such as 0.5 or 1e-3".to_owned())
}

/// An amount of memory that may be nothing.
fn parse_bytes_or_none(text: &str) -> Result<Bytes, String> {
    if text == "0" { Ok(Bytes(0)) } else { text.parse().map_err(|e: UnreadableBytes| e.to_string()) }
}

fn numbers(text: &str) -> Option<Vec<usize>> {
    text.split(['x', 'X', '×']).map(|part| part.trim().parse().ok().filter(|&n| n > 0)).collect()
}

fn parse_size(text: &str) -> Result<Size, String> {
    match numbers(text).as_deref() {
        Some(&[height, width]) => Ok(Size { height, width }),
        _ => Err("write height and width in pixels, both at least 1, such as 135x240".to_owned()),
    }
}

fn parse_dims(text: &str) -> Result<Dims3, String> {
    match numbers(text).as_deref() {
        Some(&[n]) => Ok(Dims3::cube(n)),
        Some(&[t, h, w]) => Ok(Dims3 { t, h, w }),
        _ => Err("write one number for all, or TxHxW such as 1x2x2, all at least 1".to_owned()),
    }
}

fn parse_kernel(text: &str) -> Result<Dims3, String> {
    let dims = parse_dims(text)?;
    if [dims.t, dims.h, dims.w].iter().any(|n| n % 2 == 0) {
        return Err("kernels must be odd, so that padding keeps the extents".to_owned());
    }
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn extents_are_read() {
        assert_eq!(parse_size("135x240"), Ok(Size { height: 135, width: 240 }));
        assert_eq!(parse_dims("1x2x2"), Ok(Dims3 { t: 1, h: 2, w: 2 }));
        for bad in ["0x5", "5", "5x", "axb", "-1x4", "1x2x3"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_kernel("2").is_err());
    }
}
