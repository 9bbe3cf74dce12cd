//! The promise: the measured peak of a training process is never over its plan.
//!
//! Each setting trains in its own process, which reports its planned peak and the peak of resident memory that
//! the system counted. The table: `cargo test --release -p framefit-cli --test memory -- --nocapture`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Clip, last_json, succeed, two_classes};
use std::path::PathBuf;

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

struct Peak {
    planned: u64,
    measured: u64,
}

fn train(folder: &std::path::Path, manifest: &str, args: &[&str]) -> Option<Peak> {
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
    let digits = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/moving_digits/clips.csv");
    let folder = tempfile::tempdir().unwrap();
    let args = ["--channels", "1", "--widths", "8", "--epochs", "1"];
    let peak = train(folder.path(), digits.canonicalize().unwrap().to_str().unwrap(), &args).unwrap();
    rows.push(("moving_digits (H.264)".to_owned(), peak));
    let frames = digits.with_file_name("frames.csv").canonicalize().unwrap();
    for (name, args) in [
        ("convlstm, pieces of 32 frames", &["--clip", "32", "--batch", "2"][..]),
        ("convlstm, recordings in segments", &["--segment", "16", "--checkpoints", "4", "--batch", "1"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = ["--model", "convlstm", "--filters", "4", "--channels", "1", "--epochs", "1"];
        let peak = train(folder.path(), frames.to_str().unwrap(), &[&model, args].concat()).unwrap();
        rows.push((name.to_owned(), peak));
    }

    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("| setting | planned | measured | planned / measured |\n| --- | ---: | ---: | ---: |");
    for (name, peak) in &rows {
        let ratio = peak.planned as f64 / peak.measured as f64;
        println!("| {name} | {:.1} MiB | {:.1} MiB | {ratio:.3} |", mib(peak.planned), mib(peak.measured));
    }
    for (name, peak) in &rows {
        assert!(peak.measured <= peak.planned, "{name}: measured {} B, planned {} B", peak.measured, peak.planned);
    }
}
