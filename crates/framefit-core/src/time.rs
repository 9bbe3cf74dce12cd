//! The time arithmetic of an op: which output frames the input frames so far allow, and which input frames
//! are still needed.
//!
//! Output o of a [`TimeMap`] reads inputs `o·s − p ..= o·s − p + d(k−1)`, clipped to `0..frames`; an adaptive one
//! reads `⌊o·T/T'⌋..⌈(o+1)·T/T'⌉`, as PyTorch's `AdaptiveAvgPool3d`.

use crate::axes::Window;

/// A windowed op along time with kernel k, stride s, padding p and dilation d over a clip of T frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeMap {
    /// k.
    pub kernel: usize,
    /// s, at least 1.
    pub stride: usize,
    /// p, on the left; what the right side needs follows from `outputs`.
    pub padding: usize,
    /// d, at least 1.
    pub dilation: usize,
    /// T, the frames of the whole input clip.
    pub frames: usize,
    /// T', the frames of the whole output clip.
    pub outputs: usize,
    /// Whether the windows follow from T and T' alone; k, s, p and d then count for nothing.
    pub adaptive: bool,
}

impl TimeMap {
    /// Output t reads input t.
    pub const fn identity(frames: usize) -> Self {
        Self { kernel: 1, stride: 1, padding: 0, dilation: 1, frames, outputs: frames, adaptive: false }
    }

    /// One output that reads every frame.
    pub const fn whole(frames: usize) -> Self {
        Self { kernel: frames, stride: 1, padding: 0, dilation: 1, frames, outputs: 1, adaptive: false }
    }

    /// As many outputs as inputs, each of which reads every frame: a barrier.
    pub const fn barrier(frames: usize) -> Self {
        let others = frames.saturating_sub(1);
        let kernel = 2 * others + 1;
        Self { kernel, stride: 1, padding: others, dilation: 1, frames, outputs: frames, adaptive: false }
    }

    /// Windows that share the frames out among the outputs, as evenly as they go.
    pub const fn adaptive(frames: usize, outputs: usize) -> Self {
        Self { kernel: 1, stride: 1, padding: 0, dilation: 1, frames, outputs, adaptive: true }
    }

    const fn reach(&self) -> usize {
        self.dilation * (self.kernel - 1)
    }

    /// Outputs that can be made once inputs `0..hi` have arrived.
    pub fn emit(&self, hi: usize) -> usize {
        if hi >= self.frames { self.outputs } else { self.emit_going_on(hi) }
    }

    /// The same where it is not known that the clip ends with these inputs.
    pub fn emit_going_on(&self, hi: usize) -> usize {
        if self.adaptive {
            return (hi * self.outputs).checked_div(self.frames).unwrap_or(0);
        }
        match (hi + self.padding).checked_sub(1 + self.reach()) {
            Some(last) => (last / self.stride + 1).min(self.outputs),
            None => 0,
        }
    }

    /// The first input that is still needed once outputs `0..made` exist.
    pub fn keep(&self, made: usize) -> usize {
        if made >= self.outputs {
            return self.frames;
        }
        if self.adaptive {
            return made * self.frames / self.outputs;
        }
        (made * self.stride).saturating_sub(self.padding).min(self.frames)
    }

