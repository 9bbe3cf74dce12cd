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
    succeed(folder.path(), &["train", "--resume", "run", "--epochs", "1"]);
    let left = names(&folder.path().join("run"));
    assert_eq!(left, ["best.safetensors", "last.safetensors", "log.jsonl", "resume.safetensors"]);
}

/// Waits until `done`, for at most half a minute.
fn wait_until(mut done: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited in vain");
}

#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_whole_files_and_says_how_to_go_on() {
    use std::os::unix::process::ExitStatusExt;
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 2);
    let whole = ["best.safetensors", "last.safetensors", "log.jsonl", "resume.safetensors"];
    let new = with(&[&["train", "clips.csv", "--out", "run", "--epochs", "100000"], &TINY]);
    for round in 0..12u64 {
        let args = if round == 0 { new.clone() } else { vec!["train", "--resume", "run"] };
        let spawned = framefit(path, &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = || std::fs::read_to_string(path.join("run/log.jsonl")).unwrap_or_default().lines().count();
        let before = log();
        wait_until(|| log() > before + 3);
        std::thread::sleep(std::time::Duration::from_millis(round));
        interrupt(&spawned);
        let output = spawned.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.signal(), Some(2), "{said}");
        assert_eq!(names(&path.join("run")), whole, "{said}");
        let text = std::fs::read_to_string(path.join("run/log.jsonl")).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let told = format!("stopped: run holds epoch {}, go on with framefit train --resume run", last["epoch"]);
        assert!(said.contains(&told), "expected '{told}' in: {said}");
        succeed(path, &["eval", "run"]);
    }

    // Twice, wherever it is: nobody waits, and what is there can be gone on with.
    for _ in 0..4 {
        let spawned = framefit(path, &["train", "--resume", "run"]).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(400));
        interrupt(&spawned);
        interrupt(&spawned);
        let output = spawned.wait_with_output().unwrap();
        assert!(!output.status.success(), "{}", stderr(&output));
        succeed(path, &["train", "--resume", "run", "--epochs", "1"]);
        assert_eq!(names(&path.join("run")), whole);
    }
}

#[test]
fn two_processes_do_not_train_into_one_folder() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 2);
    let train = with(&[&["train", "clips.csv", "--out", "run"], &TINY]);
    let mut endless = framefit(path, &with(&[&train, &["--epochs", "100000"]]))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let log = || std::fs::read_to_string(path.join("run/log.jsonl")).unwrap_or_default().lines().count();
    wait_until(|| log() > 2);
    fail(path, &["train", "--resume", "run"], 2, &["another framefit trains into run", "--out"]);
    endless.kill().unwrap();
    endless.wait().unwrap();
    succeed(path, &["train", "--resume", "run", "--epochs", "1"]);

    // Without --out, each has its own.
    let unnamed = with(&[&["train", "clips.csv", "--epochs", "1"], &TINY]);
    let spawn = || framefit(path, &unnamed).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for child in [spawn(), spawn(), spawn()] {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(names(&path.join("runs")).len(), 3);
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
    assert!(cut.contains("exact: ") && cut.contains("the gradient of the whole clip"), "{cut}");
    let fitted = with(&[&["plan", "--memory", "2GB", "--batch", "8"], &model]);
    let fitted = stdout(&succeed(folder.path(), &fitted));
    assert!(fitted.contains("a batch of 8 clips in 4 micro-batches of 2"), "{fitted}");
}

/// Of each layer of a summary, or of a plan: its name, output and parameters; and the three sums.
fn summarised(text: &str) -> (Vec<[String; 3]>, Vec<[String; 2]>) {
    let mut layers = Vec::new();
    let mut sums = Vec::new();
    for line in text.lines().skip(2).take_while(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        match cells.iter().position(|cell| cell.starts_with("Nx")) {
            Some(at) => layers.push([cells[0], cells[at], cells[at + 1]].map(str::to_owned)),
            None => sums.push([cells[0], cells[1]].map(str::to_owned)),
        }
    }
    (layers, sums)
}

/// That the table, its JSON and the table of a plan say this.
fn summary_is(model: &[&str], layers: &[[&str; 3]], sums: [&str; 3]) {
    let folder = folder();
    let expected_sums = ["total", "trainable", "non-trainable"].into_iter().zip(sums).map(|(name, n)| [name, n]);
    let expected_sums: Vec<[&str; 2]> = expected_sums.collect();
    let text = stdout(&succeed(folder.path(), &with(&[&["summary"], model])));
    let (found, found_sums) = summarised(&text);
    assert_eq!(found, layers, "{text}");
    assert_eq!(found_sums, expected_sums, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    let number = |text: &str| text.replace(',', "").parse::<u64>().unwrap();
    let json = last_json(&succeed(folder.path(), &with(&[&["summary", "--json"], model])));
    let of_json: Vec<(&str, &str, u64)> = json["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| {
            let text = |key: &str| layer[key].as_str().unwrap();
            (text("name"), text("output"), layer["parameters"].as_u64().unwrap())
        })
        .collect();
    let of_table: Vec<(&str, &str, u64)> = layers.iter().map(|[name, out, n]| (*name, *out, number(n))).collect();
    assert_eq!(of_json, of_table);
    let of_json = ["parameters", "trainable", "non_trainable"].map(|key| json[key].as_u64().unwrap());
    assert_eq!(of_json, sums.map(number));
}

