//! Resizing of frames: area averaging along an axis that shrinks, bilinear along one that grows.
//!
//! Both sample with the pixel centres aligned (OpenCV's INTER_AREA and INTER_LINEAR). Weights are made once per pair
//! of sizes; a frame is resized without allocating.

use super::clip::FrameSize;

/// Where one output line or column reads from, and with which weights.
struct Taps {
    first: usize,
    /// Position of its weights.
    weights: std::ops::Range<usize>,
}

/// One axis.
struct Axis {
    taps: Vec<Taps>,
    weights: Vec<f32>,
}

impl Axis {
    fn new(from: usize, to: usize) -> Self {
        let mut axis = Self { taps: Vec::with_capacity(to), weights: Vec::new() };
        let scale = from as f64 / to as f64;
        for i in 0..to {
            let start = axis.weights.len();
            let first = if from > to {
                let (lo, hi) = (i as f64 * scale, ((i + 1) as f64 * scale).min(from as f64));
                let first = lo.floor() as usize;
                let last = (hi.ceil() as usize).clamp(first + 1, from);
                let covered = (first..last).map(|x| ((hi.min((x + 1) as f64) - lo.max(x as f64)) / (hi - lo)) as f32);
                axis.weights.extend(covered);
                first
            } else {
                let centre = ((i as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
                let first = (centre.floor() as usize).min(from.saturating_sub(2));
                let share = (centre - first as f64) as f32;
                match from {
                    1 => axis.weights.push(1.0),
                    _ => axis.weights.extend([1.0 - share, share]),
                }
                first
            };
            axis.taps.push(Taps { first, weights: start..axis.weights.len() });
        }
        axis
    }

    fn bytes(from: usize, to: usize) -> u64 {
        // Every source position is read by at most two neighbouring outputs when shrinking; two reads when growing.
        let weights = if from > to { from + 2 * to } else { 2 * to };
        (to * size_of::<Taps>() + weights.next_power_of_two() * size_of::<f32>()) as u64
    }
}

/// Resizes frames of one size to another.
pub(crate) struct Resizer {
    from: FrameSize,
    channels: usize,
    rows: Axis,
    columns: Axis,
    /// One output row at the source's width, `[W][C]`.
    line: Vec<f32>,
}

impl Resizer {
    /// `None` if there is nothing to do.
    pub(crate) fn new(from: FrameSize, to: FrameSize, channels: usize) -> Option<Self> {
        (from != to).then(|| Self {
            from,
            channels,
            rows: Axis::new(from.height, to.height),
            columns: Axis::new(from.width, to.width),
            line: vec![0.0; from.width * channels],
        })
    }

    /// Upper bound of what [`Resizer::new`] allocates.
    pub(crate) fn bytes(from: FrameSize, to: FrameSize, channels: usize) -> u64 {
        if from == to {
            return 0;
        }
        let line = (from.width * channels * size_of::<f32>()) as u64;
        Axis::bytes(from.height, to.height) + Axis::bytes(from.width, to.width) + line
    }

    /// Whether this resizes frames of that size.
    pub(crate) fn takes(&self, from: FrameSize) -> bool {
        self.from == from
    }

    /// As [`Resizer::run`], or a copy where there is nothing to resize.
    pub(crate) fn fit(resizer: Option<&mut Self>, frame: &[u8], out: &mut [u8]) {
        match resizer {
            Some(resizer) => resizer.run(frame, out),
            None if frame.len() == out.len() => out.copy_from_slice(frame),
            None => {}
        }
    }

    /// frame: `[H][W][C]` → out: `[H'][W'][C]`.
    pub(crate) fn run(&mut self, frame: &[u8], out: &mut [u8]) {
        let stride = self.from.width * self.channels;
        let out_stride = self.columns.taps.len() * self.channels;
        for (taps, out) in self.rows.taps.iter().zip(out.chunks_exact_mut(out_stride)) {
            self.line.fill(0.0);
            let weights = self.rows.weights.get(taps.weights.clone()).unwrap_or_default();
            let rows = frame.chunks_exact(stride).skip(taps.first);
            for (row, weight) in rows.zip(weights) {
                for (sum, level) in self.line.iter_mut().zip(row) {
                    *sum += weight * f32::from(*level);
                }
            }
            match self.channels {
                3 => columns::<3>(&self.columns, &self.line, out),
                _ => columns::<1>(&self.columns, &self.line, out),
            }
        }
    }
}

/// line: `[W][C]` → out: `[W'][C]`.
fn columns<const C: usize>(axis: &Axis, line: &[f32], out: &mut [u8]) {
    let (line, _) = line.as_chunks::<C>();
    let (out, _) = out.as_chunks_mut::<C>();
    for (taps, out) in axis.taps.iter().zip(out) {
        let weights = axis.weights.get(taps.weights.clone()).unwrap_or_default();
        let mut sum = [0.5f32; C];
        for (pixel, weight) in line.iter().skip(taps.first).zip(weights) {
            for (sum, level) in sum.iter_mut().zip(pixel) {
                *sum += weight * level;
            }
        }
        // The conversion saturates.
        *out = sum.map(|level| level as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(from: (usize, usize), to: (usize, usize), channels: usize, frame: &[u8]) -> Vec<u8> {
        let size = |(height, width)| FrameSize { height, width };
        let mut out = vec![0; to.0 * to.1 * channels];
        Resizer::new(size(from), size(to), channels).unwrap().run(frame, &mut out);
        out
    }

    #[test]
    fn whole_factors_average_blocks() {
        let frame = [10, 20, 30, 50, 10, 20, 30, 50];
        assert_eq!(resized((2, 4), (1, 2), 1, &frame), [15, 40]);
        assert_eq!(resized((2, 4), (1, 1), 1, &frame), [28]);
    }

    #[test]
    fn a_pixel_on_a_border_is_shared() {
        // Three columns to two: the middle one goes half to each side.
        assert_eq!(resized((1, 3), (1, 2), 1, &[0, 90, 240]), [30, 190]);
    }

    #[test]
    fn enlarging_interpolates_between_centres() {
        assert_eq!(resized((1, 2), (1, 4), 1, &[0, 100]), [0, 25, 75, 100]);
        assert_eq!(resized((1, 1), (3, 2), 3, &[1, 2, 3]), [1, 2, 3].repeat(6));
    }

    #[test]
    fn a_flat_frame_stays_flat_at_any_size() {
        for (from, to) in [((7, 5), (3, 4)), ((5, 7), (9, 2)), ((1, 9), (8, 1)), ((135, 240), (134, 241))] {
            for level in [0, 1, 127, 255] {
                let frame = vec![level; from.0 * from.1 * 3];
                assert!(resized(from, to, 3, &frame).iter().all(|got| *got == level), "{from:?} {to:?} {level}");
            }
        }
    }

    #[test]
    fn the_bound_covers_what_is_allocated() {
        for (from, to) in [(7, 3), (640, 64), (641, 64), (64, 63), (3, 7), (1, 5), (1080, 224), (2, 1)] {
            let axis = Axis::new(from, to);
            let held = axis.taps.capacity() * size_of::<Taps>() + axis.weights.capacity() * size_of::<f32>();
            assert!(held as u64 <= Axis::bytes(from, to), "{from} {to}");
        }
    }
}
