use super::{BackwardReads, Layer, Operations, positive};
use crate::axes::{Shape, View};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec, StoredOrder};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// x: `[T,N,D]` with D = H·W·C, w: `[T,K,D]`, bias: `[K]` -> y: `[1,N,K]`
///
/// PyTorch's `Linear` on one vector per clip. A flattened video's vector is in the order C, T, H, W, and the
/// user's weight is `[K, C·T·H·W]`; stored, each frame has its own slice `[K, H·W·C]` of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    /// Features it was made for: T·H·W·C of its input.
    pub in_features: usize,
    /// K.
    pub out_features: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Linear {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        positive("the number of features", &[self.in_features, self.out_features], at)?;
        if input.view == View::Video && input.dims.volume() != 1 {
            return Err(ShapeError::Invalid {
                layer: at.name.to_owned(),
                what: "the input",
                rule: "one vector per clip: put a Flatten or a global pooling before this layer; its positions"
                    .to_owned(),
                got: input.dims.volume(),
                origin: at.origin.clone(),
            });
        }
        let got = input.per_clip();
        if got != self.in_features {
            return Err(ShapeError::Mismatch {
                layer: at.name.to_owned(),
                what: "features",
                want: self.in_features,
                got,
                origin: at.origin.clone(),
            });
        }
        Ok(Shape::vector(self.out_features))
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        let initial = Initial::Uniform { fan_in: self.in_features };
        let d = input.dims;
        let weight = ParamSpec {
            name: "weight",
            dims: vec![self.out_features, self.in_features],
            stored: StoredOrder::of(&[self.out_features, input.channels, d.t, d.h, d.w], &[2, 0, 3, 4, 1]),
            initial,
        };
        let mut params = vec![weight];
        if self.bias {
            params.push(ParamSpec::vector("bias", self.out_features, initial));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::whole(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: true, output: false }
    }

    pub(super) fn operations(&self, _input: &Shape, _output: &Shape) -> Operations {
        let one = 2 * (self.in_features as u64) * self.out_features as u64;
        Operations { forward: one, input_gradient: one, weight_gradient: one }
    }
}
