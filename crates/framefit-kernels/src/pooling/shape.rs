//! Shapes of poolings.

use super::geometry::{Axis, Geometry, Windows};
use crate::conv::{Dims3, Window, extent, reads};

/// One pooling over the output frames `y.lo..y.hi`.
///
/// x: \[x.lo..x.hi, N, H, W, C\] → y: \[y.lo..y.hi, N, H', W', C\]
///
/// Output o covers the inputs `o·s − p + j` for j in `0..k`, on each axis; what lies outside the clip is padding.
/// p is at most k/2. The last window of an axis may stick out at the end, as PyTorch's `ceil_mode` and Keras's
/// `padding="same"` make it, so long as every window covers an input. The slab x must hold every frame that the
/// outputs `y.lo..y.hi` cover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// N.
    pub clips: usize,
    /// C.
    pub channels: usize,
    /// T, H, W of the whole clip.
    pub input: Dims3,
    /// T', H', W' of the whole clip.
    pub output: Dims3,
    /// k.
    pub kernel: Dims3,
    /// s.
    pub stride: Dims3,
    /// p, at the start; what the last window needs at the end.
    pub padding: Dims3,
    /// The input frames held in x.
    pub x: Window,
    /// The output frames held in y.
    pub y: Window,
}

impl PoolShape {
    /// The output sizes, rounded down as PyTorch's without `ceil_mode`.
    pub fn output_of(input: Dims3, kernel: Dims3, stride: Dims3, padding: Dims3) -> Dims3 {
        each(|of| extent(of(input), of(kernel), of(stride), of(padding), 1))
    }

    /// The output sizes, rounded up as PyTorch's with `ceil_mode`: the last window starts inside the clip or the
    /// padding before it.
    pub fn output_rounded_up(input: Dims3, kernel: Dims3, stride: Dims3, padding: Dims3) -> Dims3 {
        each(|of| {
            let (n, k, s, p) = (of(input), of(kernel), of(stride), of(padding));
            let outputs = (n + 2 * p).saturating_sub(k).div_ceil(s) + 1;
            if (outputs - 1) * s >= n + p { outputs - 1 } else { outputs }
        })
    }

    /// The input frames that the outputs `y` cover.
    pub fn reads(&self) -> Window {
        reads(self.input.t, self.y, self.kernel.t, self.stride.t, self.padding.t, 1)
    }

    /// Elements of the slab x.
    pub fn x_len(&self) -> usize {
        self.x.frames() * self.clips * self.input.h * self.input.w * self.channels
    }

    /// Elements of the slab y.
    pub fn y_len(&self) -> usize {
        self.y.frames() * self.clips * self.output.h * self.output.w * self.channels
    }

    fn check(&self) {
        let least = Self::output_of(self.input, self.kernel, self.stride, self.padding);
        for of in AXES {
            let (k, s, p, outputs) = (of(self.kernel), of(self.stride), of(self.padding), of(self.output));
            assert!(k >= 1 && s >= 1, "{self:?}");
            assert!(2 * p <= k, "padding must be at most half the kernel: {self:?}");
            assert!(outputs >= of(least), "the output must be at least {least:?}: {self:?}");
            let covers = outputs == 0 || (p < k && (outputs - 1) * s < of(self.input) + p);
            assert!(covers, "the last window must cover an input: {self:?}");
        }
        check_windows(self, self.input, self.output, (self.x, self.y), self.reads());
    }
}

impl Windows for PoolShape {
    fn geometry(&self) -> Geometry {
        self.check();
        let axis = |of: fn(Dims3) -> usize| Axis::Strided {
            kernel: of(self.kernel),
            stride: of(self.stride),
            padding: of(self.padding),
            inputs: of(self.input),
        };
        Geometry {
            clips: self.clips,
            channels: self.channels,
            input: self.input,
            output: self.output,
            t: axis(AXES[0]),
            h: axis(AXES[1]),
            w: axis(AXES[2]),
            x: self.x,
            y: self.y,
        }
    }
}

