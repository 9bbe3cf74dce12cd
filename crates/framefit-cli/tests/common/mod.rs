//! Small data sets in temporary folders, and the program as a process.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program, to be run in `folder`.
pub fn framefit(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_framefit"));
    command.current_dir(folder).args(args);
    command
}

pub fn run(folder: &Path, args: &[&str]) -> Output {
    framefit(folder, args).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What was said on stderr, as one line: error reports wrap at the terminal's width.
pub fn stderr(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.replace(['│', '×', '╰', '─', '▶', '╭'], " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs and expects success.
pub fn succeed(folder: &Path, args: &[&str]) -> Output {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    output
}

/// Runs, expects this exit code, and that every one of `words` is in the error.
pub fn fail(folder: &Path, args: &[&str], code: i32, words: &[&str]) {
    let output = run(folder, args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for word in words {
        // A long path may be broken over two lines of the report.
        let whole = said.contains(word) || said.replace(' ', "").contains(&word.replace(' ', ""));
        assert!(whole, "{args:?}: expected '{word}' in: {said}");
    }
    assert!(!said.contains("panicked"), "{args:?}: {said}");
}

pub fn last_json(output: &Output) -> Value {
    serde_json::from_str(stdout(output).lines().last().unwrap()).unwrap()
}

/// Extents of a clip in an `.npy` file, `[T][H][W][C]`.
#[derive(Clone, Copy, Debug)]
pub struct Clip {
    pub frames: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

/// Writes u8 frames: noise, brighter in the left half for label 0 and in the right half for label 1.
pub fn write_npy(path: &Path, clip: Clip, label: usize, seed: u64) {
    let Clip { frames, height, width, channels } = clip;
    let shape = format!("({frames}, {height}, {width}, {channels})");
    let mut header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for _ in 0..frames * height {
        for x in 0..width {
            for _ in 0..channels {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let bright = usize::from(x >= width / 2) == label;
                bytes.push(((state >> 33) % 100) as u8 + if bright { 120 } else { 0 });
            }
        }
    }
    std::fs::write(path, bytes).unwrap();
}

/// A manifest of `videos` clips of two classes in turn, and as many for validation.
pub fn two_classes(folder: &Path, clip: Clip, videos: usize) -> PathBuf {
    let mut csv = "video,label,split\n".to_owned();
    for (part, split) in ["train", "val"].into_iter().enumerate() {
        for i in 0..videos {
            let name = format!("{split}{i}.npy");
            write_npy(&folder.join(&name), clip, i % 2, (part * 1000 + i) as u64);
            csv.push_str(&format!("{name},{},{split}\n", ["left", "right"][i % 2]));
        }
    }
    let path = folder.join("clips.csv");
    std::fs::write(&path, csv).unwrap();
    path
}

pub const SMALL: Clip = Clip { frames: 8, height: 12, width: 16, channels: 1 };

/// Arguments of a model that trains in no time.
pub const TINY: [&str; 8] = ["--clip", "8", "--channels", "1", "--widths", "4,8", "--hidden", "16"];

pub fn with<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}
