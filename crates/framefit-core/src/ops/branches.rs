//! Where branches meet.

use super::checks::flattened;
use super::{BackwardReads, Layer, Operations};
use crate::axes::{Order, Shape, View};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

fn words(shape: &Shape) -> String {
    match shape.view {
        View::Video => format!("{}x{} (T,H,W,C)", shape.dims, shape.channels),
        View::Flat(_) => format!("one vector of {} per clip", shape.per_clip()),
        View::FlatFrames(_) => format!("{} vectors of {}, one per frame", shape.dims.t, shape.per_frame()),
    }
}

/// Whether two values of the same extents have the same axes for the user: with one position per frame, or in all,
/// every view is the same.
fn same_view(a: &Shape, b: &Shape) -> bool {
    let one_position = a.dims.h * a.dims.w == 1;
    match (a.view, b.view) {
        (View::Video, View::Video) => true,
        (View::Flat(a), View::Flat(b)) | (View::FlatFrames(a), View::FlatFrames(b)) => a == b || one_position,
        (View::Video, View::FlatFrames(_)) | (View::FlatFrames(_), View::Video) => one_position,
        (View::Flat(_), View::Video | View::FlatFrames(_)) | (View::Video | View::FlatFrames(_), View::Flat(_)) => {
            one_position && a.dims.t == 1
        }
    }
}

/// The first of the inputs, if all agree with it.
fn agreed<'a>(
    inputs: &'a [Shape],
    what: &'static str,
    agree: impl Fn(&Shape, &Shape) -> bool,
    at: Layer<'_>,
) -> Result<&'a Shape, ShapeError> {
    let first = &inputs[0];
    match inputs.iter().find(|other| !agree(first, other) || !same_view(first, other)) {
        None => Ok(first),
        Some(other) => Err(ShapeError::Unequal {
            layer: at.name.to_owned(),
            what,
            got: format!("{} and {}", words(first), words(other)),
            origin: at.origin.clone(),
        }),
    }
}

/// x₁, x₂, …: `[T,N,H,W,C]` -> y: `[T,N,H,W,C]`
///
/// The sum of two or more values of the same shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Add;

impl Add {
    pub(super) fn output(&self, inputs: &[Shape], at: Layer<'_>) -> Result<Shape, ShapeError> {
        let same = |a: &Shape, b: &Shape| a.dims == b.dims && a.channels == b.channels;
        agreed(inputs, "extents and channels", same, at).copied()
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::NONE
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        Operations::pointwise(1, output)
    }
}

/// x₁: `[T,N,H,W,C₁]`, x₂: `[T,N,H,W,C₂]`, … -> y: `[T,N,H,W,C₁+C₂+…]`
///
/// Two or more values side by side along C: PyTorch's `torch.cat(…, 1)`, Keras's `Concatenate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concat;

impl Concat {
    pub(super) fn output(&self, inputs: &[Shape], at: Layer<'_>) -> Result<Shape, ShapeError> {
        let first = agreed(inputs, "frames, height and width", |a, b| a.dims == b.dims, at)?;
        // Vectors one after the other are channels one after the other where C is outermost, or alone.
        let outermost = match first.view {
            View::Video => true,
            View::Flat(order) => order == Order::PyTorch || first.dims.volume() == 1,
            View::FlatFrames(order) => order == Order::PyTorch || first.dims.h * first.dims.w == 1,
        };
        if !outermost {
            return Err(flattened(at));
        }
        let channels = inputs.iter().fold(0usize, |sum, shape| sum.saturating_add(shape.channels));
        Ok(Shape { channels, ..*first })
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::NONE
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        Operations::pointwise(1, output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{flat, flat_frames, message, try_output, video};
    use super::*;

    #[test]
    fn a_sum_is_of_one_shape() {
        let a = video(4, 8, 8, 3);
        assert_eq!(try_output(&Op::Add(Add), &[a, a, a]), Ok(a));
        let text = message(&Op::Add(Add), &[a, a, video(4, 4, 4, 3)]);
        assert_eq!(
            text,
            "layer joins values of the same extents and channels, but receives 4x8x8x3 (T,H,W,C) and 4x4x4x3 \
             (T,H,W,C): give both branches the same strides, padding and channels (built-in model)"
        );
        assert!(try_output(&Op::Add(Add), &[a, video(4, 8, 8, 1)]).is_err());
        let text = message(&Op::Add(Add), &[a, flat(Order::PyTorch, a)]);
        assert!(text.contains("4x8x8x3 (T,H,W,C) and one vector of 768 per clip"), "{text}");
    }

    #[test]
    fn channels_are_put_side_by_side() {
        let shapes = [video(4, 8, 8, 2), video(4, 8, 8, 3), video(4, 8, 8, 2)];
        assert_eq!(try_output(&Op::Concat(Concat), &shapes), Ok(video(4, 8, 8, 7)));
        let text = message(&Op::Concat(Concat), &[video(4, 8, 8, 2), video(2, 8, 8, 2)]);
        assert!(text.starts_with("layer joins values of the same frames, height and width"), "{text}");
    }

    #[test]
    fn vectors_are_joined_where_that_joins_their_channels() {
        let concat = |a, b| try_output(&Op::Concat(Concat), &[a, b]);
        let frames = video(4, 8, 8, 3);
        for order in [Order::PyTorch, Order::Keras] {
            let vectors = |c| flat_frames(order, video(4, 1, 1, c));
            assert_eq!(concat(vectors(2), vectors(5)), Ok(vectors(7)));
            assert_eq!(concat(vectors(2), video(4, 1, 1, 5)), Ok(vectors(7)), "means of frames beside features");
            let alone = |c| flat(order, video(1, 1, 1, c));
            assert_eq!(concat(alone(2), alone(5)), Ok(alone(7)));
            let whole = flat(order, frames);
            assert_eq!(concat(whole, whole).is_ok(), order == Order::PyTorch);
            let each = flat_frames(order, frames);
            assert_eq!(concat(each, each).is_ok(), order == Order::PyTorch);
        }
        assert!(concat(flat(Order::PyTorch, frames), flat(Order::Keras, frames)).is_err());
    }
}
