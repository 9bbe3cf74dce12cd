//! Clips, the frames kept, and loading ahead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use framefit::data::{
    Augment, ClipShape, ClipSpec, DataError, Dataset, Flip, FrameSize, Loader, Manifest, Scatter, Split, scatter,
    shuffle,
};

/// A folder with copies of test videos and a manifest.
fn folder(manifest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    for name in ["bframes.mp4", "fragmented.mp4", "editlist.mp4", "cropped.mp4", "lossless.mp4"] {
        fs::copy(videos.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("clips.csv"), manifest).unwrap();
    folder
}

const ROWS: &str = "video,start_frame,end_frame,label,split
bframes.mp4,0,16,a,train
bframes.mp4,8,24,b,train
fragmented.mp4,,,a,train
editlist.mp4,2,10,b,val
bframes.mp4,32,40,a,val
";

fn spec(frames: usize) -> ClipSpec {
    ClipSpec { frames, size: None, channels: 1 }
}

/// The data set, and the folder that must outlive its loading.
fn dataset(rows: &str, spec: ClipSpec, keep: u64) -> Result<(Arc<Dataset>, tempfile::TempDir), DataError> {
    let folder = folder(rows);
    let manifest = Manifest::read(&[folder.path().join("clips.csv")])?;
    Ok((Arc::new(Dataset::open(manifest, spec, keep)?), folder))
}

/// The numbers that the bars of a clip's frames show.
fn numbers(frames: &[u8], shape: ClipShape) -> Vec<usize> {
    let scale = shape.width / 8;
    let number = |frame: &[u8]| {
        let level = |bit: usize| frame[(shape.height / 2 * shape.width + bit * scale + scale / 2) * shape.channels];
        (0..8).filter(|bit| level(*bit) > 127).map(|bit| 1 << bit).sum()
    };
    frames.chunks_exact(shape.frame_bytes()).map(number).collect()
}

#[test]
fn rows_are_cut_into_clips_and_what_is_left_is_said() {
    let (data, _folder) = dataset(ROWS, spec(7), 0).unwrap();
    let starts: Vec<_> = data.clips(Split::Training).iter().map(|clip| (clip.row, clip.start, clip.label)).collect();
    let want = [(0, 0, 0), (0, 7, 0), (1, 8, 1), (1, 15, 1), (2, 0, 0), (2, 7, 0), (2, 14, 0), (2, 21, 0), (2, 28, 0)];
    assert_eq!(starts, want);
    let left: Vec<_> = data.index().left_out().iter().map(|left| (left.row, left.frames)).collect();
    assert_eq!(left, [(0, 2), (1, 2), (2, 5), (3, 1), (4, 1)]);
    assert_eq!(data.index().class_counts(Split::Training, 2), [7, 2]);
    let numbers: Vec<_> = data.index().iter().map(|clip| clip.number).collect();
    assert_eq!(numbers, Vec::from_iter(0..11));
}

#[test]
fn rows_that_give_no_clip_are_errors() {
    let refused = |rows: &str, spec, words: &[&str]| {
        let error = dataset(rows, spec, 0).err().unwrap().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(ROWS, spec(9), &["clips.csv:5", "8 frames", "needs 9", "--clip 8"]);
    let past = "video,label,start_frame,end_frame\nbframes.mp4,x,30,41\n";
    refused(past, spec(4), &["clips.csv:2", "ends at frame 41", "40 frames", "0 to 39"]);
    let sizes = "video,label\nbframes.mp4,x\ncropped.mp4,x\n";
    refused(sizes, spec(4), &["bframes.mp4 is 48x64", "cropped.mp4 is 38x50", "--size 38x50"]);
    refused(ROWS, ClipSpec { channels: 2, ..spec(4) }, &["2 channels"]);
    refused(ROWS, spec(0), &["0 frames"]);
    let huge = FrameSize { height: 1, width: 1 << 40 };
    refused(ROWS, ClipSpec { size: Some(huge), ..spec(4) }, &["1x1099511627776"]);
    let folder = folder("video,label\nclips.csv,x\n");
    let manifest = Manifest::read(&[folder.path().join("clips.csv")]).unwrap();
    let error = Dataset::open(manifest, spec(4), 0).err().unwrap().to_string();
    assert!(error.contains("clips.csv:2") && error.contains("not a video"), "{error}");
}

#[test]
fn clips_come_in_order_whatever_is_kept() {
    for keep in [0, 64 * 48 * 40, u64::MAX] {
        for channels in [1, 3] {
            let (data, _folder) = dataset(ROWS, ClipSpec { channels, ..spec(8) }, keep).unwrap();
            assert_eq!(data.keeps_everything(), keep == u64::MAX);
            let memory = data.memory_bytes(3);
            assert!(memory.kept <= keep && memory.kept <= data.bytes_to_keep_everything());
            assert_eq!(memory.ring, 4 * data.shape().bytes() as u64);
            assert!(memory.total() >= memory.kept + memory.ring + memory.decoder);
            for epoch in 0..3 {
                let mut order = data.clips(Split::Training).to_vec();
                shuffle(&mut order, 5, epoch);
                order.extend(data.clips(Split::Validation));
                let mut loader = Loader::new(&data, order.clone(), 3).unwrap();
                for want in &order {
                    let got = loader.next().unwrap().unwrap();
                    assert_eq!(got.clip, *want);
                    // The bars of editlist.mp4 begin at 18.
                    let first = if want.row == 3 { want.start + 18 } else { want.start };
                    assert_eq!(numbers(got.frames, data.shape()), Vec::from_iter(first..first + 8));
                }
                assert!(loader.next().unwrap().is_none());
                assert!(loader.next().unwrap().is_none());
            }
        }
    }
}

#[test]
fn frames_are_resized_only_if_asked() {
    let size = Some(FrameSize { height: 24, width: 32 });
    for keep in [0, u64::MAX] {
        let (data, _folder) = dataset(ROWS, ClipSpec { size, ..spec(8) }, keep).unwrap();
        assert_eq!(data.shape(), ClipShape { frames: 8, height: 24, width: 32, channels: 1 });
        let mut loader = Loader::new(&data, data.clips(Split::Training).to_vec(), 2).unwrap();
        while let Some(got) = loader.next().unwrap() {
            assert_eq!(numbers(got.frames, data.shape()), Vec::from_iter(got.clip.start..got.clip.start + 8));
        }
    }
}

#[test]
fn kept_videos_are_not_decoded_again() {
    let folder = folder("video,label\nbframes.mp4,x\n");
    let manifest = Manifest::read(&[folder.path().join("clips.csv")]).unwrap();
    let data = Arc::new(Dataset::open(manifest, spec(8), u64::MAX).unwrap());
    let order = || data.clips(Split::Training).to_vec();
    // The first clip fills the store.
    Loader::new(&data, order(), 1).unwrap().next().unwrap().unwrap();
    fs::remove_file(folder.path().join("bframes.mp4")).unwrap();
    let mut loader = Loader::new(&data, order(), 1).unwrap();
    let mut count = 0;
    while loader.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn an_error_names_row_and_file_and_ends_the_loading() {
    let (data, _folder) = dataset("video,label\nbframes.mp4,x\nlossless.mp4,x\nbframes.mp4,x\n", spec(8), 0).unwrap();
    let mut loader = Loader::new(&data, data.clips(Split::Training).to_vec(), 2).unwrap();
    for _ in 0..5 {
        assert!(loader.next().unwrap().is_some());
    }
    let error = loader.next().unwrap_err().to_string();
    for word in ["clips.csv:3", "lossless.mp4", "frame 0 of 8", "lossless"] {
        assert!(error.contains(word), "{error}");
    }
    assert!(loader.next().unwrap().is_none());
}

#[test]
fn there_are_no_more_buffers_than_clips() {
    let (data, _folder) = dataset("video,label,start_frame,end_frame\nbframes.mp4,x,8,24\n", spec(8), 0).unwrap();
    let clips = data.clips(Split::Training);
    assert_eq!(clips.len(), 2);
    for (ahead, buffers) in [(0, 0), (1, 2), (2, 2), (7, 2), (usize::MAX, 2)] {
        assert_eq!(data.memory_bytes(ahead).ring, buffers * data.shape().bytes() as u64);
        // In any order, one clip alone and one that comes again included.
        for order in [vec![], vec![clips[1]], vec![clips[0], clips[1]], vec![clips[1], clips[1], clips[0], clips[1]]] {
            let mut loader = Loader::new(&data, order.clone(), ahead).unwrap();
            for want in &order {
                let got = loader.next().unwrap().unwrap();
                assert_eq!(got.clip, *want);
                assert_eq!(numbers(got.frames, data.shape()), Vec::from_iter(want.range()));
            }
            assert!(loader.next().unwrap().is_none());
        }
    }
}

#[test]
fn a_loader_can_be_dropped_at_any_point() {
    let (data, _folder) = dataset(ROWS, spec(8), 0).unwrap();
    let mut order = Vec::new();
    for _ in 0..200 {
        order.extend(data.clips(Split::Training));
    }
    for taken in [0, 1, 2, 5] {
        let mut loader = Loader::new(&data, order.clone(), 2).unwrap();
        for _ in 0..taken {
            loader.next().unwrap().unwrap();
        }
        let begun = Instant::now();
        drop(loader);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    // A thread that was stopped while it filled the store leaves nothing half done.
    let (data, _folder) = dataset(ROWS, spec(8), u64::MAX).unwrap();
    for _ in 0..20 {
        drop(Loader::new(&data, data.clips(Split::Training).to_vec(), 1).unwrap());
    }
    let mut loader = Loader::new(&data, data.clips(Split::Training).to_vec(), 0).unwrap();
    while let Some(got) = loader.next().unwrap() {
        assert_eq!(numbers(got.frames, data.shape()), Vec::from_iter(got.clip.start..got.clip.start + 8));
    }
}

#[test]
fn draws_depend_on_seed_epoch_and_clip_alone() {
    let both = Augment { horizontal: true, vertical: true };
    let draws = |seed, epoch| (0..1000).map(|clip| both.draw(seed, epoch, clip)).collect::<Vec<_>>();
    assert_eq!(draws(1, 2), draws(1, 2));
    assert_ne!(draws(1, 2), draws(1, 3));
    assert_ne!(draws(1, 2), draws(2, 1));
    let share = |pick: fn(&Flip) -> bool| draws(3, 4).iter().filter(|flip| pick(flip)).count();
    for count in
        [share(|flip| flip.horizontal), share(|flip| flip.vertical), share(|flip| flip.horizontal == flip.vertical)]
    {
        assert!((430..570).contains(&count), "{count}");
    }
    assert_eq!(Augment::default().draw(1, 2, 3), Flip::default());
    let one = Augment { horizontal: true, vertical: false };
    assert!((0..100).all(|clip| one.draw(1, 2, clip).horizontal == both.draw(1, 2, clip).horizontal));

    let shuffled = |seed, epoch| {
        let mut items = Vec::from_iter(0..50);
        shuffle(&mut items, seed, epoch);
        items
    };
    assert_eq!(shuffled(1, 1), shuffled(1, 1));
    assert_ne!(shuffled(1, 1), shuffled(1, 2));
    let mut sorted = shuffled(1, 1);
    sorted.sort_unstable();
    assert_eq!(sorted, Vec::from_iter(0..50));
}

#[test]
fn scattering_puts_every_value_in_its_place() {
    for channels in [1, 3] {
        let shape = ClipShape { frames: 3, height: 4, width: 5, channels };
        let clip: Vec<u8> = (0..shape.bytes()).map(|i| (i % 251) as u8).collect();
        for (horizontal, vertical) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut out = vec![255; 2 * shape.bytes()];
            let to = Scatter { shape, clips: 2, place: 1, flip: Flip { horizontal, vertical } };
            scatter(&clip, to, &mut out).unwrap();
            for (i, got) in out.iter().enumerate() {
                let (c, x, y) = (i % channels, i / channels % 5, i / channels / 5 % 4);
                let (n, t) = (i / channels / 20 % 2, i / channels / 40);
                let (y, x) = (if vertical { 3 - y } else { y }, if horizontal { 4 - x } else { x });
                let want = if n == 1 { clip[((t * 4 + y) * 5 + x) * channels + c] } else { 255 };
                assert_eq!(*got, want, "{t} {n} {y} {x} {c}");
            }
        }
        let to = Scatter { shape, clips: 2, place: 2, flip: Flip::default() };
        assert!(scatter(&clip, to, &mut vec![0; 2 * shape.bytes()]).is_err());
        assert!(matches!(scatter(&clip[1..], to, &mut []), Err(DataError::Buffer { .. })));
    }
}
