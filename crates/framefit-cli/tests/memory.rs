//! The promise: the measured peak of a training process is never over its plan.
//!
//! Each setting trains in its own process, which reports its planned peak and the peak of resident memory that
//! the system counted. The tables: `cargo test --release -p framefit-cli --test memory -- --nocapture`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Clip, framefit, last_json, stderr, stdout, succeed, two_classes};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

struct Setting {
    name: &'static str,
    clip: Clip,
    videos: usize,
    args: &'static [&'static str],
}

const fn clip(frames: usize, height: usize, width: usize, channels: usize) -> Clip {
    Clip { frames, height, width, channels }
}

const SETTINGS: &[Setting] = &[
    Setting { name: "smallest", clip: clip(8, 16, 16, 1), videos: 2, args: &["--batch", "1", "--widths", "4"] },
    Setting { name: "cnn3d 16x64x64", clip: clip(16, 64, 64, 3), videos: 4, args: &["--batch", "2"] },
    Setting { name: "the same, 8 at a time", clip: clip(16, 64, 64, 3), videos: 10, args: &["--batch", "8"] },
    Setting {
        name: "the same, one thread",
        clip: clip(16, 64, 64, 3),
        videos: 4,
        args: &["--batch", "2", "--threads", "1"],
    },
    Setting {
        name: "the same, five threads",
        clip: clip(16, 64, 64, 3),
        videos: 4,
        args: &["--batch", "2", "--threads", "5"],
    },
    Setting {
        name: "cnn3d 8x32x32, scalar",
        clip: clip(8, 32, 32, 3),
        videos: 2,
        args: &["--batch", "1", "--isa", "scalar"],
    },
    Setting {
        name: "cnn3d 16x64x64, AVX2",
        clip: clip(16, 64, 64, 3),
        videos: 4,
        args: &["--batch", "2", "--isa", "avx2"],
    },
    Setting {
        name: "separable",
        clip: clip(16, 96, 96, 3),
        videos: 4,
        args: &["--batch", "2", "--model", "cnn3d-separable"],
    },
    Setting {
        name: "flattened head",
        clip: clip(16, 64, 64, 3),
        videos: 4,
        args: &["--batch", "2", "--model", "cnn3d-flatten"],
    },
    Setting {
        name: "four blocks",
        clip: clip(16, 64, 64, 1),
        videos: 4,
        args: &["--batch", "4", "--widths", "8,16,32,64"],
    },
    Setting { name: "odd sizes", clip: clip(13, 77, 51, 3), videos: 6, args: &["--batch", "3"] },
    Setting { name: "5 clips, 3 at a time", clip: clip(12, 48, 48, 3), videos: 5, args: &["--batch", "3"] },
    Setting {
        name: "nothing kept",
        clip: clip(16, 64, 64, 3),
        videos: 6,
        args: &["--batch", "2", "--keep-frames", "1KiB"],
    },
    Setting { name: "resized", clip: clip(16, 120, 160, 3), videos: 4, args: &["--batch", "2", "--size", "60x80"] },
    Setting {
        name: "a budget of 60 MB",
        clip: clip(16, 64, 64, 3),
        videos: 10,
        args: &["--batch", "8", "--memory", "60MB"],
    },
    Setting { name: "many frames", clip: clip(120, 32, 32, 3), videos: 2, args: &["--batch", "1"] },
    Setting { name: "3x60x230x230", clip: clip(60, 230, 230, 3), videos: 1, args: &["--batch", "1", "--epochs", "1"] },
    Setting {
        name: "segments of 4 frames",
        clip: clip(32, 64, 64, 3),
        videos: 2,
        args: &["--batch", "2", "--segment", "4"],
    },
    Setting {
        name: "flattened head, segments of 8",
        clip: clip(32, 48, 48, 3),
        videos: 2,
        args: &["--batch", "1", "--model", "cnn3d-flatten", "--segment", "8", "--checkpoints", "1"],
    },
    Setting {
        name: "3x60x230x230 in 250 MB",
        clip: clip(60, 230, 230, 3),
        videos: 1,
        args: &["--batch", "1", "--epochs", "1", "--memory", "250MB"],
    },
    Setting {
        name: "3x60x230x230 in 1 GB",
        clip: clip(60, 230, 230, 3),
        videos: 2,
        args: &["--batch", "2", "--epochs", "1", "--memory", "1GB"],
    },
];

