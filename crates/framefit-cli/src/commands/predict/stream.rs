//! Labels of frames, as the frames come: of videos of any length, and of standard input.

use super::{csv_cell, softmax, told};
use crate::args::{MatrixArg, PredictArgs};
use crate::commands::print;
use crate::progress::Progress;
use crate::report::{Asked, Problem};
use framefit::data::{FrameSize, FrameStream, PipeFormat, RawFormat, StreamSpec, YuvMatrix};
use framefit::engine::{Made, Stream};
use framefit::train::{Checkpoint, Cutting, Resources, TrainError, fixed_bytes, largest, plan_stream};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

pub fn run(args: &PredictArgs, mut checkpoint: Checkpoint, resources: &Resources) -> Result<ExitCode, Problem> {
    let model = checkpoint.settings.model.clone();
    let size = FrameSize { height: model.height, width: model.width };
    let spec = StreamSpec { size, channels: model.channels, resize: checkpoint.settings.resized };
    if args.raw.is_some() && !args.videos.iter().any(|path| is_stdin(path)) {
        let message = "it is for standard input, which is written as -".to_owned();
        return Err(Problem::Flag { flag: "--raw", message });
    }
    if args.videos.iter().filter(|path| is_stdin(path)).count() > 1 {
        let message = "standard input, -, can be read once".to_owned();
        return Err(Problem::Flag { flag: "VIDEO", message });
    }
    // Whichever takes most counts; and one that cannot be read is found out before the first is gone through.
    let mut held = 0;
    let mut pipe = None;
    for path in &args.videos {
        let frames = open(args, path, &spec)?;
        held = held.max(frames.memory_bytes());
        if is_stdin(path) {
            pipe = Some(frames);
        }
    }
    let mut fixed = fixed_bytes(resources, None);
    fixed.data_pipeline.0 += held + spec.frame_bytes() as u64;
    // Nothing is decoded ahead of a stream.
    let asked = Asked { ahead: 0, ..Asked::of(None, resources) };
    let plan = plan_stream(&model, resources, &fixed).map_err(|error| asked.problem(error))?;
    let planned = plan.ledger.peak;
    let mut stream = Stream::new(plan, resources.kernels, &checkpoint.settings.normalisation)?;
    checkpoint.load_into_stream(&mut stream)?;
    let piece = match checkpoint.settings.cutting {
        Cutting::Independent(frames) => Some(frames),
        Cutting::Exact | Cutting::Truncated(_) => None,
    };
    if !args.json {
        print("video,frame,label,probability\n")?;
    }
    let need = model.fewest_frames();
    let progress = Progress::of_frames();
    let mut done = 0;
    for path in &args.videos {
        let mut frames = match pipe.take_if(|_| is_stdin(path)) {
            Some(frames) => frames,
            None => open(args, path, &spec)?,
        };
        frames.check_frames(need)?;
        let mut video = Video {
            name: frames.name().display().to_string(),
            classes: &checkpoint.classes,
            json: args.json,
            base: 0,
            written: Ok(()),
        };
        done += video.run(&mut frames, &mut stream, piece, &progress)?;
    }
    drop(progress);
    told(done, "frame", planned);
    Ok(ExitCode::SUCCESS)
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open(args: &PredictArgs, path: &Path, spec: &StreamSpec) -> Result<FrameStream, Problem> {
    if !is_stdin(path) {
        return Ok(FrameStream::open(path, spec)?);
    }
    let format = match args.raw {
        Some(size) => PipeFormat::Raw(RawFormat { height: size.height, width: size.width, channels: spec.channels }),
        None => PipeFormat::Y4m {
            matrix: match args.matrix {
                MatrixArg::Bt601 => YuvMatrix::Bt601,
                MatrixArg::Bt709 => YuvMatrix::Bt709,
                MatrixArg::Bt2020 => YuvMatrix::Bt2020,
            },
        },
    };
    Ok(FrameStream::pipe(std::io::stdin(), format, spec)?)
}

/// One video on its way to stdout.
struct Video<'a> {
    name: String,
    classes: &'a [String],
    json: bool,
    /// Frames of the pieces before.
    base: usize,
    written: Result<(), Problem>,
}

impl Video<'_> {
    /// Labels all frames, and says how many there were.
    fn run(
        &mut self,
        frames: &mut FrameStream,
        stream: &mut Stream<f32>,
        piece: Option<usize>,
        progress: &Progress,
    ) -> Result<usize, Problem> {
        let source = stream.graph().shape(framefit::core::Graph::SOURCE).per_frame();
        let mut frame = vec![0; source];
        let mut pushed = 0;
        stream.restart();
        let ended = loop {
            match frames.next_frame(&mut frame) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            if piece.is_some_and(|piece| pushed > 0 && pushed % piece == 0) {
                stream.finish(&mut |made| self.take(made)).map_err(TrainError::from)?;
                stream.restart();
                self.base = pushed;
            }
            stream.push(&frame, &mut |made| self.take(made))?;
            pushed += 1;
            progress.clips(pushed);
            // What nobody can read need not be worked out.
            std::mem::replace(&mut self.written, Ok(()))?;
        };
        // What came before a video broke off is written; if there is too little of it, that is not the reason.
        let finished = match pushed > self.base {
            true => stream.finish(&mut |made| self.take(made)),
            false => Ok(()),
        };
        ended?;
        finished.map_err(TrainError::from)?;
        std::mem::replace(&mut self.written, Ok(()))?;
        Ok(pushed)
    }

    /// Writes the results of some frames.
    fn take(&mut self, made: Made<'_, f32>) {
        if self.written.is_ok() {
            self.written = self.write(self.base + made.first, made.logits);
        }
    }

    fn write(&self, first: usize, logits: &[f32]) -> Result<(), Problem> {
        let mut text = String::new();
        for (t, logits) in logits.chunks_exact(self.classes.len()).enumerate() {
            let frame = first + t;
            if let Some(&value) = logits.iter().find(|l| !l.is_finite()) {
                let video = self.name.clone().into();
                return Err(TrainError::Output { video, frames: frame..frame + 1, value }.into());
            }
            let probabilities = softmax(logits);
            let best = largest(logits);
            if self.json {
                let each: serde_json::Map<String, serde_json::Value> =
                    self.classes.iter().cloned().zip(probabilities.iter().map(|&p| json!(p))).collect();
                let line = json!({
                    "video": self.name, "label": self.classes[best], "probabilities": each, "frame": frame,
                });
                text.push_str(&format!("{line}\n"));
            } else {
                let [video, label] = [&self.name, &self.classes[best]].map(|cell| csv_cell(cell));
                text.push_str(&format!("{video},{frame},{label},{:.4}\n", probabilities[best]));
            }
        }
        print(&text)
    }
}
