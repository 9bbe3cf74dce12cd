//! `framefit predict`.

use super::{eval, print, print_json};
use crate::args::PredictArgs;
use crate::commands::train::clip_spec;
use crate::progress::Progress;
use crate::report::Problem;
use crate::resolve;
use framefit::core::Bytes;
use framefit::data::{Dataset, Manifest, Row, RowOrigin, Split, VideoId, probe};
use framefit::train::{Checkpoint, Evaluation, Score, largest};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: &PredictArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::inference_resources(&args.resources)?;
    let batch = resolve::at_least_one("--batch", args.batch)?;
    let mut checkpoint = Checkpoint::open(&args.run)?;
    let spec = clip_spec(&checkpoint.settings);
    let manifest = unlabelled(args, &checkpoint)?;
    let dataset: Arc<Dataset> = resolve::dataset(manifest, spec, Bytes(0))?;
    let model = &checkpoint.settings.model;
    let shape = dataset.shape();
    if (shape.height, shape.width) != (model.height, model.width) {
        let message = format!(
            "{} is {}x{}, but the model was trained on {}x{}: train with --size to have every video resized",
            args.videos[0].display(),
            shape.height,
            shape.width,
            model.height,
            model.width
        );
        return Err(Problem::Flag { flag: "VIDEO", message });
    }
    let clips = dataset.clips(Split::Test).to_vec();
    let mut engine = eval::engine(&mut checkpoint, &dataset, batch.min(clips.len()), &resources)?;
    let classes = &checkpoint.classes;
    let weights = vec![1.0; classes.len()];
    let evaluation = Evaluation { dataset: &dataset, clips: &clips, weights: &weights, ahead: resources.ahead };
    let progress = Progress::of_clips(clips.len());
    let mut written = if args.json { Ok(()) } else { print("video,start_frame,end_frame,label,probability\n") };
    evaluation.run(&mut engine, &mut |clip, logits, score: Score| {
        progress.clips(score.clips);
        if written.is_err() {
            return;
        }
        let probabilities = softmax(logits);
        let best = largest(logits);
        let video = dataset.manifest().path(clip.video).display().to_string();
        let (start, end) = (clip.start, clip.start + shape.frames);
        written = if args.json {
            let each: serde_json::Map<String, serde_json::Value> =
                classes.iter().cloned().zip(probabilities.iter().map(|&p| json!(p))).collect();
            print_json(&json!({
                "video": video, "start_frame": start, "end_frame": end, "label": classes[best], "probabilities": each,
            }))
        } else {
            let cells = [&video, &classes[best]].map(|text| csv_cell(text));
            print(&format!("{},{start},{end},{},{:.4}\n", cells[0], cells[1], probabilities[best]))
        };
    })?;
    progress.finish();
    written?;
    Ok(ExitCode::SUCCESS)
}

/// Every frame of every video in consecutive clips; the last clip of a video ends with its last frame, and so
/// may share frames with the one before.
fn unlabelled(args: &PredictArgs, checkpoint: &Checkpoint) -> Result<Manifest, Problem> {
    let clip = checkpoint.settings.model.frames;
    let mut manifest = Manifest { classes: checkpoint.classes.clone(), rows: Vec::new(), videos: args.videos.clone() };
    let row = |video: usize, frames| Row {
        video: VideoId(video),
        label: 0,
        frames,
        split: Split::Test,
        origin: RowOrigin { file: args.videos[video].as_path().into(), line: 0 },
    };
    manifest.rows = (0..args.videos.len()).map(|video| row(video, None)).collect();
    for (video, info) in probe(&manifest)?.iter().enumerate() {
        if info.frames < clip {
            return Err(Problem::ShortVideo { path: args.videos[video].clone(), frames: info.frames, clip });
        }
        if !info.frames.is_multiple_of(clip) {
            manifest.rows[video].frames = Some(0..info.frames / clip * clip);
            manifest.rows.push(row(video, Some(info.frames - clip..info.frames)));
        }
    }
    manifest.rows.sort_by_key(|r| (r.video, r.frames.as_ref().map_or(0, |f| f.start)));
    Ok(manifest)
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|&l| f64::from(l - highest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_large_logits_do_not_overflow() {
        let p = softmax(&[1000.0, 999.0, -1000.0]);
        assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((p[0] - 1.0 / (1.0 + (-1.0f64).exp())).abs() < 1e-12);
    }

    #[test]
    fn cells_with_commas_are_quoted() {
        assert_eq!(csv_cell("a,b"), "\"a,b\"");
        assert_eq!(csv_cell("say \"a\""), "\"say \"\"a\"\"\"");
        assert_eq!(csv_cell("plain"), "plain");
    }
}
