//! Labels per frame, and clips of as many frames as there are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framefit::data::{
    ClipForm, ClipRef, ClipShape, ClipSpec, DataError, Dataset, Flip, FrameManifest, FrameOrder, FrameRef, FrameSize,
    IGNORE, Labels, Length, Loader, Manifest, Scatter, Split, VideoId, scatter, scatter_labels, shuffle,
};

/// A folder with copies of test videos (40 frames each, editlist.mp4 22) and a manifest.
fn folder(manifest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let videos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    for name in ["bframes.mp4", "fragmented.mp4", "editlist.mp4"] {
        fs::copy(videos.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("frames.csv"), manifest).unwrap();
    folder
}

fn form(length: Length) -> ClipForm {
    ClipForm { length, size: None, channels: 1 }
}

fn read(manifest: &str) -> (Result<Labels, DataError>, tempfile::TempDir) {
    let folder = folder(manifest);
    (Labels::read(&[folder.path().join("frames.csv")]).map_err(DataError::from), folder)
}

/// The data set, and the folder that must outlive its loading.
fn dataset(manifest: &str, length: Length, keep: u64) -> Result<(Arc<Dataset>, tempfile::TempDir), DataError> {
    let (labels, folder) = read(manifest);
    Ok((Arc::new(Dataset::open(labels?, form(length), keep)?), folder))
}

/// The message for a manifest, which must hold every one of `words`.
fn refused(manifest: &str, words: &[&str]) {
    let error = dataset(manifest, Length::Whole, 0).err().expect("is refused").to_string();
    for word in words {
        assert!(error.contains(word), "no \"{word}\" in: {error}");
    }
}

/// A row per frame.
fn rows(video: &str, frames: Range<usize>, split: &str, label: impl Fn(usize) -> &'static str) -> String {
    frames.fold(String::new(), |mut rows, frame| {
        writeln!(rows, "{video},{frame},{},{split}", label(frame)).unwrap();
        rows
    })
}

/// Two training videos, one without labels for frames 10 to 19, and one for validation.
fn three_videos() -> String {
    let by_five = |frame: usize| ["a", "b"][frame / 5 % 2];
    let with_hole = |frame: usize| if (10..20).contains(&frame) { "" } else { "b" };
    ["video,frame,label,split\n".to_owned()]
        .into_iter()
        .chain([rows("bframes.mp4", 0..40, "train", by_five), rows("editlist.mp4", 0..22, "val", by_five)])
        .chain([rows("fragmented.mp4", 0..40, "train", with_hole)])
        .collect()
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

/// What the csv crate alone finds in a manifest with the columns video, frame, label, split.
struct Counted {
    classes: Vec<String>,
    /// By split and class.
    frames: BTreeMap<(String, String), usize>,
    /// By video, in order of appearance.
    labels: Vec<(String, Vec<String>)>,
}

fn counted(file: &Path) -> Counted {
    let mut counted = Counted { classes: Vec::new(), frames: BTreeMap::new(), labels: Vec::new() };
    let mut reader = csv::Reader::from_path(file).unwrap();
    for row in reader.deserialize::<BTreeMap<String, String>>() {
        let row = row.unwrap();
        let (video, label) = (row["video"].clone(), row["label"].clone());
        if !counted.classes.contains(&label) {
            counted.classes.push(label.clone());
        }
        *counted.frames.entry((row["split"].clone(), label.clone())).or_default() += 1;
        if counted.labels.last().is_none_or(|(last, _)| *last != video) {
            counted.labels.push((video, Vec::new()));
        }
        let (_, labels) = counted.labels.last_mut().unwrap();
        assert_eq!(labels.len().to_string(), row["frame"], "the test expects frames in order");
        labels.push(label);
    }
    counted.classes.sort();
    counted
}

/// A real data set: its labels are those that the csv crate reads, and come with their frames.
fn agrees(file: &Path, size: FrameSize) {
    let want = counted(file);
    let labels = Labels::read(&[file.to_owned()]).unwrap();
    assert!(labels.per_frame());
    assert_eq!(labels.manifest().classes, want.classes);
    let form = |length| ClipForm { length, size: Some(size), channels: 1 };
    let whole = Dataset::open(labels.clone(), form(Length::Whole), 0).unwrap();
    assert!(whole.gaps().next().is_none());
    for (split, name) in [(Split::Training, "train"), (Split::Validation, "val"), (Split::Test, "test")] {
        let counts = whole.index().class_counts(split, want.classes.len());
        let expected = |class: &String| want.frames.get(&(name.to_owned(), class.clone())).copied().unwrap_or(0);
        assert_eq!(counts, want.classes.iter().map(expected).collect::<Vec<_>>(), "{name}");
    }
    for (number, (video, names)) in want.labels.iter().enumerate() {
        assert!(whole.manifest().path(VideoId(number)).ends_with(video));
        let labels = whole.frame_labels(VideoId(number)).unwrap();
        let got: Vec<&str> = labels.labels().iter().map(|label| want.classes[*label as usize].as_str()).collect();
        assert!(got.iter().eq(names), "{video}");
        assert_eq!(labels.labelled(), names.len());
    }
    let longest = want.labels.iter().map(|(_, labels)| labels.len()).max().unwrap();
    assert_eq!((whole.longest(), whole.shape().frames), (longest, longest));
    drop(whole);

    let pieces = Arc::new(Dataset::open(labels, form(Length::Frames(100)), 0).unwrap());
    let order = pieces.clips(Split::Validation).to_vec();
    let mut loader = Loader::new(&pieces, order.clone(), 2).unwrap();
    let mut got = Vec::new();
    while let Some(clip) = loader.next().unwrap() {
        assert_eq!(clip.frames.len(), clip.labels.len() * size.height * size.width);
        got.extend(clip.labels.iter().map(|label| want.classes[*label as usize].as_str()));
    }
    let validation: Vec<VideoId> = pieces.manifest().rows_of(Split::Validation).map(|row| row.video).collect();
    assert!(!validation.is_empty());
    assert!(got.iter().eq(validation.iter().flat_map(|video| &want.labels[video.0].1)));
    let order = FrameOrder::new(&order);
    let frames = validation
        .iter()
        .flat_map(|video| (0..want.labels[video.0].1.len()).map(|frame| FrameRef { video: *video, frame }));
    assert!(order.iter().eq(frames));
}

#[test]
fn moving_digits_agree_with_the_csv_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    agrees(&root.join("examples/moving_digits/frames.csv"), FrameSize { height: 8, width: 8 });
}

#[test]
fn fly_wings_agree_with_the_csv_crate() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets/fly_wing/frames.csv");
    if !file.exists() {
        eprintln!("SKIPPED: there is no {}", file.display());
        return;
    }
    agrees(&file, FrameSize { height: 8, width: 8 });
}

