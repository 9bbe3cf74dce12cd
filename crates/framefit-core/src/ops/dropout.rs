use super::checks::fraction;
use super::{BackwardReads, Layer, Operations};
use crate::axes::Shape;
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// What is dropped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropoutUnit {
    /// Each element by itself: PyTorch's and Keras's `Dropout`.
    Element,
    /// A channel of a frame: PyTorch's `Dropout2d` on every frame.
    Channel,
    /// A channel of the whole clip: PyTorch's `Dropout3d`, Keras's `SpatialDropout3D`.
    ClipChannel,
    /// An element of all frames of the clip alike: `dropout` of Keras's recurrent layers.
    ElementOfEveryFrame,
}

/// x: `[T,N,H,W,C]` -> y: `[T,N,H,W,C]`, in x's own bytes
///
/// While training, y = 0 with probability p and x/(1 − p) otherwise; else y = x. As PyTorch and Keras.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability of dropping.
    pub p: f64,
    /// What is dropped at once.
    pub unit: DropoutUnit,
}

impl Dropout {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        fraction("the probability", "a number from 0 to 1", self.p, (0.0..=1.0).contains(&self.p), at)?;
        Ok(*input)
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

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        // The counter-based random number costs most.
        Operations::pointwise(10, input)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.unit {
            DropoutUnit::Element | DropoutUnit::ElementOfEveryFrame => "Dropout",
            DropoutUnit::Channel => "Dropout2d",
            DropoutUnit::ClipChannel => "Dropout3d",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{message, output, video};
    use super::*;

    #[test]
    fn a_probability_is_from_0_to_1() {
        let op = |p| Op::Dropout(Dropout { p, unit: DropoutUnit::Element });
        let input = video(2, 3, 3, 4);
        for p in [0.0, 0.5, 1.0] {
            assert_eq!(output(&op(p), input), input);
        }
        let text = message(&op(-0.5), &[input]);
        assert_eq!(text, "layer: the probability must be a number from 0 to 1, but is -0.5 (built-in model)");
        assert!(message(&op(f64::NAN), &[input]).contains("but is NaN"));
    }
}
