//! What the boxes of a movie and of its fragments say about a track: times, edits, orientation, codec, colour.

use std::path::Path;

use super::SourceError;
use super::boxes::{Boxes, Fields, child};

/// How decoded rows and columns turn into shown ones: shown x runs along `x_from`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Orientation {
    /// Shown rows are decoded columns.
    pub(super) transpose: bool,
    /// Shown columns run against the decoded axis they follow.
    pub(super) mirror_x: bool,
    /// Shown rows run against the decoded axis they follow.
    pub(super) mirror_y: bool,
}

/// Colour description of the container, used where the video stream has none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContainerColour {
    pub(super) matrix: u8,
    pub(super) full_range: bool,
}

/// What a fragment's samples have unless they say otherwise.
#[derive(Clone, Copy, Default)]
pub(super) struct Defaults {
    pub(super) duration: u32,
    pub(super) size: u32,
    pub(super) flags: u32,
}

/// A stretch of the track that is shown.
pub(super) struct Edit {
    pub(super) start: i64,
    /// In units of the movie; 0 is "to the end".
    pub(super) duration: u64,
}

/// An error of the file's index.
pub(super) fn damaged(path: &Path, what: impl Into<String>) -> SourceError {
    SourceError::Index { path: path.into(), what: what.into() }
}

/// The upper left 2×2 of a transformation matrix, rows first.
pub(super) type Matrix = [i64; 4];
pub(super) const IDENTITY: Matrix = [1, 0, 0, 1];

fn matrix(fields: &mut Fields<'_>) -> Option<Matrix> {
    let (a, b) = (fields.i32()?, fields.i32()?);
    fields.skip(4)?;
    let (c, d) = (fields.i32()?, fields.i32()?);
    fields.skip(16)?;
    Some([a.into(), b.into(), c.into(), d.into()])
}

pub(super) fn movie_header(content: &[u8]) -> Option<(u32, Matrix)> {
    let mut fields = Fields(content);
    let wide = fields.version()?.0 == 1;
    fields.skip(if wide { 16 } else { 8 })?;
    let scale = fields.u32()?;
    fields.sized(wide)?;
    fields.skip(4 + 2 + 2 + 8)?;
    Some((scale, matrix(&mut fields)?))
}

pub(super) fn track_header(content: &[u8]) -> Option<(u32, Matrix)> {
    let mut fields = Fields(content);
    let wide = fields.version()?.0 == 1;
    fields.skip(if wide { 16 } else { 8 })?;
    let id = fields.u32()?;
    fields.skip(4)?;
    fields.sized(wide)?;
    fields.skip(8 + 2 + 2 + 2 + 2)?;
    Some((id, matrix(&mut fields)?))
}

pub(super) fn media_header(content: &[u8]) -> Option<u32> {
    let mut fields = Fields(content);
    let wide = fields.version()?.0 == 1;
    fields.skip(if wide { 16 } else { 8 })?;
    fields.u32()
}

pub(super) fn track_extends(extends: &[u8], id: u32) -> Option<Defaults> {
    Boxes(extends).filter(|(kind, _)| kind == b"trex").find_map(|(_, content)| {
        let mut fields = Fields(content);
        fields.version()?;
        let (found, _description) = (fields.u32()?, fields.u32()?);
        let defaults = Defaults { duration: fields.u32()?, size: fields.u32()?, flags: fields.u32()? };
        (found == id).then_some(defaults)
    })
}

pub(super) fn fragment_header(content: &[u8], mut defaults: Defaults) -> Option<(u32, Option<u64>, Defaults)> {
    let mut fields = Fields(content);
    let (_, flags) = fields.version()?;
    let id = fields.u32()?;
    let base = if flags & 0x01 != 0 { Some(fields.u64()?) } else { None };
    if flags & 0x02 != 0 {
        fields.skip(4)?;
    }
    for (bit, value) in [(0x08, &mut defaults.duration), (0x10, &mut defaults.size), (0x20, &mut defaults.flags)] {
        if flags & bit != 0 {
            *value = fields.u32()?;
        }
    }
    Some((id, base, defaults))
}

pub(super) fn fragment_time(content: &[u8]) -> Option<i64> {
    let mut fields = Fields(content);
    let wide = fields.version()?.0 == 1;
    i64::try_from(fields.sized(wide)?).ok()
}

