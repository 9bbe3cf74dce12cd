//! CPU kernels by instruction set, the thread pool that runs them and the arena their tensors live in.
//!
//! Activations are time-major and channels-last, `[T][N][H][W][C]`; convolution weights are
//! `[K][kT][kH][kW][C/groups]`. Letters: N clips, T frames, H height, W width, C channels, K output
//! channels, P positions (H·W), D features.
//!
//! Each kernel is a table of rows, fastest first, scalar last; [`table::choose`] takes the first row that
//! this machine and the shape allow. Tests and benches walk the same tables, which [`real::Real`] names per
//! element type.
//!
//! Invariant: a kernel allocates nothing; each row says its scratch size, in elements, for a shape.
//! Invariant: work is cut by shape alone and reduced in a fixed order, so the bits of a result do not depend
//! on the number of threads.
//! Invariant: a row checks that the instruction set is there and that every slice has the length its shape
//! asks for, before any unsafe code runs; a breach is a panic.

pub mod activation;
pub mod arena;
mod channels;
pub mod conv;
pub mod dropout;
pub mod elementwise;
pub mod frames;
pub mod isa;
#[cfg(target_arch = "x86_64")]
mod lanes;
pub mod linear;
pub mod loss;
mod math;
pub mod mean;
pub mod norm;
pub mod optimizer;
pub mod pooling;
pub mod real;
pub mod recurrent;
pub mod resident;
mod shared;
pub mod table;
pub mod threads;

pub use arena::{AllocationFailed, Arena};
pub use isa::Isa;
pub use real::Real;
pub use table::{Row, choose};
pub use threads::{Pool, Task};
