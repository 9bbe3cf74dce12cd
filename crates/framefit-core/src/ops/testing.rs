//! Ops on shapes, for the tests beside them.

use super::{Layer, Op};
use crate::axes::{Dims3, Order, Shape, View};
use crate::error::ShapeError;
use crate::graph::{Origin, ParamSpec};

pub(super) fn dims(t: usize, h: usize, w: usize) -> Dims3 {
    Dims3 { t, h, w }
}

pub(super) fn video(t: usize, h: usize, w: usize, channels: usize) -> Shape {
    Shape::video(dims(t, h, w), channels)
}

pub(super) fn flat(order: Order, video: Shape) -> Shape {
    Shape { view: View::Flat(order), ..video }
}

pub(super) fn flat_frames(order: Order, video: Shape) -> Shape {
    Shape { view: View::FlatFrames(order), ..video }
}

pub(super) fn try_output(op: &Op, inputs: &[Shape]) -> Result<Shape, ShapeError> {
    op.output(inputs, Layer { name: "layer", origin: &Origin::BuiltIn, before: "before" })
}

pub(super) fn output(op: &Op, input: Shape) -> Shape {
    try_output(op, &[input]).unwrap()
}

pub(super) fn message(op: &Op, inputs: &[Shape]) -> String {
    try_output(op, inputs).unwrap_err().to_string()
}

/// Name and extents of each of the user's tensors.
pub(super) fn tensors(op: &Op, input: Shape) -> Vec<(String, Vec<usize>)> {
    op.params(&input).into_iter().map(|spec| (spec.name.into_owned(), spec.dims)).collect()
}

pub(super) fn values(specs: &[ParamSpec]) -> usize {
    specs.iter().map(|spec| spec.dims.iter().product::<usize>()).sum()
}

/// Where a value of the user's tensor lies in the arena.
pub(super) fn stored(spec: &ParamSpec, user: usize) -> usize {
    let mut at = None;
    spec.stored.each(user, 1, |_, stored| at = Some(stored));
    at.unwrap()
}

/// The index of a value in a row-major tensor.
pub(super) fn at(extents: &[usize], index: &[usize]) -> usize {
    assert_eq!(extents.len(), index.len());
    extents.iter().zip(index).fold(0, |at, (&extent, &i)| {
        assert!(i < extent);
        at * extent + i
    })
}
