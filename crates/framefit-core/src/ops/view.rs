use super::{BackwardReads, Layer, Operations};
use crate::axes::{Shape, View};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// One vector per clip, in x's own bytes: what comes after reads it frame by frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flatten;

impl Flatten {
    pub(super) fn output(&self, input: &Shape, _at: Layer<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape { view: View::Flat, ..*input })
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: false, output: false }
    }

    pub(super) fn operations(&self, _input: &Shape, _output: &Shape) -> Operations {
        Operations::default()
    }
}
