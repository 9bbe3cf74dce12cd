use super::checks::{flattened, invalid, made_for, positive};
use super::{BackwardReads, Layer, Operations, features};
use crate::axes::{Dims3, Order, Shape, View};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec, StoredOrder};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// How the user's framework names and lays out a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinearLayout {
    /// `Linear`: weight `[K,D]`, both weight and bias from U(−1/√D, 1/√D).
    #[serde(rename = "pytorch")]
    PyTorch,
    /// `Dense`: kernel `[D,K]` from Glorot's uniform distribution, the bias from zeros.
    Keras,
}

impl LinearLayout {
    fn initial(self, features: usize, units: usize) -> Initial {
        match self {
            LinearLayout::PyTorch => Initial::Uniform { fan_in: features },
            LinearLayout::Keras => Initial::GlorotUniform { fan_in: features, fan_out: units },
        }
    }

    fn bias(self, features: usize, units: usize) -> ParamSpec {
        let initial = match self {
            LinearLayout::PyTorch => Initial::Uniform { fan_in: features },
            LinearLayout::Keras => Initial::Zeros,
        };
        ParamSpec::vector("bias", units, initial)
    }

    fn kind(self) -> &'static str {
        match self {
            LinearLayout::PyTorch => "Linear",
            LinearLayout::Keras => "Dense",
        }
    }
}

/// x: `[T,N,D]` with D = H·W·C, w: `[T,K,D]`, bias: `[K]` -> y: `[1,N,K]`
///
/// PyTorch's `Linear` and Keras's `Dense` on one vector per clip. The vector of a flattened video is in the order
/// that its view tells (PyTorch: C, T, H, W; Keras: T, H, W, C), and the user's matrix is `[K, C·T·H·W]` or
/// `[T·H·W·C, K]`; stored, each frame has its own slice `[K, H·W·C]` of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    /// Features it was made for: T·H·W·C of its input.
    pub in_features: usize,
    /// K.
    pub out_features: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Name and extents of the user's tensors.
    pub layout: LinearLayout,
}

impl Linear {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        positive("the number of features", &[self.in_features, self.out_features], at)?;
        let vectors = match input.view {
            View::Flat(_) => 1,
            View::FlatFrames(_) => input.dims.t,
            View::Video => input.dims.volume(),
        };
        if vectors != 1 {
            let rule = "one vector per clip: put a Flatten or a global pooling before this layer; its positions";
            return Err(invalid("the input", rule, vectors, at));
        }
        made_for("features", self.in_features, input.per_clip(), at)?;
        Ok(Shape::vector(self.out_features))
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        let (features, units) = (self.in_features, self.out_features);
        let (Dims3 { t, h, w }, c) = (input.dims, input.channels);
        let order = match input.view {
            View::Flat(order) | View::FlatFrames(order) => order,
            View::Video => Order::PyTorch,
        };
        let stored = match (self.layout, order) {
            (LinearLayout::PyTorch, Order::PyTorch) => StoredOrder::of(&[units, c, t, h, w], &[2, 0, 3, 4, 1]),
            (LinearLayout::PyTorch, Order::Keras) => StoredOrder::of(&[units, t, h, w, c], &[1, 0, 2, 3, 4]),
            (LinearLayout::Keras, Order::PyTorch) => StoredOrder::of(&[c, t, h, w, units], &[1, 4, 2, 3, 0]),
            (LinearLayout::Keras, Order::Keras) => StoredOrder::of(&[t, h, w, c, units], &[0, 4, 1, 2, 3]),
        };
        let (name, dims) = match self.layout {
            LinearLayout::PyTorch => ("weight", vec![units, features]),
            LinearLayout::Keras => ("kernel", vec![features, units]),
        };
        let initial = self.layout.initial(features, units);
        let mut params = vec![ParamSpec { name: name.into(), dims, stored, initial, trained: true }];
        if self.bias {
            params.push(self.layout.bias(features, units));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::whole(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn operations(&self, _input: &Shape, _output: &Shape) -> Operations {
        Operations::product(2 * (self.in_features as u64) * self.out_features as u64)
    }

    pub(super) fn kind(&self) -> &'static str {
        self.layout.kind()
    }
}

/// x: `[T,N,H,W,C]`, w: `[K,C]`, bias: `[K]` -> y: `[T,N,H,W,K]`; or, of one vector per frame,
/// x: `[T,N,D]` with D = H·W·C, w: `[K,H,W,C]`, bias: `[K]` -> y: `[T,N,1,1,K]`
///
/// The same matrix at every frame and position, or for every frame: PyTorch's `Linear` and Keras's `Dense` on more
/// than one vector per clip. The user's matrix is `[K,D]` or `[D,K]`, D in the order that the view tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    /// D, the features it was made for: C of a video, H·W·C of flattened frames.
    pub in_channels: usize,
    /// K.
    pub units: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Name and extents of the user's tensors.
    pub layout: LinearLayout,
}

impl Dense {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        positive("the number of units", &[self.in_channels, self.units], at)?;
        let (what, dims) = match input.view {
            View::Video => ("channels", input.dims),
            View::FlatFrames(_) => ("features", Dims3 { h: 1, w: 1, ..input.dims }),
            View::Flat(_) if input.dims.t == 1 => ("features", Dims3::cube(1)),
            View::Flat(_) => return Err(flattened(at)),
        };
        made_for(what, self.in_channels, features::count(input), at)?;
        Ok(Shape { dims, channels: self.units, view: input.view })
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        let initial = self.layout.initial(self.in_channels, self.units);
        let mut params = vec![match self.layout {
            LinearLayout::PyTorch => features::rows_first("weight", self.units, input, initial),
            LinearLayout::Keras => features::rows_last("kernel", self.units, input, initial),
        }];
        if self.bias {
            params.push(self.layout.bias(self.in_channels, self.units));
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        Operations::product(2 * (output.per_clip() as u64) * self.in_channels as u64)
    }

