//! The program as a user meets it: what it prints, what it leaves behind, its exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{
    Clip, SMALL, TINY, fail, framefit, last_json, run, stderr, stdout, succeed, two_classes, with, write_npy,
};
use std::path::Path;
use std::process::Stdio;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A folder with two classes of clips, and a run of two epochs on them.
fn trained() -> tempfile::TempDir {
    let folder = folder();
    two_classes(folder.path(), SMALL, 6);
    succeed(folder.path(), &with(&[&["train", "clips.csv", "--out", "run", "--epochs", "4", "--batch", "3"], &TINY]));
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

#[test]
fn training_learns_and_leaves_its_files() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 10);
    let args = &["train", "clips.csv", "--out", "run", "--epochs", "12", "--batch", "4", "--lr", "0.01"];
    let output = succeed(folder.path(), &with(&[args, &TINY]));
    assert!(stdout(&output).starts_with("validation accuracy 100.0 %"), "{}", stdout(&output));
    assert_eq!(
        names(&folder.path().join("run")),
        ["best.safetensors", "last.safetensors", "log.jsonl", "resume.safetensors"]
    );

    let eval = succeed(folder.path(), &["eval", "run", "--json"]);
    assert_eq!(last_json(&eval)["accuracy"], 1.0);
    assert_eq!(last_json(&eval)["clips"], 10);
    let table = stdout(&succeed(folder.path(), &["eval", "run", "--split", "all"]));
    assert!(table.starts_with("all accuracy") && table.contains("left") && table.contains("100.0 %"), "{table}");

    let predicted = stdout(&succeed(folder.path(), &["predict", "run", "val0.npy", "val1.npy"]));
    let lines: Vec<&str> = predicted.lines().collect();
    assert_eq!(lines[0], "video,start_frame,end_frame,label,probability");
    assert!(lines[1].starts_with("val0.npy,0,8,left,"), "{predicted}");
    assert!(lines[2].starts_with("val1.npy,0,8,right,"), "{predicted}");
}

#[test]
fn every_frame_of_a_video_is_predicted_once_or_in_the_last_clip() {
    let folder = trained();
    write_npy(&folder.path().join("long.npy"), Clip { frames: 21, ..SMALL }, 1, 5);
    let predicted = stdout(&succeed(folder.path(), &["predict", "run", "long.npy"]));
    let ranges: Vec<String> =
        predicted.lines().skip(1).map(|l| l.split(',').collect::<Vec<_>>()[1..3].join("-")).collect();
    assert_eq!(ranges, ["0-8", "8-16", "13-21"]);
    let json = stdout(&succeed(folder.path(), &["predict", "run", "long.npy", "--json"]));
    for line in json.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let sum: f64 = value["probabilities"].as_object().unwrap().values().map(|p| p.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}

#[test]
fn a_resumed_run_ends_with_the_bits_of_one_never_stopped() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 7);
    let args = &["train", "clips.csv", "--batch", "3", "--flip", "horizontal,vertical", "--seed", "9"];
    succeed(folder.path(), &with(&[args, &TINY, &["--out", "whole", "--epochs", "5"]]));
    succeed(folder.path(), &with(&[args, &TINY, &["--out", "parts", "--epochs", "2"]]));
    succeed(folder.path(), &["train", "--resume", "parts", "--epochs", "3"]);
    succeed(folder.path(), &["train", "--resume", "parts", "--epochs", "5", "--threads", "1"]);
    for name in ["last.safetensors", "resume.safetensors"] {
        let tensors = |run: &str| {
            let bytes = std::fs::read(folder.path().join(run).join(name)).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[8 + header..].to_vec()
        };
        assert!(tensors("whole") == tensors("parts"), "{name}");
    }
    let log = std::fs::read_to_string(folder.path().join("parts/log.jsonl")).unwrap();
    let epochs: Vec<i64> =
        log.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["epoch"].as_i64()).collect();
    assert_eq!(epochs, [1, 2, 3, 4, 5]);
}

#[test]
fn the_same_seed_gives_the_same_bits_whatever_the_threads_and_the_micro_batch_plan() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 6);
    let args = &["train", "clips.csv", "--epochs", "2", "--batch", "4"];
    succeed(folder.path(), &with(&[args, &TINY, &["--out", "a", "--threads", "1"]]));
    succeed(
        folder.path(),
        &with(&[args, &TINY, &["--out", "b", "--threads", "3", "--ahead", "1", "--keep-frames", "1"]]),
    );
    let read = |run: &str| std::fs::read(folder.path().join(run).join("last.safetensors")).unwrap();
    assert!(read("a") == read("b"));
    succeed(folder.path(), &with(&[args, &TINY, &["--out", "c", "--seed", "1"]]));
    assert!(read("a") != read("c"));
}

