//! Ops that only see their input's bytes otherwise: no step is theirs.

use super::OnKernels;
use framefit_core::ops::Flatten;

impl OnKernels for Flatten {}
