//! Sums and moves.

use crate::conv::Window;
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What an addition reads and writes; all of the same shape.
#[derive(Debug)]
pub struct AdditionArgs<'a, E> {
    /// a; when absent y holds it: b is added to y.
    pub a: Option<&'a [E]>,
    /// b.
    pub b: &'a [E],
    /// y, overwritten with a + b.
    pub y: &'a mut [E],
}

/// Rows (of frames, clips and positions) of which some channels are copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelCopyShape {
    /// T · N · P.
    pub rows: usize,
    /// How many channels are copied.
    pub channels: usize,
    /// Channels of x.
    pub x_channels: usize,
    /// The first channel of x that is copied.
    pub x_first: usize,
    /// Channels of y.
    pub y_channels: usize,
    /// The first channel of y that is written.
    pub y_first: usize,
}

/// What a copy of channels reads and writes.
#[derive(Debug)]
pub struct ChannelCopyArgs<'a, E> {
    /// x: \[rows, x_channels\].
    pub x: &'a [E],
    /// Whether x is added to y instead of overwriting it.
    pub accumulate: bool,
    /// y: \[rows, y_channels\]; its other channels stay.
    pub y: &'a mut [E],
}

/// Frames that are copied from one window to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FrameCopyShape {
    /// Elements of a frame: N · P · C.
    pub frame: usize,
    /// The frames held in x.
    pub x: Window,
    /// The frames held in y.
    pub y: Window,
    /// The frames that are copied, held in both.
    pub copied: Window,
}

/// What a copy of frames reads and writes.
#[derive(Debug)]
pub struct FrameCopyArgs<'a, E> {
    /// x: \[x.lo..x.hi, frame\].
    pub x: &'a [E],
    /// Whether x is added to y instead of overwriting it.
    pub accumulate: bool,
    /// y: \[y.lo..y.hi, frame\]; its other frames stay.
    pub y: &'a mut [E],
}

/// Frames whose order is turned round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FrameReversalShape {
    /// Elements of a frame: N · P · C.
    pub frame: usize,
    /// T.
    pub frames: usize,
}

/// What a reversal of frames reads and writes.
#[derive(Debug)]
pub struct FrameReversalArgs<'a, E> {
    /// x: \[T, frame\].
    pub x: &'a [E],
    /// Whether x is added to y instead of overwriting it.
    pub accumulate: bool,
    /// y: \[T, frame\].
    pub y: &'a mut [E],
}

kernel_row! {
    /// y = a + b; the shape is the number of elements.
    Addition, usize, AdditionArgs
}
kernel_row! {
    /// y\[.., y_first + c\] (+)= x\[.., x_first + c\] for c in 0..channels: into a concatenation, and its gradient out
    /// of it.
    ChannelCopy, ChannelCopyShape, ChannelCopyArgs
}
kernel_row! {
    /// y\[t\] (+)= x\[t\] for t in copied.lo..copied.hi.
    FrameCopy, FrameCopyShape, FrameCopyArgs
}

kernel_row! {
    /// y\[t\] (+)= x\[T − 1 − t\]; its own gradient.
    FrameReversal, FrameReversalShape, FrameReversalArgs
}

/// Elements of one task.
const CHUNK: usize = 16 * 1024;

#[inline(always)]
fn add_body<E: Real>(a: Option<&[E]>, b: &[E], y: &mut [E]) {
    match a {
        Some(a) => {
            for ((a, b), y) in a.iter().zip(b).zip(y) {
                *y = *a + *b;
            }
        }
        None => {
            for (b, y) in b.iter().zip(y) {
                *y += *b;
            }
        }
    }
}

fn add<E: Real>(
    len: &usize,
    args: AdditionArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Option<&[E]>, &[E], &mut [E]) + Sync,
) {
    assert!(args.a.is_none_or(|a| a.len() == *len), "a must have {len} elements");
    assert_eq!(args.b.len(), *len, "b");
    assert_eq!(args.y.len(), *len, "y");
    pool.chunks(args.y, CHUNK, &|task, y| {
        let range = task.index * CHUNK..task.index * CHUNK + y.len();
        body(args.a.map(|a| &a[range.clone()]), &args.b[range], y);
    });
}

/// y (+)= x.
#[inline(always)]
fn move_body<E: Real>(x: &[E], accumulate: bool, y: &mut [E]) {
    if accumulate {
        for (x, y) in x.iter().zip(y) {
            *y += *x;
        }
    } else {
        y.copy_from_slice(x);
    }
}

/// x: \[rows, x_channels\] and y: \[rows, y_channels\] of one task.
#[inline(always)]
fn channels_body<E: Real>(s: &ChannelCopyShape, x: &[E], accumulate: bool, y: &mut [E]) {
    for (x, y) in x.chunks_exact(s.x_channels).zip(y.chunks_exact_mut(s.y_channels)) {
        let (x, y) = (&x[s.x_first..][..s.channels], &mut y[s.y_first..][..s.channels]);
        if accumulate {
            for (x, y) in x.iter().zip(y) {
                *y += *x;
            }
        } else {
            for (x, y) in x.iter().zip(y) {
                *y = *x;
            }
        }
    }
}

