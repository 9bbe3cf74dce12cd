//! Loops over rows of channels with numbers of each channel.

use std::ops::Range;

use crate::real::Real;

/// Numbers are laid out for this many channels at most.
pub(crate) const PATTERN: usize = 256;

/// K numbers of each channel of a run of channels, repeated where rows are short so that loops are long.
pub(crate) struct Pattern<E, const K: usize> {
    pub(crate) values: [[E; PATTERN]; K],
    /// The run within `stride` elements of x.
    run: Range<usize>,
    stride: usize,
}

impl<E: Real, const K: usize> Pattern<E, K> {
    /// The runs that cover `channels` channels: the first channel of each.
    pub(crate) fn runs(channels: usize) -> impl Iterator<Item = usize> {
        (0..channels).step_by(PATTERN)
    }

    /// The pattern of the run that begins at channel `first`; `fill` gives the numbers of the channels of a range.
    #[inline(always)]
    pub(crate) fn new(channels: usize, first: usize, fill: impl FnOnce(Range<usize>, &mut [[E; PATTERN]; K])) -> Self {
        let mut values = [[E::ZERO; PATTERN]; K];
        if channels > PATTERN {
            let run = first..(first + PATTERN).min(channels);
            fill(run.clone(), &mut values);
            return Pattern { values, run, stride: channels };
        }
        fill(0..channels, &mut values);
        let used = PATTERN / channels * channels;
        for values in &mut values {
            for i in channels..used {
                values[i] = values[i - channels];
            }
        }
        Pattern { values, run: 0..used, stride: used }
    }

    /// The parts of a slice of `len` elements, whole rows, that the pattern fits; each from its start on.
    #[inline(always)]
    pub(crate) fn parts(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<E, K> {
        let (run, stride) = (self.run.clone(), self.stride);
        (0..len).step_by(stride).map(move |at| at + run.start..(at + run.end).min(len))
    }
}
