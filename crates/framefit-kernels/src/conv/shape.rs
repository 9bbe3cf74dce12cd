//! Shapes of convolutions.

/// Sizes over time, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dims3 {
    /// Time.
    pub t: usize,
    /// Height.
    pub h: usize,
    /// Width.
    pub w: usize,
}

impl Dims3 {
    /// The same size on all three axes.
    pub const fn cube(size: usize) -> Dims3 {
        Dims3 { t: size, h: size, w: size }
    }

    /// t · h · w.
    pub const fn volume(self) -> usize {
        self.t * self.h * self.w
    }
}

/// The half-open range of frames of a value that a slab holds, in the value's own time axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The first frame held.
    pub lo: usize,
    /// One past the last frame held.
    pub hi: usize,
}

impl Window {
    /// The number of frames held.
    pub const fn frames(self) -> usize {
        self.hi.saturating_sub(self.lo)
    }

    /// Whether the frame is held.
    pub const fn contains(self, frame: usize) -> bool {
        self.lo <= frame && frame < self.hi
    }
}

/// One convolution over the output frames `y.lo..y.hi`.
///
/// x: \[x.lo..x.hi, N, H, W, C\], w: \[K, kT, kH, kW, C/groups\], bias: \[K\] → y: \[y.lo..y.hi, N, H', W', K\]
///
/// Output index o reads the inputs `o·s − p + d·j` for j in `0..k`, on each axis; outside `0..T` (H, W) lies
/// zero padding, at the end as much as the outputs need, which may be more or less than at the start: Keras's
/// `padding="same"`. The slab x must hold every other frame that the outputs `y.lo..y.hi` read. Groups divide C
/// and K: group g joins the input channels `g·C/groups..` with the output channels `g·K/groups..`. Else as PyTorch's
/// `Conv3d`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// N.
    pub clips: usize,
    /// C.
    pub channels: usize,
    /// K.
    pub out_channels: usize,
    /// Divides C and K.
    pub groups: usize,
    /// T, H, W of the whole clip.
    pub input: Dims3,
    /// T', H', W' of the whole clip.
    pub output: Dims3,
    /// kT, kH, kW.
    pub kernel: Dims3,
    /// s.
    pub stride: Dims3,
    /// p, at the start; what the last output needs at the end.
    pub padding: Dims3,
    /// d; 1 is a dense kernel.
    pub dilation: Dims3,
    /// The input frames held in x.
    pub x: Window,
    /// The output frames held in y.
    pub y: Window,
}

/// ⌊(n + 2p − d(k−1) − 1)/s⌋ + 1, or 0 where the kernel does not fit.
pub(crate) fn extent(n: usize, k: usize, s: usize, p: usize, d: usize) -> usize {
    (n + 2 * p).checked_sub(d * (k - 1) + 1).map_or(0, |free| free / s + 1)
}

/// The input frames, of `0..frames`, that the outputs `y` read.
pub(crate) fn reads(frames: usize, y: Window, k: usize, s: usize, p: usize, d: usize) -> Window {
    if y.frames() == 0 {
        return Window { lo: 0, hi: 0 };
    }
    let lo = (y.lo * s).saturating_sub(p).min(frames);
    let hi = ((y.hi - 1) * s + d * (k - 1) + 1).saturating_sub(p).min(frames);
    Window { lo, hi: hi.max(lo) }
}

impl ConvShape {
    /// The output sizes that input, kernel, stride, dilation and the same padding on both sides give.
    pub fn output_of(input: Dims3, kernel: Dims3, stride: Dims3, padding: Dims3, dilation: Dims3) -> Dims3 {
        Dims3 {
            t: extent(input.t, kernel.t, stride.t, padding.t, dilation.t),
            h: extent(input.h, kernel.h, stride.h, padding.h, dilation.h),
            w: extent(input.w, kernel.w, stride.w, padding.w, dilation.w),
        }
    }

    /// The input frames that the outputs `y` read, padding apart.
    pub fn reads(&self) -> Window {
        reads(self.input.t, self.y, self.kernel.t, self.stride.t, self.padding.t, self.dilation.t)
    }

    /// C/groups.
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// K/groups.
    pub fn group_out_channels(&self) -> usize {
        self.out_channels / self.groups
    }

    /// Elements of the slab x.
    pub fn x_len(&self) -> usize {
        self.x.frames() * self.clips * self.input.h * self.input.w * self.channels
    }

    /// Elements of the slab y.
    pub fn y_len(&self) -> usize {
        self.y.frames() * self.clips * self.output.h * self.output.w * self.out_channels
    }

    /// Elements of w.
    pub fn weight_len(&self) -> usize {
        self.out_channels * self.kernel.volume() * self.group_channels()
    }

    /// Floating-point operations of one pass (forward, or either gradient), padding counted as work.
    pub fn flops(&self) -> u64 {
        2 * self.y_len() as u64 * (self.kernel.volume() * self.group_channels()) as u64
    }

    /// Panics unless the shape is consistent: sizes at least one, groups dividing, windows inside their axes, x
    /// holding what y reads.
    pub(crate) fn check(&self) {
        let each = |d: Dims3| d.t >= 1 && d.h >= 1 && d.w >= 1;
        assert!(each(self.kernel) && each(self.stride) && each(self.dilation), "{self:?}");
        assert!(
            self.groups >= 1
                && self.channels.is_multiple_of(self.groups)
                && self.out_channels.is_multiple_of(self.groups),
            "groups must divide the channels: {self:?}"
        );
        assert!(self.x.lo <= self.x.hi && self.x.hi <= self.input.t, "x leaves the clip: {self:?}");
        assert!(self.y.lo <= self.y.hi && self.y.hi <= self.output.t, "y leaves the clip: {self:?}");
        let reads = self.reads();
        assert!(
            reads.frames() == 0 || (self.x.lo <= reads.lo && reads.hi <= self.x.hi),
            "y reads {reads:?}, which x does not hold: {self:?}"
        );
    }
}
