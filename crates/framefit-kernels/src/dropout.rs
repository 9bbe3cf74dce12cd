//! Dropout, whose mask depends on nothing but a clip's key, the layer, the frame and the element.

use crate::channels::{PATTERN, Pattern};
use crate::real::Real;
use crate::shared::SharedMut;
use crate::table::{compiled_tables, kernel_row, no_scratch};
use crate::threads::Pool;

/// What is dropped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropoutUnit {
    /// Each element by itself: PyTorch's `Dropout`, Keras's `Dropout`.
    Element,
    /// A channel of a frame: PyTorch's `Dropout2d` on every frame.
    FrameChannel,
    /// A channel of the whole clip: PyTorch's `Dropout3d`, Keras's `SpatialDropout3D`.
    ClipChannel,
    /// An element of all frames alike: `dropout` of Keras's recurrent layers.
    ElementOfEveryFrame,
}

impl DropoutUnit {
    /// Whether all frames of a clip have the same mask.
    fn same_in_every_frame(self) -> bool {
        match self {
            DropoutUnit::ClipChannel | DropoutUnit::ElementOfEveryFrame => true,
            DropoutUnit::Element | DropoutUnit::FrameChannel => false,
        }
    }
}

/// Frames of a window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DropoutShape {
    /// N.
    pub clips: usize,
    /// T, the frames held in x.
    pub frames: usize,
    /// P = H · W.
    pub positions: usize,
    /// C; P · C is below 2³².
    pub channels: usize,
    /// What is dropped at once.
    pub unit: DropoutUnit,
}

impl DropoutShape {
    /// Elements of x.
    pub fn len(&self) -> usize {
        self.frames * self.clips * self.positions * self.channels
    }

    /// Whether x has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What dropout reads and writes. The backward is the same map on dy.
#[derive(Debug)]
pub struct DropoutArgs<'a, E> {
    /// \[N\]: a key for each clip and step.
    pub keys: &'a [u64],
    /// A number that no other layer of the model has.
    pub layer: u64,
    /// The frame index of the first frame of x.
    pub first_frame: usize,
    /// The probability of dropping, in 0..=1.
    pub p: f64,
    /// x: \[T, N, P, C\]; when absent y holds it.
    pub x: Option<&'a [E]>,
    /// Whether the result is added to y, with x given, instead of overwriting it.
    pub accumulate: bool,
    /// y: \[T, N, P, C\].
    pub y: &'a mut [E],
}

kernel_row! {
    /// y (+)= keep ? x/(1−p) : 0.
    ///
    /// Whether an element is kept is a hash of the clip's key, the layer, the frame index and the element's index in
    /// its frame, so that windows, micro-batches and recomputation change nothing.
    Dropout, DropoutShape, DropoutArgs
}

