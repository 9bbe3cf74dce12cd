//! `framefit predict`.

use super::{eval, print};
use crate::args::PredictArgs;
use crate::commands::train::clip_form;
use crate::progress::Progress;
use crate::report::Problem;
use crate::resolve;
use framefit::core::Bytes;
use framefit::data::{Dataset, FrameManifest, Labels, Manifest, Row, RowOrigin, Split, VideoId, VideoInfo, probe};
use framefit::train::{Checkpoint, Evaluation, Seen, largest};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: &PredictArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::inference_resources(&args.resources)?;
    let batch = resolve::batch(args.batch)?;
    let mut checkpoint = Checkpoint::open(&args.run)?;
    let form = clip_form(&checkpoint.settings);
    let per_frame = checkpoint.settings.model.family.labels_frames();
    let (labels, infos): (Labels, _) = if per_frame {
        let manifest = FrameManifest::unlabelled(args.videos.clone(), checkpoint.classes.clone(), Split::Test);
        let infos = probe(manifest.manifest())?;
        (manifest.into(), infos)
    } else {
        let (manifest, infos) = unlabelled(args, &checkpoint)?;
        (manifest.into(), infos)
    };
    let dataset: Arc<Dataset> = resolve::dataset(labels, infos, form, Bytes(0))?;
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
    let evaluation = Evaluation { dataset: &dataset, clips: &clips, ahead: resources.ahead };
    let progress = Progress::of_clips(clips.len());
    let header =
        if per_frame { "video,frame,label,probability\n" } else { "video,start_frame,end_frame,label,probability\n" };
    let mut written = if args.json { Ok(()) } else { print(header) };
    let mut done = 0;
    evaluation.run(&mut engine, &mut |seen: Seen<'_>, _| {
        done += 1;
        progress.clips(done);
        if written.is_ok() {
            let video = dataset.manifest().path(seen.clip.video).display().to_string();
            written = write(&Written { seen, video: &video, classes, per_frame, json: args.json });
        }
    })?;
    progress.finish();
    written?;
    Ok(ExitCode::SUCCESS)
}

/// One classified clip on its way to stdout.
struct Written<'a> {
    seen: Seen<'a>,
    video: &'a str,
    classes: &'a [String],
    per_frame: bool,
    json: bool,
}

/// A line for the clip, or one for each of its frames.
fn write(of: &Written<'_>) -> Result<(), Problem> {
    let Written { seen, video, classes, per_frame, json } = *of;
    let mut text = String::new();
    for (t, logits) in seen.logits.chunks_exact(classes.len()).enumerate() {
        let probabilities = softmax(logits);
        let best = largest(logits);
        let (start, end) = (seen.clip.start, seen.clip.start + seen.clip.frames);
        if json {
            let each: serde_json::Map<String, serde_json::Value> =
                classes.iter().cloned().zip(probabilities.iter().map(|&p| json!(p))).collect();
            let mut line = json!({ "video": video, "label": classes[best], "probabilities": each });
            if per_frame {
                line["frame"] = json!(start + t);
            } else {
                (line["start_frame"], line["end_frame"]) = (json!(start), json!(end));
            }
            text.push_str(&format!("{line}\n"));
        } else {
            let cells = [video, &classes[best]].map(csv_cell);
            let place = if per_frame { (start + t).to_string() } else { format!("{start},{end}") };
            text.push_str(&format!("{},{place},{},{:.4}\n", cells[0], cells[1], probabilities[best]));
        }
    }
    print(&text)
}

/// Every frame of every video in consecutive clips; the last clip of a video ends with its last frame, and so
/// may share frames with the one before.
fn unlabelled(args: &PredictArgs, checkpoint: &Checkpoint) -> Result<(Manifest, Vec<VideoInfo>), Problem> {
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
    let infos = probe(&manifest)?;
    for (video, info) in infos.iter().enumerate() {
        if info.frames < clip {
            return Err(Problem::ShortVideo { path: args.videos[video].clone(), frames: info.frames, clip });
        }
        if !info.frames.is_multiple_of(clip) {
            manifest.rows[video].frames = Some(0..info.frames / clip * clip);
            manifest.rows.push(row(video, Some(info.frames - clip..info.frames)));
        }
    }
    manifest.rows.sort_by_key(|r| (r.video, r.frames.as_ref().map_or(0, |f| f.start)));
    Ok((manifest, infos))
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