/// Of recordings of 1,006 to 1,029 frames of 64x64, each with a label.
const RECORDINGS: &[(&str, &[&str])] = &[
    (
        "convlstm, pieces of 32 frames, 2 at a time",
        &["--model", "convlstm", "--filters", "4", "--cutting", "independent", "--clip", "32", "--batch", "2"],
    ),
    (
        "convlstm, recordings in segments",
        &["--model", "convlstm", "--filters", "4", "--segment", "16", "--checkpoints", "4"],
    ),
    (
        "convlstm, normalised after the mean, barriers in a file",
        &[
            "--model",
            "convlstm",
            "--filters",
            "4",
            "--norm",
            "after",
            "--segment",
            "16",
            "--checkpoints",
            "4",
            "--barrier-folder",
            ".",
        ],
    ),
    (
        "convlstm of stride 2, decoded on demand",
        &[
            "--model",
            "convlstm",
            "--filters",
            "4",
            "--stride",
            "2",
            "--segment",
            "16",
            "--ahead",
            "0",
            "--keep-frames",
            "0",
        ],
    ),
    ("cnn-lstm, whole recordings", &["--model", "cnn-lstm", "--widths", "8,16"]),
    ("cnn-lstm, recordings in segments", &["--model", "cnn-lstm", "--widths", "8,16", "--segment", "16"]),
    ("cnn-lstm, truncated", &["--model", "cnn-lstm", "--widths", "8,16", "--cutting", "truncated", "--segment", "32"]),
    (
        "cnn-lstm, pieces of 32 frames, 3 at a time, decoded on demand",
        &[
            "--model",
            "cnn-lstm",
            "--widths",
            "8,16",
            "--cutting",
            "independent",
            "--clip",
            "32",
            "--batch",
            "3",
            "--ahead",
            "0",
        ],
    ),
    ("cnn-lstm in 60 MB", &["--model", "cnn-lstm", "--widths", "8,16", "--memory", "60MB"]),
];

/// A manifest of moving_digits.
fn examples(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/moving_digits");
    folder.join(name).canonicalize().unwrap().to_str().unwrap().to_owned()
}

struct Peak {
    planned: u64,
    measured: u64,
}

fn train(folder: &Path, manifest: &str, args: &[&str]) -> Option<Peak> {
    let mut all = vec!["train", manifest, "--json", "--out", "run"];
    all.extend(args);
    if !args.contains(&"--epochs") {
        all.extend(["--epochs", "2"]);
    }
    let end = last_json(&succeed(folder, &all));
    Some(Peak { planned: end["planned_peak"].as_u64()?, measured: end["measured_peak"].as_u64()? })
}

#[test]
fn the_measured_peak_is_never_over_the_plan() {
    let mut rows = Vec::new();
    for setting in SETTINGS {
        let folder = tempfile::tempdir().unwrap();
        two_classes(folder.path(), setting.clip, setting.videos);
        let (frames, channels) = (setting.clip.frames.to_string(), setting.clip.channels.to_string());
        let mut args = vec!["--clip", &frames, "--channels", &channels];
        args.extend(setting.args);
        let Some(peak) = train(folder.path(), "clips.csv", &args) else {
            eprintln!("SKIPPED: this system does not tell a process's peak of resident memory");
            return;
        };
        rows.push((setting.name.to_owned(), peak));
    }
    let digits = examples("clips.csv");
    let folder = tempfile::tempdir().unwrap();
    let args = ["--channels", "1", "--widths", "8", "--epochs", "1"];
    let peak = train(folder.path(), &digits, &args).unwrap();
    rows.push(("moving_digits (H.264)".to_owned(), peak));
    never_over(&rows);
}

#[test]
fn nor_is_it_where_recordings_have_labels_of_frames() {
    let mut rows = Vec::new();
    let frames = examples("frames.csv");
    for (name, args) in RECORDINGS {
        let folder = tempfile::tempdir().unwrap();
        let batch: &[&str] = if args.contains(&"--batch") { &[] } else { &["--batch", "1"] };
        let args = [&["--channels", "1", "--epochs", "1"], *args, batch].concat();
        let Some(peak) = train(folder.path(), &frames, &args) else {
            eprintln!("SKIPPED: this system does not tell a process's peak of resident memory");
            return;
        };
        rows.push(((*name).to_owned(), peak));
    }
    never_over(&rows);
}

