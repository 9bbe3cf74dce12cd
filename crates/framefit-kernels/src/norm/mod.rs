//! Normalisation: over each channel of many frames (BatchNorm), and over groups of one frame or position
//! (GroupNorm, LayerNorm, InstanceNorm).
//!
//! x̂ = (x − mean) · inv_std, where inv_std = 1/√(variance + eps).

mod batch;
mod columns;
mod group;
mod group_gradient;
mod moments;
mod statistics;

pub use batch::{
    BatchNormInputGradient, BatchNormInputGradientArgs, BatchNormSums, BatchNormSumsArgs, GradientMeans, ScaleShift,
    ScaleShiftArgs,
};
pub(crate) use batch::{
    INPUT_GRADIENT_F32 as BATCH_INPUT_GRADIENT_F32, INPUT_GRADIENT_F64 as BATCH_INPUT_GRADIENT_F64, SCALE_SHIFT_F32,
    SCALE_SHIFT_F64, SUMS_F32 as BATCH_SUMS_F32, SUMS_F64 as BATCH_SUMS_F64,
};
pub(crate) use group::{FORWARD_F32 as GROUP_FORWARD_F32, FORWARD_F64 as GROUP_FORWARD_F64};
pub use group::{GroupNormForward, GroupNormForwardArgs, NormShape};
pub use group_gradient::{
    GroupNormInputGradient, GroupNormInputGradientArgs, GroupNormWeightGradient, GroupNormWeightGradientArgs,
};
pub(crate) use group_gradient::{
    INPUT_GRADIENT_F32 as GROUP_INPUT_GRADIENT_F32, INPUT_GRADIENT_F64 as GROUP_INPUT_GRADIENT_F64,
    WEIGHT_GRADIENT_F32 as GROUP_WEIGHT_GRADIENT_F32, WEIGHT_GRADIENT_F64 as GROUP_WEIGHT_GRADIENT_F64,
};
pub use moments::{ChannelMoments, ChannelMomentsArgs, merge_moments, normalizers};
pub(crate) use moments::{MOMENTS_F32, MOMENTS_F64};
pub use statistics::{GroupNormStatistics, GroupNormStatisticsArgs};
pub(crate) use statistics::{STATISTICS_F32 as GROUP_STATISTICS_F32, STATISTICS_F64 as GROUP_STATISTICS_F64};

/// Rows (of frames, clips and positions) of channels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelShape {
    /// T · N · P.
    pub rows: usize,
    /// C.
    pub channels: usize,
}

impl ChannelShape {
    /// Elements of x.
    pub fn len(&self) -> usize {
        self.rows * self.channels
    }

    /// Whether x has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
