//! The fold over time: what a video model is, what it costs and how it runs, without running it.
//!
//! Data takes this way: an op list becomes a [`Graph`] with shapes; the graph becomes a
//! [`Schedule`](schedule::Schedule), the ordered steps of one training step with every byte range they
//! touch; the schedule is packed into one arena ([`arena`]) and summed up by purpose ([`ledger`]); a
//! [`Plan`](plan::Plan) is all of it. [`checker`] proves a packed schedule without trusting any of the above.
//!
//! Nothing here reads a file, starts a thread or touches a tensor.
#![forbid(unsafe_code)]

pub mod arena;
pub mod axes;
pub mod bytes;
pub mod checker;
mod error;
pub mod graph;
pub mod ledger;
pub mod ops;
pub mod plan;
pub mod schedule;
pub mod stream;
pub mod time;

pub use axes::{Axis, DType, Dims3, Order, Shape, View, Window};
pub use bytes::Bytes;
pub use error::ShapeError;
pub use graph::{Graph, GraphBuilder, Node, NodeId, Origin, Param, ParamId, ValueId};
pub use ops::Op;