/// Prints the table.
fn never_over(rows: &[(String, Peak)]) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut table = "| setting | planned | measured | planned / measured |\n| --- | ---: | ---: | ---: |\n".to_owned();
    for (name, peak) in rows {
        let ratio = peak.planned as f64 / peak.measured as f64;
        table.push_str(&format!(
            "| {name} | {:.1} MiB | {:.1} MiB | {ratio:.3} |\n",
            mib(peak.planned),
            mib(peak.measured)
        ));
    }
    println!("{table}");
    for (name, peak) in rows {
        assert!(peak.measured <= peak.planned, "{name}: measured {} B, planned {} B", peak.measured, peak.planned);
    }
}

/// What `predict` says at its end: "2,000 frames; measured peak 15.1 MiB, planned 15.9 MiB".
fn told(said: &str) -> Option<Peak> {
    let bytes = |after: &str| {
        let mut words = said.split(after).nth(1)?.split([' ', ',', '\n']);
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next()? {
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            unit => panic!("{unit}: {said}"),
        };
        Some((number * unit) as u64)
    };
    Some(Peak { planned: bytes("planned ")?, measured: bytes("measured peak ")? })
}

/// Labels a pipe of so many frames of noise, 64x64 and grey.
fn label(folder: &Path, frames: usize, args: &[&str]) -> Option<Peak> {
    let all = [&["predict", "run", "-", "--raw", "64x64"], args].concat();
    let mut program = framefit(folder, &all);
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || {
        let mut state = 1u64;
        for _ in 0..frames {
            let frame: Vec<u8> = (0..64 * 64)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 56) as u8
                })
                .collect();
            pipe.write_all(&frame).unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    writing.join().unwrap();
    assert_eq!(stdout(&output).lines().count(), frames + 1, "a line for every frame, and the heading");
    told(&stderr(&output))
}

#[test]
fn a_stream_takes_the_same_memory_however_long_it_is() {
    const ALLOWED: u64 = 1 << 20;
    let frames = examples("frames.csv");
    for (model, args) in [
        (&["--model", "cnn-lstm", "--widths", "8,16"][..], &[][..]),
        (&["--model", "convlstm", "--filters", "8"], &[]),
        (&["--model", "convlstm", "--filters", "8"], &["--memory", "18MB", "--threads", "1"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let cut = ["--cutting", "truncated", "--segment", "64", "--channels", "1", "--epochs", "1"];
        // A model that has hardly learnt takes the memory of any other.
        let manifest = std::fs::read_to_string(&frames).unwrap();
        let few: String = manifest
            .lines()
            .filter(|line| line.starts_with("video,") || line.starts_with("digits_00.mp4"))
            .map(|line| format!("{}\n", line.trim_end_matches(",train").trim_end_matches(",split")))
            .collect();
        std::fs::copy(PathBuf::from(&frames).with_file_name("digits_00.mp4"), folder.path().join("digits_00.mp4"))
            .unwrap();
        std::fs::write(folder.path().join("few.csv"), few).unwrap();
        let train = [&["train", "few.csv", "--out", "run"], model, &cut].concat();
        succeed(folder.path(), &train);
        let peaks: Option<Vec<Peak>> = [2_000, 8_000].map(|n| label(folder.path(), n, args)).into_iter().collect();
        let Some(peaks) = peaks else {
            eprintln!("SKIPPED: this system does not tell a process's peak of resident memory");
            return;
        };
        let [short, long] = &peaks[..] else { panic!() };
        let (a, b) = (short.measured, long.measured);
        println!("{model:?} {args:?}: measured {a} and {b}, planned {} and {}", short.planned, long.planned);
        assert!(a.abs_diff(b) <= ALLOWED, "{model:?}: {a} B of 2,000 frames, {b} B of 8,000");
        for peak in &peaks {
            assert!(peak.measured <= peak.planned, "{model:?}: {} B, planned {} B", peak.measured, peak.planned);
            assert!(!args.contains(&"18MB") || peak.planned <= 18_000_000, "{} B in 18 MB", peak.planned);
        }
    }
}