#[test]
fn segments_change_the_memory_and_not_the_losses() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 5);
    let losses = |more: &[&'static str], out: &'static str| -> Vec<f64> {
        let args = &["train", "clips.csv", "--epochs", "3", "--batch", "2", "--json", "--out", out];
        let output = stdout(&succeed(folder.path(), &with(&[args, &TINY, more])));
        let lines = output.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        lines.filter_map(|l| l["training"]["loss"].as_f64()).collect()
    };
    let whole = losses(&[], "whole");
    assert_eq!(whole.len(), 4, "three epochs and the end");
    for (more, out) in [(&["--segment", "4"][..], "a"), (&["--segment", "1", "--checkpoints", "2"], "b")] {
        for (a, b) in whole.iter().zip(losses(more, out)) {
            assert!((a - b).abs() < 1e-5 * a, "{more:?}: {b} instead of {a}");
        }
    }
}

#[test]
fn killed_at_any_moment_the_checkpoints_are_whole() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 4);
    let args = &["train", "clips.csv", "--out", "run", "--epochs", "100000", "--batch", "4"];
    let mut args = with(&[args, &TINY]);
    for round in 0..6u64 {
        let mut child = framefit(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300 + 70 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        if folder.path().join("run/resume.safetensors").exists() {
            succeed(folder.path(), &["eval", "run/last.safetensors"]);
            args = vec!["train", "--resume", "run"];
        }
    }
    assert_eq!(args[1], "--resume", "a checkpoint was written");
    let leftover: Vec<String> = names(&folder.path().join("run")).into_iter().filter(|n| n.ends_with(".tmp")).collect();
    succeed(folder.path(), &["train", "--resume", "run", "--epochs", "1"]);
    assert!(leftover.len() <= 6, "at most one unfinished file for each kill: {leftover:?}");
}

#[test]
fn plan_and_summary_say_what_is_known_without_videos() {
    let folder = folder();
    let model = ["--clip", "60", "--size", "230x230", "--classes", "20"];
    let summary = stdout(&succeed(folder.path(), &with(&[&["summary"], &model])));
    assert!(summary.contains("Nx64x15x57x57") && summary.contains("101,524"), "{summary}");
    let flatten = stdout(&succeed(folder.path(), &with(&[&["summary", "--model", "cnn3d-flatten"], &model])));
    assert!(flatten.contains("Nx3119040"), "{flatten}");

    let plan = stdout(&succeed(folder.path(), &with(&[&["plan"], &model])));
    assert!(plan.contains("planned peak of the process"), "{plan}");
    assert!(plan.lines().all(|line| line.chars().count() <= 80), "{plan}");
    let json = last_json(&succeed(folder.path(), &with(&[&["plan", "--json"], &model])));
    let rows: u64 = json["ledger"].as_array().unwrap().iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["peak"].as_u64().unwrap(), rows, "the ledger adds up");

    fail(
        folder.path(),
        &with(&[&["plan", "--memory", "50MB"], &model]),
        1,
        &["does not fit in 50 MB (47.7 MiB)", "conv1", "--ahead"],
    );
    let cut = stdout(&succeed(folder.path(), &with(&[&["plan", "--memory", "500MB"], &model])));
    assert!(cut.contains("segments of") && cut.contains("exact gradient"), "{cut}");
    let fitted = with(&[&["plan", "--memory", "2GB", "--batch", "8"], &model]);
    let fitted = stdout(&succeed(folder.path(), &fitted));
    assert!(fitted.contains("a batch of 8 clips in 4 micro-batches of 2"), "{fitted}");
}

#[test]
fn folders_that_cannot_be_written_to_are_found_out_before_training() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 2);
    std::fs::write(path.join("taken"), "").unwrap();
    for out in ["taken", "clips.csv/run"] {
        let said = run(path, &with(&[&["train", "clips.csv", "--out", out], &TINY]));
        assert_eq!(said.status.code(), Some(2), "{}", stderr(&said));
        assert!(stderr(&said).contains("--out") && !stderr(&said).contains("epoch 1"), "{}", stderr(&said));
    }
}

