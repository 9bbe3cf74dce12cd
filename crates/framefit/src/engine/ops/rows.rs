//! The same matrix for every one of some rows of features.

use super::{Asked, scratch_of};
use crate::engine::Element;
use crate::engine::run::Call;
use framefit_kernels::choose;
use framefit_kernels::conv::{
    ConvForwardArgs, ConvInputGradientArgs, ConvShape, ConvWeightGradientArgs, Dims3, Window,
};
use framefit_kernels::linear::{LinearForwardArgs, LinearInputGradientArgs, LinearShape, LinearWeightGradientArgs};

/// So many rows pay for packing the matrix that they meet.
const MANY: usize = 64;

/// So many pay for packing the gradient of that matrix.
const MANY_SUMMED: usize = 128;

/// Rows whose share in that gradient is taken at once: they stay in near memory.
const SUMMED_AT_ONCE: usize = 256;

/// x: `[R,D]`, w: `[K,D]` -> y: `[R,K]`
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// R.
    pub(super) count: usize,
    /// D.
    pub(super) features: usize,
    /// K.
    pub(super) outputs: usize,
}

/// The kernels that compute a product.
enum On {
    /// Many rows are the positions of a convolution, which packs the matrix.
    Convolution(ConvShape),
    /// Few meet it where it lies.
    Linear(LinearShape),
}

impl Rows {
    fn on(&self, many: usize) -> On {
        let Self { count, features, outputs } = *self;
        if count < many {
            return On::Linear(LinearShape { clips: count, frames: 1, features, out_features: outputs });
        }
        let (one, extents) = (Dims3::cube(1), Dims3 { w: count, ..Dims3::cube(1) });
        On::Convolution(ConvShape {
            clips: 1,
            channels: features,
            out_channels: outputs,
            groups: 1,
            input: extents,
            output: extents,
            kernel: one,
            stride: one,
            padding: Dims3::cube(0),
            dilation: one,
            x: Window { lo: 0, hi: 1 },
            y: Window { lo: 0, hi: 1 },
        })
    }

    fn most(&self, count: usize) -> Self {
        Self { count: self.count.min(count), ..*self }
    }

    /// y (+)= x · wᵀ + bias.
    pub(super) fn forward<E: Element>(&self, call: &Call<'_, E>, args: ConvForwardArgs<'_, E>) {
        let isa = call.kernels.isa;
        match self.on(MANY) {
            On::Convolution(shape) => (choose(E::conv_forward(), isa, &shape).run)(&shape, args, call.pool),
            On::Linear(shape) => {
                let ConvForwardArgs { x, w, bias, relu, accumulate, y, scratch } = args;
                let args = LinearForwardArgs { x, w, bias, relu, accumulate, y, scratch };
                (choose(E::linear_forward(), isa, &shape).run)(&shape, args, call.pool);
            }
        }
    }

    /// dx (+)= dy · w.
    pub(super) fn input_gradient<E: Element>(&self, call: &Call<'_, E>, args: ConvInputGradientArgs<'_, E>) {
        let isa = call.kernels.isa;
        match self.on(MANY) {
            On::Convolution(shape) => (choose(E::conv_input_gradient(), isa, &shape).run)(&shape, args, call.pool),
            On::Linear(shape) => {
                let ConvInputGradientArgs { dy, w, dx, accumulate, scratch } = args;
                let args = LinearInputGradientArgs { dy, w, dx, accumulate, scratch };
                (choose(E::linear_input_gradient(), isa, &shape).run)(&shape, args, call.pool);
            }
        }
    }

    /// dw += dyᵀ · x, db += the sum of dy.
    pub(super) fn weight_gradient<E: Element>(&self, call: &Call<'_, E>, args: ConvWeightGradientArgs<'_, E>) {
        let isa = call.kernels.isa;
        let ConvWeightGradientArgs { x, dy, dw, mut db, scratch } = args;
        let at_once = |each: usize| (SUMMED_AT_ONCE * each).max(1);
        for (x, dy) in x.chunks(at_once(self.features)).zip(dy.chunks(at_once(self.outputs))) {
            let (dw, db, scratch) = (&mut *dw, db.as_deref_mut(), &mut *scratch);
            match self.most(x.len() / self.features).on(MANY_SUMMED) {
                On::Convolution(shape) => {
                    let args = ConvWeightGradientArgs { x, dy, dw, db, scratch };
                    (choose(E::conv_weight_gradient(), isa, &shape).run)(&shape, args, call.pool);
                }
                On::Linear(shape) => {
                    let args = LinearWeightGradientArgs { x, dy, dw, db, scratch };
                    (choose(E::linear_weight_gradient(), isa, &shape).run)(&shape, args, call.pool);
                }
            }
        }
    }

    /// Scratch of [`Rows::forward`], in elements: enough for fewer rows, too.
    pub(super) fn forward_scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let of = |rows: Self| match rows.on(MANY) {
            On::Convolution(shape) => scratch_of!(asked, E::conv_forward(), shape),
            On::Linear(shape) => scratch_of!(asked, E::linear_forward(), shape),
        };
        of(*self).max(of(self.most(MANY - 1)))
    }

    /// Scratch of [`Rows::input_gradient`], in elements: enough for fewer rows, too.
    pub(super) fn input_gradient_scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let of = |rows: Self| match rows.on(MANY) {
            On::Convolution(shape) => scratch_of!(asked, E::conv_input_gradient(), shape),
            On::Linear(shape) => scratch_of!(asked, E::linear_input_gradient(), shape),
        };
        of(*self).max(of(self.most(MANY - 1)))
    }

    /// Scratch of [`Rows::weight_gradient`], in elements: enough for fewer rows, too.
    pub(super) fn weight_gradient_scratch<E: Element>(&self, asked: &Asked<'_>) -> usize {
        let of = |rows: Self| match rows.on(MANY_SUMMED) {
            On::Convolution(shape) => scratch_of!(asked, E::conv_weight_gradient(), shape),
            On::Linear(shape) => scratch_of!(asked, E::linear_weight_gradient(), shape),
        };
        of(self.most(SUMMED_AT_ONCE)).max(of(self.most(MANY_SUMMED - 1)))
    }
}