#[test]
fn the_summary_of_the_conv_lstm_is_that_of_keras() {
    let model = ["--model", "convlstm", "--classes", "9", "--size", "135x240", "--channels", "1"];
    let whole = with(&[&model, &["--filters", "40", "--clip", "600"]]);
    let layers = [
        ["conv_lstm2d", "Nx600x135x240x40", "59,200"],
        ["batch_normalization", "Nx600x135x240x40", "160"],
        ["average_pooling3d", "Nx600x1x1x40", "0"],
        ["reshape", "Nx600x40", "0"],
        ["dense", "Nx600x9", "369"],
    ];
    summary_is(&whole, &layers, ["59,729", "59,649", "80"]);

    let reduced = with(&[&model, &["--filters", "4", "--clip", "100"]]);
    let layers = [
        ["conv_lstm2d", "Nx100x135x240x4", "736"],
        ["batch_normalization", "Nx100x135x240x4", "16"],
        ["average_pooling3d", "Nx100x1x1x4", "0"],
        ["reshape", "Nx100x4", "0"],
        ["dense", "Nx100x9", "45"],
    ];
    summary_is(&reduced, &layers, ["797", "789", "8"]);

    let text = stdout(&succeed(folder().path(), &with(&[&["summary"], &whole])));
    let kinds = ["ConvLSTM2D", "BatchNormalization", "AveragePooling3D", "Reshape", "Dense"];
    assert!(kinds.iter().zip(text.lines().skip(2)).all(|(kind, line)| line.contains(kind)), "{text}");
    let longest = with(&[&model, &["--clip", "4800"]]);
    let text = stdout(&succeed(folder().path(), &with(&[&["summary"], &longest])));
    assert!(text.lines().all(|line| line.chars().count() <= 80) && text.contains("59,729"), "{text}");
}

#[test]
fn the_summary_of_the_3d_cnn_is_that_of_pytorch() {
    let clip = ["--clip", "60", "--size", "230x230", "--classes", "20"];
    let blocks = [
        ["conv1", "Nx32x60x230x230", "2,624"],
        ["relu1", "Nx32x60x230x230", "0"],
        ["pool1", "Nx32x30x115x115", "0"],
        ["conv2", "Nx64x30x115x115", "55,360"],
        ["relu2", "Nx64x30x115x115", "0"],
        ["pool2", "Nx64x15x57x57", "0"],
    ];
    let head = |flat: &'static str, fc1: &'static str| {
        let rest = [["relu_fc1", "Nx512", "0"], ["fc2", "Nx20", "10,260"]];
        [&[["flatten", flat, "0"], ["fc1", "Nx512", fc1]][..], &rest].concat()
    };
    let pooled = [&blocks[..], &[["global_avg_pool", "Nx64x1x1x1", "0"]], &head("Nx64", "33,280")].concat();
    summary_is(&clip, &pooled, ["101,524", "101,524", "0"]);
    let flattened = [&blocks[..], &head("Nx3119040", "1,596,948,992")].concat();
    let model = with(&[&["--model", "cnn3d-flatten"], &clip]);
    summary_is(&model, &flattened, ["1,597,017,236", "1,597,017,236", "0"]);
}

#[test]
fn options_of_another_model_are_refused() {
    let folder = trained();
    let clip = ["summary", "--clip", "8", "--size", "16x16", "--classes", "2"];
    let lstm = with(&[&clip, &["--model", "convlstm"]]);
    for (args, flag, has) in [
        (with(&[&lstm, &["--widths", "8"]]), "--widths", "--filters"),
        (with(&[&lstm, &["--hidden", "8"]]), "--hidden", "--filters"),
        (with(&[&lstm, &["--pool", "2"]]), "--pool", "--filters"),
        (with(&[&clip, &["--filters", "8"]]), "--filters", "--widths"),
        (with(&[&clip, &["--recurrent-dropout", "0.2"]]), "--recurrent-dropout", "--widths"),
        (with(&[&lstm, &["--recurrent-dropout", "1"]]), "--recurrent-dropout", "from 0 to below 1"),
        (vec!["train", "clips.csv", "--filters", "8"], "--filters", "--widths"),
        (vec!["train", "--resume", "run", "--filters", "8"], "--filters", "--resume"),
    ] {
        fail(folder.path(), &args, 2, &[flag, has]);
    }
}

