//! Convolution over time, height and width: forward and both gradients.
//!
//! The pointwise (1×1×1), the per-frame (kT = 1) and the depthwise (groups = C) convolution are shapes of
//! the same kernels.

#[cfg(target_arch = "x86_64")]
mod axis;
#[cfg(target_arch = "x86_64")]
mod dense;
#[cfg(target_arch = "x86_64")]
mod depthwise;
mod scalar;
mod shape;
mod table;

pub use shape::{ConvShape, Dims3, Window};
pub(crate) use shape::{extent, reads};
pub(crate) use table::*;

use crate::table::kernel_row;

/// What a forward convolution reads and writes.
#[derive(Debug)]
pub struct ConvForwardArgs<'a, E> {
    /// x: \[x.lo..x.hi, N, H, W, C\].
    pub x: &'a [E],
    /// w: \[K, kT, kH, kW, C/groups\].
    pub w: &'a [E],
    /// \[K\].
    pub bias: Option<&'a [E]>,
    /// Whether y = max(0, ·), of all that is added up.
    pub relu: bool,
    /// Whether y starts from what it holds instead of zero.
    pub accumulate: bool,
    /// y: \[y.lo..y.hi, N, H', W', K\].
    pub y: &'a mut [E],
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What the gradient of a convolution by its input reads and writes.
#[derive(Debug)]
pub struct ConvInputGradientArgs<'a, E> {
    /// dy: \[y.lo..y.hi, N, H', W', K\]; frames outside `y` are taken as zero.
    pub dy: &'a [E],
    /// w: \[K, kT, kH, kW, C/groups\].
    pub w: &'a [E],
    /// dx: \[x.lo..x.hi, N, H, W, C\].
    pub dx: &'a mut [E],
    /// Whether the gradient is added to dx; otherwise all of dx is overwritten, with zero where no output of
    /// `y` reads.
    pub accumulate: bool,
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

/// What the gradient of a convolution by its weights reads and writes.
#[derive(Debug)]
pub struct ConvWeightGradientArgs<'a, E> {
    /// x: \[x.lo..x.hi, N, H, W, C\].
    pub x: &'a [E],
    /// dy: \[y.lo..y.hi, N, H', W', K\].
    pub dy: &'a [E],
    /// dw: \[K, kT, kH, kW, C/groups\]; the gradient is added.
    pub dw: &'a mut [E],
    /// db: \[K\]; the gradient of the bias is added.
    pub db: Option<&'a mut [E]>,
    /// At least as long as the row's `scratch` says; its contents are free.
    pub scratch: &'a mut [E],
}

kernel_row! {
    /// y = relu?(y? + conv(x, w) + bias).
    ConvForward, ConvShape, ConvForwardArgs
}
kernel_row! {
    /// dx (+)= convᵀ(dy, w).
    ConvInputGradient, ConvShape, ConvInputGradientArgs
}
kernel_row! {
    /// dw += the correlation of x with dy, db += the sum of dy.
    ConvWeightGradient, ConvShape, ConvWeightGradientArgs
}

impl<E> ConvForwardArgs<'_, E> {
    fn check(&self, shape: &ConvShape, scratch: usize) {
        shape.check();
        assert_eq!(self.x.len(), shape.x_len(), "x: {shape:?}");
        assert_eq!(self.w.len(), shape.weight_len(), "w: {shape:?}");
        assert!(self.bias.is_none_or(|bias| bias.len() == shape.out_channels), "bias: {shape:?}");
        assert_eq!(self.y.len(), shape.y_len(), "y: {shape:?}");
        assert!(self.scratch.len() >= scratch, "scratch: {shape:?}");
    }
}

impl<E> ConvInputGradientArgs<'_, E> {
    fn check(&self, shape: &ConvShape, scratch: usize) {
        shape.check();
        assert_eq!(self.dy.len(), shape.y_len(), "dy: {shape:?}");
        assert_eq!(self.w.len(), shape.weight_len(), "w: {shape:?}");
        assert_eq!(self.dx.len(), shape.x_len(), "dx: {shape:?}");
        assert!(self.scratch.len() >= scratch, "scratch: {shape:?}");
    }
}

impl<E> ConvWeightGradientArgs<'_, E> {
    fn check(&self, shape: &ConvShape, scratch: usize) {
        shape.check();
        assert_eq!(self.x.len(), shape.x_len(), "x: {shape:?}");
        assert_eq!(self.dy.len(), shape.y_len(), "dy: {shape:?}");
        assert_eq!(self.dw.len(), shape.weight_len(), "dw: {shape:?}");
        assert!(self.db.as_ref().is_none_or(|db| db.len() == shape.out_channels), "db: {shape:?}");
        assert!(self.scratch.len() >= scratch, "scratch: {shape:?}");
    }
}