#[test]
fn pieces_together_are_the_video() {
    for frames in [1, 2, 3, 7, 11, 20, 21, 22, 23, 39, 40, 41, usize::MAX] {
        let (data, _folder) = dataset(&three_videos(), Length::Frames(frames), 0).unwrap();
        for video in 0..3 {
            let length = data.infos()[video].frames;
            let mut clips: Vec<&ClipRef> = data.index().iter().filter(|clip| clip.video.0 == video).collect();
            clips.sort_by_key(|clip| clip.start);
            assert!(clips.iter().rev().skip(1).all(|clip| clip.frames == frames));
            assert_eq!(clips.iter().flat_map(|clip| clip.range()).collect::<Vec<_>>(), Vec::from_iter(0..length));
            let labels: Vec<u32> = clips.iter().flat_map(|clip| data.labels_of(clip).unwrap()).copied().collect();
            assert_eq!(labels, data.frame_labels(VideoId(video)).unwrap().labels());
        }
        assert!(data.index().left_out().is_empty());
        let numbers: Vec<usize> = Split::ALL.iter().flat_map(|split| data.clips(*split)).map(|c| c.number).collect();
        assert!((0..data.index().len()).all(|number| numbers.contains(&number)));
        for split in Split::ALL {
            let lengths = data.lengths(split);
            assert!(lengths.is_sorted_by(|a, b| a < b));
            assert!(data.clips(split).iter().all(|clip| lengths.contains(&clip.frames)));
            assert!(lengths.iter().all(|length| data.clips(split).iter().any(|clip| clip.frames == *length)));
        }
        assert_eq!(data.longest(), frames.min(40));
        assert_eq!(data.shape().frames, data.longest());
        assert_eq!(data.index().class_counts(Split::Training, 2), [20, 50]);
        assert_eq!(data.index().class_counts(Split::Validation, 2), [12, 10]);
        assert_eq!(data.index().class_counts(Split::Test, 2), [0, 0]);
    }
    assert!(dataset(&three_videos(), Length::Frames(0), 0).err().unwrap().to_string().contains("0 frames"));
}

