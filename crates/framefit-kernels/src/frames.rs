//! From the bytes of decoded frames to the values a model reads.

use crate::real::Real;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// How many pixels of how many channels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FramesShape {
    /// Frames · height · width.
    pub pixels: usize,
    /// C.
    pub channels: usize,
}

/// What the normalisation reads and writes.
#[derive(Debug)]
pub struct FramesNormalizeArgs<'a, E> {
    /// x: \[pixels, C\], 0 to 255.
    pub x: &'a [u8],
    /// \[C\], of x/255.
    pub mean: &'a [E],
    /// \[C\], of x/255.
    pub std: &'a [E],
    /// y: \[pixels, C\], overwritten.
    pub y: &'a mut [E],
}

kernel_row! {
    /// y = (x/255 − mean\[c\]) / std\[c\], computed as x · scale\[c\] + offset\[c\].
    FramesNormalize, FramesShape, FramesNormalizeArgs
}

/// Pixels of one task.
const CHUNK: usize = 16 * 1024;

/// Scales and offsets are laid out for this many elements at most: whole pixels, so that they repeat.
const PATTERN: usize = 192;

/// `scale` and `offset` are as long as each other, a multiple of the number of channels.
#[inline(always)]
fn body<E: Real>(x: &[u8], scale: &[E], offset: &[E], y: &mut [E]) {
    for (x, y) in x.chunks(scale.len()).zip(y.chunks_mut(scale.len())) {
        for (((x, scale), offset), y) in x.iter().zip(scale).zip(offset).zip(y) {
            *y = E::from_u8(*x) * *scale + *offset;
        }
    }
}

fn normalize<E: Real>(
    s: &FramesShape,
    args: FramesNormalizeArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(&[u8], &[E], &[E], &mut [E]) + Sync,
) {
    let len = s.pixels * s.channels;
    assert_eq!(args.x.len(), len, "x: {s:?}");
    assert_eq!(args.y.len(), len, "y: {s:?}");
    assert_eq!(args.mean.len(), s.channels, "mean: {s:?}");
    assert_eq!(args.std.len(), s.channels, "std: {s:?}");
    let (x, mean, std) = (args.x, args.mean, args.std);
    let scale_of = |c: usize| E::ONE / (E::from_f64(255.0) * std[c]);
    let offset_of = |c: usize| -mean[c] / std[c];
    pool.chunks(args.y, CHUNK * s.channels, &|task, y| {
        let x = &x[task.index * CHUNK * s.channels..][..y.len()];
        if s.channels > PATTERN {
            for (x, y) in x.chunks_exact(s.channels).zip(y.chunks_exact_mut(s.channels)) {
                for (c, (x, y)) in x.iter().zip(y).enumerate() {
                    *y = E::from_u8(*x) * scale_of(c) + offset_of(c);
                }
            }
            return;
        }
        let (mut scale, mut offset) = ([E::ZERO; PATTERN], [E::ZERO; PATTERN]);
        let used = PATTERN / s.channels * s.channels;
        for i in 0..used {
            scale[i] = scale_of(i % s.channels);
            offset[i] = offset_of(i % s.channels);
        }
        body(x, &scale[..used], &offset[..used], y);
    });
}

compiled_tables! {
    NORMALIZE_F32, NORMALIZE_F64: FramesNormalize, scratch: no_scratch,
    names: ["frames_normalize_f32__avx512", "frames_normalize_f32__avx2", "frames_normalize_f32__scalar", "frames_normalize_f64__scalar"],
    normalize(body: (x: &[u8], scale: &[f32], offset: &[f32], y: &mut [f32]))
}