#[test]
fn recurrent_dropout_is_part_of_the_model() {
    let clip = ["summary", "--clip", "8", "--size", "16x16", "--classes", "2", "--model", "convlstm"];
    let said = |more: &[&str]| stdout(&succeed(folder().path(), &with(&[&clip, more])));
    assert!(said(&["--recurrent-dropout", "0.2"]).contains("recurrent dropout 0.2"));
    assert!(!said(&[]).contains("dropout"));
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
    fail(path, &train(&["--batch", "100000"]), 2, &["--batch", "65,536"]);
    fail(path, &train(&["--batch", "1.5"]), 2, &["--batch", "write a whole number"]);
    fail(path, &train(&["--widths", "8,"]), 2, &["--widths", "write a whole number"]);
    fail(path, &train(&["--lr", "fast"]), 2, &["--lr", "write a number such as"]);
    fail(path, &train(&["--ahead", "18446744073709551615"]), 2, &["--ahead", "from 0 to 65,536"]);
    let checkpoints = ["--segment", "1", "--checkpoints", "18446744073709551615"];
    fail(path, &train(&checkpoints), 2, &["--checkpoints", "from 0 to 65,536"]);
    fail(path, &train(&["--seed", "-1"]), 2, &["-1", "--seed"]);
    fail(path, &train(&["--loss", "hinge"]), 2, &["--loss", "binary"]);
    fail(path, &train(&["--label-smoothing", "2"]), 2, &["--label-smoothing", "from 0 to 1, not 2"]);
    fail(path, &train(&["--label-smoothing", "-0.1"]), 2, &["--label-smoothing", "not -0.1"]);
    fail(path, &train(&["--label-smoothing=nan"]), 2, &["--label-smoothing"]);
    fail(path, &train(&["--barrier-folder", "nowhere"]), 2, &["--barrier-folder", "there is no folder nowhere"]);
    fail(path, &train(&["--barrier-folder", "clips.csv"]), 2, &["--barrier-folder", "clips.csv"]);
    fail(path, &["train", "--resume", "run", "--loss", "binary"], 2, &["--loss", "--resume"]);
    fail(path, &["train", "--resume", "run", "--cutting", "exact"], 2, &["--cutting", "--resume"]);
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
    let small = ["--clip", "8", "--memory", "1MB"];
    fail(path, &train(&small), 1, &["does not fit", "--clip", "(--widths, --hidden, --kernel)"]);
    assert!(!stderr(&run(path, &train(&small))).contains("--ahead"), "what has been tried is no advice");
    fail(path, &train(&["--clip", "8", "--memory", "12"]), 1, &["does not fit in 12 B", "a number alone is bytes"]);
    let cut = ["--clip", "8", "--memory", "1MB", "--segment", "4", "--ahead", "1"];
    fail(path, &train(&cut), 1, &["does not fit", "no --segment"]);
    for args in [&["eval", "run"][..], &["predict", "run", "val0.npy"], &["train", "--resume", "run"]] {
        let said = stderr(&run(path, &with(&[args, &["--memory", "1MB"]])));
        assert!(said.contains("does not fit in 1 MB"), "{said}");
        assert_eq!(said.contains("--ahead 0"), args[0] != "train", "{said}");
        assert!(!said.contains("--clip") && !said.contains("--widths"), "the model is what it is: {said}");
    }
    fail(path, &["train"], 2, &["MANIFEST"]);
    fail(path, &["trian", "clips.csv"], 2, &["train"]);
    fail(path, &["train", "--resume", "run", "--lr", "1"], 2, &["--lr", "--resume"]);
    fail(path, &["train", "--resume", "nowhere"], 2, &["nowhere"]);
    assert!(!path.join("other").exists(), "nothing is left behind");
    fail(path, &with(&[&["train", "clips.csv", "--out", "run"], &TINY]), 2, &["holds a run already", "--resume run"]);
}

/// The files of a run, each with its bytes.
fn files(run: &Path) -> Vec<(String, Vec<u8>)> {
    names(run).into_iter().map(|name| (name.clone(), std::fs::read(run.join(name)).unwrap())).collect()
}

#[test]
fn a_run_whose_numbers_are_no_numbers_stops_before_it_writes_them() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 4);
    let csv = std::fs::read_to_string(path.join("clips.csv")).unwrap();
    let unvalidated: String = csv.lines().filter(|line| !line.ends_with(",val")).map(|l| format!("{l}\n")).collect();
    std::fs::write(path.join("unvalidated.csv"), unvalidated).unwrap();
    let train = |manifest: &'static str, out: &'static str, more: &[&'static str]| {
        with(&[&["train", manifest, "--out", out, "--epochs", "3"], &TINY, more])
    };
    // One step in an epoch, so that nothing but its weights and its validation shows what it did.
    let nothing_left = |out: &str| assert_eq!(names(&path.join(out)), ["log.jsonl"], "{out}");
    for (manifest, out) in [("clips.csv", "a"), ("unvalidated.csv", "b")] {
        let said = ["epoch 1, step 1: 'conv1.weight'[0, 0, 0, 0, 0] is", "--lr, which was 1e300", "no finished epoch"];
        fail(path, &train(manifest, out, &["--lr", "1e300"]), 2, &said);
        nothing_left(out);
    }
    let huge = ["--lr", "1e30"];
    fail(
        path,
        &train("clips.csv", "c", &huge),
        2,
        &["epoch 1, step 1: validation is no number", "val0.npy, frames 0 to 8"],
    );
    nothing_left("c");
    fail(
        path,
        &train("clips.csv", "d", &["--lr", "1e30", "--batch", "2"]),
        2,
        &["epoch 1, step 2: the training loss is"],
    );
    nothing_left("d");

    // The first epoch's weights are numbers still.
    let first = ["--lr", "1e30", "--epochs", "1"];
    let first: Vec<&str> = with(&[&["train", "unvalidated.csv", "--out", "e"], &TINY, &first]);
    succeed(path, &first);
    let whole = files(&path.join("e"));
    let resumed = ["train", "--resume", "e", "--epochs", "3"];
    fail(path, &resumed, 2, &["epoch 2, step 2: the training loss is", "e holds epoch 1, whole"]);
    assert!(files(&path.join("e")) == whole, "nothing is written over");
    fail(path, &["eval", "e"], 2, &["train0.npy, frames 0 to 8: the model's output is"]);
    fail(path, &["predict", "e", "val1.npy"], 2, &["val1.npy, frames 0 to 8: the model's output is"]);
}

