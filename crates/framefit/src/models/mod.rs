//! Built-in models, with the parameter names and the initialisation of the same model in PyTorch.

use crate::engine::{Element, Engine, EngineError, Tensor};
use crate::random::SplitMix64;
use framefit_core::graph::Initial;
use framefit_core::ops::{
    AdaptivePool3d, BatchNorm, Cell, Conv3d, Dense, Flatten, GlobalAvgPool3d, Linear, LinearLayout, MaxPool3d,
    Momentum, NormLayout, NormMean, PoolKind, Recurrent, RecurrentLayout, Relu, Statistics, same,
};
use framefit_core::{Dims3, Graph, GraphBuilder, Op, Order, Origin, ParamId, Shape, ShapeError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The built-in models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Convolution blocks, the mean over time and space, two linear layers.
    Cnn3d,
    /// The same with depthwise separable convolutions.
    Cnn3dSeparable,
    /// Convolution blocks, all their features flattened, two linear layers.
    Cnn3dFlatten,
    /// ConvLSTM2D, batch normalisation, the mean of each frame, a dense layer: a label per frame.
    #[serde(rename = "convlstm")]
    ConvLstm,
    /// Convolutions of every frame, an LSTM over their features, a linear layer: a label per frame.
    CnnLstm,
}

/// Where `convlstm` normalises with the statistics of the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormPlace {
    /// Before the mean of each frame.
    #[default]
    Before,
    /// After it.
    After,
    /// Nowhere.
    None,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 5] =
        [Family::Cnn3d, Family::Cnn3dSeparable, Family::Cnn3dFlatten, Family::ConvLstm, Family::CnnLstm];

    /// Whether its models have a label per frame.
    pub const fn labels_frames(self) -> bool {
        matches!(self, Family::ConvLstm | Family::CnnLstm)
    }

    /// The order of axes of the framework that its names and definitions are of.
    pub const fn order(self) -> Order {
        match self {
            Family::Cnn3d | Family::Cnn3dSeparable | Family::Cnn3dFlatten | Family::CnnLstm => Order::PyTorch,
            Family::ConvLstm => Order::Keras,
        }
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Cnn3d => "cnn3d",
            Family::Cnn3dSeparable => "cnn3d-separable",
            Family::Cnn3dFlatten => "cnn3d-flatten",
            Family::ConvLstm => "convlstm",
            Family::CnnLstm => "cnn-lstm",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no built-in model has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model '{name}': use cnn3d, cnn3d-separable, cnn3d-flatten, convlstm or cnn-lstm")]
pub struct UnknownFamily {
    /// What was given.
    pub name: String,
}

impl FromStr for Family {
    type Err = UnknownFamily;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| UnknownFamily { name: name.to_owned() })
    }
}

/// Everything that a built-in model depends on besides its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Which model.
    pub family: Family,
    /// Output channels of each convolution block; `convlstm` has none.
    pub widths: Vec<usize>,
    /// Filters of `convlstm`; the others have none.
    pub filters: usize,
    /// Kernel of every convolution; padded so that odd kernels keep the extents.
    pub kernel: Dims3,
    /// Step over height and width of the convolution of `convlstm` and those of `cnn-lstm`.
    #[serde(default = "one")]
    pub stride: usize,
    /// Where `convlstm` normalises.
    #[serde(default)]
    pub norm: NormPlace,
    /// The probability with which the states of `convlstm` are dropped before its products.
    #[serde(default)]
    pub recurrent_dropout: f64,
    /// Kernel and stride of the max pooling after every convolution.
    pub pool: Dims3,
    /// Features between the two linear layers, or of the LSTM.
    pub hidden: usize,
    /// T of a clip.
    pub frames: usize,
    /// H of a clip.
    pub height: usize,
    /// W of a clip.
    pub width: usize,
    /// C of a clip.
    pub channels: usize,
    /// Classes.
    pub classes: usize,
}

