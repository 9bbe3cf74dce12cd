//! Frames one after the other: those of the whole clip, whether they come from a video or through a pipe.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framefit::data::{
    ClipForm, DataError, Dataset, FrameManifest, FrameSize, FrameStream, Length, Loader, PipeFormat, RawFormat, Source,
    Split, StreamError, StreamSpec, YuvMatrix,
};
use rust_h264::decoder::{ChromaFormat, Decoder, Frame};
use rust_h264::nal::{NalUnitType, parse_avcc, parse_avcc_config};

fn videos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos")
}

fn size(height: usize, width: usize) -> FrameSize {
    FrameSize { height, width }
}

const Y4M: PipeFormat = PipeFormat::Y4m { matrix: YuvMatrix::Bt601 };

/// Frames until the stream ends, and how it ends.
fn drain(stream: &mut FrameStream, frame_bytes: usize) -> (Vec<Vec<u8>>, Result<(), DataError>) {
    let mut frames = Vec::new();
    let mut frame = vec![0; frame_bytes];
    let before = stream.handed_out();
    let end = loop {
        match stream.next_frame(&mut frame) {
            Ok(true) => frames.push(frame.clone()),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
        assert_eq!(stream.handed_out(), before + frames.len());
    };
    // It stays at its end.
    assert!(!stream.next_frame(&mut frame).unwrap());
    assert_eq!(stream.handed_out(), before + frames.len());
    (frames, end)
}

/// A pipe's frames at its own size.
fn piped(bytes: &[u8], format: PipeFormat, channels: usize) -> (Vec<Vec<u8>>, Result<(), DataError>) {
    // Any size will do to learn the one of the pipe.
    let learn = StreamSpec { size: size(1, 1), channels, resize: true };
    let own = match FrameStream::pipe(io::Cursor::new(bytes.to_vec()), format, &learn) {
        Ok(stream) => stream.source_size(),
        Err(error) => return (Vec::new(), Err(error)),
    };
    let spec = StreamSpec { size: own, channels, resize: false };
    let mut stream = FrameStream::pipe(io::Cursor::new(bytes.to_vec()), format, &spec).unwrap();
    drain(&mut stream, spec.frame_bytes())
}

fn piped_error(bytes: &[u8], format: PipeFormat) -> String {
    let (_, end) = piped(bytes, format, 3);
    end.expect_err("is refused").to_string()
}

/// The clip that loading gives, and the stream, are the same frames, or the same error. Frames compared, if all are.
fn same(path: &Path, to: Option<FrameSize>, channels: usize, length: Length) -> Option<usize> {
    same_up_to(usize::MAX, path, to, channels, length)
}

/// As [`same`], until `most` frames have been compared.
fn same_up_to(most: usize, path: &Path, to: Option<FrameSize>, channels: usize, length: Length) -> Option<usize> {
    let shown = path.display();
    let labels = FrameManifest::unlabelled(vec![path.to_owned()], vec!["any".into()], Split::Test);
    let spec = |size| StreamSpec { size, channels, resize: to.is_some() };
    let data = match Dataset::open(labels, ClipForm { length, size: to, channels }, 0) {
        Ok(data) => Arc::new(data),
        Err(want) => {
            let got = FrameStream::open(path, &spec(to.unwrap_or(size(1, 1)))).err().expect("does not open");
            assert_eq!(got.to_string(), want.to_string());
            return None;
        }
    };
    let shape = data.shape();
    let mut stream = FrameStream::open(path, &spec(size(shape.height, shape.width))).unwrap();
    assert_eq!(stream.frames(), Some(data.infos()[0].frames));
    let mut loader = Loader::new(&data, data.clips(Split::Test).to_vec(), 1).unwrap();
    let mut got = vec![0; shape.frame_bytes()];
    let mut frames = 0;
    loop {
        match loader.next() {
            Ok(Some(clip)) => {
                for want in clip.frames.chunks_exact(shape.frame_bytes()) {
                    assert!(stream.next_frame(&mut got).unwrap(), "{shown} ends before frame {frames}");
                    assert!(got == want, "{shown}: frame {frames} differs");
                    frames += 1;
                }
                if frames >= most {
                    return Some(frames);
                }
            }
            Ok(None) => {
                assert!(!stream.next_frame(&mut got).unwrap(), "{shown} goes on after frame {frames}");
                return Some(frames);
            }
            Err(want) => {
                let (_, end) = drain(&mut stream, shape.frame_bytes());
                assert_eq!(end.expect_err("is damaged").to_string(), want.to_string());
                return None;
            }
        }
    }
}

#[test]
fn a_video_streams_the_frames_of_its_clip() {
    let mut compared = 0;
    for entry in fs::read_dir(videos()).unwrap() {
        let path = entry.unwrap().path();
        for (to, channels) in [(None, 1), (None, 3), (Some(size(24, 32)), 3), (Some(size(50, 100)), 1)] {
            for length in [Length::Whole, Length::Frames(7)] {
                compared += same(&path, to, channels, length).unwrap_or(0);
            }
        }
    }
    assert!(compared > 3000, "{compared}");
}

#[test]
fn images_and_arrays_stream_the_frames_of_their_clip() {
    let folder = tempfile::tempdir().unwrap();
    for number in 1u8..=11 {
        let image = image::RgbImage::from_fn(9, 6, |x, y| image::Rgb([number * 20, x as u8 * 20, y as u8 * 40]));
        image.save(folder.path().join(format!("{number}.png"))).unwrap();
    }
    let array = folder.path().join("array.npy");
    let header = format!("{:117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (5, 6, 9, 3), }");
    let data = (0..5 * 6 * 9 * 3).map(|i| (i * 7 % 256) as u8);
    let bytes: Vec<u8> = b"\x93NUMPY\x01\x00\x76\x00".iter().copied().chain(header.bytes()).chain(data).collect();
    fs::write(&array, bytes).unwrap();
    for (to, channels) in [(None, 1), (None, 3), (Some(size(4, 5)), 3), (Some(size(7, 20)), 1)] {
        assert_eq!(same(folder.path(), to, channels, Length::Whole), Some(11));
        assert_eq!(same(&array, to, channels, Length::Whole), Some(5));
    }
    // An image of another size is found before the first frame.
    image::RgbImage::new(5, 5).save(folder.path().join("12.png")).unwrap();
    assert_eq!(same(folder.path(), None, 3, Length::Whole), None);
}

#[test]
fn every_fixture_streams_as_it_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if !folder.exists() {
        eprintln!("SKIPPED: there is no {}", folder.display());
        return;
    }
    let (mut streamed, mut refused) = (0, 0);
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let small = Some(size(36, 64));
        // The longest and largest takes a minute.
        let whole = match path.ends_with("sleap_clip_1024_1500f.mp4") {
            true => same_up_to(200, &path, small, 3, Length::Frames(100)),
            false => same(&path, small, 3, Length::Whole),
        };
        let own = same_up_to(40, &path, None, 1, Length::Frames(8));
        match whole {
            Some(frames) => {
                assert!(own >= Some(frames.min(40)));
                streamed += 1;
            }
            None => refused += 1,
        }
    }
    assert!(streamed >= 18 && refused >= 20, "{streamed} {refused}");
}