/// The program as a shell starts it that lets no file grow over `blocks` of 512 or 1,024 bytes, as a full disk would.
#[cfg(unix)]
fn on_a_full_disk(folder: &Path, blocks: usize, args: &[&str]) -> std::process::Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let program = framefit(folder, args);
    let mut shell = std::process::Command::new("sh");
    shell.current_dir(folder).args(["-c", &script]).arg(program.get_program()).args(program.get_args());
    shell.output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_older_files_and_says_what_is_needed() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 3);
    // Weights of 47 kB, and moments of 92 kB more: the weights alone fit into 50 to 100 KiB.
    let model = ["--clip", "8", "--channels", "1", "--widths", "8", "--hidden", "1024", "--epochs", "1"];
    let train = with(&[&["train", "clips.csv", "--out", "run"], &model]);
    let first = on_a_full_disk(path, 100, &train);
    let said = stderr(&first);
    assert_eq!(first.status.code(), Some(2), "{said}");
    assert!(said.contains("epoch 1 is not saved: run/resume.safetensors: cannot write"), "{said}");
    assert!(said.contains("train anew") && !said.contains("--resume"), "{said}");
    assert_eq!(names(&path.join("run")), ["best.safetensors", "last.safetensors", "log.jsonl"]);

    std::fs::remove_dir_all(path.join("run")).unwrap();
    succeed(path, &train);
    let whole = files(&path.join("run"));
    let resumed = on_a_full_disk(path, 1, &["train", "--resume", "run", "--epochs", "2"]);
    let said = stderr(&resumed);
    assert_eq!(resumed.status.code(), Some(2), "{said}");
    for words in
        ["epoch 2 is not saved: run/", "KiB beside what is there now", "make room", "from epoch 1 with --resume run"]
    {
        assert!(said.contains(words), "expected '{words}' in: {said}");
    }
    assert!(files(&path.join("run")) == whole, "what was there is whole, and nothing else is left");
    succeed(path, &["train", "--resume", "run", "--epochs", "2"]);
}

/// Replaces the header of a safetensors file, and bytes of its values.
fn edited(whole: &[u8], header: impl Fn(&str) -> String, values: impl Fn(&mut [u8])) -> Vec<u8> {
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut text = header(std::str::from_utf8(&whole[8..8 + length]).unwrap());
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut rest = whole[8 + length..].to_vec();
    values(&mut rest);
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &rest].concat()
}