/// Elements of one task.
const CHUNK: usize = 16 * 1024;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix64(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash of 32 bits that no input avoids (Wellons, "Prospecting for hash functions", 2018).
#[inline(always)]
fn mix32(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
    let x = (x ^ (x >> 15)).wrapping_mul(0xd35a_2d97);
    x ^ (x >> 15)
}

/// The draws of one frame of one clip, or of a whole clip.
#[derive(Clone, Copy)]
struct Draws {
    key: (u32, u32),
    /// An element is dropped whose draw lies below.
    limit: u32,
}

impl Draws {
    fn new(key: u64, layer: u64, frame: Option<usize>, p: f64) -> Draws {
        let frame = frame.map_or(0, |t| (t as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let key = mix64(mix64(key.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(layer));
        let key = mix64(key ^ frame);
        // 2³² itself, of p = 1, is out of range, and is where the factor is 0.
        Draws { key: (key as u32, (key >> 32) as u32), limit: (p * 4_294_967_296.0) as u32 }
    }

    #[inline(always)]
    fn keep(self, index: u32) -> bool {
        mix32(mix32(index ^ self.key.0).wrapping_add(self.key.1)) >= self.limit
    }
}

/// y (+)= keep ? factor · x : 0, for elements from `first` on; a pattern, when given, says what is kept instead.
#[inline(always)]
fn body<E: Real>(draws: Draws, first: u32, factor: E, x: &[E], accumulate: bool, y: &mut [E]) {
    for (i, (x, y)) in x.iter().zip(y).enumerate() {
        let kept = if draws.keep(first.wrapping_add(i as u32)) { factor * *x } else { E::ZERO };
        *y = if accumulate { *y + kept } else { kept };
    }
}

/// y (+)= factor\[c\] = 0 ? 0 : factor\[c\] · x.
#[inline(always)]
fn pattern_body<E: Real>(pattern: &Pattern<E, 1>, x: &[E], accumulate: bool, y: &mut [E]) {
    for part in pattern.parts(y.len()) {
        let y = &mut y[part.clone()];
        for ((x, factor), y) in x[part].iter().zip(&pattern.values[0]).zip(y) {
            let kept = if *factor == E::ZERO { E::ZERO } else { *factor * *x };
            *y = if accumulate { *y + kept } else { kept };
        }
    }
}

/// Elements that are copied before they are overwritten in place.
const BLOCK: usize = 256;

/// What one task works on: a run of one clip's elements in one frame.
#[derive(Clone, Copy)]
struct Run<'a, E> {
    draws: Draws,
    unit: DropoutUnit,
    channels: usize,
    /// The index of the first element in its frame.
    first: usize,
    factor: E,
    x: Option<&'a [E]>,
    accumulate: bool,
}

#[inline(always)]
fn run_body<E: Real>(run: Run<'_, E>, y: &mut [E]) {
    match run.unit {
        DropoutUnit::Element | DropoutUnit::ElementOfEveryFrame => {
            let mut held = [E::ZERO; BLOCK];
            for (i, y) in y.chunks_mut(BLOCK).enumerate() {
                let held = &mut held[..y.len()];
                held.copy_from_slice(run.x.map_or(&*y, |x| &x[i * BLOCK..][..y.len()]));
                body(run.draws, (run.first + i * BLOCK) as u32, run.factor, held, run.accumulate, y);
            }
        }
        DropoutUnit::FrameChannel | DropoutUnit::ClipChannel => {
            for first in Pattern::<E, 1>::runs(run.channels) {
                let pattern = Pattern::<E, 1>::new(run.channels, first, |channels, [factors]| {
                    for (factor, c) in factors.iter_mut().zip(channels) {
                        *factor = if run.draws.keep(c as u32) { run.factor } else { E::ZERO };
                    }
                });
                match run.x {
                    Some(x) => pattern_body(&pattern, x, run.accumulate, y),
                    None => {
                        for part in pattern.parts(y.len()) {
                            let mut held = [E::ZERO; PATTERN];
                            let held = &mut held[..part.len()];
                            held.copy_from_slice(&y[part.clone()]);
                            for ((x, factor), y) in held.iter().zip(&pattern.values[0]).zip(&mut y[part]) {
                                *y = if *factor == E::ZERO { E::ZERO } else { *factor * *x };
                            }
                        }
                    }
                }
            }
        }
    }
}

fn dropout<E: Real>(
    s: &DropoutShape,
    args: DropoutArgs<'_, E>,
    pool: &Pool,
    body: impl Fn(Run<'_, E>, &mut [E]) + Sync,
) {
    assert_eq!(args.keys.len(), s.clips, "keys: {s:?}");
    assert_eq!(args.y.len(), s.len(), "y: {s:?}");
    assert!(args.x.is_none_or(|x| x.len() == s.len()), "x: {s:?}");
    assert!(args.x.is_some() || !args.accumulate, "y cannot hold x and be added to");
    assert!((0.0..=1.0).contains(&args.p), "p {}", args.p);
    let plane = s.positions * s.channels;
    assert!(u32::try_from(plane).is_ok(), "a frame has too many elements: {s:?}");
    if plane == 0 {
        return;
    }
    let factor = E::from_f64(if args.p < 1.0 { 1.0 / (1.0 - args.p) } else { 0.0 });
    let rows = (CHUNK / s.channels).clamp(1, s.positions);
    let tasks = s.positions.div_ceil(rows);
    let y = SharedMut::new(args.y);
    pool.run(s.frames * s.clips * tasks, &|task| {
        let (slab, first) = (task.index / tasks, task.index % tasks * rows * s.channels);
        let (frame, clip) = (args.first_frame + slab / s.clips, slab % s.clips);
        let range = slab * plane + first..slab * plane + (first + rows * s.channels).min(plane);
        let frame = (!s.unit.same_in_every_frame()).then_some(frame);
        let run = Run {
            draws: Draws::new(args.keys[clip], args.layer, frame, args.p),
            unit: s.unit,
            channels: s.channels,
            first,
            factor,
            x: args.x.map(|x| &x[range.clone()]),
            accumulate: args.accumulate,
        };
        // SAFETY: runs of different tasks are disjoint, and each task runs once.
        body(run, unsafe { y.part(range) });
    });
}

compiled_tables! {
    DROPOUT_F32, DROPOUT_F64: Dropout, scratch: no_scratch,
    names: ["dropout_f32__avx512", "dropout_f32__avx2", "dropout_f32__scalar", "dropout_f64__scalar"],
    dropout(run_body: (run: Run<'_, f32>, y: &mut [f32]))
}