#[test]
fn a_pipe_of_a_fixture_is_within_two_levels_of_its_array() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if !folder.exists() {
        eprintln!("SKIPPED: there is no {}", folder.display());
        return;
    }
    let spec = StreamSpec { size: size(54, 96), channels: 3, resize: false };
    let file = fs::File::open(folder.join("gen_clip.y4m")).unwrap();
    let (got, end) = drain(&mut FrameStream::pipe(file, Y4M, &spec).unwrap(), spec.frame_bytes());
    end.unwrap();
    let array = FrameStream::open(&folder.join("gen_clip_thwc_u8.npy"), &spec);
    let (want, _) = drain(&mut array.unwrap(), spec.frame_bytes());
    assert_eq!((got.len(), want.len()), (18, 18));
    let worst = got.concat().iter().zip(want.concat()).map(|(got, want)| got.abs_diff(want)).max();
    assert!(worst.unwrap() <= 2, "{worst:?}");
}

/// The planes of a video of one slice per picture, in the order in which they are shown.
fn planes(name: &str) -> Vec<Frame> {
    let file = fs::read(videos().join(name)).unwrap();
    let content = |kind: &[u8]| {
        let at = file.windows(4).position(|window| window == kind).unwrap();
        let length = u32::from_be_bytes(file[at - 4..at].try_into().unwrap()) as usize;
        &file[at + 4..at - 4 + length]
    };
    let config = parse_avcc_config(content(b"avcC")).unwrap();
    let mut decoder = Decoder::new();
    for nal in config.sps_nals.iter().chain(&config.pps_nals) {
        decoder.decode_nal(nal).unwrap();
    }
    let mut frames = Vec::new();
    let mut group = 0;
    for nal in parse_avcc(content(b"mdat"), config.length_size) {
        group += usize::from(nal.nal_unit_type == NalUnitType::SliceIdr);
        decoder.decode_nal(&nal).unwrap();
        frames.extend(decoder.flush().map(|frame| (group, frame)));
    }
    frames.sort_by_key(|(group, frame)| (*group, frame.pic_order_cnt));
    frames.into_iter().map(|(_, frame)| frame).collect()
}