#[test]
fn clips_come_with_their_own_frames_and_labels() {
    for length in [Length::Whole, Length::Frames(16), Length::Frames(3)] {
        for keep in [0, 64 * 48 * 40, u64::MAX] {
            let (data, _folder) = dataset(&three_videos(), length, keep).unwrap();
            assert!(data.per_frame());
            assert_eq!(data.memory_bytes(2).ring, 3 * (data.longest() * 64 * 48) as u64);
            for epoch in 0..2 {
                let mut order = data.clips(Split::Training).to_vec();
                order.extend(data.clips(Split::Validation));
                shuffle(&mut order, 3, epoch);
                let mut loader = Loader::new(&data, order.clone(), 2).unwrap();
                for want in &order {
                    let got = loader.next().unwrap().unwrap();
                    assert_eq!(got.clip, *want);
                    assert_eq!(got.frames.len(), data.shape_of(want).bytes());
                    // The bars of editlist.mp4 begin at 18.
                    let first = want.start + if want.video.0 == 1 { 18 } else { 0 };
                    assert_eq!(numbers(got.frames, data.shape_of(want)), Vec::from_iter(first..first + want.frames));
                    let label = |frame: usize| match (want.video.0, frame) {
                        (2, 10..20) => IGNORE,
                        (2, _) => 1,
                        (_, frame) => (frame / 5 % 2) as u32,
                    };
                    assert_eq!(got.labels, want.range().map(label).collect::<Vec<_>>());
                }
                assert!(loader.next().unwrap().is_none());
            }
        }
    }
}

#[test]
fn rows_with_one_label_can_be_whole_clips() {
    let rows = "video,start_frame,end_frame,label,split\nbframes.mp4,3,20,a,train\nfragmented.mp4,,,b,train\n\
        editlist.mp4,0,1,b,val\neditlist.mp4,1,6,a,val\nbframes.mp4,30,35,a,train\n";
    let (data, _folder) = dataset(rows, Length::Whole, 0).unwrap();
    assert!(!data.per_frame() && data.gaps().next().is_none());
    let clips = |split| data.clips(split).iter().map(|clip| (clip.start, clip.frames, clip.label)).collect::<Vec<_>>();
    assert_eq!(clips(Split::Training), [(3, 17, 0), (0, 40, 1), (30, 5, 0)]);
    assert_eq!(clips(Split::Validation), [(0, 1, 1), (1, 5, 0)]);
    assert_eq!((data.lengths(Split::Training), data.lengths(Split::Validation)), (&[5, 17, 40][..], &[1, 5][..]));
    assert_eq!((data.longest(), data.shape().frames), (40, 40));
    assert_eq!(data.index().class_counts(Split::Training, 2), [2, 1]);
    assert!(data.index().left_out().is_empty());
    let order: Vec<ClipRef> = data.index().iter().copied().collect();
    let mut loader = Loader::new(&data, order.clone(), 1).unwrap();
    for want in &order {
        let got = loader.next().unwrap().unwrap();
        assert_eq!(got.labels, [want.label as u32]);
        let first = want.start + if want.video.0 == 2 { 18 } else { 0 };
        assert_eq!(numbers(got.frames, data.shape_of(want)), Vec::from_iter(first..first + want.frames));
    }
    let past = "video,label,start_frame,end_frame\nbframes.mp4,x,30,41\n";
    refused(past, &["frames.csv:2", "ends at frame 41", "40 frames"]);
}

