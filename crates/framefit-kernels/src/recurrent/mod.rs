//! The pointwise parts of recurrent cells; the matrix products between them are convolutions or linear layers.
//!
//! One call is one frame of P positions (N, or N · H · W) and K units; gates of a position lie side by side.

mod gru;
mod gru_before;
mod lstm;
mod tile;

use crate::activation::Activation;

pub(crate) use gru::{GRU_BACKWARD_F32, GRU_BACKWARD_F64, GRU_FORWARD_F32, GRU_FORWARD_F64};
pub use gru::{GruBackward, GruBackwardArgs, GruForward, GruForwardArgs};
pub(crate) use gru_before::{
    GRU_GATES_BACKWARD_F32, GRU_GATES_BACKWARD_F64, GRU_GATES_FORWARD_F32, GRU_GATES_FORWARD_F64,
    GRU_STATE_BACKWARD_F32, GRU_STATE_BACKWARD_F64, GRU_STATE_FORWARD_F32, GRU_STATE_FORWARD_F64,
};
pub use gru_before::{
    GruGatesBackward, GruGatesBackwardArgs, GruGatesForward, GruGatesForwardArgs, GruStateBackward,
    GruStateBackwardArgs, GruStateForward, GruStateForwardArgs,
};
pub(crate) use lstm::{LSTM_BACKWARD_F32, LSTM_BACKWARD_F64, LSTM_FORWARD_F32, LSTM_FORWARD_F64};
pub use lstm::{LstmBackward, LstmBackwardArgs, LstmForward, LstmForwardArgs};

/// Positions and units of one frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellShape {
    /// P.
    pub positions: usize,
    /// K.
    pub units: usize,
}

impl CellShape {
    /// Elements of a state: P · K.
    pub fn len(&self) -> usize {
        self.positions * self.units
    }

    /// Whether a state has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The functions of a cell. Neither may read its input in the backward ([`Activation::reads_input`]): the cells
/// keep activated values only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellActivations {
    /// Of the candidate and the state; tanh in most cells. Keras's `activation`.
    pub state: Activation,
    /// Of the gates; the sigmoid in most cells. Keras's `recurrent_activation`.
    pub gate: Activation,
}

impl CellActivations {
    /// tanh and the sigmoid.
    pub const DEFAULT: CellActivations = CellActivations { state: Activation::Tanh, gate: Activation::Sigmoid };

    fn check(self) {
        let kept = !self.state.reads_input() && !self.gate.reads_input();
        assert!(kept, "a cell keeps no inputs of activations: {self:?}");
    }
}

/// The order in which a GRU's gates lie side by side; the candidate follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateOrder {
    /// r, z: PyTorch's.
    ResetUpdate,
    /// z, r: Keras's.
    UpdateReset,
}

impl GateOrder {
    /// (where r lies, where z lies).
    fn places(self) -> (usize, usize) {
        match self {
            GateOrder::ResetUpdate => (0, 1),
            GateOrder::UpdateReset => (1, 0),
        }
    }
}
