//! Videos made by `videos/make.sh`: every frame equals FFmpeg's, in any order of reading; what cannot be decoded is
//! an error that says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use framefit::data::{Source, SourceError};

fn videos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos")
}

/// FFmpeg's frames as checksums, by video.
fn expected() -> BTreeMap<String, Vec<u32>> {
    let mut expected: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for line in fs::read_to_string(videos().join("grey.txt")).unwrap().lines() {
        let (name, sum) = line.split_once(' ').unwrap();
        let sum = u32::from_str_radix(sum.trim_start_matches("0x"), 16).unwrap();
        expected.entry(name.to_owned()).or_default().push(sum);
    }
    assert!(expected.len() > 10);
    expected
}

/// Adler-32 that starts from 0, as FFmpeg's framecrc writes it.
fn adler(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (0u32, 0u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    (b << 16) | a
}

fn read(source: &mut Source, frames: Range<usize>, channels: usize) -> Result<Vec<Vec<u8>>, SourceError> {
    let mut got = vec![Vec::new(); frames.len()];
    source.read(frames.clone(), channels, &mut |number, frame| {
        let place = &mut got[number - frames.start];
        assert!(place.is_empty(), "frame {number} came twice");
        *place = frame.to_vec();
        ControlFlow::Continue(())
    })?;
    Ok(got)
}

fn open(name: &str) -> Source {
    Source::open(&videos().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The number that the bars of a grey frame of 64 columns show.
fn number(frame: &[u8]) -> usize {
    (0..8).filter(|bit| frame[64 * 24 + 8 * bit + 4] > 127).map(|bit| 1 << bit).sum()
}

#[test]
fn every_frame_equals_ffmpegs() {
    for (name, sums) in expected() {
        let mut source = open(&name);
        let info = source.info();
        assert_eq!(info.frames, sums.len(), "{name}");
        let frames = read(&mut source, 0..info.frames, 1).unwrap();
        assert!(frames.iter().all(|frame| frame.len() == info.height * info.width), "{name}");
        let got: Vec<u32> = frames.iter().map(|frame| adler(frame)).collect();
        assert_eq!(got, sums, "{name}");
    }
}

#[test]
fn sizes_are_those_shown() {
    for (name, size) in [("cropped.mp4", (38, 50)), ("rotated90.mov", (50, 38)), ("rotated180.mov", (38, 50))] {
        let info = open(name).info();
        assert_eq!((info.height, info.width), size, "{name}");
    }
}

#[test]
fn frames_are_numbered_as_they_are_shown() {
    for name in ["bframes.mp4", "opengop.mp4", "fragmented.mp4", "baseline.mp4", "high10.mp4", "high422.mp4"] {
        let frames = read(&mut open(name), 0..40, 1).unwrap();
        let numbers: Vec<usize> = frames.iter().map(|frame| number(frame)).collect();
        assert_eq!(numbers, Vec::from_iter(0..40), "{name}");
    }
    let frames = read(&mut open("editlist.mp4"), 0..22, 1).unwrap();
    let numbers: Vec<usize> = frames.iter().map(|frame| number(frame)).collect();
    assert_eq!(numbers, Vec::from_iter(18..40));
}

#[test]
fn any_order_of_reading_gives_the_same_frames() {
    for (name, sums) in expected() {
        let count = sums.len();
        let mut source = open(&name);
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for _ in 0..60 {
            let start = draw(count);
            let end = (start + 1 + draw(9)).min(count);
            let got: Vec<u32> = read(&mut source, start..end, 1).unwrap().iter().map(|frame| adler(frame)).collect();
            assert_eq!(got, sums[start..end], "{name} {start}..{end}");
        }
        // One after the other, as clips of one video come, in pieces that end inside a group of B-frames.
        for step in [1, 3, 7] {
            let mut got = Vec::new();
            for start in (0..count).step_by(step) {
                got.extend(read(&mut source, start..(start + step).min(count), 1).unwrap());
            }
            assert_eq!(got.iter().map(|frame| adler(frame)).collect::<Vec<_>>(), sums, "{name} by {step}");
        }
    }
}

#[test]
fn a_reader_that_stops_can_go_on() {
    let sums = &expected()["bframes.mp4"];
    let mut source = open("bframes.mp4");
    let mut seen = 0;
    source
        .read(0..40, 3, &mut |_, _| {
            seen += 1;
            if seen == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(seen, 5);
    assert_eq!(adler(&read(&mut source, 30..31, 1).unwrap()[0]), sums[30]);
    assert!(read(&mut source, 5..5, 1).unwrap().is_empty());
}

#[test]
fn colours_are_within_two_levels_of_ffmpegs() {
    for (name, image) in
        [("colour601.mp4", "colour601"), ("colour709full.mp4", "colour709full"), ("rotated90.mov", "rotated90")]
    {
        let frame = read(&mut open(name), 2..3, 3).unwrap().remove(0);
        let folder = tempfile::tempdir().unwrap();
        fs::copy(videos().join(format!("rgb/{image}.png")), folder.path().join("1.png")).unwrap();
        let want = read(&mut Source::open(folder.path()).unwrap(), 0..1, 3).unwrap().remove(0);
        assert_eq!(frame.len(), want.len(), "{name}");
        let worst = frame.iter().zip(&want).map(|(got, want)| got.abs_diff(*want)).max().unwrap();
        assert!(worst <= 2, "{name}: off by {worst}");
    }
}

#[test]
fn what_cannot_be_decoded_is_named() {
    for (name, words) in [
        ("hevc.mp4", ["HEVC", "-c:v libx264"]),
        ("chroma444.mp4", ["4:4:4", "-pix_fmt yuv420p"]),
        ("sound.m4a", ["no video track", "sound"]),
        ("make.sh", ["not a video file", "-c:v libx264"]),
    ] {
        let error = Source::open(&videos().join(name)).err().unwrap_or_else(|| panic!("{name} opens")).to_string();
        for word in words.iter().chain([&name]) {
            assert!(error.contains(word), "{name}: {error}");
        }
    }
    let error = read(&mut open("lossless.mp4"), 0..8, 1).unwrap_err().to_string();
    assert!(error.contains("lossless"), "{error}");
    let error = read(&mut open("bframes.mp4"), 30..41, 1).unwrap_err();
    assert!(matches!(error, SourceError::Range { have: 40, .. }), "{error}");
    assert!(matches!(read(&mut open("bframes.mp4"), 0..1, 2), Err(SourceError::Channels { channels: 2 })));
}

fn open_bytes(bytes: &[u8]) -> Result<Source, SourceError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    // The open file outlives its name.
    Source::open(file.path())
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = fs::read(videos().join("faststart.mp4")).unwrap();
    for length in 0..whole.len() {
        let Err(error) = open_bytes(&whole[..length]) else { panic!("{length} of {} bytes open", whole.len()) };
        if length > whole.len() / 2 && length > 1700 {
            let text = error.to_string();
            assert!(text.contains("lists 40 frames, but only"), "{length}: {text}");
        }
    }
    let whole = fs::read(videos().join("bframes.mp4")).unwrap();
    let Err(error) = open_bytes(&whole[..whole.len() - 100]) else { panic!("opens") };
    assert!(matches!(error, SourceError::Truncated { .. }), "{error}");
    assert!(matches!(open_bytes(&[]), Err(SourceError::EmptyFile { .. })));
}

#[test]
fn damage_is_an_error_or_a_picture_but_never_a_panic_or_a_hang() {
    let mut state = 7u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for name in ["bframes.mp4", "fragmented.mp4", "interlaced.mp4", "slices.mp4", "editlist.mp4"] {
        let whole = fs::read(videos().join(name)).unwrap();
        for round in 0..150 {
            let mut bytes = whole.clone();
            for _ in 0..=round % 4 {
                let at = draw(bytes.len());
                bytes[at] = match draw(3) {
                    0 => 0xFF,
                    1 => bytes[at] ^ (1 << draw(8)),
                    _ => draw(256) as u8,
                };
            }
            let Ok(mut source) = open_bytes(&bytes) else { continue };
            let info = source.info();
            assert!(info.decoder_bytes < 4 << 30);
            if info.height * info.width > 1 << 20 {
                continue;
            }
            for range in [0..info.frames, info.frames / 2..info.frames.min(info.frames / 2 + 5)] {
                let mut frames = 0;
                let read = source.read(range.clone(), 3, &mut |_, frame| {
                    assert_eq!(frame.len(), info.height * info.width * 3);
                    frames += 1;
                    ControlFlow::Continue(())
                });
                assert!(read.is_err() || frames == range.len(), "{name} {round}: {frames} of {range:?} in silence");
            }
        }
    }
}

#[test]
fn damage_is_told_alike_whole_and_frame_by_frame() {
    let mut state = 3u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut refused = 0;
    for name in ["bframes.mp4", "opengop.mp4", "editlist.mp4", "slices.mp4", "interlaced.mp4"] {
        let whole = fs::read(videos().join(name)).unwrap();
        // Pictures alone are damaged; the index says where they are.
        let data = whole.windows(4).position(|window| window == b"mdat").unwrap() + 4;
        let index = whole.windows(4).position(|window| window == b"moov").unwrap();
        assert!(data < index);
        for round in 0..200 {
            let mut bytes = whole.clone();
            for _ in 0..1 + round % 3 {
                bytes[data + draw(index - 4 - data)] ^= 1 << draw(8);
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), &bytes).unwrap();
            let frames = Source::open(file.path()).unwrap().info().frames;
            let at_once = read(&mut Source::open(file.path()).unwrap(), 0..frames, 1);
            let mut source = Source::open(file.path()).unwrap();
            let one_by_one: Result<Vec<_>, _> = (0..frames).map(|n| read(&mut source, n..n + 1, 1)).collect();
            match (at_once, one_by_one) {
                (Ok(want), Ok(got)) => assert!(got.concat() == want, "{name} {round}"),
                (Err(want), Err(got)) => {
                    assert_eq!(got.to_string(), want.to_string(), "{name} {round}");
                    refused += 1;
                }
                (want, got) => panic!("{name} {round}: {:?}, {:?}", want.map(drop), got.map(drop)),
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_sample_table_that_claims_much_is_refused_before_memory_is_taken() {
    let whole = fs::read(videos().join("bframes.mp4")).unwrap();
    let at = |kind: &[u8]| whole.windows(4).position(|window| window == kind).unwrap();
    // 2^32 - 1 frames of one size; and of sizes that are not there.
    for size in [1u32, 0] {
        let mut bytes = whole.clone();
        let stsz = at(b"stsz");
        bytes[stsz + 8..stsz + 12].copy_from_slice(&size.to_be_bytes());
        bytes[stsz + 12..stsz + 16].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(open_bytes(&bytes).is_err());
    }
    let mut bytes = whole.clone();
    let stts = at(b"stts");
    bytes[stts + 8..stts + 12].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(open_bytes(&bytes).map(|source| source.info().frames).ok(), Some(40));
}

#[test]
fn arrays_are_read_as_they_are() {
    let npy = |descr: &str, fortran: &str, shape: &str, data: &[u8]| {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
        while (header.len() + 11) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    };
    let data: Vec<u8> = (0..36).map(|i| i * 7).collect();
    let mut rgb = open_bytes(&npy("|u1", "False", "(3, 2, 2, 3)", &data)).unwrap();
    assert_eq!(read(&mut rgb, 1..3, 3).unwrap().concat(), data[12..]);
    assert_eq!(read(&mut rgb, 0..1, 1).unwrap().concat().len(), 4);
    let mut grey = open_bytes(&npy("|u1", "False", "(9, 2, 2)", &data)).unwrap();
    assert_eq!(grey.info().frames, 9);
    assert_eq!(read(&mut grey, 8..9, 1).unwrap().concat(), data[32..]);
    assert_eq!(
        read(&mut grey, 8..9, 3).unwrap().concat()[..6],
        [data[32], data[32], data[32], data[33], data[33], data[33]]
    );
    for (bytes, word) in [
        (npy("<f4", "False", "(3, 2, 2, 3)", &data), "<f4"),
        (npy("|u1", "True", "(3, 2, 2, 3)", &data), "Fortran"),
        (npy("|u1", "False", "(3, 2, 2, 4)", &data), "[3, 2, 2, 4]"),
        (npy("|u1", "False", "(0, 2, 2)", &data), "no frame"),
        (npy("|u1", "False", "(4, 2, 2, 3)", &data), "48 bytes"),
        (npy("|u1", "False", "(99999999999, 99999, 2)", &data), "99999999999"),
        (npy("|u1", "False", "(3, 2, 2, 3)", &data)[..20].to_vec(), "cut off"),
    ] {
        let error = open_bytes(&bytes).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn images_come_in_natural_order_and_have_one_size() {
    let folder = tempfile::tempdir().unwrap();
    for number in [2u8, 10, 1] {
        let image = image::GrayImage::from_pixel(4, 3, image::Luma([number]));
        image.save(folder.path().join(format!("f{number}.png"))).unwrap();
    }
    fs::write(folder.path().join("notes.txt"), "not an image").unwrap();
    let mut source = Source::open(folder.path()).unwrap();
    source.verify().unwrap();
    let frames = read(&mut source, 0..3, 1).unwrap();
    assert_eq!(frames.iter().map(|frame| frame[0]).collect::<Vec<_>>(), [1, 2, 10]);
    assert_eq!(read(&mut source, 1..2, 3).unwrap()[0], [2; 36]);

    image::RgbaImage::from_pixel(5, 3, image::Rgba([9, 8, 7, 0])).save(folder.path().join("f11.png")).unwrap();
    let mut source = Source::open(folder.path()).unwrap();
    for error in [source.verify().unwrap_err(), read(&mut source, 3..4, 3).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("f1.png is 4×3") && text.contains("f11.png is 5×3"), "{text}");
    }
    fs::write(folder.path().join("f1.png"), "nonsense").unwrap();
    assert!(matches!(Source::open(folder.path()), Err(SourceError::Image { .. })));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Source::open(empty.path()), Err(SourceError::NoImages { .. })));
}
