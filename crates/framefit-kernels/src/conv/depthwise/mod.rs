//! Vector rows of the depthwise convolutions: groups = C = K, lanes over channels.
//!
//! With stride 1 and few channels, neighbouring positions of a row are one segment of contiguous elements, and
//! the weights repeat along it. Otherwise, and at the borders, each position is a segment.

mod body;
mod product;
mod weight;

pub(super) use product::{forward, forward_scratch, input_gradient, input_gradient_scratch};
pub(super) use weight::{weight_gradient, weight_gradient_scratch};

use super::ConvShape;
use crate::isa::Isa;

/// Registers of one block of a segment.
const BLOCK: usize = 4;

/// Lanes of a register.
fn width(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 16,
        Isa::Avx2 | Isa::Scalar => 8,
    }
}

/// The shapes that the depthwise rows compute.
pub(super) fn handles(s: &ConvShape) -> bool {
    s.groups == s.channels && s.out_channels == s.channels
}

/// The number of blocks after which `channels` channels repeat.
fn period(channels: usize, block: usize) -> usize {
    (1..=channels).find(|blocks| (blocks * block).is_multiple_of(channels)).unwrap_or(1)
}