    pub(super) fn kind(&self) -> &'static str {
        self.layout.kind()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{at, dims, flat, flat_frames, message, output, stored, tensors, video};
    use super::*;

    const LAYOUTS: [(LinearLayout, &str); 2] = [(LinearLayout::PyTorch, "weight"), (LinearLayout::Keras, "kernel")];

    /// The index in the user's matrix of unit k's weight for this feature.
    fn of_matrix(layout: LinearLayout, (features, units): (usize, usize), feature: usize, k: usize) -> usize {
        match layout {
            LinearLayout::PyTorch => at(&[units, features], &[k, feature]),
            LinearLayout::Keras => at(&[features, units], &[feature, k]),
        }
    }

    #[test]
    fn a_clip_s_matrix_is_stored_in_slices_of_frames_whatever_its_order() {
        let (t, h, w, c, units) = (2, 3, 4, 5, 6);
        let features = t * h * w * c;
        for (layout, name) in LAYOUTS {
            let op = Op::Linear(Linear { in_features: features, out_features: units, bias: true, layout });
            for order in [Order::PyTorch, Order::Keras] {
                let input = flat(order, video(t, h, w, c));
                assert_eq!(output(&op, input), Shape::vector(units));
                let weight = &op.params(&input)[0];
                assert_eq!(weight.name, name);
                assert_eq!(weight.stored.dims(), [t, units, h, w, c]);
                let (of_t, of_h, of_w, of_c, k) = (1, 2, 1, 3, 5);
                let feature = match order {
                    Order::PyTorch => at(&[c, t, h, w], &[of_c, of_t, of_h, of_w]),
                    Order::Keras => at(&[t, h, w, c], &[of_t, of_h, of_w, of_c]),
                };
                let place = at(&[t, units, h, w, c], &[of_t, k, of_h, of_w, of_c]);
                let user = of_matrix(layout, (features, units), feature, k);
                assert_eq!(stored(weight, user), place, "{layout:?} {order:?}");
            }
        }
    }

    #[test]
    fn a_matrix_of_flattened_frames_is_stored_as_their_pixels_lie() {
        let (h, w, c, units) = (3, 4, 5, 6);
        let features = h * w * c;
        for (layout, _) in LAYOUTS {
            let op = Op::Dense(Dense { in_channels: features, units, bias: false, layout });
            for order in [Order::PyTorch, Order::Keras] {
                let input = flat_frames(order, video(7, h, w, c));
                assert_eq!(output(&op, input), flat_frames(order, video(7, 1, 1, units)));
                let weight = &op.params(&input)[0];
                assert_eq!(weight.stored.dims(), [units, h, w, c]);
                let (of_h, of_w, of_c, k) = (2, 1, 3, 5);
                let feature = match order {
                    Order::PyTorch => at(&[c, h, w], &[of_c, of_h, of_w]),
                    Order::Keras => at(&[h, w, c], &[of_h, of_w, of_c]),
                };
                let place = at(&[units, h, w, c], &[k, of_h, of_w, of_c]);
                let user = of_matrix(layout, (features, units), feature, k);
                assert_eq!(stored(weight, user), place, "{layout:?} {order:?}");
            }
        }
    }

    #[test]
    fn a_matrix_at_every_position_keeps_the_frames() {
        let op = |layout| Op::Dense(Dense { in_channels: 5, units: 3, bias: true, layout });
        let input = video(2, 4, 4, 5);
        assert_eq!(output(&op(LinearLayout::Keras), input), video(2, 4, 4, 3));
        let of = |name: &str, dims: &[usize]| (name.to_owned(), dims.to_vec());
        assert_eq!(tensors(&op(LinearLayout::PyTorch), input), [of("weight", &[3, 5]), of("bias", &[3])]);
        assert_eq!(tensors(&op(LinearLayout::Keras), input), [of("kernel", &[5, 3]), of("bias", &[3])]);
        for (layout, _) in LAYOUTS {
            assert_eq!(op(layout).params(&input)[0].stored.dims(), [3, 5]);
        }
        let text = message(&op(LinearLayout::Keras), &[flat(Order::Keras, input)]);
        assert_eq!(text, "layer works on frames, but before has flattened its input (built-in model)");
    }

    #[test]
    fn weights_start_as_in_the_framework() {
        let specs = |layout| {
            let linear = Linear { in_features: 12, out_features: 4, bias: true, layout };
            linear.params(&video(1, 1, 1, 12)).into_iter().map(|spec| spec.initial).collect::<Vec<_>>()
        };
        assert_eq!(specs(LinearLayout::PyTorch), [Initial::Uniform { fan_in: 12 }; 2]);
        let glorot = Initial::GlorotUniform { fan_in: 12, fan_out: 4 };
        assert_eq!(specs(LinearLayout::Keras), [glorot, Initial::Zeros]);
    }

    #[test]
    fn one_flattened_frame_is_a_vector_per_clip() {
        let linear = Linear { in_features: 8, out_features: 2, bias: false, layout: LinearLayout::PyTorch };
        let op = Op::Linear(linear);
        assert_eq!(output(&op, flat_frames(Order::PyTorch, video(1, 2, 2, 2))).dims, dims(1, 1, 1));
        let text = message(&op, &[flat_frames(Order::PyTorch, video(2, 2, 2, 1))]);
        assert!(text.contains("one vector per clip") && text.contains("but is 2"), "{text}");
    }
}
