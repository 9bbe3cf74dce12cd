//! Flips and order, drawn from numbers alone: the same seed, epoch and clip give the same draw in any order of work.

use super::clip::ClipShape;
use super::error::DataError;

/// Which flips may be drawn, each with probability one half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Augment {
    /// Mirror left and right.
    pub horizontal: bool,
    /// Mirror top and bottom.
    pub vertical: bool,
}

/// The flips drawn for one clip, the same for all its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flip {
    /// Left and right are swapped.
    pub horizontal: bool,
    /// Top and bottom are swapped.
    pub vertical: bool,
}

impl Augment {
    /// The flips of clip `number` ([`super::ClipRef::number`]) in `epoch`.
    pub fn draw(self, seed: u64, epoch: u64, number: usize) -> Flip {
        let bits = mix(mix(mix(seed ^ 0x666C_6970).wrapping_add(epoch)).wrapping_add(number as u64));
        Flip { horizontal: self.horizontal && bits & 1 == 1, vertical: self.vertical && bits & 2 == 2 }
    }
}

/// Puts `items` in the order of `epoch`: Fisher and Yates' shuffle, drawn from `seed` and `epoch` alone.
pub fn shuffle<T>(items: &mut [T], seed: u64, epoch: u64) {
    let mut state = mix(mix(seed ^ 0x6F72_6465).wrapping_add(epoch));
    for i in (1..items.len()).rev() {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        // The high half of a 64-bit product: uniform over 0..=i up to 2^-64 times its size.
        let j = ((u128::from(finish(state)) * (i as u128 + 1)) >> 64) as usize;
        items.swap(i, j);
    }
}

/// One step of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(value: u64) -> u64 {
    finish(value.wrapping_add(0x9E37_79B9_7F4A_7C15))
}

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Where a clip goes in a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scatter {
    /// Frames, height, width and channels of every clip of the micro-batch.
    pub shape: ClipShape,
    /// Clips in the micro-batch (N).
    pub clips: usize,
    /// Place of this clip, `0..clips`.
    pub place: usize,
    /// Flips to apply on the way.
    pub flip: Flip,
}

/// clip: `[T][H][W][C]` → out: `[T][N][H][W][C]` at `N = place`; the other places are left as they are.
pub fn scatter(clip: &[u8], to: Scatter, out: &mut [u8]) -> Result<(), DataError> {
    let Scatter { shape, clips, place, flip } = to;
    let (frame, row) = (shape.frame_bytes(), shape.width * shape.channels);
    check("the clip", clip.len(), shape.bytes())?;
    check("the micro-batch", out.len(), shape.bytes() * clips)?;
    if place >= clips {
        return Err(DataError::UnknownClip { number: place, clips });
    }
    if frame == 0 {
        return Ok(());
    }
    for (from, to) in clip.chunks_exact(frame).zip(out.chunks_exact_mut(frame * clips)) {
        let Some(to) = to.get_mut(place * frame..(place + 1) * frame) else { continue };
        if flip == Flip::default() {
            to.copy_from_slice(from);
            continue;
        }
        for (y, line) in to.chunks_exact_mut(row).enumerate() {
            let from_y = if flip.vertical { shape.height - 1 - y } else { y };
            let Some(from) = from.get(from_y * row..(from_y + 1) * row) else { continue };
            match (flip.horizontal, shape.channels) {
                (false, _) => line.copy_from_slice(from),
                (true, 1) => line.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from),
                (true, channels) => {
                    let pixels = from.chunks_exact(channels).rev();
                    line.chunks_exact_mut(channels).zip(pixels).for_each(|(to, from)| to.copy_from_slice(from));
                }
            }
        }
    }
    Ok(())
}

/// frames: `[T][H][W][C]`, flipped where they are.
pub(crate) fn flip_frames(shape: ClipShape, flip: Flip, frames: &mut [u8]) {
    let (frame, row) = (shape.frame_bytes(), shape.width * shape.channels);
    if flip == Flip::default() || frame == 0 {
        return;
    }
    for frame in frames.chunks_exact_mut(frame) {
        if flip.vertical {
            let (mut top, mut bottom) = (0, shape.height - 1);
            while top < bottom {
                let (upper, lower) = frame.split_at_mut(bottom * row);
                upper[top * row..(top + 1) * row].swap_with_slice(&mut lower[..row]);
                (top, bottom) = (top + 1, bottom - 1);
            }
        }
        if flip.horizontal {
            for line in frame.chunks_exact_mut(row) {
                // Pixels backwards, the channels of each as they were.
                line.reverse();
                line.chunks_exact_mut(shape.channels).for_each(<[u8]>::reverse);
            }
        }
    }
}

/// labels: `[T]` → out: `[T][N]` at `N = place`, as [`scatter`] places the frames; one label per clip, `[1]` → `[N]`.
/// The other places are left as they are, and labels are the same whatever is flipped.
pub fn scatter_labels(labels: &[u32], to: Scatter, out: &mut [u32]) -> Result<(), DataError> {
    let Scatter { shape, clips, place, flip: _ } = to;
    if labels.len() != 1 {
        count("the clip", labels.len(), shape.frames)?;
    }
    count("the micro-batch", out.len(), labels.len() * clips)?;
    if place >= clips {
        return Err(DataError::UnknownClip { number: place, clips });
    }
    for (label, to) in labels.iter().zip(out.chunks_exact_mut(clips)) {
        if let Some(to) = to.get_mut(place) {
            *to = *label;
        }
    }
    Ok(())
}

fn count(what: &'static str, got: usize, want: usize) -> Result<(), DataError> {
    if got == want { Ok(()) } else { Err(DataError::LabelCount { what, got, want }) }
}

pub(crate) fn check(what: &'static str, got: usize, want: usize) -> Result<(), DataError> {
    if got == want { Ok(()) } else { Err(DataError::Buffer { what, got, want }) }
}