impl ModelSpec {
    /// A model of this family with its defaults, for one frame of one pixel.
    pub fn of(family: Family) -> Self {
        Self {
            family,
            widths: vec![32, 64],
            filters: 40,
            kernel: Dims3::cube(3),
            stride: if family == Family::CnnLstm { 2 } else { 1 },
            norm: NormPlace::Before,
            recurrent_dropout: 0.0,
            pool: Dims3::cube(2),
            hidden: if family == Family::CnnLstm { 64 } else { 512 },
            frames: 1,
            height: 1,
            width: 1,
            channels: 1,
            classes: 1,
        }
    }

    /// The extents of a clip.
    pub fn source(&self) -> Shape {
        Shape::video(Dims3 { t: self.frames, h: self.height, w: self.width }, self.channels)
    }

    /// The model.
    ///
    /// # Errors
    /// When a layer does not fit what it receives, such as a pooling after which nothing would be left.
    pub fn build(&self) -> Result<Graph, ShapeError> {
        let at = Origin::BuiltIn;
        let mut b = GraphBuilder::new(self.source());
        match self.family {
            Family::ConvLstm => return self.conv_lstm(b, &at),
            Family::CnnLstm => return self.cnn_lstm(b, &at),
            Family::Cnn3d | Family::Cnn3dSeparable | Family::Cnn3dFlatten => {}
        }
        for (i, &width) in self.widths.iter().enumerate() {
            let n = i + 1;
            let channels = b.shape().channels;
            if self.family == Family::Cnn3dSeparable {
                let depthwise = Conv3d { groups: channels, ..Conv3d::same(channels, channels, self.kernel) };
                b.layer(&format!("conv{n}.depthwise"), Op::Conv3d(depthwise), &at)?;
                let pointwise = Conv3d::same(channels, width, Dims3::cube(1));
                b.layer(&format!("conv{n}.pointwise"), Op::Conv3d(pointwise), &at)?;
            } else {
                let conv = Conv3d::same(channels, width, self.kernel);
                b.layer(&format!("conv{n}"), Op::Conv3d(conv), &at)?;
            }
            b.layer(&format!("relu{n}"), Op::Relu(Relu), &at)?;
            b.layer(&format!("pool{n}"), Op::MaxPool3d(MaxPool3d::tiles(self.pool)), &at)?;
        }
        if self.family != Family::Cnn3dFlatten {
            b.layer("global_avg_pool", Op::GlobalAvgPool3d(GlobalAvgPool3d), &at)?;
        }
        b.layer("flatten", Op::Flatten(Flatten { per_frame: false, order: Order::PyTorch }), &at)?;
        let in_features = b.shape().per_clip();
        b.layer(
            "fc1",
            Op::Linear(Linear { in_features, out_features: self.hidden, bias: true, layout: LinearLayout::PyTorch }),
            &at,
        )?;
        b.layer("relu_fc1", Op::Relu(Relu), &at)?;
        let fc2 =
            Linear { in_features: self.hidden, out_features: self.classes, bias: true, layout: LinearLayout::PyTorch };
        b.layer("fc2", Op::Linear(fc2), &at)?;
        b.finish()
    }
}

impl ModelSpec {
    /// The fewest frames that a clip of this model may have; 1 where frames are not what is wrong with it.
    pub fn fewest_frames(&self) -> usize {
        const MOST: usize = 1 << 12;
        let fits = |frames: &usize| Self { frames: *frames, ..self.clone() }.build().is_ok();
        (1..=MOST.max(self.frames)).find(fits).unwrap_or(1)
    }

