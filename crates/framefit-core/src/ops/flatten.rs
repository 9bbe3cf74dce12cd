use super::checks::invalid;
use super::{BackwardReads, Layer, Operations};
use crate::axes::{Order, Shape, View};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// One vector per clip, or one per frame, in x's own bytes: what comes after permutes its weight instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flatten {
    /// Whether each frame becomes a vector, not the whole clip.
    pub per_frame: bool,
    /// The order of the axes in the vector: PyTorch C, (T,) H, W; Keras (T,) H, W, C.
    pub order: Order,
}

impl Flatten {
    /// One vector per clip.
    pub const fn clip(order: Order) -> Self {
        Self { per_frame: false, order }
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        let view = match (input.view, self.per_frame) {
            (View::Video, true) => View::FlatFrames(self.order),
            (View::Video, false) => View::Flat(self.order),
            (View::FlatFrames(order), true) => View::FlatFrames(order),
            (View::FlatFrames(order), false) => View::Flat(clip_order(order, input, at)?),
            (View::Flat(order), _) => View::Flat(order),
        };
        Ok(Shape { view, ..*input })
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

    pub(super) fn operations(&self, _input: &Shape, _output: &Shape) -> Operations {
        Operations::default()
    }
}

/// The order of a clip's vector that is the vectors of its frames one after the other.
fn clip_order(order: Order, input: &Shape, at: Layer<'_>) -> Result<Order, ShapeError> {
    let positions = input.dims.h * input.dims.w;
    match order {
        Order::Keras => Ok(Order::Keras),
        Order::PyTorch if positions == 1 || input.channels == 1 => Ok(Order::Keras),
        Order::PyTorch if input.dims.t == 1 => Ok(Order::PyTorch),
        Order::PyTorch => {
            let rule = "a video, or vectors of one position per frame: flatten the whole clip at once; its positions";
            Err(invalid("the input", rule, positions, at))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{flat, flat_frames, message, output, video};
    use super::*;

    #[test]
    fn frames_and_clips_become_vectors_in_the_framework_s_order() {
        let frames = video(5, 2, 3, 4);
        for order in [Order::PyTorch, Order::Keras] {
            let clip = Op::Flatten(Flatten::clip(order));
            let each = Op::Flatten(Flatten { per_frame: true, order });
            assert_eq!(output(&clip, frames), flat(order, frames));
            assert_eq!(output(&each, frames), flat_frames(order, frames));
            assert_eq!(output(&each, frames).text(order, "N"), "Nx5x24");
        }
    }

    #[test]
    fn vectors_of_frames_make_a_clip_s_vector_frame_by_frame() {
        let clip = Op::Flatten(Flatten::clip(Order::PyTorch));
        let features = video(5, 1, 1, 4);
        assert_eq!(output(&clip, flat_frames(Order::PyTorch, features)), flat(Order::Keras, features));
        let one = video(1, 2, 3, 4);
        assert_eq!(output(&clip, flat_frames(Order::PyTorch, one)), flat(Order::PyTorch, one));
        let many = video(5, 2, 3, 4);
        assert_eq!(output(&clip, flat_frames(Order::Keras, many)), flat(Order::Keras, many));
        let text = message(&clip, &[flat_frames(Order::PyTorch, many)]);
        assert!(text.contains("flatten the whole clip at once"), "{text}");
    }
}
