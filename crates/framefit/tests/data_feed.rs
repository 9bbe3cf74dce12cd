//! Clips into micro-batches: decoding on demand, straight to where a clip goes, gives what the loader gives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use framefit::data::{
    Augment, ClipForm, ClipRef, ClipShape, DataError, Dataset, Feed, Flip, FrameSize, Labels, Length, Loader, Split,
    shuffle,
};

const CLIPS: &str = "video,start_frame,end_frame,label
bframes.mp4,0,16,a
bframes.mp4,8,24,b
fragmented.mp4,,,a
editlist.mp4,2,10,c
";

/// Two recordings of which some frames have a label.
fn frames() -> String {
    let mut csv = "video,frame,label\n".to_owned();
    for (name, labelled) in [("bframes.mp4", 0..40), ("editlist.mp4", 3..11)] {
        labelled.for_each(|t| csv.push_str(&format!("{name},{t},{}\n", ["a", "b", "c"][t % 3])));
    }
    csv
}

fn dataset(rows: &str, form: ClipForm, keep: u64) -> (Arc<Dataset>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    for name in ["bframes.mp4", "fragmented.mp4", "editlist.mp4"] {
        fs::copy(videos.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("rows.csv"), rows).unwrap();
    let labels = Labels::read(&[folder.path().join("rows.csv")]).unwrap();
    (Arc::new(Dataset::open(labels, form, keep).unwrap()), folder)
}

fn form(length: Length, channels: usize) -> ClipForm {
    ClipForm { length, size: None, channels }
}

/// A micro-batch as it goes to the model.
#[derive(Debug, PartialEq)]
struct Batch {
    clips: Vec<ClipRef>,
    frames: Vec<u8>,
    labels: Vec<u32>,
}

fn labels_of(dataset: &Dataset, clip: &ClipRef) -> usize {
    if dataset.per_frame() { clip.frames } else { 1 }
}

fn draw(clip: &ClipRef) -> Flip {
    Augment { horizontal: true, vertical: true }.draw(3, 1, clip.number)
}

/// All micro-batches of `n` clips that a feed gives.
fn fed(dataset: &Arc<Dataset>, order: &[ClipRef], n: usize, ahead: usize) -> Vec<Batch> {
    let mut feed = Feed::new(dataset, order.to_vec(), ahead).unwrap();
    assert_eq!(matches!(feed, Feed::Direct(_)), ahead == 0);
    let batches = order.chunks_exact(n).map(|clips| {
        // What was there before must not matter.
        let mut frames = vec![0xA5; n * dataset.shape_of(&clips[0]).bytes()];
        let mut labels = vec![77; n * labels_of(dataset, &clips[0])];
        let clips =
            (0..n).map(|place| feed.fill((place, n), draw, &mut frames, &mut labels).unwrap()).collect::<Vec<_>>();
        Batch { clips, frames, labels }
    });
    let batches = batches.collect();
    let end = feed.fill((1, 3), draw, &mut [], &mut []);
    assert!(matches!(end, Err(DataError::Stopped { left: 2 })), "{end:?}");
    batches
}

/// The same by the loader, each value put in its place by its index.
fn expected(dataset: &Arc<Dataset>, order: &[ClipRef], n: usize) -> Vec<Batch> {
    let mut loader = Loader::new(dataset, order.to_vec(), 2).unwrap();
    let batches = order.chunks_exact(n).map(|clips| {
        let ClipShape { frames: t, height: h, width: w, channels: c } = dataset.shape_of(&clips[0]);
        let mut batch = Batch { clips: clips.to_vec(), frames: vec![0; n * t * h * w * c], labels: Vec::new() };
        batch.labels.resize(n * labels_of(dataset, &clips[0]), 0);
        for place in 0..n {
            let loaded = loader.next().unwrap().unwrap();
            let Flip { horizontal, vertical } = draw(&loaded.clip);
            for (at, &value) in loaded.frames.iter().enumerate() {
                let (channel, x, y, time) = (at % c, at / c % w, at / (c * w) % h, at / (c * w * h));
                let (y, x) = (if vertical { h - 1 - y } else { y }, if horizontal { w - 1 - x } else { x });
                batch.frames[(((time * n + place) * h + y) * w + x) * c + channel] = value;
            }
            loaded.labels.iter().enumerate().for_each(|(time, &label)| batch.labels[time * n + place] = label);
        }
        batch
    });
    batches.collect()
}

#[test]
fn on_demand_or_ahead_the_bytes_are_the_same() {
    let whole = form(Length::Whole, 1);
    let cases = [
        (CLIPS.to_owned(), form(Length::Frames(8), 1), &[1, 3][..]),
        (CLIPS.to_owned(), form(Length::Frames(8), 3), &[1, 3]),
        (
            CLIPS.to_owned(),
            ClipForm { size: Some(FrameSize { height: 20, width: 33 }), ..form(Length::Frames(5), 3) },
            &[1, 3],
        ),
        (frames(), form(Length::Frames(8), 3), &[1, 3]),
        // Of different lengths, so one at a time.
        (frames(), whole, &[1]),
    ];
    for (rows, form, counts) in cases {
        for keep in [0, u64::MAX] {
            let (data, _folder) = dataset(&rows, form, keep);
            let mut order = data.clips(Split::Training).to_vec();
            // Clips of one length, in any order, some of them again.
            if counts.len() > 1 {
                let frames = order[0].frames;
                order.retain(|clip| clip.frames == frames);
                shuffle(&mut order, 5, 2);
                order.extend_from_within(..2);
            }
            let flips = order.iter().map(draw).collect::<Vec<_>>();
            assert!(counts.len() == 1 || flips.iter().any(|f| f.horizontal) && flips.iter().any(|f| f.vertical));
            for &n in counts {
                order.truncate(order.len() / n * n);
                let want = expected(&data, &order, n);
                assert_eq!(want.len(), order.len() / n);
                for ahead in [0, 2] {
                    let got = fed(&data, &order, n, ahead);
                    assert!(got == want, "{form:?}, {n} at a time, {ahead} ahead, {keep} B kept");
                }
            }
        }
    }
}

#[test]
fn a_video_that_cannot_be_decoded_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    for name in ["bframes.mp4", "lossless.mp4"] {
        fs::copy(videos.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("rows.csv"), "video,label\nbframes.mp4,x\nlossless.mp4,x\n").unwrap();
    let labels = Labels::read(&[folder.path().join("rows.csv")]).unwrap();
    let data = Arc::new(Dataset::open(labels, form(Length::Frames(8), 1), 0).unwrap());
    let mut feed = Feed::new(&data, data.clips(Split::Training).to_vec(), 0).unwrap();
    let mut frames = vec![0; data.shape().bytes()];
    for _ in 0..5 {
        feed.fill((0, 1), |_| Flip::default(), &mut frames, &mut [0]).unwrap();
    }
    let error = feed.fill((0, 1), |_| Flip::default(), &mut frames, &mut [0]).unwrap_err().to_string();
    for word in ["rows.csv:3", "lossless.mp4"] {
        assert!(error.contains(word), "{error}");
    }
}
