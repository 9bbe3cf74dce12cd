//! Activations, in place or from one buffer to another.

use super::OnKernels;
use crate::engine::Element;
use crate::engine::run::{Call, Forward, InputGradient, elements};
use framefit_core::ops::{Activation, Function, Relu};
use framefit_core::schedule::{Role, Step};
use framefit_kernels::activation::{
    Activation as Kernel, ActivationBackwardArgs, ActivationForwardArgs, ReluBackwardArgs, ReluForwardArgs,
};
use framefit_kernels::{Arena, choose};

fn kernel(function: Function) -> Kernel {
    match function {
        Function::LeakyRelu { slope } => Kernel::LeakyRelu { slope },
        Function::Elu { alpha } => Kernel::Elu { alpha },
        Function::Selu => Kernel::Selu,
        Function::Relu6 => Kernel::Relu6,
        Function::Gelu => Kernel::Gelu,
        Function::GeluTanh => Kernel::GeluTanh,
        Function::Silu => Kernel::Silu,
        Function::Sigmoid => Kernel::Sigmoid,
        Function::HardSigmoid => Kernel::HardSigmoid,
        Function::HardSigmoidKeras2 => Kernel::HardSigmoidKeras2,
        Function::HardSwish => Kernel::HardSwish,
        Function::Tanh => Kernel::Tanh,
        Function::Softplus => Kernel::Softplus,
        Function::Identity => Kernel::Identity,
    }
}

fn forward<E: Element>(call: &Call<'_, E>, step: &Step, activation: Kernel, arena: &mut Arena) -> Option<()> {
    let [x, y] = elements::<E, 2>(call.placed, step, [Role::Input, Role::Output], arena)?;
    let x = step.access(Role::Input).map(|_| &*x);
    let len = y.len();
    let row = choose(E::activation_forward(), call.kernels.isa, &len);
    (row.run)(&len, ActivationForwardArgs { activation, x, y }, call.pool);
    Some(())
}

fn input_gradient<E: Element>(
    call: &Call<'_, E>,
    step: &Step,
    activation: Kernel,
    accumulate: bool,
    arena: &mut Arena,
) -> Option<()> {
    let roles = [Role::Input, Role::Output, Role::OutputGradient, Role::InputGradient];
    let [x, y, dy, dx] = elements::<E, 4>(call.placed, step, roles, arena)?;
    let len = dx.len();
    let row = choose(E::activation_backward(), call.kernels.isa, &len);
    let args = ActivationBackwardArgs { activation, x, y, dy: Some(dy), accumulate, dx };
    (row.run)(&len, args, call.pool);
    Some(())
}

impl OnKernels for Relu {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        if step.access(Role::Input).is_some() {
            return forward(call, step, Kernel::Relu, arena);
        }
        let [y] = elements::<E, 1>(call.placed, step, [Role::Output], arena)?;
        let len = y.len();
        let row = choose(E::relu_forward(), call.kernels.isa, &len);
        (row.run)(&len, ReluForwardArgs { y }, call.pool);
        Some(())
    }

    fn in_place_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let [y, dy] = elements::<E, 2>(call.placed, step, [Role::Output, Role::OutputGradient], arena)?;
        let len = y.len();
        let row = choose(E::relu_backward(), call.kernels.isa, &len);
        (row.run)(&len, ReluBackwardArgs { y, dy }, call.pool);
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        input_gradient(call, step, Kernel::Relu, how.accumulate, arena)
    }
}

impl OnKernels for Activation {
    fn forward<E: Element>(&self, call: &Call<'_, E>, step: &Step, _: Forward, arena: &mut Arena) -> Option<()> {
        forward(call, step, kernel(self.function), arena)
    }

    fn in_place_gradient<E: Element>(&self, call: &Call<'_, E>, step: &Step, arena: &mut Arena) -> Option<()> {
        let [y, dx] = elements::<E, 2>(call.placed, step, [Role::Output, Role::OutputGradient], arena)?;
        let (len, activation) = (dx.len(), kernel(self.function));
        let row = choose(E::activation_backward(), call.kernels.isa, &len);
        let args = ActivationBackwardArgs { activation, x: &[], y, dy: None, accumulate: false, dx };
        (row.run)(&len, args, call.pool);
        Some(())
    }

    fn input_gradient<E: Element>(
        &self,
        call: &Call<'_, E>,
        step: &Step,
        how: InputGradient,
        arena: &mut Arena,
    ) -> Option<()> {
        input_gradient(call, step, kernel(self.function), how.accumulate, arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plan keeps what the kernels read, so both must say the same of each function.
    #[test]
    fn functions_read_what_their_kernels_read() {
        let functions = [
            Function::LeakyRelu { slope: 0.1 },
            Function::LeakyRelu { slope: -0.1 },
            Function::Elu { alpha: 1.0 },
            Function::Elu { alpha: -1.0 },
            Function::Selu,
            Function::Relu6,
            Function::Gelu,
            Function::GeluTanh,
            Function::Silu,
            Function::Sigmoid,
            Function::HardSigmoid,
            Function::HardSigmoidKeras2,
            Function::HardSwish,
            Function::Tanh,
            Function::Softplus,
            Function::Identity,
        ];
        for function in functions {
            assert_eq!(function.reads_input(), kernel(function).reads_input(), "{function:?}");
        }
    }
}
