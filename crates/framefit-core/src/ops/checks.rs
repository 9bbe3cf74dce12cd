//! What the ops check of their settings and inputs, and the extents of windows.

use super::Layer;
use crate::axes::{Axis, Dims3, Shape, View};
use crate::error::ShapeError;
use crate::time::TimeMap;

pub(super) fn invalid(what: &'static str, rule: impl Into<String>, got: usize, at: Layer<'_>) -> ShapeError {
    ShapeError::Invalid { layer: at.name.to_owned(), what, rule: rule.into(), got, origin: at.origin.clone() }
}

pub(super) fn positive(what: &'static str, values: &[usize], at: Layer<'_>) -> Result<(), ShapeError> {
    match values.iter().find(|&&v| v == 0) {
        None => Ok(()),
        Some(&got) => Err(invalid(what, "at least 1", got, at)),
    }
}

pub(super) fn exactly(what: &'static str, want: usize, got: usize, at: Layer<'_>) -> Result<(), ShapeError> {
    if got == want { Ok(()) } else { Err(invalid(what, want.to_string(), got, at)) }
}

pub(super) fn splits_into(channels: usize, groups: usize, at: Layer<'_>) -> Result<(), ShapeError> {
    if channels.is_multiple_of(groups) {
        return Ok(());
    }
    Err(invalid("the number of channels", format!("a multiple of its {groups} groups"), channels, at))
}

pub(super) fn fraction(
    what: &'static str,
    rule: &'static str,
    got: f64,
    holds: bool,
    at: Layer<'_>,
) -> Result<(), ShapeError> {
    if holds {
        return Ok(());
    }
    let layer = at.name.to_owned();
    Err(ShapeError::Fraction { layer, what, rule, got: got.to_string(), origin: at.origin.clone() })
}

/// The ε that a norm adds to a variance.
pub(super) fn epsilon(got: f64, at: Layer<'_>) -> Result<(), ShapeError> {
    fraction("epsilon", "a number from 0 on", got, got >= 0.0 && got.is_finite(), at)
}

pub(super) fn made_for(what: &'static str, want: usize, got: usize, at: Layer<'_>) -> Result<(), ShapeError> {
    if got == want {
        return Ok(());
    }
    Err(ShapeError::Mismatch { layer: at.name.to_owned(), what, want, got, origin: at.origin.clone() })
}

pub(super) fn flattened(at: Layer<'_>) -> ShapeError {
    ShapeError::Flattened { layer: at.name.to_owned(), before: at.before.to_owned(), origin: at.origin.clone() }
}

/// Frames of pixels; a sequence of vectors is one of frames with one position each.
pub(super) fn video_only(input: &Shape, at: Layer<'_>) -> Result<(), ShapeError> {
    match input.view {
        View::Video => Ok(()),
        View::FlatFrames(_) if input.dims.h == 1 && input.dims.w == 1 => Ok(()),
        View::FlatFrames(_) | View::Flat(_) => Err(flattened(at)),
    }
}

/// Frames, or a vector that is one.
pub(super) fn frames_only(input: &Shape, at: Layer<'_>) -> Result<(), ShapeError> {
    match input.view {
        View::Video | View::FlatFrames(_) => Ok(()),
        View::Flat(_) if input.dims.t == 1 => Ok(()),
        View::Flat(_) => Err(flattened(at)),
    }
}

/// Windows over time, height and width: convolutions and pools.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub(super) kernel: Dims3,
    pub(super) stride: Dims3,
    /// What lies outside before the first input.
    pub(super) before: Dims3,
    /// What lies outside after the last.
    pub(super) after: Dims3,
    pub(super) dilation: Dims3,
    /// Whether a last window may stick out at the end, if it starts inside the input or the padding before it:
    /// PyTorch's `ceil_mode`.
    pub(super) ceil: bool,
}

impl Windows {
    /// The extents of the output.
    pub(super) fn output(&self, input: Dims3, at: Layer<'_>) -> Result<Dims3, ShapeError> {
        let (k, s, d) = (self.kernel, self.stride, self.dilation);
        positive("the kernel", &[k.t, k.h, k.w], at)?;
        positive("the stride", &[s.t, s.h, s.w], at)?;
        positive("the dilation", &[d.t, d.h, d.w], at)?;
        Ok(Dims3 {
            t: self.extent(Axis::Time, input.t, |d| d.t, at)?,
            h: self.extent(Axis::Height, input.h, |d| d.h, at)?,
            w: self.extent(Axis::Width, input.w, |d| d.w, at)?,
        })
    }

    fn extent(&self, axis: Axis, got: usize, of: fn(Dims3) -> usize, at: Layer<'_>) -> Result<usize, ShapeError> {
        let (stride, before) = (of(self.stride), of(self.before));
        let span = of(self.dilation).saturating_mul(of(self.kernel) - 1).saturating_add(1);
        let slack = if self.ceil { stride - 1 } else { 0 };
        let outside = before.saturating_add(of(self.after)).saturating_add(slack);
        match got.saturating_add(outside).checked_sub(span) {
            Some(room) if got > 0 => {
                let last = room / stride;
                let starts_outside = self.ceil && last.saturating_mul(stride) >= got.saturating_add(before);
                Ok(if starts_outside { last } else { last.saturating_add(1) })
            }
            _ => Err(ShapeError::TooSmall {
                layer: at.name.to_owned(),
                axis,
                need: span.saturating_sub(outside).max(1),
                got,
                origin: at.origin.clone(),
            }),
        }
    }

    pub(super) fn time(&self, frames: usize, outputs: usize) -> TimeMap {
        TimeMap {
            kernel: self.kernel.t,
            stride: self.stride.t,
            padding: self.before.t,
            dilation: self.dilation.t,
            frames,
            outputs,
            adaptive: false,
        }
    }
}
