//! `framefit predict`.

mod stream;

use super::{eval, print, say};
use crate::args::PredictArgs;
use crate::commands::train::clip_form;
use crate::progress::Progress;
use crate::report::Problem;
use crate::resolve;
use crate::words::count;
use framefit::core::Bytes;
use framefit::data::{Dataset, Manifest, Row, RowOrigin, Split, VideoId, VideoInfo, probe};
use framefit::kernels::resident::peak_resident_bytes;
use framefit::train::{Checkpoint, Evaluation, Seen, extents_fit, largest};
use serde_json::json;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: &PredictArgs) -> Result<ExitCode, Problem> {
    let resources = resolve::inference_resources(&args.resources)?;
    let batch = resolve::batch(args.batch)?;
    let mut checkpoint = Checkpoint::open(&args.run)?;
    if checkpoint.settings.model.family.labels_frames() {
        return stream::run(args, checkpoint, &resources);
    }
    if args.videos.iter().any(|path| path.as_os_str() == "-") || args.raw.is_some() {
        let message =
            "standard input is a stream, and this model has one label per clip: give it video files".to_owned();
        return Err(Problem::Flag { flag: "VIDEO", message });
    }
    let form = clip_form(&checkpoint.settings);
    let (manifest, infos) = unlabelled(args, &checkpoint)?;
    let dataset: Arc<Dataset> = resolve::dataset(manifest.into(), infos, form, Bytes(0))?;
    extents_fit(&dataset, &checkpoint.settings.model)?;
    let clips = dataset.clips(Split::Test).to_vec();
    let mut engine = eval::engine(&mut checkpoint, &dataset, batch.min(clips.len()), &resources)?;
    let planned = engine.plan().ledger.peak;
    let classes = &checkpoint.classes;
    let evaluation = Evaluation { dataset: &dataset, clips: &clips, ahead: resources.ahead };
    let progress = Progress::of_clips(clips.len());
    let mut written = if args.json { Ok(()) } else { print("video,start_frame,end_frame,label,probability\n") };
    let mut done = 0;
    evaluation.run(&mut engine, &mut |seen: Seen<'_>, _| {
        done += 1;
        progress.clips(done);
        if written.is_ok() {
            let video = dataset.manifest().path(seen.clip.video).display().to_string();
            written = write(&Written { seen, video: &video, classes, json: args.json });
        }
        // What nobody can read need not be worked out.
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    drop(progress);
    written?;
    told(done, "clip", planned);
    Ok(ExitCode::SUCCESS)
}

/// Says what was done, and in how much memory.
fn told(number: usize, noun: &str, planned: Bytes) {
    let peak = peak_resident_bytes().map(Bytes);
    let measured = peak.map_or_else(String::new, |p| format!("measured peak {p}, "));
    say(&format!("{}; {measured}planned {planned}\n", count(number, noun)));
}

/// One classified clip on its way to stdout.
struct Written<'a> {
    seen: Seen<'a>,
    video: &'a str,
    classes: &'a [String],
    json: bool,
}

/// A line for the clip.
fn write(of: &Written<'_>) -> Result<(), Problem> {
    let Written { seen, video, classes, json } = *of;
    let probabilities = softmax(seen.logits);
    let best = largest(seen.logits);
    let (start, end) = (seen.clip.start, seen.clip.start + seen.clip.frames);
    if json {
        let each: serde_json::Map<String, serde_json::Value> =
            classes.iter().cloned().zip(probabilities.iter().map(|&p| json!(p))).collect();
        let line = json!({
            "video": video, "label": classes[best], "probabilities": each, "start_frame": start, "end_frame": end,
        });
        return print(&format!("{line}\n"));
    }
    let cells = [video, &classes[best]].map(csv_cell);
    print(&format!("{},{start},{end},{},{:.4}\n", cells[0], cells[1], probabilities[best]))
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