/// What the sum over a window is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Divisor {
    /// The window's size, padding counted, but not what sticks out beyond the padding: PyTorch's
    /// `count_include_pad=True`.
    WithPadding,
    /// The number of inputs in the window: PyTorch's `count_include_pad=False`, and Keras.
    Inputs,
    /// This number: PyTorch's `divisor_override`.
    Fixed(usize),
}

/// One average pooling over the output frames `y.lo..y.hi`, as PyTorch's `AvgPool3d`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolShape {
    /// Sizes and windows.
    pub pool: PoolShape,
    /// What the sum over a window is divided by.
    pub divisor: Divisor,
}

impl Windows for AvgPoolShape {
    fn geometry(&self) -> Geometry {
        assert!(self.divisor != Divisor::Fixed(0), "{self:?}");
        self.pool.geometry()
    }
}

/// One adaptive pooling over the output frames `y.lo..y.hi`, as PyTorch's `AdaptiveAvgPool3d` and
/// `AdaptiveMaxPool3d`.
///
/// x: \[x.lo..x.hi, N, H, W, C\] → y: \[y.lo..y.hi, N, H', W', C\]
///
/// Output o of O covers the inputs `⌊o·I/O⌋ .. ⌈(o+1)·I/O⌉` of I, on each axis. The slab x must hold every frame
/// that the outputs `y.lo..y.hi` cover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveShape {
    /// N.
    pub clips: usize,
    /// C.
    pub channels: usize,
    /// T, H, W of the whole clip.
    pub input: Dims3,
    /// T', H', W' of the whole clip.
    pub output: Dims3,
    /// The input frames held in x.
    pub x: Window,
    /// The output frames held in y.
    pub y: Window,
}

impl AdaptiveShape {
    /// The input frames that the outputs `y` cover.
    pub fn reads(&self) -> Window {
        Axis::Adaptive { inputs: self.input.t, outputs: self.output.t }.reads(self.y)
    }

    /// Elements of the slab x.
    pub fn x_len(&self) -> usize {
        self.x.frames() * self.clips * self.input.h * self.input.w * self.channels
    }

    /// Elements of the slab y.
    pub fn y_len(&self) -> usize {
        self.y.frames() * self.clips * self.output.h * self.output.w * self.channels
    }
}

impl Windows for AdaptiveShape {
    fn geometry(&self) -> Geometry {
        let axis = |of: fn(Dims3) -> usize| {
            let (inputs, outputs) = (of(self.input), of(self.output));
            assert!(inputs >= 1 && outputs >= 1, "{self:?}");
            Axis::Adaptive { inputs, outputs }
        };
        let (t, h, w) = (axis(AXES[0]), axis(AXES[1]), axis(AXES[2]));
        check_windows(self, self.input, self.output, (self.x, self.y), self.reads());
        let (clips, channels) = (self.clips, self.channels);
        Geometry { clips, channels, input: self.input, output: self.output, t, h, w, x: self.x, y: self.y }
    }
}

/// The sizes along time, height and width.
const AXES: [fn(Dims3) -> usize; 3] = [|d| d.t, |d| d.h, |d| d.w];

fn each(size: impl Fn(fn(Dims3) -> usize) -> usize) -> Dims3 {
    Dims3 { t: size(AXES[0]), h: size(AXES[1]), w: size(AXES[2]) }
}

fn check_windows(shape: &dyn std::fmt::Debug, input: Dims3, output: Dims3, (x, y): (Window, Window), reads: Window) {
    assert!(x.lo <= x.hi && x.hi <= input.t, "x leaves the clip: {shape:?}");
    assert!(y.lo <= y.hi && y.hi <= output.t, "y leaves the clip: {shape:?}");
    let holds = reads.frames() == 0 || (x.lo <= reads.lo && reads.hi <= x.hi);
    assert!(holds, "y covers {reads:?}, which x does not hold: {shape:?}");
}
