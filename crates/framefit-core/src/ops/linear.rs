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
            trained: true,
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

/// x: `[T,N,H,W,C]`, kernel: `[K,1,1,1,C]`, bias: `[K]` -> y: `[T,N,H,W,K]`
///
/// Keras's `Dense`: the same matrix at every frame and position. The user's kernel is `[C,K]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    /// C, the channels it was made for.
    pub in_channels: usize,
    /// K.
    pub units: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Dense {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        positive("the number of units", &[self.in_channels, self.units], at)?;
        if input.channels != self.in_channels {
            return Err(ShapeError::Mismatch {
                layer: at.name.to_owned(),
                what: "channels",
                want: self.in_channels,
                got: input.channels,
                origin: at.origin.clone(),
            });
        }
        Ok(Shape { channels: self.units, ..*input })
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        let dims = vec![self.in_channels, self.units];
        let stored = StoredOrder::of(&dims, &[1, 0]);
        let initial = Initial::GlorotUniform { fan_in: self.in_channels, fan_out: self.units };
        let mut params = vec![ParamSpec { name: "kernel", dims, stored, initial, trained: true }];
        if self.bias {
            params.push(ParamSpec::vector("bias", self.units, Initial::Zeros));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: true, output: false }
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        let one = 2 * (output.per_clip() * self.in_channels) as u64;
        Operations { forward: one, input_gradient: one, weight_gradient: one }
    }
}
