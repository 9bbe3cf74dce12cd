//! Parameters with one number per feature, where the features are channels or the flattened values of a frame.

use crate::axes::{Order, Shape, View};
use crate::graph::{Initial, ParamSpec, StoredOrder};
use std::borrow::Cow;

/// The factors of a vector of features in the user's order, and for each of H, W, C as they are stored the factor
/// that it is.
struct Features {
    user: Vec<usize>,
    stored: Vec<usize>,
}

/// Features of what has a vector of `channels` at every position, or one vector per frame.
pub(super) fn count(input: &Shape) -> usize {
    match input.view {
        View::Video => input.channels,
        View::FlatFrames(_) | View::Flat(_) => input.per_frame(),
    }
}

fn features(input: &Shape) -> Features {
    let (h, w, c) = (input.dims.h, input.dims.w, input.channels);
    match input.view {
        View::FlatFrames(order) | View::Flat(order) if h * w != 1 => match order {
            Order::PyTorch => Features { user: vec![c, h, w], stored: vec![1, 2, 0] },
            Order::Keras => Features { user: vec![h, w, c], stored: vec![0, 1, 2] },
        },
        View::Video | View::FlatFrames(_) | View::Flat(_) => Features { user: vec![c], stored: vec![0] },
    }
}

/// One number per feature; stored `[C]` or `[H,W,C]`.
pub(super) fn vector(name: &'static str, input: &Shape, initial: Initial) -> ParamSpec {
    let Features { user, stored } = features(input);
    let stored = StoredOrder::of(&user, &stored);
    ParamSpec { name: name.into(), dims: vec![count(input)], stored, initial, trained: true }
}

/// PyTorch's `[K,F]`; stored `[K,C]` or `[K,H,W,C]`.
pub(super) fn rows_first(
    name: impl Into<Cow<'static, str>>,
    rows: usize,
    input: &Shape,
    initial: Initial,
) -> ParamSpec {
    let Features { user, stored } = features(input);
    let user: Vec<usize> = [rows].into_iter().chain(user).collect();
    let stored: Vec<usize> = [0].into_iter().chain(stored.into_iter().map(|axis| axis + 1)).collect();
    let stored = StoredOrder::of(&user, &stored);
    ParamSpec { name: name.into(), dims: vec![rows, count(input)], stored, initial, trained: true }
}

/// Keras's `[F,K]`; stored `[K,C]` or `[K,H,W,C]`.
pub(super) fn rows_last(name: &'static str, rows: usize, input: &Shape, initial: Initial) -> ParamSpec {
    let Features { mut user, stored } = features(input);
    let stored: Vec<usize> = [user.len()].into_iter().chain(stored).collect();
    user.push(rows);
    let stored = StoredOrder::of(&user, &stored);
    ParamSpec { name: name.into(), dims: vec![count(input), rows], stored, initial, trained: true }
}