#[test]
fn ranges_and_whole_videos_label_their_frames_when_asked_to() {
    let rows = "video,start_frame,end_frame,label,split\nbframes.mp4,30,40,b,train\nbframes.mp4,0,12,a,train\n\
        bframes.mp4,4,8,a,train\nbframes.mp4,12,20,,train\neditlist.mp4,,,b,val\n";
    let folder = folder(rows);
    let paths = [folder.path().join("frames.csv")];
    assert!(!Labels::read(&paths).is_ok_and(|labels| labels.per_frame()));
    let data = Dataset::open(FrameManifest::read(&paths).unwrap(), form(Length::Whole), 0).unwrap();
    let want: Vec<u32> = (0..40)
        .map(|frame| match frame {
            0..12 => 0,
            12..30 => IGNORE,
            _ => 1,
        })
        .collect();
    assert_eq!(data.frame_labels(VideoId(0)).unwrap().labels(), want);
    assert_eq!(data.frame_labels(VideoId(1)).unwrap().labels(), [1; 22]);
    let gaps: Vec<_> = data.gaps().collect();
    assert_eq!(gaps.len(), 1);
    assert_eq!((gaps[0].frames, gaps[0].named, gaps[0].first), (40, 30, 20));
    let text = gaps[0].to_string();
    for word in ["bframes.mp4 has 40 frames", "name 30", "frame 20", "frames.csv:5"] {
        assert!(text.contains(word), "{text}");
    }
    // A row with neither frames nor range: every frame of the video.
    fs::write(&paths[0], "video,label\nbframes.mp4,x\n").unwrap();
    let data = Dataset::open(FrameManifest::read(&paths).unwrap(), form(Length::Whole), 0).unwrap();
    assert_eq!(data.frame_labels(VideoId(0)).unwrap().labels(), [0; 40]);
}