#[test]
fn weights_of_another_model_or_with_nan_are_named_with_their_tensor() {
    let folder = trained();
    let path = folder.path();
    let whole = std::fs::read(path.join("run/last.safetensors")).unwrap();
    let write = |header: &dyn Fn(&str) -> String, values: &dyn Fn(&mut [u8])| {
        std::fs::write(path.join("edited.safetensors"), edited(&whole, header, values)).unwrap();
    };
    let same = |text: &str| text.to_owned();
    let no_values = |_: &mut [u8]| {};
    let says =
        |words: &[&str]| fail(path, &["eval", "edited.safetensors"], 2, &with(&[&["edited.safetensors"], words]));

    write(&|text| text.replace("fc1.bias", "fc9.bias"), &no_values);
    says(&["the model has 'fc1.bias' of 16, the file has none; 2 of 9 tensors differ", "another model"]);
    write(&|text| text.replace("[16,8]", "[8,16]"), &no_values);
    says(&["'fc1.weight' is 8x16 in the file and 16x8 in the model; 1 of 8 tensors differ"]);
    write(&|text| text.replace(r#"\"hidden\":16"#, r#"\"hidden\":32"#), &no_values);
    says(&["'fc1.weight' is 16x8 in the file and 32x8 in the model; 3 of 8 tensors differ"]);
    write(&|text| text.replace("\"F32\",\"shape\":[16]", "\"I32\",\"shape\":[16]"), &no_values);
    says(&["'fc1.bias' is stored as I32", "convert it to F32"]);
    write(&|text| text.replace(r#"\"epochs\":"#, r#"\"epoch_count\":"#), &no_values);
    says(&["record of the run, by framefit 0.", "missing field `epochs`", "train anew"]);

    // The last of conv1.weight's 4·1·3·3·3 values.
    write(&same, &|values| values[4 * 107..4 * 108].copy_from_slice(&f32::NAN.to_le_bytes()));
    says(&["'conv1.weight'[3, 0, 2, 2, 2] is NaN", "earlier epoch"]);
    write(&same, &|values| values[..4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes()));
    says(&["'conv1.weight'[0, 0, 0, 0, 0] is -inf"]);

    // What a run is resumed from has the optimizer's moments, too; without them it is no such file.
    std::fs::write(path.join("run/resume.safetensors"), &whole).unwrap();
    fail(path, &["train", "--resume", "run"], 2, &["optimizer.first_moment.conv1.weight", "16 of 24 tensors differ"]);
}

#[cfg(unix)]
#[test]
fn weights_can_be_read_by_whom_the_mask_allows() {
    use std::os::unix::fs::PermissionsExt;
    let folder = trained();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
    for name in ["best", "last", "resume"] {
        assert_eq!(mode(&format!("run/{name}.safetensors")), mode("run/log.jsonl"), "{name}");
    }
}

#[test]
fn folders_without_weights_say_which_file_is_missing() {
    let folder = trained();
    let path = folder.path();
    std::fs::create_dir(path.join("empty")).unwrap();
    fail(path, &["eval", "empty"], 2, &["empty: there is no last.safetensors in it", "first epoch"]);
    fail(path, &["predict", "empty", "val0.npy"], 2, &["empty: there is no last.safetensors in it"]);
    fail(path, &["train", "--resume", "empty"], 2, &["empty: there is no resume.safetensors in it"]);
    std::fs::remove_file(path.join("run/resume.safetensors")).unwrap();
    let again = with(&[&["train", "clips.csv", "--out", "run"], &TINY]);
    fail(path, &again, 2, &["holds a run already", "cannot be continued", "--out"]);
}

#[test]
fn checkpoints_that_do_not_belong() {
    let folder = trained();
    let path = folder.path();
    std::fs::write(path.join("other.csv"), "video,label\ntrain0.npy,left\ntrain1.npy,up\n").unwrap();
    fail(path, &["eval", "run", "other.csv"], 2, &["other.csv:3", "up"]);
    fail(path, &["eval", "nowhere"], 2, &["nowhere"]);
    fail(path, &["eval", "clips.csv"], 2, &["clips.csv", "safetensors"]);
    fail(path, &["eval", "run", "--split", "test"], 2, &["clips.csv: it has no test clips", "the split 'test'"]);

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
    std::fs::write(path.join("wide.csv"), "video,label\nwide.npy,left\n").unwrap();
    let sizes = ["wide.npy is 12x20x1, but the model takes 12x16x1", "--size"];
    fail(path, &["predict", "run", "wide.npy"], 2, &sizes);
    fail(path, &["eval", "run", "wide.csv"], 2, &sizes);
    fail(path, &["train", "--resume", "run", "wide.csv", "--epochs", "9"], 2, &sizes);
    write_npy(&path.join("short.npy"), Clip { frames: 5, ..SMALL }, 0, 1);
    fail(path, &["predict", "run", "short.npy"], 2, &["short.npy", "5 frames", "8"]);
    let said = stderr(&run(path, &["predict", "run", "gone.npy"]));
    assert!(said.matches("gone.npy").count() == 1, "{said}");
    fail(path, &["predict", "val0.npy", "run"], 2, &["val0.npy: not a safetensors file", "the folder of a run"]);
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
fn nobody_listening_to_progress_is_no_error() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 2);
    let train = with(&[&["train", "clips.csv", "--out", "run", "--epochs", "2"], &TINY]);
    let fails = ["eval", "nowhere"];
    for (args, code) in [(&train[..], 0), (&fails, 2)] {
        let mut child = framefit(folder.path(), args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
    assert_eq!(names(&folder.path().join("run")).len(), 4);
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

#[test]
fn nothing_decoded_ahead_changes_no_bits() {
    let folder = folder();
    two_classes(folder.path(), SMALL, 5);
    let read = |out: &'static str, more: &[&'static str]| {
        let args = &["train", "clips.csv", "--epochs", "2", "--batch", "3", "--flip", "horizontal,vertical"];
        succeed(folder.path(), &with(&[args, &TINY, &["--out", out], more]));
        std::fs::read(folder.path().join(out).join("last.safetensors")).unwrap()
    };
    let ahead = read("a", &[]);
    assert!(read("b", &["--ahead", "0"]) == ahead);
    assert!(read("c", &["--ahead", "0", "--keep-frames", "0"]) == ahead);
}

#[test]
fn a_loss_of_each_class_by_itself_is_recorded_with_the_run() {
    let folder = folder();
    let path = folder.path();
    two_classes(path, SMALL, 6);
    let train = ["train", "clips.csv", "--epochs", "2", "--batch", "3", "--json"];
    let mut losses = Vec::new();
    for (out, more) in [
        ("softmax", &[][..]),
        ("binary", &["--loss", "binary"]),
        ("smooth", &["--loss", "binary", "--label-smoothing", "0.2"]),
        ("smooth-softmax", &["--label-smoothing", "0.2"]),
    ] {
        succeed(path, &with(&[&train, &TINY, &["--out", out], more]));
        let end = last_json(&succeed(path, &["train", "--resume", out, "--epochs", "3", "--json"]));
        let measured = last_json(&succeed(path, &["eval", &format!("{out}/last.safetensors"), "--json"]));
        let (a, b) = (end["validation"]["loss"].as_f64().unwrap(), measured["loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-6 * a, "{out}: {b} instead of {a}");
        losses.push(a);
    }
    for (i, a) in losses.iter().enumerate() {
        assert!(losses[..i].iter().all(|b| (a - b).abs() > 1e-5), "{losses:?}");
    }
}

/// A model with a label per frame that trains in no time.
const OF_FRAMES: [&str; 6] = ["--model", "cnn-lstm", "--widths", "4", "--channels", "1"];

/// Values of a file of weights, without its header, which says more than the weights.
fn values(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn cutting_is_only_what_it_is_called() {
    let folder = folder();
    let path = folder.path();
    recordings(path);
    two_classes(path, SMALL, 2);
    let train = |more: &[&'static str]| with(&[&["train", "frames.csv", "--out", "other"], &OF_FRAMES, more]);
    fail(path, &train(&["--cutting", "truncated"]), 2, &["--segment", "--cutting truncated needs it"]);
    let both = ["--cutting", "truncated", "--segment", "5", "--clip", "5"];
    fail(path, &train(&both), 2, &["--clip", "takes whole videos"]);
    fail(path, &train(&["--cutting", "truncated", "--segment", "0"]), 2, &["--segment", "at least 1"]);
    fail(
        path,
        &train(&["--clip", "5"]),
        2,
        &["--clip", "--cutting independent", "--cutting truncated --segment FRAMES"],
    );
    fail(path, &train(&["--cutting", "independent"]), 2, &["--clip", "--cutting independent needs it"]);
    fail(path, &train(&["--cutting", "independent", "--clip", "0"]), 2, &["--clip", "at least 1"]);
    fail(path, &train(&["--cutting", "rough"]), 2, &["--cutting", "truncated", "independent"]);
    let size = ["--clip", "8", "--size", "12x16", "--classes", "2"];
    for more in [&["--cutting", "truncated", "--segment", "5"][..], &["--cutting", "independent"]] {
        let words = ["--cutting", "one label each", "label per frame"];
        fail(path, &with(&[&["train", "clips.csv", "--out", "other"], &TINY, more]), 2, &words);
        fail(path, &with(&[&["plan"], &size, more]), 2, &words);
    }
    assert!(!path.join("other").exists(), "nothing is left behind");
}

#[test]
fn the_cutting_is_named_wherever_the_gradient_is_not_exact() {
    let folder = folder();
    let path = folder.path();
    recordings(path);
    let plan = with(&[&["plan", "--clip", "20", "--size", "12x16", "--classes", "2"], &OF_FRAMES]);
    let train = with(&[&["train", "frames.csv", "--epochs", "2", "--batch", "2"], &OF_FRAMES]);
    // The run, how it is cut, its clips, what that is called, and in which words.
    type Case = (&'static str, &'static [&'static str], &'static [&'static str], &'static str, &'static str);
    let cases: [Case; 4] = [
        ("whole", &[], &[], "exact", ""),
        ("cut", &["--segment", "6"], &[], "exact", "exact: 4 segments of 6 frames"),
        (
            "truncated",
            &["--cutting", "truncated", "--segment", "6"],
            &[],
            "truncated",
            "truncated: 4 segments of 6 frames; the state goes on from one to the next, its gradient does not, so this \
             is not the gradient of the whole clip",
        ),
        (
            "independent",
            &["--cutting", "independent"],
            &["--clip", "6"],
            "independent",
            "that start from nothing, so this is not the gradient of whole videos",
        ),
    ];
    for (out, cutting, clip, name, words) in cases {
        let text = stdout(&succeed(path, &with(&[&plan, cutting])));
        assert!(text.contains(words), "{out}: {text}");
        let json = last_json(&succeed(path, &with(&[&plan, cutting, &["--json"]])));
        assert_eq!(json["cutting"], name, "{out}");

        // A run that is resumed ends with the bits of one never stopped, and with what it was cut by.
        let never_stopped = format!("{out}-whole");
        let said = stderr(&succeed(path, &with(&[&train, cutting, clip, &["--out", &never_stopped]])));
        assert!(said.contains(words), "{out}: {said}");
        succeed(path, &with(&[&train[..2], &["--epochs", "1"], &train[4..], cutting, clip, &["--out", out]]));
        let said = stderr(&succeed(path, &["train", "--resume", out, "--epochs", "2"]));
        if name != "exact" {
            assert!(said.contains(words), "{out}: {said}");
        }
        let log = std::fs::read_to_string(path.join(out).join("log.jsonl")).unwrap();
        let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert_eq!(first["plan"]["cutting"], name, "{out}");
        let record =
            String::from_utf8_lossy(&std::fs::read(path.join(out).join("last.safetensors")).unwrap()).into_owned();
        let recorded = match name {
            "exact" => r#"\"cutting\":\"exact\""#,
            "truncated" => r#"\"cutting\":{\"truncated\":6}"#,
            _ => r#"\"cutting\":{\"independent\":6}"#,
        };
        assert!(record.contains(recorded), "{out}: expected {recorded}");
        if out != "cut" {
            let [a, b] = [&never_stopped, out].map(|run| values(&path.join(run).join("last.safetensors")));
            assert!(a == b, "{out}");
        }
    }
    let of = |out: &str| values(&path.join(out).join("last.safetensors"));
    assert!(of("whole") != of("truncated") && of("whole") != of("independent") && of("truncated") != of("independent"));
    let other = ["train", "--resume", "truncated", "--epochs", "3", "--segment", "7"];
    fail(path, &other, 2, &["--segment", "truncated in segments of 6 frames", "leave it out"]);
}

/// Runs with these bytes on standard input.
fn with_pipe(folder: &Path, args: &[&str], bytes: &[u8]) -> std::process::Output {
    let mut program = framefit(folder, args);
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that stops early reads no more.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes);
    child.wait_with_output().unwrap()
}

/// The frames of an `.npy` file of grey frames of [`SMALL`]'s size.
fn frames_of(path: &Path) -> Vec<u8> {
    let all = std::fs::read(path).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([all[8], all[9]]));
    all[header..].to_vec()
}

/// Grey YUV4MPEG2.
fn y4m(frames: &[u8]) -> Vec<u8> {
    let (height, width) = (SMALL.height, SMALL.width);
    let mut bytes = format!("YUV4MPEG2 W{width} H{height} F25:1 Ip A1:1 Cmono\n").into_bytes();
    for frame in frames.chunks_exact(height * width) {
        bytes.extend_from_slice(b"FRAME\n");
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// A folder with recordings and a run of an epoch on them.
fn trained_on_frames(more: &[&str]) -> tempfile::TempDir {
    let folder = folder();
    recordings(folder.path());
    let train = ["train", "frames.csv", "--out", "run", "--epochs", "1", "--batch", "1"];
    succeed(folder.path(), &with(&[&train, &OF_FRAMES, more]));
    folder
}

/// Lines of results, without the video's name.
fn results(output: &std::process::Output) -> Vec<String> {
    assert!(output.status.success(), "{}", stderr(output));
    let text = stdout(output);
    assert_eq!(text.lines().next(), Some("video,frame,label,probability"));
    text.lines().skip(1).map(|line| line.split_once(',').unwrap().1.to_owned()).collect()
}

#[test]
fn frames_from_a_pipe_are_labelled_like_those_of_a_file() {
    for cutting in
        [&[][..], &["--cutting", "truncated", "--segment", "5"], &["--cutting", "independent", "--clip", "6"]]
    {
        let folder = trained_on_frames(cutting);
        let path = folder.path();
        let frames = frames_of(&path.join("a.npy"));
        let of_file = results(&succeed(path, &["predict", "run", "a.npy"]));
        assert_eq!(of_file.len(), 20);
        for segment in ["1", "3", "16", "50"] {
            let in_segments = ["--segment", segment];
            let of_pipe = with_pipe(path, &with(&[&["predict", "run", "-"], &in_segments]), &y4m(&frames));
            assert_eq!(results(&of_pipe), of_file, "{cutting:?}, {segment}");
            let said = stderr(&of_pipe);
            assert!(said.starts_with("20 frames; ") && said.contains("planned"), "{said}");
            let raw = with(&[&["predict", "run", "-", "--raw", "12x16"], &in_segments]);
            assert_eq!(results(&with_pipe(path, &raw, &frames)), of_file, "{cutting:?}, {segment}");
        }
        // Beside files, in the order in which they are named.
        let all = succeed(path, &["predict", "run", "a.npy", "b.npy", "c.npy"]);
        let mixed = with_pipe(path, &["predict", "run", "a.npy", "-", "c.npy"], &y4m(&frames_of(&path.join("b.npy"))));
        assert_eq!(results(&mixed), results(&all));
        assert!(stderr(&all).starts_with("48 frames; "), "{}", stderr(&all));
        let line = stdout(&with_pipe(path, &["predict", "run", "-", "--json"], &y4m(&frames)));
        let line: serde_json::Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
        assert_eq!((line["frame"].as_u64(), line["video"].as_str()), (Some(19), Some("standard input")));
    }
}

#[test]
fn results_come_while_frames_still_do() {
    use std::io::{BufRead, BufReader, Write};
    let folder = trained_on_frames(&[]);
    let frames = frames_of(&folder.path().join("a.npy"));
    let size = SMALL.height * SMALL.width;
    let args = ["predict", "run", "-", "--raw", "12x16", "--segment", "4"];
    let mut program = framefit(folder.path(), &args);
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("video,"));
    // A segment is labelled once it is known that it is not the last.
    pipe.write_all(&frames[..5 * size]).unwrap();
    for t in 0..4 {
        assert!(lines.next().unwrap().unwrap().starts_with(&format!("standard input,{t},")));
    }
    pipe.write_all(&frames[5 * size..9 * size]).unwrap();
    for t in 4..8 {
        assert!(lines.next().unwrap().unwrap().starts_with(&format!("standard input,{t},")));
    }
    drop(pipe);
    assert!(lines.next().unwrap().unwrap().starts_with("standard input,8,"));
    assert!(lines.next().is_none());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_pipe_that_breaks_off_is_an_error_after_its_results() {
    let folder = trained_on_frames(&[]);
    let path = folder.path();
    let frames = frames_of(&path.join("a.npy"));
    let size = SMALL.height * SMALL.width;
    let whole = results(&with_pipe(path, &["predict", "run", "-"], &y4m(&frames[..9 * size])));
    let broken = y4m(&frames[..10 * size]);
    let raw = ["predict", "run", "-", "--raw", "12x16"];
    for (args, bytes) in
        [(&["predict", "run", "-"][..], &broken[..broken.len() - 50]), (&raw, &frames[..10 * size - 50])]
    {
        let output = with_pipe(path, args, bytes);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("frame 9 is cut off: 50 of its 192 bytes are missing"), "{said}");
        assert!(!said.contains("measured"), "{said}");
        let text = stdout(&output);
        let written: Vec<&str> = text.lines().skip(1).map(|line| line.split_once(',').unwrap().1).collect();
        assert_eq!(written, whole);
    }
    // Not a single frame.
    let words = |bytes: &[u8], args: &[&str], words: &str| {
        let output = with_pipe(path, args, bytes);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "expected '{words}' in: {}", stderr(&output));
    };
    words(b"", &["predict", "run", "-"], "ends before the first byte");
    words(b"", &raw, "ends before the first byte");
    words(b"not a video at all", &["predict", "run", "-"], "YUV4MPEG2 is needed");
    words(&y4m(&frames)[..90], &["predict", "run", "-"], "frame 0 is cut off");
    words(&frames, &["predict", "run", "-", "--raw", "12x20"], "frames are 12x20, but the model takes 12x16");
    words(&frames, &["predict", "run", "-", "-"], "can be read once");
    words(&frames, &["predict", "run", "-", "--raw", "0x16"], "--raw");
    words(&frames, &["predict", "run", "a.npy", "--raw", "12x16"], "--raw: it is for standard input");

    // A video that cannot be read is found out before the first is gone through.
    let output = run(path, &["predict", "run", "a.npy", "gone.npy"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{}", stderr(&output));
    assert!(stderr(&output).contains("gone.npy"), "{}", stderr(&output));
}

#[test]
fn standard_input_is_no_clip() {
    let folder = trained();
    for args in [&["predict", "run", "-"][..], &["predict", "run", "-", "--raw", "12x16"]] {
        let output = with_pipe(folder.path(), args, &[0; 1000]);
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert!(said.contains("standard input is a stream, and this model has one label per clip"), "{said}");
        assert!(stdout(&output).is_empty());
    }
    let said = stderr(&succeed(folder.path(), &["predict", "run", "val0.npy"]));
    assert!(said.starts_with("1 clip; ") && said.contains("planned"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_folder_without_room_for_barriers_is_found_out_before_training() {
    let folder = folder();
    let path = folder.path();
    recordings(path);
    let model = ["--model", "convlstm", "--filters", "16", "--norm", "after", "--channels", "1", "--segment", "4"];
    let train = with(&[&["train", "frames.csv", "--out", "run", "--epochs", "1", "--barrier-folder", "."], &model]);
    let full = on_a_full_disk(path, 1, &train);
    let said = stderr(&full);
    assert_eq!(full.status.code(), Some(2), "{said}");
    // 20 frames of 16 values, and their gradients: the two clips have different lengths, so each goes alone.
    for words in [".: ", "for a file of 2560 bytes", "free space there", "--barrier-folder"] {
        assert!(said.contains(words), "expected '{words}' in: {said}");
    }
    assert!(!said.contains("epoch 1") && !path.join("run").exists(), "{said}");
    let before = names(path);
    let said = stderr(&succeed(path, &train));
    assert!(said.contains("2.50 KiB of values of whole clips in a file"), "{said}");
    let after: Vec<String> = names(path).into_iter().filter(|name| name != "run").collect();
    assert_eq!(before, after, "the file has no name");

    // What lies in the file lies in memory without it, and the bits are the same.
    let in_memory = with(&[&["train", "frames.csv", "--out", "memory", "--epochs", "1"], &model]);
    succeed(path, &in_memory);
    let [a, b] = ["run", "memory"].map(|run| values(&path.join(run).join("last.safetensors")));
    assert!(a == b);
}
