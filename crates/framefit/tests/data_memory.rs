//! What the data side promises to hold at most is not passed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use framefit::data::{
    ClipForm, ClipSpec, Dataset, FrameSize, FrameStream, Labels, Length, Loader, Manifest, PipeFormat, RawFormat,
    Source, Split, StreamSpec, YuvMatrix,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Peaks are of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes that `work` holds at most beyond those held before.
fn peak(work: impl FnOnce()) -> u64 {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    work();
    (MEMORY.peak_usage() - before) as u64
}

#[test]
fn an_open_video_keeps_its_bound() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos")).unwrap() {
        files.push(entry.unwrap().path());
    }
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    for name in ["fixtures/mmaction2_h264_short32f.mp4", "fixtures/gen_frames_jpg", "datasets/fly_wing/recA_fly0.mp4"] {
        match shared.join(name) {
            path if path.exists() => files.push(path),
            path => eprintln!("SKIPPED: there is no {}", path.display()),
        }
    }
    let mut checked = 0;
    for path in files {
        let mut bound = 0;
        let peak = peak(|| {
            let Ok(mut source) = Source::open(&path) else { return };
            let info = source.info();
            bound = info.decoder_bytes;
            let mut sum = 0u64;
            let mut sink = |_: usize, frame: &[u8]| {
                sum += u64::from(frame[0]);
                ControlFlow::Continue(())
            };
            for range in [0..info.frames, info.frames / 2..info.frames, 0..info.frames.min(5), 3..info.frames.min(9)] {
                if range.start < range.end && source.read(range, 3, &mut sink).is_err() {
                    return;
                }
            }
        });
        if bound > 0 {
            assert!(peak <= bound, "{}: {peak} of {bound}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 10);
}

/// A header, then lines and frames of zeros without an end in sight.
struct Endless {
    header: &'static [u8],
    line: &'static [u8],
    frame: usize,
    at: usize,
    frames: usize,
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let of = self.line.len() + self.frame;
        for (i, byte) in into.iter_mut().enumerate() {
            let at = self.at + i;
            let inside = at.wrapping_sub(self.header.len());
            *byte = match self.header.get(at) {
                Some(byte) => *byte,
                None if inside / of == self.frames => {
                    self.at = at;
                    return Ok(i);
                }
                None => self.line.get(inside % of).copied().unwrap_or(0),
            };
        }
        self.at += into.len();
        Ok(into.len())
    }
}

#[test]
fn a_stream_keeps_its_bound_whatever_its_length() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let checked = |name: &str, open: &dyn Fn(&StreamSpec) -> FrameStream| {
        for (height, width, channels) in [(24, 32, 3), (96, 100, 1)] {
            let spec = StreamSpec { size: FrameSize { height, width }, channels, resize: true };
            let mut frame = vec![0; spec.frame_bytes()];
            let (mut bound, mut frames) = (0, 0);
            let peak = peak(|| {
                let mut stream = open(&spec);
                bound = stream.memory_bytes();
                while stream.next_frame(&mut frame).unwrap() {
                    frames += 1;
                }
            });
            assert!(peak <= bound, "{name}, {frames} frames: {peak} of {bound}");
        }
    };
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    for name in ["bframes.mp4", "opengop.mp4", "rotated90.mov", "high10.mp4", "editlist.mp4"] {
        checked(name, &|spec| FrameStream::open(&videos.join(name), spec).unwrap());
    }
    let y4m = PipeFormat::Y4m { matrix: YuvMatrix::Bt709 };
    let raw = PipeFormat::Raw(RawFormat { width: 61, height: 41, channels: 3 });
    for (header, line, frame, format) in [
        (&b"YUV4MPEG2 W61 H41 C444\n"[..], &b"FRAME Ip\n"[..], 61 * 41 * 3, y4m),
        (b"YUV4MPEG2 W61 H41 C420jpeg\n", b"FRAME\n", 61 * 41 + 2 * 31 * 21, y4m),
        (b"YUV4MPEG2 W61 H41 Cmono\n", b"FRAME\n", 61 * 41, y4m),
        (b"", b"", 61 * 41 * 3, raw),
    ] {
        for frames in [1, 500] {
            checked("pipe", &|spec| {
                FrameStream::pipe(Endless { header, line, frame, at: 0, frames }, format, spec).unwrap()
            });
        }
    }
    // What a header claims is not taken before frames come, and then known.
    let spec = StreamSpec { size: FrameSize { height: 8, width: 8 }, channels: 1, resize: true };
    let mut bound = 0;
    let peak = peak(|| {
        let header = b"YUV4MPEG2 W8192 H4352 C444\n";
        let stream = FrameStream::pipe(Endless { header, line: b"", frame: 1, at: 0, frames: 0 }, y4m, &spec).unwrap();
        bound = stream.memory_bytes();
    });
    assert!(bound > 6 * 8192 * 4352 && peak < 2 << 20, "{peak} of {bound}");
}

#[test]
fn loading_keeps_the_bound_of_the_data_set() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    let mut rows = String::from("video,label\n");
    for name in ["bframes.mp4", "cropped.mp4", "fragmented.mp4", "slices.mp4"] {
        std::fs::copy(videos.join(name), folder.path().join(name)).unwrap();
        rows.push_str(&format!("{name},x\n"));
    }
    std::fs::write(folder.path().join("clips.csv"), rows).unwrap();
    for keep in [0, 100_000, u64::MAX] {
        for size in [FrameSize { height: 24, width: 32 }, FrameSize { height: 96, width: 100 }] {
            let manifest = Manifest::read(&[folder.path().join("clips.csv")]).unwrap();
            let spec = ClipSpec { frames: 8, size: Some(size), channels: 3 };
            let mut promised = 0;
            let peak = peak(|| {
                let data = Arc::new(Dataset::open(manifest, spec, keep).unwrap());
                promised = data.memory_bytes(3).total();
                for _ in 0..2 {
                    let mut loader = Loader::new(&data, data.clips(Split::Training).to_vec(), 3).unwrap();
                    while loader.next().unwrap().is_some() {}
                }
            });
            assert!(peak <= promised, "keep {keep}, {size:?}: {peak} of {promised}");
        }
    }
}

#[test]
fn clips_of_different_lengths_keep_the_bound_of_the_data_set() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    let mut rows = String::from("video,frame,label\n");
    for (name, frames) in [("bframes.mp4", 40), ("editlist.mp4", 22), ("fragmented.mp4", 40)] {
        std::fs::copy(videos.join(name), folder.path().join(name)).unwrap();
        // No two neighbours alike.
        rows.extend((0..frames).map(|frame| format!("{name},{frame},{}\n", frame % 2)));
    }
    std::fs::write(folder.path().join("frames.csv"), rows).unwrap();
    let size = Some(FrameSize { height: 24, width: 32 });
    for keep in [0, 100_000, u64::MAX] {
        for length in [Length::Whole, Length::Frames(16), Length::Frames(1)] {
            let labels = Labels::read(&[folder.path().join("frames.csv")]).unwrap();
            let mut promised = 0;
            let peak = peak(|| {
                let data = Arc::new(Dataset::open(labels, ClipForm { length, size, channels: 3 }, keep).unwrap());
                // More than there are whole recordings.
                promised = data.memory_bytes(6).total();
                for _ in 0..2 {
                    let mut loader = Loader::new(&data, data.clips(Split::Training).to_vec(), 6).unwrap();
                    while loader.next().unwrap().is_some() {}
                }
            });
            assert!(peak <= promised, "keep {keep}, {length:?}: {peak} of {promised}");
        }
    }
}