    /// The inputs that outputs `window` read, clipped to the clip.
    pub fn reads(&self, window: Window) -> Window {
        if window.is_empty() {
            return Window { lo: 0, hi: 0 };
        }
        if self.adaptive {
            let lo = window.lo * self.frames / self.outputs;
            return Window { lo, hi: (window.hi * self.frames).div_ceil(self.outputs).min(self.frames) };
        }
        let lo = (window.lo * self.stride).saturating_sub(self.padding).min(self.frames);
        let last = ((window.hi - 1) * self.stride + self.reach() + 1).saturating_sub(self.padding);
        Window { lo, hi: last.clamp(lo, self.frames) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> impl Iterator<Item = TimeMap> {
        let mut all = Vec::new();
        for frames in 1..12usize {
            for kernel in 1..4usize {
                for stride in 1..4 {
                    for padding in 0..=kernel {
                        for dilation in 1..3 {
                            let span = dilation * (kernel - 1) + 1;
                            if frames + 2 * padding < span {
                                continue;
                            }
                            let outputs = (frames + 2 * padding - span) / stride + 1;
                            let map = TimeMap { kernel, stride, padding, dilation, frames, outputs, adaptive: false };
                            all.push(map);
                            // A last window that sticks out, as with PyTorch's `ceil_mode`.
                            if outputs * stride < frames + padding {
                                all.push(TimeMap { outputs: outputs + 1, ..map });
                            }
                        }
                    }
                }
            }
        }
        all.into_iter()
    }

    fn taps(map: &TimeMap, output: usize) -> Vec<usize> {
        (0..map.kernel)
            .filter_map(|j| (output * map.stride + j * map.dilation).checked_sub(map.padding))
            .filter(|&t| t < map.frames)
            .collect()
    }

    /// Output o of an adaptive map reads ⌊o·T/T'⌋..⌈(o+1)·T/T'⌉, here without dividing.
    fn adaptive_taps(map: &TimeMap, output: usize) -> Vec<usize> {
        let (start, end) = (output * map.frames, (output + 1) * map.frames);
        (0..map.frames).filter(|t| (t + 1) * map.outputs > start && t * map.outputs < end).collect()
    }

    #[test]
    fn adaptive_windows_emit_keep_and_read_what_their_outputs_need() {
        for frames in 1..14usize {
            for outputs in 1..18 {
                let map = TimeMap::adaptive(frames, outputs);
                for hi in 0..=frames {
                    let ready = (0..outputs).take_while(|&o| adaptive_taps(&map, o).iter().all(|&t| t < hi)).count();
                    assert_eq!(map.emit(hi), ready, "{map:?} after {hi}");
                }
                for made in 0..=outputs {
                    let first_read = (made..outputs).flat_map(|o| adaptive_taps(&map, o)).min();
                    assert_eq!(map.keep(made), first_read.unwrap_or(frames), "{map:?} with {made} made");
                }
                for lo in 0..outputs {
                    for hi in lo + 1..=outputs {
                        let all: Vec<usize> = (lo..hi).flat_map(|o| adaptive_taps(&map, o)).collect();
                        let (first, last) = (all.iter().min().unwrap(), all.iter().max().unwrap());
                        assert_eq!(map.reads(Window { lo, hi }), Window { lo: *first, hi: last + 1 }, "{map:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_barrier_makes_nothing_before_the_last_frame_and_reads_all_of_them() {
        for frames in 1..8 {
            let map = TimeMap::barrier(frames);
            for t in 0..frames {
                assert_eq!((map.emit(t), map.keep(t)), (0, 0));
                assert_eq!(map.reads(Window { lo: t, hi: t + 1 }), Window::whole(frames));
            }
            assert_eq!((map.emit(frames), map.keep(frames)), (frames, frames));
        }
    }

    #[test]
    fn emit_is_the_longest_prefix_that_reads_only_arrived_frames() {
        for map in maps() {
            for hi in 0..=map.frames {
                let ready = (0..map.outputs)
                    .take_while(|&o| {
                        hi == map.frames || o * map.stride + map.dilation * (map.kernel - 1) < hi + map.padding
                    })
                    .count();
                assert_eq!(map.emit(hi), ready, "{map:?} after {hi}");
                for output in 0..map.emit(hi) {
                    assert!(taps(&map, output).iter().all(|&t| t < hi), "{map:?} {output} after {hi}");
                }
            }
        }
    }

    #[test]
    fn keep_never_drops_a_frame_that_a_later_output_reads() {
        for map in maps() {
            for made in 0..=map.outputs {
                let first_read = (made..map.outputs).flat_map(|o| taps(&map, o)).min();
                assert!(first_read.is_none_or(|t| map.keep(made) <= t), "{map:?} with {made} made");
            }
        }
    }

    #[test]
    fn reads_covers_exactly_the_taps() {
        for map in maps() {
            for lo in 0..map.outputs {
                for hi in lo + 1..=map.outputs {
                    let reads = map.reads(Window { lo, hi });
                    let all: Vec<usize> = (lo..hi).flat_map(|o| taps(&map, o)).collect();
                    for &t in &all {
                        assert!(reads.lo <= t && t < reads.hi, "{map:?} {lo}..{hi} reads {t}, says {reads}");
                    }
                    if let (Some(&first), Some(&last)) = (all.iter().min(), all.iter().max()) {
                        assert!(reads.lo <= first && reads.hi > last);
                    }
                }
            }
        }
    }
}