#[test]
fn frames_that_no_row_names_are_unlabelled_and_found() {
    let head = "video,frame,label\n";
    let gap = |rows: &str| {
        let (data, _folder) = dataset(&format!("{head}{rows}"), Length::Whole, 0).unwrap();
        let labelled = data.frame_labels(VideoId(0)).unwrap().labelled();
        let gaps = data.gaps().next().map(|gaps| (gaps.named, gaps.first, gaps.after.as_ref().map(|row| row.line)));
        (labelled, gaps)
    };
    let all = rows("editlist.mp4", 0..22, "", |_| "x").replace(",\n", "\n");
    assert_eq!(gap(&all), (22, None));
    let without = |frame: usize| {
        let lines = all.lines().enumerate().filter(|(i, _)| *i != frame);
        lines.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(gap(&without(0)), (21, Some((21, 0, None))));
    assert_eq!(gap(&without(7)), (21, Some((21, 7, Some(8)))));
    // As one labels here and there.
    let some = |every: usize| (0..22).step_by(every).map(|n| format!("editlist.mp4,{n},x\n")).collect::<String>();
    assert_eq!(gap(&some(4)), (6, Some((6, 1, Some(2)))));
    assert_eq!(gap(&some(2)), (11, Some((11, 1, Some(2)))));
    // Named without a label: unlabelled, but not missing.
    assert_eq!(gap(&all.replace("editlist.mp4,7,x", "editlist.mp4,7,")), (21, None));
    // In any order, and twice.
    let mut lines: Vec<&str> = all.lines().chain(["editlist.mp4,3,x"]).collect();
    shuffle(&mut lines, 1, 1);
    assert_eq!(gap(&(lines.join("\n\n") + "\n")), (22, None));
}

#[test]
fn rows_for_every_frame_are_as_many_as_the_frames() {
    let frames = |range: Range<usize>| rows("bframes.mp4", range, "train", |_| "x");
    let head = "video,frame,label,split\n";
    let of = |rows: &str| format!("{head}{rows}");
    assert!(dataset(&of(&frames(0..40)), Length::Whole, 0).is_ok());
    // Fewer: the last row disagrees with the video.
    refused(
        &of(&frames(0..38)),
        &[
            "frames.csv:39: ",
            "name 38 frames",
            "bframes.mp4",
            "the last, frame 37",
            "it has 40 (0 to 39)",
            "from 38 on",
        ],
    );
    refused(&of(&frames(0..1)), &["frames.csv:2: ", "name 1 frames", "it has 40"]);
    let with_hole = frames(0..39).replace("bframes.mp4,5,x,train\n", "");
    refused(
        &of(&with_hole),
        &["frames.csv:39: ", "name 38 frames", "the last, frame 38", "one for frame 39 is enough"],
    );
    // Rows in any order.
    let reversed: String = frames(0..38).lines().rev().map(|line| format!("{line}\n")).collect();
    refused(&of(&reversed), &["frames.csv:2: ", "the last, frame 37"]);
    // The remedy.
    let rest = format!("{}bframes.mp4,39,,train\n", frames(0..38));
    let (data, _folder) = dataset(&of(&rest), Length::Whole, 0).unwrap();
    assert_eq!(data.gaps().map(|gaps| (gaps.first, gaps.named)).collect::<Vec<_>>(), [(38, 39)]);
    // More: the first row that the video has no frame for.
    refused(
        &of(&frames(0..43)),
        &["frames.csv:42: ", "labels frame 40", "has 40 frames (0 to 39), and rows name 43", "from that frame on"],
    );
    refused(&of(&frames(1..41)), &["frames.csv:41: ", "rows name 40", "from 1: number them from 0"]);
    // Another video does not make up for it.
    let two = format!("{}editlist.mp4,0,x,val\n", frames(0..40));
    refused(&of(&two), &["frames.csv:42: ", "editlist.mp4", "it has 22"]);
}

#[test]
fn columns_and_files_are_as_for_clips() {
    let content = "\u{FEFF}Split,Frame,notes, LABEL,video\r\ntrain,0.0,x,10,bframes.mp4\r\n\r\ntrain,1,x,9,bframes.mp4\r\n\
        train,39.0,x,,bframes.mp4\r\n";
    let (labels, folder) = read(content);
    let labels = labels.unwrap();
    assert_eq!(labels.manifest().classes, ["9", "10"]);
    let train = folder.path().join("frames.csv");
    let val = folder.path().join("val.csv");
    fs::write(&val, "video,frame,label\neditlist.mp4,5,9\n").unwrap();
    let labels = Labels::read(&[train.clone(), val.clone()]).unwrap();
    let rows: Vec<_> = labels.manifest().rows.iter().map(|row| (row.video.0, row.split, row.origin.line)).collect();
    assert_eq!(rows, [(0, Split::Training, 2), (1, Split::Validation, 2)]);
    let data = Dataset::open(labels, form(Length::Whole), 0).unwrap();
    assert_eq!(data.frame_labels(VideoId(0)).unwrap().labels()[..3], [1, 0, IGNORE]);
    assert_eq!(data.frame_labels(VideoId(1)).unwrap().labels()[4..7], [IGNORE, 0, IGNORE]);
    // The same video in both files.
    fs::write(&val, "video,frame,label\n./bframes.mp4,5,9\n").unwrap();
    let error = Labels::read(&[train.clone(), val]).unwrap_err().to_string();
    for word in ["val.csv:2", "for validation", "frames.csv:2 says training"] {
        assert!(error.contains(word), "{error}");
    }
    // Numbers are classes, however they are written.
    let (labels, _folder) = read("video,frame,label\neditlist.mp4,0,1.0\neditlist.mp4,1,1\neditlist.mp4,21,0.0\n");
    assert_eq!(labels.unwrap().manifest().classes, ["0", "1"]);
    // A model's own classes.
    let classes = ["10", "x", "9"].map(String::from);
    let labels = Labels::read_with_classes(std::slice::from_ref(&train), &classes).unwrap();
    let data = Dataset::open(labels, form(Length::Whole), 0).unwrap();
    assert_eq!(data.frame_labels(VideoId(0)).unwrap().labels()[..3], [0, 2, IGNORE]);
    let error = Labels::read_with_classes(&[train], &classes[..2]).unwrap_err().to_string();
    assert!(error.contains("frames.csv:4") && error.contains("\"9\""), "{error}");
}

#[test]
fn mistakes_are_named_with_their_rows() {
    let frames = |rows: &str| format!("video,frame,label,split\n{rows}");
    refused(
        &frames("bframes.mp4,40,x,train\n"),
        &["frames.csv:2", "labels frame 40", "bframes.mp4 has 40 frames (0 to 39)", "Remove the rows"],
    );
    refused(
        &frames(&rows("bframes.mp4", 0..43, "train", |_| "x")),
        &["frames.csv:42", "labels frame 40", "40 frames", "Remove the rows"],
    );
    refused(
        &frames(&rows("bframes.mp4", 1..41, "train", |_| "x")),
        &["frames.csv:41", "labels frame 40", "from 1", "from 0"],
    );
    refused(
        &frames("bframes.mp4,3,x,train\nbframes.mp4,4,x,train\nbframes.mp4,5,x,train\nbframes.mp4,4,y,train\n"),
        &["frames.csv:5", "frame 4 of", "\"y\"", "frames.csv:3", "\"x\"", "Keep one"],
    );
    refused(&frames("bframes.mp4,4,,train\nbframes.mp4,4,y,train\n"), &["frames.csv:3", ":2 it is without a label"]);
    refused(
        &frames("bframes.mp4,0,x,train\neditlist.mp4,0,x,val\nbframes.mp4,1,x,val\n"),
        &["frames.csv:4", "for validation", "frames.csv:2 says training", "one split"],
    );
    refused(
        &frames("bframes.mp4,0,x,train\neditlist.mp4,0,x,val\neditlist.mp4,1,y,val\n"),
        &["frames.csv:4", "\"y\" has no training row"],
    );
    refused(&frames("bframes.mp4,0,x,val\n"), &["none of the 1 rows is for training"]);
    refused(&frames("bframes.mp4,0,,train\nbframes.mp4,1,,train\n"), &["none of the 2 rows", "has a label"]);
    refused(&frames("bframes.mp4,,x,train\n"), &["frames.csv:2", "`frame` is empty"]);
    for value in ["nan", "NaN", "inf", "-inf", "1.5", "1e2", "3.", "x"] {
        let row = format!("bframes.mp4,0,x,train\nbframes.mp4,{value},x,train\n");
        refused(&frames(&row), &["frames.csv:3", &format!("frame is \"{value}\""), "frame number"]);
    }
    for value in ["nan", "NaN", "-inf", "Infinity"] {
        let row = format!("bframes.mp4,0,x,train\nbframes.mp4,1,{value},train\n");
        refused(&frames(&row), &["frames.csv:3", &format!("label is \"{value}\""), "Leave it empty"]);
    }
    refused(&frames("bframes.mp4,0,1,train\nbframes.mp4,1,0.25,train\n"), &["frames.csv:3", "\"0.25\"", "words"]);
    refused(&frames("bframes.mp4,-1,x,train\n"), &["frames.csv:2", "frame is \"-1\"", "frame number"]);
    refused(&frames("bframes.mp4,18446744073709551615,x,train\n"), &["frames.csv:2", "frame number"]);
    refused(&frames("bframes.mp4,18446744073709551614,x,train\n"), &["frames.csv:2", "18446744073709551614"]);
    refused(&frames("none.mp4,0,x,train\nnone.mp4,1,x,train\n"), &["frames.csv:2", "no video", "none.mp4"]);
    refused(&frames("bframes.mp4,0,x,dev\n"), &["frames.csv:2", "\"dev\""]);
    refused(&frames(""), &["no rows below the header"]);
    refused("video,frame,class\nbframes.mp4,0,x\n", &["no column `label`", "frame (or start_frame"]);
    refused("video,frame,frame,label\nbframes.mp4,0,0,x\n", &["`frame`", "more than once"]);
    // Ranges that overlap with two labels, a later row first in the file.
    let folder =
        folder("video,start_frame,end_frame,label\nbframes.mp4,20,30,y\nbframes.mp4,0,10,x\nbframes.mp4,5,25,x\n");
    let error = FrameManifest::read(&[folder.path().join("frames.csv")]).unwrap_err().to_string();
    for word in ["frames.csv:4", "frame 20", "\"x\"", "frames.csv:2", "\"y\""] {
        assert!(error.contains(word), "{error}");
    }
    // Clips are asked for.
    let (_, folder) = read(&frames("bframes.mp4,0,x,train\n"));
    let error = Manifest::read(&[folder.path().join("frames.csv")]).unwrap_err().to_string();
    assert!(error.contains("labels per frame"), "{error}");
}

#[test]
fn overlapping_rows_agree_or_are_refused() {
    // Every set of up to three ranges over five frames, against the plain rule.
    let ranges: Vec<Range<usize>> = (0..5).flat_map(|start| (start + 1..6).map(move |end| start..end)).collect();
    let folder = folder("");
    let path = folder.path().join("frames.csv");
    let mut accepted = 0;
    for seed in 0..400 {
        let mut picked = ranges.clone();
        shuffle(&mut picked, seed, 0);
        let picked = &picked[..1 + seed as usize % 3];
        let mut content = String::from("video,start_frame,end_frame,label\n");
        let mut want = [IGNORE; 40];
        let mut agree = true;
        for (i, range) in picked.iter().enumerate() {
            let label = (seed >> i) as u32 & 1;
            writeln!(content, "bframes.mp4,{},{},{}", range.start, range.end, ["a", "b"][label as usize]).unwrap();
            for slot in &mut want[range.clone()] {
                agree &= *slot == IGNORE || *slot == label;
                *slot = label;
            }
        }
        fs::write(&path, &content).unwrap();
        let classes = ["a", "b"].map(String::from);
        match FrameManifest::read_with_classes(std::slice::from_ref(&path), &classes) {
            Ok(manifest) => {
                let labels = manifest.frame_labels(VideoId(0), 40).unwrap();
                assert!(agree, "{content}");
                assert_eq!(labels.labels(), want, "{content}");
                let gap = want.iter().position(|label| *label == IGNORE);
                assert_eq!(labels.gaps().map(|gaps| gaps.first), gap);
                assert_eq!(labels.gaps().map(|gaps| gaps.named), Some(labels.labelled()));
                accepted += 1;
            }
            Err(error) => assert!(!agree, "{error} in\n{content}"),
        }
    }
    assert!((50..350).contains(&accepted), "{accepted}");
}

#[test]
fn clips_too_short_for_a_model_are_named_with_their_videos() {
    let said = |data: &Dataset, need: usize, words: &[&str]| {
        let error = data.check_frames(need).expect_err("is too short");
        assert!(matches!(error, DataError::TooShort { need: got, .. } if got == need));
        for word in words {
            assert!(error.to_string().contains(word), "no \"{word}\" in: {error}");
        }
    };
    // What is left of 22 frames, the shortest of all.
    let (data, _folder) = dataset(&three_videos(), Length::Frames(21), 0).unwrap();
    assert_eq!(data.shortest().map(|clip| (clip.video.0, clip.start, clip.frames)), Some((1, 21, 1)));
    assert!(data.check_frames(1).is_ok());
    let words = ["frames.csv:42: ", "frames 21 to 21 of", "editlist.mp4 (22 frames) has 1 frame,", "needs 2 or more"];
    said(&data, 2, &[&words[..], &["another length"]].concat());
    // Whole videos.
    let (data, _folder) = dataset(&three_videos(), Length::Whole, 0).unwrap();
    assert!(data.check_frames(22).is_ok());
    said(&data, 23, &["frames.csv:42: ", "editlist.mp4 has 22 frames, but the model needs 23", "Leave it out"]);
    // A row's range.
    let rows = "video,start_frame,end_frame,label\nbframes.mp4,3,20,a\nbframes.mp4,20,24,a\n";
    let (data, _folder) = dataset(rows, Length::Whole, 0).unwrap();
    said(&data, 5, &["frames.csv:3: ", "frames 20 to 23 of", "(40 frames) has 4 frames,", "Leave it out"]);
}

#[test]
fn videos_without_labels_can_be_loaded() {
    let folder = folder("");
    let videos: Vec<PathBuf> = ["editlist.mp4", "bframes.mp4"].map(|name| folder.path().join(name)).to_vec();
    let manifest = FrameManifest::unlabelled(videos.clone(), vec!["a".into(), "b".into()], Split::Test);
    let data = Arc::new(Dataset::open(manifest, form(Length::Frames(16)), 0).unwrap());
    let lengths: Vec<usize> = data.clips(Split::Test).iter().map(|clip| clip.frames).collect();
    assert_eq!(lengths, [16, 6, 16, 16, 8]);
    assert_eq!(data.lengths(Split::Test), [6, 8, 16]);
    assert_eq!(data.index().class_counts(Split::Test, 2), [0, 0]);
    let mut loader = Loader::new(&data, data.clips(Split::Test).to_vec(), 1).unwrap();
    while let Some(clip) = loader.next().unwrap() {
        assert!(clip.labels.iter().all(|label| *label == IGNORE));
    }
    let broken = FrameManifest::unlabelled(vec![folder.path().join("frames.csv")], vec!["a".into()], Split::Test);
    let error = Dataset::open(broken, form(Length::Whole), 0).err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("{}: the file is empty", folder.path().join("frames.csv").display())),
        "{error}"
    );
}

