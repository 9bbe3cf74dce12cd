//! Vector rows of the dense convolutions, as implicit matrix products.
//!
//! Forward and gradient by the input: weights are packed once into panels \[taps · C\]\[registers of K\]; for one
//! kernel row, kW·C consecutive inputs are contiguous, and each is broadcast to a tile of positions × output
//! channels. Only tiles that touch the left or right border copy their inputs, zero-padded, to scratch.

mod product;
mod tile;
mod weight;
mod weight_tile;

pub(super) use product::{forward, forward_scratch, input_gradient, input_gradient_scratch};
pub(super) use weight::{weight_gradient, weight_gradient_scratch};

use crate::isa::Isa;
use tile::TileSet;

/// The tile functions for an instruction set; panics where it is not there.
fn tiles(isa: Isa) -> &'static TileSet {
    assert!(isa.available(), "this machine has no {isa}");
    shapes(isa)
}

/// The tiles of an instruction set, to size scratch by.
fn shapes(isa: Isa) -> &'static TileSet {
    match isa {
        Isa::Avx512 => &tile::AVX512,
        Isa::Avx2 | Isa::Scalar => &tile::AVX2,
    }
}