    /// Names and definitions of the Keras model.
    fn conv_lstm(&self, mut b: GraphBuilder, at: &Origin) -> Result<Graph, ShapeError> {
        let kernel = Dims3 { t: 1, ..self.kernel };
        let (h, w) = (same(self.height, kernel.h, self.stride, 1), same(self.width, kernel.w, self.stride, 1));
        let lstm = Recurrent {
            kernel,
            stride: Dims3 { t: 1, h: self.stride, w: self.stride },
            padding: Dims3 { t: 0, h: h.0, w: w.0 },
            padding_end: Dims3 { t: 0, h: h.1, w: w.1 },
            recurrent_dropout: self.recurrent_dropout,
            ..Recurrent::features(Cell::Lstm, self.channels, self.filters, RecurrentLayout::KerasConvLstm2d)
        };
        b.layer("conv_lstm2d", Op::Recurrent(lstm), at)?;
        let (epsilon, momentum) = (1e-3, 0.99);
        match self.norm {
            NormPlace::Before => b.layer("batch_normalization", Op::NormMean(NormMean { epsilon, momentum }), at)?,
            NormPlace::After | NormPlace::None => {
                let mean = AdaptivePool3d { output: [None, Some(1), Some(1)], kind: PoolKind::Average };
                b.layer("average_pooling3d", Op::AdaptivePool3d(mean), at)?
            }
        };
        if self.norm == NormPlace::After {
            let norm = BatchNorm {
                epsilon,
                momentum: Momentum::Keras(momentum),
                statistics: Statistics::Batch,
                scale: true,
                center: true,
                trained: true,
                layout: NormLayout::Keras,
            };
            b.layer("batch_normalization", Op::BatchNorm(norm), at)?;
        }
        let dense = Dense { in_channels: self.filters, units: self.classes, bias: true, layout: LinearLayout::Keras };
        b.layer("dense", Op::Dense(dense), at)?;
        b.finish()
    }

    /// Names and definitions of a PyTorch module with `conv1`, `conv2`, …, `lstm` and `fc`.
    fn cnn_lstm(&self, mut b: GraphBuilder, at: &Origin) -> Result<Graph, ShapeError> {
        let kernel = (self.kernel.h, self.kernel.w);
        for (i, &width) in self.widths.iter().enumerate() {
            let (n, channels) = (i + 1, b.shape().channels);
            let padding = (kernel.0 / 2, kernel.1 / 2);
            let conv = Conv3d::frames(channels, width, kernel, (self.stride, self.stride), padding);
            b.layer(&format!("conv{n}"), Op::Conv3d(conv), at)?;
            b.layer(&format!("relu{n}"), Op::Relu(Relu), at)?;
        }
        b.layer("flatten", Op::Flatten(Flatten { per_frame: true, order: Order::PyTorch }), at)?;
        let layout = RecurrentLayout::PyTorch { layer: 0, reverse: false };
        let lstm = Recurrent::features(Cell::Lstm, b.shape().per_frame(), self.hidden, layout);
        b.layer("lstm", Op::Recurrent(lstm), at)?;
        let fc = Dense { in_channels: self.hidden, units: self.classes, bias: true, layout: LinearLayout::PyTorch };
        b.layer("fc", Op::Dense(fc), at)?;
        b.finish()
    }
}

const fn one() -> usize {
    1
}

/// Fills every parameter as its framework initialises it. The values depend on the seed alone, not on how they
/// are stored.
///
/// # Errors
/// When the engine's plan does not hold the model's parameters.
pub fn initialise<E: Element>(engine: &mut Engine<E>, seed: u64) -> Result<(), EngineError> {
    for index in 0..engine.graph().params.len() {
        let param = engine.graph().params[index].clone();
        let mut random = SplitMix64::of(&[seed, index as u64]);
        let weight = engine.tensor_mut(Tensor::Weight(ParamId(index)))?;
        let orthogonal = match param.initial {
            Initial::Orthogonal { columns } => orthonormal(param.len() / columns.max(1), columns, &mut random),
            _ => Vec::new(),
        };
        param.stored.each(0, param.len(), |user, stored| {
            let mut uniform = |bound: f64| (2.0 * random.unit() - 1.0) * bound;
            let value = match param.initial {
                Initial::Uniform { fan_in } => uniform(1.0 / (fan_in.max(1) as f64).sqrt()),
                Initial::GlorotUniform { fan_in, fan_out } => uniform((6.0 / (fan_in + fan_out).max(1) as f64).sqrt()),
                Initial::Orthogonal { .. } => orthogonal.get(user).copied().unwrap_or(0.0),
                Initial::Zeros => 0.0,
                Initial::Ones => 1.0,
                Initial::OnesWithin { from, to } => f64::from(u8::from((from..to).contains(&user))),
            };
            if let Some(slot) = weight.get_mut(stored) {
                *slot = E::from_f64(value);
            }
        });
    }
    Ok(())
}