#[test]
fn a_frame_index_leads_back_to_video_and_frame() {
    let (data, _folder) = dataset(&three_videos(), Length::Frames(15), 0).unwrap();
    let mut clips: Vec<ClipRef> = data.index().iter().copied().collect();
    shuffle(&mut clips, 9, 9);
    let order = FrameOrder::new(&clips);
    assert_eq!(order.len(), 40 + 22 + 40);
    let all: Vec<FrameRef> = clips.iter().flat_map(|clip| (0..clip.frames).map(|t| clip.frame(t).unwrap())).collect();
    assert_eq!(order.iter().collect::<Vec<_>>(), all);
    assert_eq!((0..order.len()).map(|index| order.get(index).unwrap()).collect::<Vec<_>>(), all);
    assert_eq!(order.get(order.len()), None);
    assert!(clips.iter().all(|clip| clip.frame(clip.frames).is_none()));
    let mut sorted = all.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), all.len());
    assert!(FrameOrder::new(&[]).is_empty() && FrameOrder::new(&[]).get(0).is_none());
}

#[test]
fn labels_go_where_their_frames_go() {
    let (data, _folder) = dataset(&three_videos(), Length::Frames(16), 0).unwrap();
    let order: Vec<ClipRef> = data.clips(Split::Training).iter().filter(|clip| clip.frames == 16).copied().collect();
    let clips = order.len();
    assert_eq!(clips, 4);
    let shape = data.shape_of(&order[0]);
    let mut frames = vec![0; shape.bytes() * clips];
    let mut labels = vec![77; shape.frames * clips];
    let mut loader = Loader::new(&data, order.clone(), 1).unwrap();
    for place in 0..clips {
        let loaded = loader.next().unwrap().unwrap();
        let to = Scatter { shape, clips, place, flip: Flip { horizontal: false, vertical: place == 2 } };
        scatter(loaded.frames, to, &mut frames).unwrap();
        scatter_labels(loaded.labels, to, &mut labels).unwrap();
    }
    let shown = numbers(&frames, shape);
    for t in 0..16 {
        for (n, clip) in order.iter().enumerate() {
            assert_eq!(shown[t * clips + n], clip.start + t);
            assert_eq!(labels[t * clips + n], data.labels_of(clip).unwrap()[t]);
        }
    }
    // One label per clip.
    let mut labels = [7; 3];
    let to = Scatter { shape, clips: 3, place: 1, flip: Flip::default() };
    scatter_labels(&[5], to, &mut labels).unwrap();
    assert_eq!(labels, [7, 5, 7]);
    let error = scatter_labels(&[5; 15], to, &mut [0; 45]).unwrap_err().to_string();
    assert!(error.contains("15 labels, expected 16"), "{error}");
    assert!(matches!(scatter_labels(&[5; 16], to, &mut [0; 47]), Err(DataError::LabelCount { got: 47, want: 48, .. })));
    let to = Scatter { place: 3, ..to };
    assert!(matches!(scatter_labels(&[5; 16], to, &mut [0; 48]), Err(DataError::UnknownClip { .. })));
}

#[test]
fn a_fixed_number_of_frames_can_be_given_as_before() {
    let (labels, folder) = read(&three_videos());
    let spec = ClipSpec { frames: 16, size: None, channels: 1 };
    let data = Dataset::open(labels.unwrap(), spec, 0).unwrap();
    assert_eq!(data.lengths(Split::Training), [8, 16]);
    fs::write(folder.path().join("frames.csv"), "video,label\nbframes.mp4,x\n").unwrap();
    let manifest = Manifest::read(&[folder.path().join("frames.csv")]).unwrap();
    let data = Dataset::open(manifest, spec, 0).unwrap();
    assert_eq!(data.lengths(Split::Training), [16]);
    assert_eq!(data.index().left_out().len(), 1);
}
