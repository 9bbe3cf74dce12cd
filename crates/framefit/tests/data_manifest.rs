//! Manifests: what is read, and what each mistake is told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::PathBuf;

use framefit::data::{Manifest, Split};

struct Folder(tempfile::TempDir);

impl Folder {
    /// A folder with the (empty) videos a.mp4, b.mp4 and c.mp4.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.mp4", "b.mp4", "c.mp4"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        Self(folder)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

/// The message for a manifest, which must hold every one of `words`.
fn refused(content: impl AsRef<[u8]>, words: &[&str]) {
    let folder = Folder::new();
    let path = folder.file("clips.csv", content);
    let error = Manifest::read(&[path]).expect_err("is refused").to_string();
    for word in words.iter().chain([&"clips.csv"]) {
        assert!(error.contains(word), "no \"{word}\" in: {error}");
    }
}

#[test]
fn columns_come_in_any_order_and_case() {
    let folder = Folder::new();
    let content = "\u{FEFF} Split ,notes, LABEL,End_Frame,start_frame,video\r\n\
        train,x,10,16,0,a.mp4\r\n\r\n\
        VAL,\"a, b\", 9 ,32,16,a.mp4\r\n\
        training,,9,,,b.mp4\r\n\
        test,,10,5.0,0.0,\"c.mp4\"\r\n";
    let manifest = Manifest::read(&[folder.file("clips.csv", content)]).unwrap();
    assert_eq!(manifest.classes, ["9", "10"]);
    assert_eq!(manifest.videos, ["a.mp4", "b.mp4", "c.mp4"].map(|name| folder.0.path().join(name)));
    let rows: Vec<_> = manifest
        .rows
        .iter()
        .map(|row| (row.video.0, row.label, row.frames.clone(), row.split, row.origin.line))
        .collect();
    assert_eq!(
        rows,
        [
            (0, 1, Some(0..16), Split::Training, 2),
            (0, 0, Some(16..32), Split::Validation, 4),
            (1, 0, None, Split::Training, 5),
            (2, 1, Some(0..5), Split::Test, 6),
        ]
    );
    assert!(manifest.rows[1].origin.to_string().ends_with("clips.csv:4"));
}

#[test]
fn two_files_are_training_and_validation() {
    let folder = Folder::new();
    let train = folder.file("train.csv", "video,label\na.mp4,up\nb.mp4,down\n");
    let val = folder.file("val.csv", "label,video,split\nup,c.mp4,val\n");
    let manifest = Manifest::read(&[train.clone(), val]).unwrap();
    assert_eq!(manifest.rows_of(Split::Training).count(), 2);
    assert_eq!(manifest.rows_of(Split::Validation).count(), 1);
    let wrong = folder.file("wrong.csv", "label,video,split\nup,c.mp4,train\n");
    let error = Manifest::read(&[train.clone(), wrong]).unwrap_err().to_string();
    assert!(error.contains("wrong.csv:2") && error.contains("validation"), "{error}");
    let error = Manifest::read(&[train.clone(), train.clone(), train]).unwrap_err().to_string();
    assert!(error.contains("3 were given"), "{error}");
    // Without a split column, one file is for training.
    let one = folder.file("one.csv", "video,label\na.mp4,up\n");
    assert_eq!(Manifest::read(&[one]).unwrap().rows_of(Split::Training).count(), 1);
}

#[test]
fn mistakes_are_named_with_their_line() {
    refused("video,class\na.mp4,x\n", &[":1", "no column `label`", "video, class", "start_frame, end_frame, split"]);
    refused("video;label\na.mp4;x\n", &["separated by commas"]);
    refused("video,label,start_frame\na.mp4,x,1\n", &["no column `end_frame`"]);
    refused("video,label,Label\na.mp4,x,x\n", &["`label`", "more than once"]);
    refused("video,frame,label,split\na.mp4,0,x,train\n", &["labels per frame", "start_frame, end_frame"]);
    refused("", &["the file is empty"]);
    refused("\n\n", &["the file is empty"]);
    refused("video,label\n", &["no rows below the header"]);
    refused("video,label,split\na.mp4,x,val\n", &["none of the 1 rows is for training"]);
    refused("video,label\na.mp4,x\nb.mp4, \n", &[":3", "`label` is empty"]);
    refused("video,label\n,x\n", &[":2", "`video` is empty"]);
    refused("video,label,split\na.mp4,x,train\nb.mp4,y,val\n", &[":3", "\"y\"", "no training row", "rows: x"]);
    refused("video,label,split\na.mp4,x,training\nb.mp4,x,dev\n", &[":3", "\"dev\"", "train, val or test"]);
    refused("video,label,split\na.mp4,x,\n", &[":2", "unknown split \"\""]);
    refused("video,label\na.mp4,x\nb.mp4\n", &[":3", "1 fields", "has 2", "missing fields"]);
    refused("video,label\na.mp4,x\nb,c.mp4,x\n", &[":3", "3 fields", "double quotes"]);
    for (start, end, words) in [
        ("-1", "5", ["start_frame", "\"-1\""]),
        ("0", "x", ["end_frame", "\"x\""]),
        ("0", "1.5", ["end_frame", "\"1.5\""]),
        ("nan", "5", ["start_frame", "\"nan\""]),
        ("0", "inf", ["end_frame", "\"inf\""]),
        ("0", "1e3", ["end_frame", "\"1e3\""]),
        ("0.", "5", ["start_frame", "\"0.\""]),
        ("0", "99999999999999999999999", ["end_frame", "frame number"]),
        ("5", "5", ["hold no frame", "5"]),
        ("9", "5", ["hold no frame", "9"]),
        ("", "5", ["`start_frame` is empty", "both"]),
        ("5", "", ["`end_frame` is empty", "both"]),
    ] {
        refused(format!("video,label,start_frame,end_frame\na.mp4,x,{start},{end}\n"), &[":2", words[0], words[1]]);
    }
    for value in ["nan", "NaN", "-nan", "inf", "-Inf", "infinity"] {
        refused(format!("video,label\na.mp4,x\nb.mp4,{value}\n"), &[":3", "label is", value, "names no class"]);
    }
    for value in ["0.5", "-1.25", "1e-3", ".1"] {
        refused(format!("video,label\na.mp4,1\nb.mp4,{value}\n"), &[":3", value, "whole numbers", "with a word"]);
    }
    refused("video,label\na.mp4,x\nz.mp4,x\nz.mp4,x\ny.mp4,x\n", &[":3", "z.mp4", "1 other is missing"]);
    refused(b"video,label\na.mp4,x\nb.mp4,caf\xE9\n", &[":3", "not UTF-8"]);
    refused(b"\xFF\xFEv\0i\0d\0", &["UTF-16"]);
    let error = Manifest::read(&["nowhere/clips.csv".into()]).unwrap_err().to_string();
    assert!(error.contains("nowhere/clips.csv") && error.contains("cannot read"), "{error}");
}

#[test]
fn numbers_written_as_floats_are_the_same_classes() {
    let folder = Folder::new();
    let content =
        "video,label,split\na.mp4,1.0,train\nb.mp4,0,train\nc.mp4,1,val\na.mp4,-1.00,train\nb.mp4,v1.0,train\n";
    let path = folder.file("clips.csv", content);
    let manifest = Manifest::read(std::slice::from_ref(&path)).unwrap();
    assert_eq!(manifest.classes, ["-1", "0", "1", "v1.0"]);
    assert_eq!(manifest.rows.iter().map(|row| row.label).collect::<Vec<_>>(), [2, 1, 2, 0, 3]);
    // Also those of a checkpoint.
    let classes = ["0.0", "1.0", "-1.0", "v1.0"].map(String::from);
    let manifest = Manifest::read_with_classes(&[path], &classes).unwrap();
    assert_eq!(manifest.classes, classes);
    assert_eq!(manifest.rows.iter().map(|row| row.label).collect::<Vec<_>>(), [1, 0, 1, 2, 3]);
}

#[test]
fn a_checkpoint_sets_the_classes() {
    let folder = Folder::new();
    let path = folder.file("clips.csv", "video,label,split\na.mp4,up,val\nb.mp4,down,val\n");
    let classes = ["up", "still", "down"].map(String::from);
    let manifest = Manifest::read_with_classes(std::slice::from_ref(&path), &classes).unwrap();
    assert_eq!(manifest.classes, classes);
    assert_eq!(manifest.rows.iter().map(|row| row.label).collect::<Vec<_>>(), [0, 2]);
    let error = Manifest::read_with_classes(&[path], &classes[..2]).unwrap_err().to_string();
    assert!(error.contains("clips.csv:3") && error.contains("\"down\"") && error.contains("up, still"), "{error}");
}