/// `[rows,columns]` whose rows or columns, whichever are fewer, are orthonormal: normal draws, orthonormalised
/// one after the other (modified Gram-Schmidt, twice).
fn orthonormal(rows: usize, columns: usize, random: &mut SplitMix64) -> Vec<f64> {
    let (count, length) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut vector: Vec<f64> = (0..length).map(|_| random.normal()).collect();
        for _ in 0..2 {
            for other in &vectors {
                let dot: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(other).for_each(|(v, o)| *v -= dot * o);
            }
        }
        let norm = vector.iter().map(|v| v * v).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        vector.iter_mut().for_each(|v| *v /= norm);
        vectors.push(vector);
    }
    let at = |row: usize, column: usize| if rows >= columns { vectors[column][row] } else { vectors[row][column] };
    (0..rows * columns).map(|i| at(i / columns, i % columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed_one(family: Family) -> ModelSpec {
        ModelSpec {
            family,
            widths: vec![32, 64],
            filters: 0,
            kernel: Dims3::cube(3),
            stride: 1,
            norm: NormPlace::Before,
            recurrent_dropout: 0.0,
            pool: Dims3::cube(2),
            hidden: 512,
            frames: 60,
            height: 230,
            width: 230,
            channels: 3,
            classes: 20,
        }
    }

    #[test]
    fn parameter_names_and_sizes_are_those_of_the_module() {
        let graph = seed_one(Family::Cnn3d).build().unwrap();
        let names: Vec<&str> = graph.params.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "conv1.weight",
                "conv1.bias",
                "conv2.weight",
                "conv2.bias",
                "fc1.weight",
                "fc1.bias",
                "fc2.weight",
                "fc2.bias"
            ]
        );
        let by_hand = (32 * 3 * 27 + 32) + (64 * 32 * 27 + 64) + (512 * 64 + 512) + (20 * 512 + 20);
        assert_eq!(graph.param_count(), by_hand);
    }

    #[test]
    fn orthonormal_matrices_are() {
        for (rows, columns) in [(9, 4), (4, 9), (5, 5), (1, 3)] {
            let matrix = orthonormal(rows, columns, &mut SplitMix64::of(&[3]));
            let count = rows.min(columns);
            let dot = |i: usize, j: usize| -> f64 {
                (0..rows.max(columns))
                    .map(|k| match rows >= columns {
                        true => matrix[k * columns + i] * matrix[k * columns + j],
                        false => matrix[i * columns + k] * matrix[j * columns + k],
                    })
                    .sum()
            };
            for i in 0..count {
                for j in 0..count {
                    assert!((dot(i, j) - f64::from(u8::from(i == j))).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn separable_names_both_halves() {
        let graph = seed_one(Family::Cnn3dSeparable).build().unwrap();
        assert_eq!(graph.params[0].name, "conv1.depthwise.weight");
        assert_eq!(graph.params[0].dims, [3, 1, 3, 3, 3]);
        assert_eq!(graph.params[2].name, "conv1.pointwise.weight");
        assert_eq!(graph.params[2].dims, [32, 3, 1, 1, 1]);
    }

    #[test]
    fn a_clip_has_as_many_frames_as_the_pooling_leaves_one_of() {
        assert_eq!(seed_one(Family::Cnn3d).fewest_frames(), 4);
        assert_eq!(ModelSpec { filters: 2, ..seed_one(Family::ConvLstm) }.fewest_frames(), 1);
    }

    #[test]
    fn the_flattened_head_has_the_size_that_the_input_gives() {
        let graph = seed_one(Family::Cnn3dFlatten).build().unwrap();
        let fc1 = graph.params.iter().find(|p| p.name == "fc1.weight").unwrap();
        assert_eq!(fc1.dims, [512, 64 * 15 * 57 * 57]);
    }
}
