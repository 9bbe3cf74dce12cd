//! Axes, shapes and element types.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An axis of a value or of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Axis {
    /// T, frames.
    Time,
    /// H, rows of a frame.
    Height,
    /// W, columns of a frame.
    Width,
    /// C, channels.
    Channel,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axis::Time => "time",
            Axis::Height => "height",
            Axis::Width => "width",
            Axis::Channel => "channel",
        })
    }
}

/// Three extents in the order time, height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dims3 {
    /// Along time, in frames.
    pub t: usize,
    /// Along height, in pixels.
    pub h: usize,
    /// Along width, in pixels.
    pub w: usize,
}

impl Dims3 {
    /// The same extent along all three axes.
    pub const fn cube(n: usize) -> Self {
        Self { t: n, h: n, w: n }
    }

    /// t·h·w, or the largest number there is.
    pub const fn volume(self) -> usize {
        self.t.saturating_mul(self.h).saturating_mul(self.w)
    }

    /// The three extents with their axes.
    pub fn by_axis(self) -> [(Axis, usize); 3] {
        [(Axis::Time, self.t), (Axis::Height, self.h), (Axis::Width, self.w)]
    }
}

impl fmt::Display for Dims3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.t, self.h, self.w)
    }
}

/// A half-open range of frames `lo..hi`, in the time axis of the value that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// First frame.
    pub lo: usize,
    /// One past the last frame.
    pub hi: usize,
}

impl Window {
    /// All of `0..frames`.
    pub const fn whole(frames: usize) -> Self {
        Self { lo: 0, hi: frames }
    }

    /// Number of frames.
    pub const fn len(self) -> usize {
        self.hi - self.lo
    }

    /// Whether it holds no frame.
    pub const fn is_empty(self) -> bool {
        self.hi == self.lo
    }

    /// Whether every frame of `other` is in this window.
    pub const fn contains(self, other: Window) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.lo, self.hi)
    }
}

/// How the layers of a model see a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum View {
    /// Frames of pixels of channels.
    Video,
    /// One vector per clip: all of T, H, W and C, in the order of the framework (PyTorch: C, T, H, W; Keras:
    /// T, H, W, C). Its bytes are those of the video; what reads it meets one slice per frame.
    Flat(Order),
    /// One vector per frame: all of H, W and C, in the order of the framework (PyTorch: C, H, W; Keras: H, W, C).
    /// Its bytes are those of the video.
    FlatFrames(Order),
}

/// The framework whose order of axes a text or a flattened vector uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// N, C, T, H, W.
    PyTorch,
    /// N, T, H, W, C.
    Keras,
}

/// The extents of one clip of a value. N, the clips of a micro-batch, belongs to the schedule.
///
/// In memory a value is `[T][N][H][W][C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// T, H and W.
    pub dims: Dims3,
    /// C.
    pub channels: usize,
    /// Video, or the flattened view of one.
    pub view: View,
}

impl Shape {
    /// A video of `dims` with `channels`.
    pub const fn video(dims: Dims3, channels: usize) -> Self {
        Self { dims, channels, view: View::Video }
    }

    /// One vector of `features` per clip; with one position, every order is the same.
    pub const fn vector(features: usize) -> Self {
        Self { dims: Dims3::cube(1), channels: features, view: View::Flat(Order::PyTorch) }
    }

    /// What a layer of frames makes of this value: a video, or still a vector per frame where each frame of both
    /// is one vector of channels.
    pub(crate) const fn resized(&self, dims: Dims3, channels: usize) -> Self {
        let one_position = dims.h == 1 && dims.w == 1 && self.dims.h == 1 && self.dims.w == 1;
        let view = match self.view {
            View::FlatFrames(order) if one_position => View::FlatFrames(order),
            View::FlatFrames(_) | View::Flat(_) | View::Video => View::Video,
        };
        Self { dims, channels, view }
    }

    /// Values of one frame of one clip: H·W·C.
    pub const fn per_frame(&self) -> usize {
        self.dims.h * self.dims.w * self.channels
    }

    /// Values of one clip: T·H·W·C.
    pub const fn per_clip(&self) -> usize {
        self.dims.t * self.per_frame()
    }

    /// The extents as the user's framework writes them, with the leading N as `clips`.
    pub fn text(&self, order: Order, clips: &str) -> String {
        let Dims3 { t, h, w } = self.dims;
        match (self.view, order) {
            (View::Flat(_), _) => format!("{clips}x{}", self.per_clip()),
            (View::FlatFrames(_), _) => format!("{clips}x{t}x{}", self.per_frame()),
            (View::Video, Order::PyTorch) => format!("{clips}x{}x{t}x{h}x{w}", self.channels),
            (View::Video, Order::Keras) => format!("{clips}x{t}x{h}x{w}x{}", self.channels),
        }
    }
}

/// The type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// Pixels as decoded.
    U8,
    /// Class indices.
    U32,
    /// Single precision.
    F32,
    /// Double precision, for checking gradients.
    F64,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::U32 | DType::F32 => 4,
            DType::F64 => 8,
        }
    }
}