#[test]
fn a_run_far_from_its_manifest_asks_for_it() {
    let folder = trained();
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    fail(&elsewhere, &["eval", "../run"], 2, &["clips.csv", "framefit eval ../run MANIFEST"]);
    fail(&elsewhere, &["train", "--resume", "../run"], 2, &["framefit train --resume ../run MANIFEST"]);
    succeed(&elsewhere, &["eval", "../run", "../clips.csv"]);
}

#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::create_dir(&odd).unwrap();
    two_classes(&odd, SMALL, 2);
    let train = |manifest: &Path, out: &Path| {
        let mut command = framefit(folder.path(), &with(&[&["train", "--json", "--epochs", "1"], &TINY]));
        command.arg("--out").arg(out).arg(manifest).output().unwrap()
    };
    let refused = train(&odd.join("clips.csv"), Path::new("run"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("UTF-8") && !folder.path().join("run").exists(), "{}", stderr(&refused));
    two_classes(folder.path(), SMALL, 2);
    let written = train(Path::new("clips.csv"), &odd.join("run"));
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    assert_eq!(last_json(&written)["epochs"], 1);
}

#[test]
fn explain_reads_a_message_from_a_file_or_a_pipe() {
    let folder = folder();
    let text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.43 GiB. GPU 0 has a total capacity of 11.99 GiB of which 10 GiB is free.\n";
    std::fs::write(folder.path().join("oom.log"), text).unwrap();
    let model = ["--model", "cnn3d-flatten", "--clip", "60", "--size", "230x230"];
    let said = stdout(&succeed(folder.path(), &with(&[&["explain", "oom.log"], &model])));
    assert!(said.contains("fc1.weight made for about") && said.contains("gives it 3119040"), "{said}");

    let mut child =
        framefit(folder.path(), &["explain", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let said = stdout(&child.wait_with_output().unwrap());
    assert!(said.contains("48.4 GiB could not be had") && said.contains("--model"), "{said}");

    std::fs::write(folder.path().join("fine.log"), "all is well").unwrap();
    let output = run(folder.path(), &["explain", "fine.log"]);
    assert_eq!(output.status.code(), Some(1));
    fail(folder.path(), &["explain", "missing.log"], 2, &["missing.log", "cannot read"]);
    fail(folder.path(), &["explain", "oom.log", "--widths", "8"], 2, &["--clip", "--size"]);
}

#[test]
fn manifests_that_cannot_be_used() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 2);
    let csv = |text: &str| std::fs::write(path.join("bad.csv"), text).unwrap();
    let train = with(&[&["train", "bad.csv", "--out", "run"], &TINY]);

    fail(path, &with(&[&["train", "nowhere.csv"], &TINY]), 2, &["nowhere.csv", "Check the path"]);
    csv("");
    fail(path, &train, 2, &["bad.csv"]);
    csv("video,label\n");
    fail(path, &train, 2, &["bad.csv", "no rows"]);
    csv("file,label\ntrain0.npy,left\n");
    fail(path, &train, 2, &["bad.csv", "video", "file"]);
    csv("video,class\ntrain0.npy,left\n");
    fail(path, &train, 2, &["bad.csv", "label", "class"]);
    csv("video,label,split\ntrain0.npy,left,train\nval1.npy,right,val\n");
    fail(path, &train, 2, &["bad.csv:3", "right"]);
    csv("video,label\ntrain0.npy,left\ngone.npy,right\n");
    fail(path, &train, 2, &["bad.csv:3", "gone.npy"]);
    csv("video,label,start_frame,end_frame\ntrain0.npy,left,5,2\n");
    fail(path, &train, 2, &["bad.csv:2"]);
    csv("video,label,split\ntrain0.npy,left,holiday\n");
    fail(path, &train, 2, &["bad.csv:2", "holiday"]);
    assert!(!path.join("run").exists(), "nothing is left behind");
}

#[test]
fn videos_that_cannot_be_used() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 2);
    let csv = |text: &str| std::fs::write(path.join("bad.csv"), text).unwrap();
    let train = with(&[&["train", "bad.csv", "--out", "run"], &TINY]);

    std::fs::write(path.join("text.mp4"), "not a video at all").unwrap();
    csv("video,label\ntrain0.npy,left\ntext.mp4,right\n");
    fail(path, &train, 2, &["bad.csv:3", "text.mp4"]);
    std::fs::write(path.join("empty.mp4"), "").unwrap();
    csv("video,label\ntrain0.npy,left\nempty.mp4,right\n");
    fail(path, &train, 2, &["bad.csv:3", "empty.mp4"]);
    let whole = std::fs::read(path.join("train0.npy")).unwrap();
    std::fs::write(path.join("cut.npy"), &whole[..whole.len() - 10]).unwrap();
    csv("video,label\ntrain0.npy,left\ncut.npy,right\n");
    fail(path, &train, 2, &["bad.csv:3", "cut.npy"]);
    write_npy(&path.join("short.npy"), Clip { frames: 5, ..SMALL }, 0, 1);
    csv("video,label\ntrain0.npy,left\nshort.npy,right\n");
    fail(path, &train, 2, &["bad.csv:3", "short.npy", "5 frames", "needs 8"]);
    write_npy(&path.join("large.npy"), Clip { width: 20, ..SMALL }, 0, 1);
    csv("video,label\ntrain0.npy,left\nlarge.npy,right\n");
    fail(path, &train, 2, &["12x16", "12x20", "--size"]);
    assert!(!path.join("run").exists(), "nothing is left behind");
}