fn copy_channels<E: Real>(
    s: &ChannelCopyShape,
    args: ChannelCopyArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&ChannelCopyShape, &[E], bool, &mut [E]) + Sync,
) {
    assert!(s.x_first + s.channels <= s.x_channels && s.y_first + s.channels <= s.y_channels, "{s:?}");
    assert_eq!(args.x.len(), s.rows * s.x_channels, "x: {s:?}");
    assert_eq!(args.y.len(), s.rows * s.y_channels, "y: {s:?}");
    if s.channels == 0 {
        return;
    }
    let rows = (CHUNK / s.channels).max(1);
    pool.chunks(args.y, rows * s.y_channels, &|task, y| {
        let len = y.len() / s.y_channels * s.x_channels;
        body(s, &args.x[task.index * rows * s.x_channels..][..len], args.accumulate, y);
    });
}

fn copy_frames<E: Real>(
    s: &FrameCopyShape,
    args: FrameCopyArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&[E], bool, &mut [E]) + Sync,
) {
    assert_eq!(args.x.len(), s.x.frames() * s.frame, "x: {s:?}");
    assert_eq!(args.y.len(), s.y.frames() * s.frame, "y: {s:?}");
    let (copied, frames) = (s.copied, s.copied.frames());
    if frames == 0 {
        return;
    }
    let holds = |window: Window| window.lo <= copied.lo && copied.hi <= window.hi;
    assert!(holds(s.x) && holds(s.y), "not all copied frames are held: {s:?}");
    let len = frames * s.frame;
    let x = &args.x[(copied.lo - s.x.lo) * s.frame..][..len];
    let y = SharedMut::new(&mut args.y[(copied.lo - s.y.lo) * s.frame..][..len]);
    pool.run(len.div_ceil(CHUNK), &|task| {
        let range = task.index * CHUNK..(task.index * CHUNK + CHUNK).min(len);
        // SAFETY: ranges of different tasks are disjoint, and each task runs once.
        body(&x[range.clone()], args.accumulate, unsafe { y.part(range) });
    });
}

fn reverse_frames<E: Real>(
    s: &FrameReversalShape,
    args: FrameReversalArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&[E], bool, &mut [E]) + Sync,
) {
    let (x, frame) = (args.x, s.frame);
    assert_eq!(x.len(), s.frames * frame, "x: {s:?}");
    assert_eq!(args.y.len(), s.frames * frame, "y: {s:?}");
    let parts = frame.div_ceil(CHUNK);
    let y = SharedMut::new(args.y);
    pool.run(s.frames * parts, &|task| {
        let (t, first) = (task.index / parts, task.index % parts * CHUNK);
        let len = CHUNK.min(frame - first);
        let x = &x[(s.frames - 1 - t) * frame + first..][..len];
        // SAFETY: parts of frames are disjoint, and each task runs once.
        body(x, args.accumulate, unsafe { y.part(t * frame + first..t * frame + first + len) });
    });
}

compiled_tables! {
    ADDITION_F32, ADDITION_F64: Addition, scratch: no_scratch,
    names: ["addition_f32__avx512", "addition_f32__avx2", "addition_f32__scalar", "addition_f64__scalar"],
    add(add_body: (a: Option<&[f32]>, b: &[f32], y: &mut [f32]))
}

compiled_tables! {
    CHANNEL_COPY_F32, CHANNEL_COPY_F64: ChannelCopy, scratch: no_scratch,
    names: ["channel_copy_f32__avx512", "channel_copy_f32__avx2", "channel_copy_f32__scalar", "channel_copy_f64__scalar"],
    copy_channels(channels_body: (s: &ChannelCopyShape, x: &[f32], accumulate: bool, y: &mut [f32]))
}

compiled_tables! {
    FRAME_COPY_F32, FRAME_COPY_F64: FrameCopy, scratch: no_scratch,
    names: ["frame_copy_f32__avx512", "frame_copy_f32__avx2", "frame_copy_f32__scalar", "frame_copy_f64__scalar"],
    copy_frames(move_body: (x: &[f32], accumulate: bool, y: &mut [f32]))
}

compiled_tables! {
    FRAME_REVERSAL_F32, FRAME_REVERSAL_F64: FrameReversal, scratch: no_scratch,
    names: ["frame_reversal_f32__avx512", "frame_reversal_f32__avx2", "frame_reversal_f32__scalar", "frame_reversal_f64__scalar"],
    reverse_frames(move_body: (x: &[f32], accumulate: bool, y: &mut [f32]))
}
