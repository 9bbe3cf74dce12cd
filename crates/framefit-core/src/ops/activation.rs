use super::{BackwardReads, Layer, Operations};
use crate::axes::Shape;
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// y = max(x, 0), in x's own bytes. Its gradient is that of y where y > 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relu;

impl Relu {
    pub(super) fn output(&self, input: &Shape, _at: Layer<'_>) -> Result<Shape, ShapeError> {
        Ok(*input)
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: false, output: true }
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        let each = input.per_clip() as u64;
        Operations { forward: each, input_gradient: each, weight_gradient: 0 }
    }
}