/// `YUV4MPEG2` with these parameters, and frames.
fn y4m<'a>(parameters: &str, frames: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = format!("YUV4MPEG2 {parameters}\n").into_bytes();
    for frame in frames {
        bytes.extend(b"FRAME\n");
        bytes.extend(frame);
    }
    bytes
}

#[test]
fn y4m_has_the_pixels_of_the_video_it_was_decoded_from() {
    for (name, matrix, range) in [
        ("colour601.mp4", YuvMatrix::Bt601, ""),
        ("colour709full.mp4", YuvMatrix::Bt709, " XCOLORRANGE=FULL"),
        ("baseline.mp4", YuvMatrix::Bt601, " XCOLORRANGE=LIMITED"),
        ("bframes.mp4", YuvMatrix::Bt601, ""),
        ("cropped.mp4", YuvMatrix::Bt601, ""),
        ("high422.mp4", YuvMatrix::Bt601, ""),
        ("interlaced.mp4", YuvMatrix::Bt601, ""),
    ] {
        let path = videos().join(name);
        let info = Source::open(&path).unwrap().info();
        let decoded = planes(name);
        assert_eq!(decoded.len(), info.frames, "{name}");
        let space = match decoded[0].chroma_format {
            ChromaFormat::Yuv420 => "420mpeg2",
            ChromaFormat::Yuv422 => "422",
        };
        let frames: Vec<Vec<u8>> = decoded.iter().map(|frame| [&frame.y[..], &frame.u, &frame.v].concat()).collect();
        let parameters = format!("W{} H{} F25:1 Ip A1:1 C{space}{range}", info.width, info.height);
        let bytes = y4m(&parameters, frames.iter().map(Vec::as_slice));
        for (to, channels) in
            [(size(info.height, info.width), 1), (size(info.height, info.width), 3), (size(24, 32), 3)]
        {
            let spec = StreamSpec { size: to, channels, resize: true };
            let pipe = FrameStream::pipe(io::Cursor::new(bytes.clone()), PipeFormat::Y4m { matrix }, &spec);
            let (got, end) = drain(&mut pipe.unwrap(), spec.frame_bytes());
            end.unwrap();
            let (want, _) = drain(&mut FrameStream::open(&path, &spec).unwrap(), spec.frame_bytes());
            assert!(got == want, "{name} {to:?} {channels}");
        }
    }
}

