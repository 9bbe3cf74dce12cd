//! What the tests against `reference/` share: its cases, layouts, tolerances, and the rows of a kernel's table.
#![allow(dead_code)]

use framefit::kernels::conv::Dims3;
use framefit::kernels::{Pool, Real, Row};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;

/// The path of a file of `reference/`.
pub fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../reference").join(file)
}

/// The description that lies beside the tensors, or alone.
pub fn about(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path(&format!("{name}.json"))).unwrap()).unwrap()
}

/// A tensor in the layout of the framework that made it.
#[derive(Clone, Debug)]
pub struct Array {
    /// Extents, outermost first.
    pub dims: Vec<usize>,
    /// Row by row.
    pub values: Vec<f64>,
}

impl Array {
    /// The nearest values of the element type.
    pub fn to<E: Real>(&self) -> Vec<E> {
        self.values.iter().map(|&v| E::from_f64(v)).collect()
    }

    /// Axis i of the result is axis `order[i]`.
    pub fn permuted(&self, order: &[usize]) -> Array {
        assert_eq!(order.len(), self.dims.len());
        let mut strides = vec![1; order.len()];
        for axis in (1..order.len()).rev() {
            strides[axis - 1] = strides[axis] * self.dims[axis];
        }
        let dims: Vec<usize> = order.iter().map(|&axis| self.dims[axis]).collect();
        let value = |mut index: usize| {
            let mut at = 0;
            for (&axis, &size) in order.iter().zip(&dims).rev() {
                at += index % size * strides[axis];
                index /= size;
            }
            self.values[at]
        };
        Array { values: (0..self.values.len()).map(value).collect(), dims }
    }

    /// `[N,C,T,H,W]` of `[N,C,T,H,W]`, `[N,C,H,W]`, `[N,C,T]` or `[N,C]`, absent extents being 1.
    fn five(&self) -> Array {
        let dims = match self.dims[..] {
            [n, c, t, h, w] => [n, c, t, h, w],
            [n, c, h, w] => [n, c, 1, h, w],
            [n, c, t] => [n, c, t, 1, 1],
            [n, c] => [n, c, 1, 1, 1],
            _ => panic!("no clips: {:?}", self.dims),
        };
        Array { dims: dims.to_vec(), values: self.values.clone() }
    }

    /// PyTorch's activations as the kernels lay them out: `[T,N,H,W,C]`.
    pub fn frames(&self) -> Array {
        self.five().permuted(&[2, 0, 3, 4, 1])
    }

    /// PyTorch's activations with channels last: `[N,T,H,W,C]`.
    pub fn channels_last(&self) -> Array {
        self.five().permuted(&[0, 2, 3, 4, 1])
    }

    /// PyTorch's convolution weights `[K,C/g,kT,kH,kW]` as the kernels lay them out: `[K,kT,kH,kW,C/g]`.
    pub fn conv_weight(&self) -> Array {
        self.permuted(&[0, 2, 3, 4, 1])
    }

    /// Keras' matrices `[in,out]` as the kernels lay them out: `[out,in]`.
    pub fn transposed(&self) -> Array {
        self.permuted(&[1, 0])
    }
}

/// The cases of one file.
pub struct Cases {
    about: Value,
    tensors: HashMap<String, Array>,
}

/// A case: an op with its attributes and tensors.
pub struct Case<'a> {
    /// Unique in its file.
    pub name: &'a str,
    /// The op.
    pub op: &'a str,
    attributes: &'a Value,
    tensors: &'a HashMap<String, Array>,
}

/// A case that no kernel computes, and why.
pub type WithoutKernel = (&'static str, &'static str);

impl Cases {
    /// The cases of `<name>.json` and `<name>.safetensors`.
    pub fn of(name: &str) -> Cases {
        let bytes = std::fs::read(path(&format!("{name}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, tensor)| {
            let eights = tensor.data().as_chunks::<8>().0.iter();
            let values = match tensor.dtype() {
                Dtype::F64 => eights.map(|b| f64::from_le_bytes(*b)).collect(),
                Dtype::I64 => eights.map(|b| i64::from_le_bytes(*b) as f64).collect(),
                other => panic!("{name}: {other:?}"),
            };
            (name.to_owned(), Array { dims: tensor.shape().to_vec(), values })
        });
        Cases { tensors: tensors.collect(), about: about(name) }
    }

    /// All cases, in order.
    pub fn all(&self) -> Vec<Case<'_>> {
        let cases = self.about["cases"].as_array().unwrap().iter();
        cases
            .map(|case| Case {
                name: case["name"].as_str().unwrap(),
                op: case["op"].as_str().unwrap(),
                attributes: &case["attributes"],
                tensors: &self.tensors,
            })
            .collect()
    }

