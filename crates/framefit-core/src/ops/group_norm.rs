use super::checks::{epsilon, flattened, frames_only, positive, splits_into};
use super::norm::affine;
use super::{BackwardReads, Fold, Layer, NormLayout, Operations, features};
use crate::axes::{Shape, View};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// x: `[T,N,H,W,C]`, γ, β: `[C]` -> y: `[T,N,H,W,C]`
///
/// Each clip's channels are normalised in groups over T, H and W, as PyTorch's `GroupNorm`, which is a barrier; or
/// over H and W of each frame. One group per channel is `InstanceNorm3d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNorm {
    /// Groups that the channels are split into.
    pub groups: usize,
    /// ε, added to the variance.
    pub epsilon: f64,
    /// Whether there are a γ and a β.
    pub affine: bool,
    /// Whether each frame has its own statistics.
    pub per_frame: bool,
}

impl GroupNorm {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        match input.view {
            View::Video => {}
            View::Flat(_) | View::FlatFrames(_) if input.dims.volume() == 1 => {}
            View::Flat(_) | View::FlatFrames(_) => return Err(flattened(at)),
        }
        epsilon(self.epsilon, at)?;
        positive("the number of groups", &[self.groups], at)?;
        splits_into(input.channels, self.groups, at)?;
        Ok(*input)
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        affine(NormLayout::PyTorch, (self.affine, self.affine), |name, initial| {
            ParamSpec::vector(name, input.channels, initial)
        })
    }

    pub(super) fn fold(&self) -> Fold {
        if self.per_frame { Fold::Frames } else { Fold::Barrier }
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        if self.per_frame { TimeMap::identity(input.dims.t) } else { TimeMap::barrier(input.dims.t) }
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        Operations::pointwise(4, input)
    }
}

/// What a layer normalisation takes its statistics over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerNormOver {
    /// C at every position; of one vector per frame, all of it.
    Channels,
    /// H, W and C of every frame.
    Frame,
}

/// x: `[T,N,H,W,C]`, γ, β: `[C]` or `[H,W,C]` -> y: `[T,N,H,W,C]`
///
/// PyTorch's `LayerNorm` (over a frame, the user's weight is `[C,H,W]`) and Keras's `LayerNormalization`
/// (`[H,W,C]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// What the statistics are taken over.
    pub over: LayerNormOver,
    /// ε, added to the variance.
    pub epsilon: f64,
    /// Whether there is a γ.
    pub scale: bool,
    /// Whether there is a β.
    pub center: bool,
    /// Names and order of the user's tensors.
    pub layout: NormLayout,
}

impl LayerNorm {
    /// The values that are normalised together, side by side in memory: C, or H·W·C of a frame.
    pub fn features(&self, input: &Shape) -> usize {
        match self.over {
            LayerNormOver::Channels => features::count(input),
            LayerNormOver::Frame => input.per_frame(),
        }
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        frames_only(input, at)?;
        epsilon(self.epsilon, at)?;
        Ok(*input)
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        let (h, w, c) = (input.dims.h, input.dims.w, input.channels);
        affine(self.layout, (self.scale, self.center), |name, initial| match (self.over, input.view, self.layout) {
            (LayerNormOver::Frame, View::Video, NormLayout::PyTorch) => {
                ParamSpec::permuted(name, vec![c, h, w], &[1, 2, 0], initial)
            }
            (LayerNormOver::Frame, View::Video, NormLayout::Keras) => {
                ParamSpec::permuted(name, vec![h, w, c], &[0, 1, 2], initial)
            }
            (LayerNormOver::Frame, View::FlatFrames(_) | View::Flat(_), _) | (LayerNormOver::Channels, _, _) => {
                features::vector(name, input, initial)
            }
        })
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn kind(&self) -> &'static str {
        self.layout.kind("LayerNorm", "LayerNormalization")
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        Operations::pointwise(4, input)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{at, flat_frames, message, output, stored, tensors, video};
    use super::*;
    use crate::axes::Order;

    #[test]
    fn groups_divide_the_channels() {
        let op = |groups| Op::GroupNorm(GroupNorm { groups, epsilon: 1e-5, affine: true, per_frame: false });
        let input = video(4, 5, 5, 6);
        assert_eq!(output(&op(3), input), input);
        assert_eq!(tensors(&op(3), input), [("weight".to_owned(), vec![6]), ("bias".to_owned(), vec![6])]);
        let text = message(&op(4), &[input]);
        assert_eq!(text, "layer: the number of channels must be a multiple of its 4 groups, but is 6 (built-in model)");
        assert!(message(&op(0), &[input]).contains("the number of groups must be at least 1"));
        assert!(message(&op(3), &[flat_frames(Order::PyTorch, input)]).contains("works on frames"));
    }

    #[test]
    fn a_frame_s_weight_is_stored_as_its_pixels_lie() {
        let norm = |over, layout| LayerNorm { over, epsilon: 1e-5, scale: true, center: true, layout };
        let input = video(4, 2, 3, 5);
        let torch = norm(LayerNormOver::Frame, NormLayout::PyTorch);
        assert_eq!(torch.features(&input), 30);
        let specs = torch.params(&input);
        assert_eq!((specs[0].name.as_ref(), specs[0].dims.as_slice()), ("weight", [5, 2, 3].as_slice()));
        assert_eq!(stored(&specs[0], at(&[5, 2, 3], &[4, 1, 2])), at(&[2, 3, 5], &[1, 2, 4]));
        let keras = norm(LayerNormOver::Frame, NormLayout::Keras).params(&input);
        assert_eq!((keras[1].name.as_ref(), keras[1].dims.as_slice()), ("beta", [2, 3, 5].as_slice()));
        assert!(keras[1].stored.is_plain());
        let channels = norm(LayerNormOver::Channels, NormLayout::Keras);
        assert_eq!(channels.features(&input), 5);
        assert_eq!(channels.params(&input)[0].dims, [5]);
    }

    #[test]
    fn all_of_a_frame_s_vector_is_normalised_together() {
        let norm = LayerNorm {
            over: LayerNormOver::Channels,
            epsilon: 1e-5,
            scale: true,
            center: false,
            layout: NormLayout::PyTorch,
        };
        let vectors = flat_frames(Order::PyTorch, video(4, 2, 3, 5));
        assert_eq!(norm.features(&vectors), 30);
        let specs = norm.params(&vectors);
        assert_eq!(specs.len(), 1);
        assert_eq!(specs[0].dims, [30]);
        assert_eq!(stored(&specs[0], at(&[5, 2, 3], &[4, 1, 2])), at(&[2, 3, 5], &[1, 2, 4]));
    }
}
