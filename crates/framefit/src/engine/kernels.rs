//! Which kernels the engine runs, and the scratch that a plan gives them.

use super::Element;
use super::ops::{self, Asked, Layer};
use framefit_core::DType;
use framefit_core::schedule::{KernelRequest, Workspaces};
use framefit_kernels::Isa;

/// Which rows of the kernel tables are used, and on how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The most recent instruction set that may be used.
    pub isa: Isa,
    /// Threads, the caller's among them.
    pub threads: usize,
}

impl Kernels {
    /// Everything this machine has.
    pub fn best() -> Self {
        Self { isa: Isa::best(), threads: std::thread::available_parallelism().map_or(1, usize::from) }
    }
}

impl Kernels {
    /// Scratch of one call, in bytes.
    fn scratch<E: Element>(&self, request: &KernelRequest<'_>) -> usize {
        let layer = Layer {
            clips: request.clips,
            input: request.input,
            output: request.output,
            read: request.read,
            made: request.made,
            channels_before: 0,
        };
        let KernelRequest { pass, training, .. } = *request;
        let asked = Asked { layer, pass, training, isa: self.isa, threads: self.threads };
        ops::scratch::<E>(request.op, &asked) * size_of::<E>()
    }
}

impl Workspaces for Kernels {
    fn bytes(&self, request: &KernelRequest<'_>) -> usize {
        match request.dtype {
            DType::F64 => self.scratch::<f64>(request),
            DType::F32 => self.scratch::<f32>(request),
            DType::U8 | DType::U32 => 0,
        }
    }
}