    /// Checks the cases of one op but those listed, which must be there; `count` is how many are checked.
    #[track_caller]
    pub fn check(&self, op: &str, count: usize, without_kernel: &[WithoutKernel], check: impl Fn(&Case<'_>)) {
        let of_op: Vec<Case<'_>> = self.all().into_iter().filter(|case| case.op == op).collect();
        for (name, why) in without_kernel {
            assert!(of_op.iter().any(|case| case.name == *name), "no case {name} to leave out because {why}");
        }
        let left_out = |case: &&Case<'_>| without_kernel.iter().any(|(name, _)| case.name == *name);
        let checked = of_op.iter().filter(|case| !left_out(case)).map(check).count();
        assert_eq!(checked, count, "cases of {op}");
    }

    /// Asserts that the file holds these ops and no other.
    #[track_caller]
    pub fn assert_ops(&self, ops: &[&str]) {
        for case in self.all() {
            assert!(ops.contains(&case.op), "no test takes up {}, a case of {}", case.name, case.op);
        }
        for op in ops {
            assert!(self.all().iter().any(|case| case.op == *op), "no case of {op}");
        }
    }
}

impl Case<'_> {
    /// The tensor of that name, where the case has it.
    pub fn get(&self, tensor: &str) -> Option<&Array> {
        self.tensors.get(&format!("{}/{tensor}", self.name))
    }

    /// The tensor of that name.
    #[track_caller]
    pub fn tensor(&self, tensor: &str) -> &Array {
        self.get(tensor).unwrap_or_else(|| panic!("{} has no {tensor}", self.name))
    }

    /// An attribute, null where it is absent.
    pub fn attribute(&self, key: &str) -> &Value {
        &self.attributes[key]
    }

    /// An attribute that is a number.
    #[track_caller]
    pub fn number(&self, key: &str) -> f64 {
        self.attributes[key].as_f64().unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    /// An attribute that is a size.
    pub fn size(&self, key: &str) -> usize {
        self.number(key) as usize
    }

    /// An attribute that is true or false.
    #[track_caller]
    pub fn flag(&self, key: &str) -> bool {
        self.attributes[key].as_bool().unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    /// An attribute of one, two (H, W) or three extents, or one of all axes; `absent` on the others.
    #[track_caller]
    pub fn dims(&self, key: &str, absent: usize) -> Dims3 {
        let list: Vec<usize> = match &self.attributes[key] {
            Value::Array(list) => list.iter().map(|v| v.as_u64().unwrap() as usize).collect(),
            other => panic!("{}: {key} is {other}", self.name),
        };
        match list[..] {
            [t, h, w] => Dims3 { t, h, w },
            [h, w] => Dims3 { t: absent, h, w },
            [t] => Dims3 { t, h: absent, w: absent },
            _ => panic!("{}: {key} is {list:?}", self.name),
        }
    }
}

/// N, C and T, H, W of PyTorch's activations.
pub fn extents(array: &Array) -> (usize, usize, Dims3) {
    match array.five().dims[..] {
        [n, c, t, h, w] => (n, c, Dims3 { t, h, w }),
        _ => unreachable!(),
    }
}

/// How far results may lie from the reference, relative to its largest value.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance(pub f64);

impl Tolerance {
    /// Sums in any order, in f64.
    pub const F64_REORDERED: Tolerance = Tolerance(1e-10);
    /// Sums in any order in f32, of inputs rounded to f32.
    pub const F32_REORDERED: Tolerance = Tolerance(2e-5);
}

/// An element type with its tolerance.
pub trait Element: Real {
    /// Of sums in any order.
    const REORDERED: Tolerance;
}

impl Element for f32 {
    const REORDERED: Tolerance = Tolerance::F32_REORDERED;
}

impl Element for f64 {
    const REORDERED: Tolerance = Tolerance::F64_REORDERED;
}

/// Asserts that results in the kernels' layout are the reference's, laid out in the same way.
#[track_caller]
pub fn assert_close<E: Element>(what: &str, got: &[E], want: &Array) {
    assert_within(what, got, want, E::REORDERED);
}

/// The same within another tolerance.
#[track_caller]
pub fn assert_within<E: Element>(what: &str, got: &[E], want: &Array, tolerance: Tolerance) {
    assert_eq!(got.len(), want.values.len(), "{what}");
    let largest = want.values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(&want.values).enumerate() {
        let off = (got.to_f64() - want).abs();
        // An assertion that NaN fails.
        assert!(off <= tolerance.0 * largest, "{what} at {i}: {got} instead of {want}, largest {largest}");
    }
}

/// The rows of a table that this machine can run and that handle the shape.
pub fn rows<'s, S, R: Row<S>>(table: &'static [R], shape: &'s S) -> impl Iterator<Item = &'static R> + use<'s, S, R> {
    table.iter().filter(|row| row.isa().available() && row.handles(shape))
}

/// What a kernel must overwrite.
pub fn nan<E: Real>(len: usize) -> Vec<E> {
    vec![E::from_f64(f64::NAN); len]
}

/// What a kernel adds to.
pub fn zeros<E: Real>(len: usize) -> Vec<E> {
    vec![E::ZERO; len]
}

/// Threads of the pool that all kernels run on.
pub const THREADS: usize = 2;

/// The pool that all kernels run on.
pub fn pool() -> Pool {
    Pool::new(THREADS).unwrap()
}
