//! One axis of a convolution, as an affine map from outputs and taps to inputs.
//!
//! The forward pass and the gradient by the input are both sums over taps of `in[in_first + q·in_step +
//! j·in_dilation]`, written to `out[out_first + q·out_step]`. With stride s, the gradient by the input falls
//! apart into s such sums per axis, one per remainder of the input index by s.

use std::ops::Range;

use super::ConvShape;

/// The positions `q` in `0..count` and the taps `j` in `0..taps` of one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) count: usize,
    /// The output index of position 0.
    pub(super) out_first: usize,
    pub(super) out_step: usize,
    /// The input index of position 0 at tap 0; may lie before the input.
    pub(super) in_first: isize,
    pub(super) in_step: usize,
    pub(super) in_dilation: usize,
    pub(super) taps: usize,
    /// The kernel index of tap j is tap_first + j·tap_step.
    pub(super) tap_first: usize,
    pub(super) tap_step: isize,
    /// Inputs outside are zero.
    pub(super) valid_lo: isize,
    pub(super) valid_hi: isize,
}

/// The numbers of a convolution on one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
}

impl Axis {
    /// Outputs `outputs` of a forward pass over `0..inputs`.
    pub(super) fn forward(numbers: Numbers, outputs: Range<usize>, inputs: usize) -> Axis {
        let Numbers { kernel, stride, padding, dilation } = numbers;
        Axis {
            count: outputs.len(),
            out_first: outputs.start,
            out_step: 1,
            in_first: (outputs.start * stride) as isize - padding as isize,
            in_step: stride,
            in_dilation: dilation,
            taps: kernel,
            tap_first: 0,
            tap_step: 1,
            valid_lo: 0,
            valid_hi: inputs as isize,
        }
    }

    /// The inputs, of `inputs`, whose remainder by the stride is `phase`, as sums over the outputs `outputs`.
    pub(super) fn backward(numbers: Numbers, phase: usize, inputs: Range<usize>, outputs: Range<usize>) -> Axis {
        let Numbers { kernel, stride, padding, dilation } = numbers;
        let first = inputs.start + (phase + stride - inputs.start % stride) % stride;
        let step = stride / gcd(stride, dilation);
        let meets = |j: usize| (first as isize + padding as isize - (dilation * j) as isize) % stride as isize == 0;
        let lowest = (0..kernel.min(step)).find(|j| meets(*j));
        let taps = lowest.map_or(0, |j| (kernel - 1 - j) / step + 1);
        // Taps run backwards, so that inputs of the sum run forwards.
        let last = lowest.map_or(0, |j| j + (taps - 1) * step);
        let reached = first as isize + padding as isize - (dilation * last) as isize;
        Axis {
            count: inputs.end.saturating_sub(first).div_ceil(stride),
            out_first: first,
            out_step: stride,
            in_first: if taps == 0 { 0 } else { reached / stride as isize },
            in_step: 1,
            in_dilation: dilation * step / stride,
            taps,
            tap_first: last,
            tap_step: -(step as isize),
            valid_lo: outputs.start as isize,
            valid_hi: outputs.end as isize,
        }
    }

    /// The input of position `q` at tap 0.
    pub(super) fn input(&self, q: usize) -> isize {
        self.in_first + (q * self.in_step) as isize
    }

    /// The taps at which position `q` reads valid inputs.
    pub(super) fn valid_taps(&self, q: usize) -> Range<usize> {
        let at = self.input(q);
        let below = |bound: isize| {
            // The number of taps whose input lies below the bound.
            let distance = bound - at;
            if distance <= 0 { 0 } else { (distance as usize).div_ceil(self.in_dilation).min(self.taps) }
        };
        let lo = below(self.valid_lo);
        lo..below(self.valid_hi).max(lo)
    }

    /// The positions that read valid inputs alone: a range, as they are those with first and last tap inside.
    pub(super) fn interior(&self) -> Range<usize> {
        if self.taps == 0 {
            return 0..self.count;
        }
        let reach = ((self.taps - 1) * self.in_dilation) as isize;
        self.positions(self.valid_lo, self.valid_hi - reach)
    }

    /// The positions whose input at tap `j` is valid.
    pub(super) fn positions_of(&self, j: usize) -> Range<usize> {
        let offset = (j * self.in_dilation) as isize;
        self.positions(self.valid_lo - offset, self.valid_hi - offset)
    }

    /// The positions whose input at tap 0 lies in `lo..hi`.
    fn positions(&self, lo: isize, hi: isize) -> Range<usize> {
        let below = |bound: isize| {
            let distance = bound - self.in_first;
            if distance <= 0 { 0 } else { (distance as usize).div_ceil(self.in_step).min(self.count) }
        };
        let first = below(lo);
        first..below(hi).max(first)
    }

    /// The kernel index of tap `j`.
    pub(super) fn tap(&self, j: usize) -> usize {
        (self.tap_first as isize + j as isize * self.tap_step) as usize
    }
}

/// The numbers of the three axes: time, height, width.
pub(super) fn numbers(s: &ConvShape) -> [Numbers; 3] {
    let of = |kernel, stride, padding, dilation| Numbers { kernel, stride, padding, dilation };
    [
        of(s.kernel.t, s.stride.t, s.padding.t, s.dilation.t),
        of(s.kernel.h, s.stride.h, s.padding.h, s.dilation.h),
        of(s.kernel.w, s.stride.w, s.padding.w, s.dilation.w),
    ]
}

/// Every combination of remainders by the strides.
pub(super) fn phases(s: &ConvShape) -> impl Iterator<Item = [usize; 3]> {
    let stride = s.stride;
    (0..stride.volume()).map(move |i| [i / (stride.h * stride.w), i / stride.w % stride.h, i % stride.w])
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every (input, output, tap) that the definition joins is met once by the phases, and no other.
    #[test]
    fn phases_cover_the_transpose() {
        for kernel in 1..5 {
            for stride in 1..5 {
                for dilation in 1..4 {
                    for padding in 0..4 {
                        transpose_of(Numbers { kernel, stride, padding, dilation });
                    }
                }
            }
        }
    }

    fn transpose_of(numbers: Numbers) {
        let Numbers { kernel, stride, padding, dilation } = numbers;
        let (inputs, outputs) = (2..11, 1..9);
        let mut expected = Vec::new();
        for o in outputs.clone() {
            for j in 0..kernel {
                let i = (o * stride + j * dilation).wrapping_sub(padding);
                if inputs.contains(&i) {
                    expected.push((i, o, j));
                }
            }
        }
        expected.sort_unstable();
        let mut met = Vec::new();
        for phase in 0..stride {
            let axis = Axis::backward(numbers, phase, inputs.clone(), outputs.clone());
            for q in 0..axis.count {
                let valid = axis.valid_taps(q);
                assert_eq!(axis.interior().contains(&q), valid == (0..axis.taps), "{axis:?} {q}");
                for j in valid {
                    assert!(axis.positions_of(j).contains(&q), "{axis:?} {q} {j}");
                    let o = axis.input(q) + (j * axis.in_dilation) as isize;
                    met.push((axis.out_first + q * axis.out_step, o as usize, axis.tap(j)));
                }
            }
        }
        met.sort_unstable();
        assert_eq!(met, expected, "{numbers:?}");
    }
}
