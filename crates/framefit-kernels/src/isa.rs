//! The instruction sets that kernels are written for.

use std::fmt;
use std::str::FromStr;

/// An instruction set, in the order in which a dispatcher prefers them: later is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; the reference, on every machine.
    Scalar,
    /// x86-64 with AVX2 and FMA: eight `f32` lanes.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL: sixteen `f32` lanes.
    Avx512,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// Whether this machine has it, asked at run time.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2(),
            Isa::Avx512 => avx512(),
        }
    }

    /// The fastest instruction set of this machine.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Scalar)
    }

    /// The name used in kernel names, reports and options.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A text that names no instruction set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIsa {
    /// What was given.
    pub text: String,
}

impl fmt::Display for UnknownIsa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` is no instruction set; expected scalar, avx2 or avx512", self.text)
    }
}

impl std::error::Error for UnknownIsa {}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == text).ok_or_else(|| UnknownIsa { text: text.to_owned() })
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
fn avx512() -> bool {
    avx2()
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn avx512() -> bool {
    false
}
