//! Frames in another order, or one of them.

use super::checks::frames_only;
use super::{BackwardReads, Layer, Operations};
use crate::axes::{Dims3, Shape, View};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// x: `[T,N,H,W,C]` -> y: `[T,N,H,W,C]`
///
/// Frame t of y is frame T−1−t of x: what the backward half of a bidirectional layer reads. A barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reverse;

impl Reverse {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        frames_only(input, at)?;
        Ok(*input)
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::barrier(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::NONE
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        Operations::pointwise(1, input)
    }
}

/// x: `[T,N,H,W,C]` -> y: `[1,N,H,W,C]`
///
/// The last frame: `return_sequences=False` of Keras's recurrent layers, PyTorch's `output[:, -1]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFrame;

impl LastFrame {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        frames_only(input, at)?;
        let view = match input.view {
            View::Video => View::Video,
            View::FlatFrames(order) | View::Flat(order) => View::Flat(order),
        };
        Ok(Shape { dims: Dims3 { t: 1, ..input.dims }, channels: input.channels, view })
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::whole(input.dims.t)
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
    use super::super::testing::{flat, flat_frames, message, output, video};
    use super::*;
    use crate::axes::{Order, Window};

    #[test]
    fn the_last_frame_of_vectors_is_one_per_clip() {
        let last = Op::LastFrame(LastFrame);
        assert_eq!(output(&last, video(5, 4, 4, 3)), video(1, 4, 4, 3));
        let vectors = flat_frames(Order::PyTorch, video(5, 1, 1, 3));
        assert_eq!(output(&last, vectors), flat(Order::PyTorch, video(1, 1, 1, 3)));
        let text = message(&last, &[flat(Order::PyTorch, video(5, 1, 1, 3))]);
        assert_eq!(text, "layer works on frames, but before has flattened its input (built-in model)");
    }

    #[test]
    fn reversed_frames_read_the_whole_clip() {
        let input = video(5, 4, 4, 3);
        let op = Op::Reverse(Reverse);
        assert_eq!(output(&op, input), input);
        let time = op.time(&input, &input);
        for hi in 0..5 {
            assert_eq!(time.emit(hi), 0);
            assert_eq!(time.keep(hi), 0);
            assert_eq!(time.reads(Window { lo: hi, hi: hi + 1 }), Window::whole(5));
        }
        assert_eq!((time.emit(5), time.keep(5)), (5, 5));
    }
}
