use super::NodeId;
use serde::Serialize;
use std::borrow::Cow;

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Initial {
    /// U(−1/√fan_in, 1/√fan_in): PyTorch's default for the weight and the bias of `Conv3d` and `Linear`
    /// (Kaiming uniform with a = √5), and with fan_in = K for all that `LSTM` and `GRU` hold.
    Uniform {
        /// Inputs of one output.
        fan_in: usize,
    },
    /// U(−b, b) with b = √(6/(fan_in + fan_out)): Keras's default for kernels.
    GlorotUniform {
        /// Inputs of one output.
        fan_in: usize,
        /// Outputs of one input.
        fan_out: usize,
    },
    /// Rows or columns, whichever are fewer, orthonormal: Keras's default for recurrent kernels. The tensor is
    /// taken as a matrix with this many columns.
    Orthogonal {
        /// The user's last axis.
        columns: usize,
    },
    /// 0.
    Zeros,
    /// 1.
    Ones,
    /// 1 in `from..to`, 0 elsewhere: a bias that keeps the forget gate open.
    OnesWithin {
        /// First one.
        from: usize,
        /// One past the last.
        to: usize,
    },
}

/// A parameter as an op asks for it.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// The tensor's name within the layer, such as `weight` or `bias`.
    pub name: Cow<'static, str>,
    /// Extents in the user's framework.
    pub dims: Vec<usize>,
    /// How the same values lie in the arena.
    pub stored: StoredOrder,
    /// How it starts.
    pub initial: Initial,
    /// Whether the optimizer changes it.
    pub trained: bool,
}

impl ParamSpec {
    /// A trained tensor of `dims`, of which `order[i]` is stored axis i.
    pub(crate) fn permuted(
        name: impl Into<Cow<'static, str>>,
        dims: Vec<usize>,
        order: &[usize],
        initial: Initial,
    ) -> Self {
        let stored = StoredOrder::of(&dims, order);
        Self { name: name.into(), dims, stored, initial, trained: true }
    }

    pub(crate) fn vector(name: impl Into<Cow<'static, str>>, len: usize, initial: Initial) -> Self {
        Self::permuted(name, vec![len], &[0], initial)
    }
}

/// The order of a parameter's values in the arena: a permutation of the axes of the user's tensor, some of
/// which may be factors of one of the user's axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredOrder {
    /// Extents of the user's axes, outermost first, split into factors.
    user: Vec<usize>,
    /// For each stored axis, outermost first, the user's axis that it is.
    order: Vec<usize>,
}

impl StoredOrder {
    /// `order[i]` is the user's axis that becomes stored axis i.
    pub fn of(user: &[usize], order: &[usize]) -> Self {
        debug_assert_eq!(user.len(), order.len());
        Self { user: user.to_vec(), order: order.to_vec() }
    }

    /// Stored extents, outermost first.
    pub fn dims(&self) -> Vec<usize> {
        self.order.iter().map(|&axis| self.user[axis]).collect()
    }

    /// Whether both orders are the same.
    pub fn is_plain(&self) -> bool {
        self.order.iter().enumerate().all(|(i, &axis)| i == axis)
    }

    /// Calls `each(user index, stored index)` for every value, user indices ascending from `from` for `count`.
    pub fn each(&self, from: usize, count: usize, mut each: impl FnMut(usize, usize)) {
        let rank = self.user.len();
        let mut stored_stride = vec![0; rank];
        let mut stride = 1;
        for &axis in self.order.iter().rev() {
            stored_stride[axis] = stride;
            stride *= self.user[axis];
        }
        let end = stride.min(from.saturating_add(count));
        if from >= end {
            return;
        }
        let mut index = vec![0; rank];
        let mut rest = from;
        for axis in (0..rank).rev() {
            index[axis] = rest % self.user[axis];
            rest /= self.user[axis];
        }
        let mut stored: usize = index.iter().zip(&stored_stride).map(|(i, s)| i * s).sum();
        for user in from..end {
            each(user, stored);
            for axis in (0..rank).rev() {
                index[axis] += 1;
                stored += stored_stride[axis];
                if index[axis] < self.user[axis] {
                    break;
                }
                stored -= index[axis] * stored_stride[axis];
                index[axis] = 0;
            }
        }
    }
}

/// A trained tensor.
#[derive(Clone, Debug, Serialize)]
pub struct Param {
    /// The user's name, such as `conv1.weight`.
    pub name: String,
    /// Extents in the user's framework.
    pub dims: Vec<usize>,
    /// How the values lie in the arena.
    pub stored: StoredOrder,
    /// How it starts.
    pub initial: Initial,
    /// Whether the optimizer changes it.
    pub trained: bool,
    /// The layer it belongs to.
    pub node: NodeId,
}

impl Param {
    pub(super) fn of(node: NodeId, layer: &str, spec: ParamSpec) -> Self {
        Self {
            name: format!("{layer}.{}", spec.name),
            dims: spec.dims,
            stored: spec.stored,
            initial: spec.initial,
            trained: spec.trained,
            node,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_index_is_the_permuted_one() {
        let order = StoredOrder::of(&[2, 3, 4], &[1, 2, 0]);
        assert_eq!(order.dims(), [3, 4, 2]);
        let mut pairs = Vec::new();
        order.each(0, 24, |user, stored| pairs.push((user, stored)));
        for (user, stored) in pairs.iter().copied() {
            let (a, b, c) = (user / 12, user / 4 % 3, user % 4);
            assert_eq!(stored, (b * 4 + c) * 2 + a);
        }
        let mut tail = Vec::new();
        order.each(7, 5, |user, stored| tail.push((user, stored)));
        assert_eq!(tail, pairs[7..12]);
    }
}