#[test]
fn headers_are_read_as_programs_write_them() {
    // Red, of BT.601.
    let red = |y: usize, chroma: usize| [vec![81; y], vec![90; chroma], vec![240; chroma]].concat();
    let near = |frames: &[Vec<u8>], want: [u8; 3]| {
        let pixels = frames.iter().flat_map(|frame| frame.chunks_exact(3));
        pixels.flat_map(|pixel| [0, 1, 2].map(|c| pixel[c].abs_diff(want[c]))).all(|off| off <= 2)
    };
    for (parameters, chroma) in [
        ("W5 H3 F25:1 Ip A1:1 C420jpeg", 6),
        ("H3 W5", 6),
        ("W5 H3 C420", 6),
        ("W5 H3 C420mpeg2 XYSCSS=420MPEG2 XCOLORRANGE=LIMITED", 6),
        ("W5 H3 C420paldv", 6),
        ("W5  H3 Xany_comment Zunknown  XYSCSS=420PALDV ", 6),
        ("W5 H3 C422", 9),
        ("W5 H3 XYSCSS=422", 9),
        ("W5 H3 C444 F30000:1001", 15),
    ] {
        let frame = red(15, chroma);
        let (frames, end) = piped(&y4m(parameters, [&frame[..]; 3]), Y4M, 3);
        end.unwrap();
        assert_eq!(frames.len(), 3, "{parameters}");
        assert!(near(&frames, [254, 0, 0]), "{parameters}: {:?}", frames[0]);
    }
    // Full range: the luma is the level.
    let frame = [[200; 15].as_slice(), &[128; 12]].concat();
    let (frames, _) = piped(&y4m("W5 H3 XCOLORRANGE=FULL C420jpeg", [&frame[..]]), Y4M, 1);
    assert_eq!(frames, [[200; 15]]);
    let (frames, _) = piped(&y4m("W5 H3 C420jpeg", [&frame[..]]), Y4M, 1);
    assert_eq!(frames, [[214; 15]]);
    // Grey is not expanded, whatever the header says.
    let frame: Vec<u8> = (0..15).map(|level| level * 17).collect();
    for range in ["", " XCOLORRANGE=LIMITED", " XCOLORRANGE=FULL"] {
        let bytes = y4m(&format!("W5 H3 Cmono{range}"), [&frame[..]]);
        assert_eq!(piped(&bytes, Y4M, 1).0[0], frame);
        assert!(piped(&bytes, Y4M, 3).0[0].chunks_exact(3).zip(&frame).all(|(rgb, level)| rgb == [*level; 3]));
    }
    // Lines before frames may say more.
    let bytes = b"YUV4MPEG2 W2 H1 Cmono Im\nFRAME Ippp Xcomment\nabFRAME \ncd";
    assert_eq!(piped(bytes, Y4M, 1).0, [b"ab", b"cd"]);
    let spec = StreamSpec { size: size(1, 2), channels: 1, resize: false };
    for (field, interlaced) in [("", false), ("Ip", false), ("I?", false), ("It", true), ("Ib", true), ("Im", true)] {
        let bytes = y4m(&format!("W2 H1 Cmono {field}"), []);
        let stream = FrameStream::pipe(io::Cursor::new(bytes), Y4M, &spec).unwrap();
        assert_eq!(stream.interlaced(), interlaced, "{field}");
        assert!(stream.frames().is_none() && stream.name() == Path::new("standard input"));
    }
}