/// Edits that show something; those that only delay are passed over.
pub(super) fn edit_list(content: &[u8]) -> Option<Vec<Edit>> {
    let mut fields = Fields(content);
    let wide = fields.version()?.0 == 1;
    let count = fields.u32()?;
    let mut edits = Vec::new();
    for _ in 0..count {
        let Some(duration) = fields.sized(wide) else { break };
        let start = if wide { fields.u64().map(|start| start as i64) } else { fields.i32().map(i64::from) };
        let Some(start) = start else { break };
        fields.skip(4)?;
        if start >= 0 {
            edits.push(Edit { start, duration });
        }
    }
    Some(edits)
}

/// The orientation that two matrices, applied one after the other, give; `None` if it is no multiple of 90 degrees.
pub(super) fn orientation(track: Matrix, movie: Matrix) -> Option<Orientation> {
    // Only directions matter, and products of 16.16 numbers must not overflow.
    let signs = |matrix: Matrix| match matrix {
        [0, 0, 0, 0] => IDENTITY,
        [a, b, c, d] => {
            let largest = a.abs().max(b.abs()).max(c.abs()).max(d.abs());
            [a, b, c, d].map(|entry| if entry.abs() * 1024 < largest { 0 } else { entry.signum() })
        }
    };
    let ([a, b, c, d], [e, f, g, h]) = (signs(track), signs(movie));
    // A decoded point (x, y) is shown at (a·x + c·y, b·x + d·y).
    match [a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h] {
        [x, 0, 0, y] if x != 0 && y != 0 => Some(Orientation { transpose: false, mirror_x: x < 0, mirror_y: y < 0 }),
        [0, y, x, 0] if x != 0 && y != 0 => Some(Orientation { transpose: true, mirror_x: x < 0, mirror_y: y < 0 }),
        _ => None,
    }
}

/// Decoder configuration and colour of the first sample description.
pub(super) fn describe(path: &Path, description: &[u8]) -> Result<(Vec<u8>, ContainerColour), SourceError> {
    let entry = description.get(8..).and_then(|entries| Boxes(entries).next());
    let Some((kind, entry)) = entry else {
        return Err(damaged(path, "its video track does not say how it is coded"));
    };
    if !matches!(&kind, b"avc1" | b"avc2" | b"avc3" | b"avc4") {
        return Err(SourceError::Codec { path: path.into(), codec: codec(kind) });
    }
    const VISUAL_SAMPLE_ENTRY: usize = 78;
    let inner = entry.get(VISUAL_SAMPLE_ENTRY..).unwrap_or_default();
    let config = child(inner, b"avcC").ok_or_else(|| damaged(path, "its H.264 track lacks the `avcC` box"))?;
    let colour = child(inner, b"colr").and_then(|colour| {
        let mut fields = Fields(colour);
        let kind = fields.bytes(4)?;
        fields.skip(4)?;
        let matrix = u8::try_from(fields.u16()?).unwrap_or(2);
        let full_range = kind == b"nclx" && fields.u8().is_some_and(|flags| flags & 0x80 != 0);
        matches!(kind, b"nclx" | b"nclc").then_some(ContainerColour { matrix, full_range })
    });
    Ok((config.to_vec(), colour.unwrap_or(ContainerColour { matrix: 2, full_range: false })))
}

/// The name of a codec by the type of its sample entry.
fn codec(kind: [u8; 4]) -> String {
    let code = String::from_utf8_lossy(&kind).into_owned();
    let code = code.trim().escape_default();
    let name = match &kind {
        b"hvc1" | b"hev1" | b"dvh1" | b"dvhe" => "HEVC (H.265)",
        b"vvc1" | b"vvi1" => "VVC (H.266)",
        b"av01" => "AV1",
        b"vp08" => "VP8",
        b"vp09" => "VP9",
        b"mp4v" => "MPEG-4 part 2 or another old MPEG codec",
        b"apch" | b"apcn" | b"apcs" | b"apco" | b"ap4h" | b"ap4x" => "Apple ProRes",
        b"jpeg" | b"mjpa" | b"mjpb" => "Motion JPEG",
        b"encv" => "encrypted",
        b"s263" | b"h263" => "H.263",
        _ => return format!("`{code}`"),
    };
    format!("{name} (`{code}`)")
}
