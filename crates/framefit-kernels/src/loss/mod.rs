//! Losses and their gradients.

mod binary;
mod softmax;

pub(crate) use binary::{
    BINARY_CROSS_ENTROPY_F32, BINARY_CROSS_ENTROPY_F64, LABELLED_BINARY_CROSS_ENTROPY_F32,
    LABELLED_BINARY_CROSS_ENTROPY_F64,
};
pub use binary::{
    BinaryCrossEntropy, BinaryCrossEntropyArgs, LabelledBinaryCrossEntropy, LabelledBinaryCrossEntropyArgs,
};
pub(crate) use softmax::{CROSS_ENTROPY_F32, CROSS_ENTROPY_F64, SOFTMAX_CROSS_ENTROPY_F32, SOFTMAX_CROSS_ENTROPY_F64};
pub use softmax::{CrossEntropy, CrossEntropyArgs, SoftmaxCrossEntropy, SoftmaxCrossEntropyArgs};

/// How many clips (or labelled frames) and classes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LossShape {
    /// M: clips, or frames · clips.
    pub clips: usize,
    /// K.
    pub classes: usize,
}