#[test]
fn headers_that_cannot_be_used_say_why() {
    for (bytes, words) in [
        (&b""[..], &["before the first byte", "run it alone"][..]),
        (b"YUV4MPEG2", &["cut off"]),
        (b"YUV4MPEG2 W5 H3 C4", &["cut off"]),
        (b"YUV4MPEG2 W5 H3\n", &["header, but no frame follows"]),
        (b"YUV4MPEG2 W5\n", &["no height (H)"]),
        (b"YUV4MPEG2\n", &["no width (W)"]),
        (b"YUV4MPEG2 W0 H3\n", &["its width is \"0\""]),
        (b"YUV4MPEG2 W5 H-3\n", &["its height is \"-3\""]),
        (b"YUV4MPEG2 W5 H\n", &["its height is \"\""]),
        (b"YUV4MPEG2 W5 H3\r\n", &["Windows", "bytes, not text"]),
        (b"YUV4MPEG2 W99999999999999999999 H3\n", &["its width is \"9999999999999999…\""]),
        (b"YUV4MPEG2 W4294967296 H4294967296\n", &["the height is 4294967296", "16384"]),
        (b"YUV4MPEG2 W16384 H16384\n", &["number of pixels", "268435456", "35651584"]),
        (b"YUV4MPEG2 W5 H3 C420p10\n", &["colour space is \"420p10\"", "420jpeg", "422", "444", "mono", "yuv420p"]),
        (b"YUV4MPEG2 W5 H3 C411\n", &["\"411\""]),
        (b"YUV4MPEG2 W5 H3 C444alpha\n", &["\"444alpha\""]),
        (b"YUV4MPEG2 W5 H3 Cmono16\n", &["\"mono16\""]),
        (b"YUV4MPEG2 W5 H3 C\n", &["colour space is \"\""]),
        (b"YUV4MPEG2 W5 H3 C4\x1b[2J\n", &["\"4\\x1b[2J\""]),
        (b"YUV4MPEG3 W5 H3\n", &["begins with \"YUV4MPEG3 W5 H3\"", "size of raw frames"]),
        (b"\x00\x00\x00\x20ftypisom", &["an MP4 or MOV file", "Name the file"]),
        (b"RIFF\x00\x00\x00\x00AVI LIST", &["an AVI file"]),
        (b"\x93NUMPY\x01\x00", &["a .npy array"]),
        (b"YUV4MPEG2 W2 H1 Cmono\nab", &["frame 0 begins with \"ab\""]),
        (b"YUV4MPEG2 W2 H1 Cmono\nFRAME\nabcFRAME\nab", &["frame 1 begins with \"cFRAME\"", "wrong size"]),
        (b"YUV4MPEG2 W2 H1 Cmono\nFRAMES\nab", &["frame 0 begins with \"FRAMES\""]),
    ] {
        let error = piped_error(bytes, Y4M);
        for word in words.iter().chain([&"standard input: "]) {
            assert!(error.contains(word), "{}: {error}", bytes.escape_ascii());
        }
    }
    let long = [b"YUV4MPEG2 W2 H1 Cmono X".as_slice(), &[b'x'; 5000]].concat();
    assert!(piped_error(&long, Y4M).contains("does not end"));
    let long = [b"YUV4MPEG2 W2 H1 Cmono\nFRAME X".as_slice(), &[b'x'; 5000]].concat();
    assert!(piped_error(&long, Y4M).contains("frame 0 begins with \"FRAME X"));
}

#[test]
fn a_pipe_cut_anywhere_hands_out_the_frames_before() {
    let frames: Vec<Vec<u8>> = (0..3).map(|n| (0..5 * 3 + 12).map(|i| 16 + n * 60 + i).collect()).collect();
    let bytes = y4m("W5 H3 C420jpeg", frames.iter().map(Vec::as_slice));
    let (whole, end) = piped(&bytes, Y4M, 3);
    end.unwrap();
    assert_eq!(whole.len(), 3);
    let (header, frame, line) = (bytes.len() - 3 * (27 + 6), 27, 6);
    for length in header + 1..=bytes.len() {
        let (got, end) = piped(&bytes[..length], Y4M, 3);
        let (before, part) = ((length - header) / (frame + line), (length - header) % (frame + line));
        assert!(got == whole[..before], "{length}");
        match end {
            Ok(()) => assert_eq!(part, 0),
            Err(error @ DataError::Stream(StreamError::Cut { frame: at, missing, of, .. })) => {
                assert_eq!((at, missing, of), (before, frame - part.saturating_sub(line), frame));
                let text = error.to_string();
                assert!(text.contains(&format!("frame {before} is cut off: {missing} of its 27 bytes")), "{text}");
            }
            Err(error) => panic!("{length}: {error}"),
        }
    }
}