#[test]
fn settings_that_cannot_be_used() {
    let folder = trained();
    let path = folder.path();
    let train = |more: &[&'static str]| [&["train", "clips.csv", "--out", "other"][..], more].concat();
    fail(path, &train(&["--clip", "0"]), 2, &["--clip", "at least 1"]);
    fail(path, &train(&["--size", "0x5"]), 2, &["--size", "135x240"]);
    fail(path, &train(&["--channels", "2"]), 2, &["--channels", "not 2"]);
    fail(path, &train(&["--batch", "0"]), 2, &["--batch"]);
    fail(path, &train(&["--batch", "100000"]), 2, &["--batch", "65536"]);
    fail(path, &train(&["--seed", "-1"]), 2, &["-1", "--seed"]);
    fail(path, &train(&["--ahead", "0"]), 2, &["--ahead", "at least 1"]);
    fail(path, &train(&["--epochs", "0"]), 2, &["--epochs"]);
    fail(path, &train(&["--lr", "-1"]), 2, &["--lr"]);
    fail(path, &train(&["--lr=nan"]), 2, &["--lr"]);
    fail(path, &train(&["--std", "0"]), 2, &["--std"]);
    fail(path, &train(&["--widths", "8,0"]), 2, &["--widths"]);
    fail(path, &train(&["--kernel", "2"]), 2, &["--kernel", "odd"]);
    fail(path, &train(&["--memory", "12XB"]), 2, &["--memory", "12GB"]);
    fail(path, &train(&["--threads", "0"]), 2, &["--threads"]);
    fail(path, &train(&["--isa", "sse9"]), 2, &["--isa"]);
    fail(path, &train(&["--model", "cnn4d"]), 2, &["cnn4d", "cnn3d-separable"]);
    fail(path, &train(&["--clip", "8", "--widths", "4,4,4,4"]), 2, &["pool4", "time"]);
    fail(path, &train(&["--clip", "8", "--memory", "1MB"]), 1, &["does not fit"]);
    fail(path, &["train"], 2, &["MANIFEST"]);
    fail(path, &["trian", "clips.csv"], 2, &["train"]);
    fail(path, &["train", "--resume", "run", "--lr", "1"], 2, &["--lr", "--resume"]);
    fail(path, &["train", "--resume", "nowhere"], 2, &["nowhere"]);
    assert!(!path.join("other").exists(), "nothing is left behind");
    fail(path, &with(&[&["train", "clips.csv", "--out", "run"], &TINY]), 2, &["holds a run already", "--resume run"]);
}

#[test]
fn checkpoints_that_do_not_belong() {
    let folder = trained();
    let path = folder.path();
    std::fs::write(path.join("other.csv"), "video,label\ntrain0.npy,left\ntrain1.npy,up\n").unwrap();
    fail(path, &["eval", "run", "other.csv"], 2, &["other.csv:3", "up"]);
    fail(path, &["eval", "nowhere"], 2, &["nowhere"]);
    fail(path, &["eval", "clips.csv"], 2, &["clips.csv", "safetensors"]);
    fail(path, &["eval", "run", "--split", "test"], 2, &["no test clips"]);

    let last = path.join("run/last.safetensors");
    let whole = std::fs::read(&last).unwrap();
    std::fs::write(path.join("cut.safetensors"), &whole[..whole.len() - 4]).unwrap();
    fail(path, &["eval", "cut.safetensors"], 2, &["cut.safetensors", "bytes long"]);

    // The record says three classes, the weights have two.
    let record = b"\\\"classes\\\":2";
    let at = whole.windows(record.len()).position(|part| part == record).unwrap();
    let mut edited = whole.clone();
    edited[at + record.len() - 1] = b'3';
    std::fs::write(path.join("three.safetensors"), edited).unwrap();
    fail(path, &["eval", "three.safetensors"], 2, &["2 classes", "has 3"]);

    write_npy(&path.join("wide.npy"), Clip { width: 20, ..SMALL }, 0, 1);
    fail(path, &["predict", "run", "wide.npy"], 2, &["wide.npy", "12x20", "12x16"]);
    write_npy(&path.join("short.npy"), Clip { frames: 5, ..SMALL }, 0, 1);
    fail(path, &["predict", "run", "short.npy"], 2, &["short.npy", "5 frames", "8"]);
    fail(path, &["predict", "run", "gone.npy"], 2, &["gone.npy"]);
}

#[test]
fn output_into_a_closed_pipe_is_no_error() {
    let folder = trained();
    write_npy(&folder.path().join("long.npy"), Clip { frames: 4000, ..SMALL }, 1, 5);
    let mut child = framefit(folder.path(), &["predict", "run", "long.npy"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn help_names_every_command_and_no_other() {
    let folder = folder();
    let help = stdout(&succeed(folder.path(), &["--help"]));
    for command in ["train", "plan", "summary", "eval", "predict", "explain"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
        succeed(folder.path(), &[command, "--help"]);
    }
    assert!(stdout(&succeed(folder.path(), &["--version"])).starts_with("framefit 0."));
}

/// Two recordings, of 20 and 13 frames, brighter on the left, then on the right; a label for each frame but one.
fn recordings(folder: &Path) {
    let mut csv = "video,frame,label,split\n".to_owned();
    for (name, frames, split) in [("a", 20, "train"), ("b", 13, "train"), ("c", 15, "val")] {
        let halves = [(0, frames / 2), (1, frames - frames / 2)];
        let mut bytes = Vec::new();
        for (label, count) in halves {
            let part = folder.join("part.npy");
            write_npy(&part, Clip { frames: count, ..SMALL }, label, frames as u64);
            let all = std::fs::read(&part).unwrap();
            bytes.extend_from_slice(&all[all.len() - count * SMALL.height * SMALL.width..]);
            std::fs::remove_file(part).unwrap();
        }
        let video = folder.join(format!("{name}.npy"));
        write_npy(&video, Clip { frames, ..SMALL }, 0, 0);
        let whole = std::fs::read(&video).unwrap();
        let header = whole.len() - bytes.len();
        std::fs::write(&video, [&whole[..header], &bytes].concat()).unwrap();
        for t in (0..frames).filter(|&t| t != 3) {
            csv.push_str(&format!("{name}.npy,{t},{},{split}\n", ["left", "right"][usize::from(t >= frames / 2)]));
        }
    }
    std::fs::write(folder.join("frames.csv"), csv).unwrap();
}

#[test]
fn labels_per_frame_over_whole_recordings_of_any_length() {
    let folder = folder();
    recordings(folder.path());
    let model = ["--model", "convlstm", "--filters", "4", "--channels", "1"];
    let train = &["train", "frames.csv", "--epochs", "60", "--batch", "2", "--lr", "0.03", "--json"];
    let loss = |more: &[&'static str]| {
        let end = last_json(&succeed(folder.path(), &with(&[train, &model, more])));
        (end["training"]["loss"].as_f64().unwrap(), end)
    };
    let (whole, end) = loss(&["--out", "whole"]);
    assert_eq!(end["training"]["labels"], 19 + 12, "one frame of each recording has no label");
    assert_eq!(end["validation"]["labels"], 14);
    let (cut, _) = loss(&["--out", "cut", "--segment", "6", "--checkpoints", "1"]);
    assert!((whole - cut).abs() < 1e-3 * whole, "{cut} instead of {whole}");

    let predicted = stdout(&succeed(folder.path(), &["predict", "whole", "c.npy"]));
    let lines: Vec<&str> = predicted.lines().collect();
    assert_eq!((lines[0], lines.len()), ("video,frame,label,probability", 16));
    assert!(lines[1].starts_with("c.npy,0,") && lines[15].starts_with("c.npy,14,"), "{predicted}");
    let eval = stdout(&succeed(folder.path(), &["eval", "whole"]));
    assert!(eval.contains("of 14 frames"), "{eval}");

    let clips = with(&[&["train", "clips.csv"], &model]);
    two_classes(folder.path(), SMALL, 2);
    fail(folder.path(), &clips, 2, &["convlstm labels every frame", "video,frame,label"]);
    fail(folder.path(), &["train", "frames.csv", "--channels", "1"], 2, &["one per frame", "--model convlstm"]);
}