#[test]
fn raw_frames_have_the_size_that_is_said() {
    let bytes: Vec<u8> = (0..2 * 3 * 4 * 3).map(|i| (i * 5 % 256) as u8).collect();
    let raw = |height, width, channels| PipeFormat::Raw(RawFormat { width, height, channels });
    let (frames, end) = piped(&bytes, raw(3, 4, 3), 3);
    end.unwrap();
    assert_eq!(frames, [&bytes[..36], &bytes[36..]]);
    // As an array with these pixels would give them.
    let folder = tempfile::tempdir().unwrap();
    let array = folder.path().join("array.npy");
    let header = format!("{:117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 4, 3), }");
    fs::write(&array, [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &bytes].concat()).unwrap();
    for (to, channels) in [(size(3, 4), 1), (size(2, 3), 3), (size(5, 5), 1)] {
        let spec = StreamSpec { size: to, channels, resize: true };
        let pipe = FrameStream::pipe(io::Cursor::new(bytes.clone()), raw(3, 4, 3), &spec);
        let (got, _) = drain(&mut pipe.unwrap(), spec.frame_bytes());
        let (want, _) = drain(&mut FrameStream::open(&array, &spec).unwrap(), spec.frame_bytes());
        assert_eq!(got, want);
    }
    let (frames, end) = piped(&bytes, raw(6, 4, 1), 3);
    end.unwrap();
    assert_eq!(frames.len(), 3);
    assert!(frames.concat().chunks_exact(3).zip(&bytes).all(|(rgb, level)| rgb == [*level; 3]));
    // What is left over says that the size may be wrong.
    let (frames, end) = piped(&bytes, raw(5, 4, 3), 3);
    assert_eq!(frames.len(), 1);
    let error = end.unwrap_err().to_string();
    for word in ["frame 1 is cut off: 48 of its 60 bytes", "another size"] {
        assert!(error.contains(word), "{error}");
    }
    assert!(piped_error(b"", raw(3, 4, 3)).contains("before the first byte"));
    for (format, word) in [
        (raw(0, 4, 3), "0x4"),
        (raw(3, 4, 2), "2 channels"),
        (raw(1 << 20, 4, 1), "the height is 1048576"),
        (raw(usize::MAX, usize::MAX, 3), "more than the 16384"),
    ] {
        let error = piped_error(&bytes, format);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn another_size_is_an_error_unless_frames_are_resized() {
    let spec = StreamSpec { size: size(24, 32), channels: 1, resize: false };
    let bytes = y4m("W64 H48 Cmono", [&[7; 64 * 48][..]]);
    let pipe = || FrameStream::pipe(io::Cursor::new(bytes.clone()), Y4M, &spec);
    for (error, name) in [
        (FrameStream::open(&videos().join("bframes.mp4"), &spec).err(), "bframes.mp4"),
        (pipe().err(), "standard input"),
    ] {
        let error = error.unwrap().to_string();
        for word in [name, "frames are 48x64", "takes 24x32", "Resize"] {
            assert!(error.contains(word), "{error}");
        }
    }
    for spec in [
        StreamSpec { channels: 2, ..spec },
        StreamSpec { size: size(0, 32), ..spec },
        StreamSpec { size: size(24, 1 << 40), ..spec },
    ] {
        let error = FrameStream::open(&videos().join("bframes.mp4"), &spec).err().unwrap();
        assert!(matches!(error, DataError::Stream(StreamError::Spec { .. })), "{error}");
    }
    let spec = StreamSpec { size: size(24, 32), channels: 1, resize: true };
    let mut stream = FrameStream::open(&videos().join("bframes.mp4"), &spec).unwrap();
    assert!(matches!(stream.next_frame(&mut [0; 3]), Err(DataError::Buffer { got: 3, want: 768, .. })));
    // That was not the stream's fault.
    assert!(stream.next_frame(&mut [0; 768]).unwrap());
}

#[test]
fn streams_too_short_for_a_model_are_named() {
    let spec = StreamSpec { size: size(48, 64), channels: 1, resize: false };
    let path = videos().join("editlist.mp4");
    let stream = FrameStream::open(&path, &spec).unwrap();
    assert!(stream.check_frames(22).is_ok());
    let error = stream.check_frames(23).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{} has 22 frames, but the model needs 23", path.display())), "{error}");
    let frame = [9; 64 * 48];
    let bytes = y4m("W64 H48 Cmono", [&frame[..]; 3]);
    let mut stream = FrameStream::pipe(io::Cursor::new(bytes), Y4M, &spec).unwrap();
    // It is not known yet.
    assert!(stream.check_frames(4).is_ok());
    drain(&mut stream, spec.frame_bytes()).1.unwrap();
    assert!(stream.check_frames(3).is_ok());
    let error = stream.check_frames(4).unwrap_err().to_string();
    assert!(error.starts_with("standard input has 3 frames, but the model needs 4"), "{error}");
}

/// Gives bytes a few at a time, and is interrupted, as pipes are.
struct Slow {
    bytes: Vec<u8>,
    at: usize,
    calls: usize,
    fails_at: Option<usize>,
}

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.fails_at.is_some_and(|at| self.at >= at) {
            return Err(io::Error::other("the cable is out"));
        }
        let count = (1 + self.calls % 5).min(into.len()).min(self.bytes.len() - self.at);
        into[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
fn a_slow_pipe_gives_the_same_frames_and_a_broken_one_says_where() {
    let frames: Vec<Vec<u8>> = (0..4).map(|n| (0..5 * 3 + 12).map(|i| 16 + n * 50 + i).collect()).collect();
    let bytes = y4m("W5 H3 C420jpeg", frames.iter().map(Vec::as_slice));
    let (want, _) = piped(&bytes, Y4M, 3);
    let spec = StreamSpec { size: size(3, 5), channels: 3, resize: false };
    let slow = |fails_at| Slow { bytes: bytes.clone(), at: 0, calls: 0, fails_at };
    let (got, end) = drain(&mut FrameStream::pipe(slow(None), Y4M, &spec).unwrap(), spec.frame_bytes());
    end.unwrap();
    assert!(got == want);
    let fails_at = bytes.len() - 40;
    let (got, end) = drain(&mut FrameStream::pipe(slow(Some(fails_at)), Y4M, &spec).unwrap(), spec.frame_bytes());
    assert!(got == want[..2]);
    let error = end.unwrap_err().to_string();
    assert!(error.contains("cannot read frame 2: the cable is out"), "{error}");
}

#[test]
fn damage_to_a_pipe_is_an_error_or_other_frames_but_never_a_panic() {
    let frames: Vec<Vec<u8>> = (0..4).map(|n| (0..6 * 4 + 12).map(|i| 16 + n * 50 + i).collect()).collect();
    let whole = y4m("W6 H4 F25:1 Ip A1:1 C420jpeg XCOLORRANGE=FULL", frames.iter().map(Vec::as_slice));
    let mut state = 11u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut ended = [0, 0];
    for round in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=round % 4 {
            // Mostly in the header.
            let at = if draw(4) == 0 { draw(bytes.len()) } else { draw(56) };
            match draw(4) {
                0 => bytes[at] = draw(256) as u8,
                1 => bytes[at] = b"0123456789 \n"[draw(12)],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b'0' + draw(10) as u8),
            }
        }
        // No more frames than bytes, whatever the header says.
        let (frames, end) = piped(&bytes, Y4M, 3);
        assert!(frames.len() < bytes.len());
        ended[usize::from(end.is_err())] += 1;
    }
    assert!(ended.iter().all(|count| *count > 500), "{ended:?}");
}

#[test]
fn a_stream_can_move_to_another_thread() {
    let spec = StreamSpec { size: size(48, 64), channels: 1, resize: false };
    let mut stream = FrameStream::open(&videos().join("bframes.mp4"), &spec).unwrap();
    let count = std::thread::spawn(move || drain(&mut stream, spec.frame_bytes()).0.len());
    assert_eq!(count.join().unwrap(), 40);
}
