use super::checks::{Windows, exactly, fraction, invalid, made_for, positive, video_only};
use super::{BackwardReads, Layer, Operations, features};
use crate::axes::{Dims3, Shape, View};
use crate::error::ShapeError;
use crate::graph::{Initial, ParamSpec};
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

/// The function of a cell's gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateFunction {
    /// 1/(1 + e⁻ˣ).
    Sigmoid,
    /// relu6(x + 3)/6: Keras 3's and PyTorch's.
    HardSigmoid,
    /// min(max(0.2x + 0.5, 0), 1): Keras 2's.
    HardSigmoidKeras2,
}

/// The function of a cell's candidate and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateFunction {
    /// tanh x.
    Tanh,
    /// max(x, 0).
    Relu,
}

/// What a recurrent layer does from frame to frame. σ is the gates' function, f the state's; W and U are products
/// with the frame and with the state before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// c' = σ(forget)∘c + σ(input)∘f(candidate), h' = σ(output)∘f(c').
    Lstm,
    /// h' = (1 − z)∘f(Wx + b + r∘(Uh + b')) + z∘h: PyTorch's GRU, and Keras's with `reset_after=True`.
    GruResetAfter,
    /// h' = (1 − z)∘f(Wx + b + U(r∘h)) + z∘h: Keras's GRU with `reset_after=False`.
    GruResetBefore,
}

impl Cell {
    /// Gates of one unit, the candidate among them.
    pub const fn gates_per_unit(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::GruResetAfter | Cell::GruResetBefore => 3,
        }
    }
}

/// The order in which a cell's gates lie along gK, each K long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// i, f, g, o: LSTMs of PyTorch and Keras (there i, f, c, o).
    InputForgetCandidateOutput,
    /// r, z, n: PyTorch's GRU.
    ResetUpdateCandidate,
    /// z, r, h: Keras's GRU.
    UpdateResetCandidate,
}

/// How the user's framework names and lays out a recurrent layer's tensors; g is the gates of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecurrentLayout {
    /// Keras's `ConvLSTM2D`: kernel `[kH,kW,C,gK]`, recurrent_kernel `[kH,kW,K,gK]`, bias `[gK]`.
    KerasConvLstm2d,
    /// Keras's `LSTM` and `GRU`: kernel `[C,gK]`, recurrent_kernel `[K,gK]`, bias `[gK]`, or `[2,gK]` of a GRU with
    /// `reset_after`: the frame's, then the state's.
    Keras,
    /// PyTorch's `LSTM` and `GRU`: weight_ih_l0 `[gK,C]`, weight_hh_l0 `[gK,K]`, bias_ih_l0 and bias_hh_l0 `[gK]`.
    #[serde(rename = "pytorch")]
    PyTorch {
        /// Number in the names, from 0.
        layer: usize,
        /// Whether the names end in `_reverse`.
        reverse: bool,
    },
    /// A cell of two of PyTorch's `Conv2d`: input.weight `[gK,C,kH,kW]`, hidden.weight `[gK,K,kH,kW]`, bias `[gK]`,
    /// and of a GRU that resets after the product hidden.bias `[gK]`.
    ConvCell,
}

/// x: `[T,N,H,W,C]`, w: `[gK,kH,kW,C]`, u: `[gK,kH,kW,K]`, bias: `[gK]` -> y: `[T,N,H',W',K]`; or, over the features
/// of each frame, x: `[T,N,D]` with D = H·W·C, w: `[gK,H,W,C]`, u: `[gK,K]`, bias: `[gK]` -> y: `[T,N,1,1,K]`
///
/// Keras's `ConvLSTM2D`, `LSTM` and `GRU` with `return_sequences=True`, PyTorch's `LSTM` and `GRU`, and cells of
/// convolutions. Gates come from a convolution of the frame and one of the state before, which keeps its extents:
/// stride 1, no dilation, (k−1)/2 zeros before and the rest after, as Keras has it. State: h, and c of an LSTM.
///
/// While training with a recurrent dropout of p, each gate's product meets its own m∘h/(1 − p) instead of h, with a
/// mask m `[N,H',W',K]` of zeros with probability p and ones, the same for all frames of the clip; z∘h of a GRU, r∘h
/// and c are not dropped. As Keras's `recurrent_dropout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recurrent {
    /// What happens from frame to frame.
    pub cell: Cell,
    /// C, the channels it was made for; of flattened frames D, the features.
    pub in_channels: usize,
    /// K.
    pub filters: usize,
    /// kH and kW, 1 for `LSTM` and `GRU`; the extent along time is 1.
    pub kernel: Dims3,
    /// Step between outputs of the frame's convolution.
    pub stride: Dims3,
    /// Zeros before the frame.
    pub padding: Dims3,
    /// Zeros after the frame.
    pub padding_end: Dims3,
    /// Step between the taps of the frame's convolution.
    pub dilation: Dims3,
    /// Of the candidate and the state.
    pub activation: StateFunction,
    /// Of the gates.
    pub recurrent_activation: GateFunction,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the bias of an LSTM's forget gate starts at one; of Keras's layouts.
    pub unit_forget_bias: bool,
    /// The probability of dropping an element of the state before its products, below 1.
    #[serde(default)]
    pub recurrent_dropout: f64,
    /// Names and extents of the user's tensors.
    pub layout: RecurrentLayout,
}

impl Recurrent {
    /// An LSTM or GRU over the features of each frame, with tanh, the sigmoid and a bias.
    pub const fn features(cell: Cell, in_channels: usize, filters: usize, layout: RecurrentLayout) -> Self {
        Self {
            cell,
            in_channels,
            filters,
            kernel: Dims3::cube(1),
            stride: Dims3::cube(1),
            padding: Dims3::cube(0),
            padding_end: Dims3::cube(0),
            dilation: Dims3::cube(1),
            activation: StateFunction::Tanh,
            recurrent_activation: GateFunction::Sigmoid,
            bias: true,
            unit_forget_bias: true,
            recurrent_dropout: 0.0,
            layout,
        }
    }

    /// gK.
    pub fn gates(&self) -> usize {
        self.cell.gates_per_unit() * self.filters
    }

    /// Whether it hands c from frame to frame, besides h.
    pub fn has_cell(&self) -> bool {
        match self.cell {
            Cell::Lstm => true,
            Cell::GruResetAfter | Cell::GruResetBefore => false,
        }
    }

    /// Numbers per unit and position that are kept for the backward besides gates, h and c: the product with h of
    /// a GRU that resets after it, r∘h of one that resets before.
    pub fn hidden_per_unit(&self) -> usize {
        match self.cell {
            Cell::Lstm => 0,
            Cell::GruResetAfter => 3,
            Cell::GruResetBefore => 1,
        }
    }

    /// The order of the gates along gK.
    pub fn gate_order(&self) -> GateOrder {
        match (self.cell, self.layout) {
            (Cell::Lstm, _) => GateOrder::InputForgetCandidateOutput,
            (
                Cell::GruResetAfter | Cell::GruResetBefore,
                RecurrentLayout::PyTorch { .. } | RecurrentLayout::ConvCell,
            ) => GateOrder::ResetUpdateCandidate,
            (Cell::GruResetAfter | Cell::GruResetBefore, RecurrentLayout::Keras | RecurrentLayout::KerasConvLstm2d) => {
                GateOrder::UpdateResetCandidate
            }
        }
    }

    /// Zeros before the state in its convolution, which keeps its extents.
    pub fn recurrent_padding(&self) -> Dims3 {
        Dims3 { t: 0, h: self.kernel.h.saturating_sub(1) / 2, w: self.kernel.w.saturating_sub(1) / 2 }
    }

    /// Zeros after the state in its convolution: one more than before it where the kernel is even.
    pub fn recurrent_padding_end(&self) -> Dims3 {
        Dims3 { t: 0, h: self.kernel.h / 2, w: self.kernel.w / 2 }
    }

    fn over_features(&self) -> bool {
        match self.layout {
            RecurrentLayout::Keras | RecurrentLayout::PyTorch { .. } => true,
            RecurrentLayout::KerasConvLstm2d | RecurrentLayout::ConvCell => false,
        }
    }

    fn windows(&self) -> Windows {
        let once = |d: Dims3, t| Dims3 { t, ..d };
        Windows {
            kernel: self.kernel,
            stride: once(self.stride, 1),
            before: once(self.padding, 0),
            after: once(self.padding_end, 0),
            dilation: once(self.dilation, 1),
            ceil: false,
        }
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        exactly("the kernel of a recurrent layer along time", 1, self.kernel.t, at)?;
        positive("the number of filters", &[self.filters, self.in_channels], at)?;
        let p = self.recurrent_dropout;
        fraction("the recurrent dropout", "a number from 0 to below 1", p, (0.0..1.0).contains(&p), at)?;
        if self.over_features() {
            return self.output_over_features(input, at);
        }
        video_only(input, at)?;
        made_for("channels", self.in_channels, input.channels, at)?;
        Ok(input.resized(self.windows().output(input.dims, at)?, self.filters))
    }

    fn output_over_features(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        let Dims3 { t, h, w } = input.dims;
        match input.view {
            View::FlatFrames(_) => {}
            View::Video if h * w == 1 => {}
            View::Video => {
                let rule = "one vector per frame: put a Flatten of each frame or a pooling over it before this layer; \
                            its positions";
                return Err(invalid("the input", rule, h * w, at));
            }
            View::Flat(_) => {
                let rule = "one vector per frame: flatten each frame, not the whole clip; its vectors per clip";
                return Err(invalid("the input", rule, 1, at));
            }
        }
        for (kernel, stride, padding, dilation) in [
            (self.kernel.h, self.stride.h, self.padding.h.saturating_add(self.padding_end.h), self.dilation.h),
            (self.kernel.w, self.stride.w, self.padding.w.saturating_add(self.padding_end.w), self.dilation.w),
        ] {
            exactly("the kernel over features", 1, kernel, at)?;
            exactly("the stride over features", 1, stride, at)?;
            exactly("the padding over features", 0, padding, at)?;
            exactly("the dilation over features", 1, dilation, at)?;
        }
        made_for("features", self.in_channels, features::count(input), at)?;
        Ok(Shape { dims: Dims3 { t, h: 1, w: 1 }, channels: self.filters, view: input.view })
    }

    pub(super) fn params(&self, input: &Shape) -> Vec<ParamSpec> {
        match self.layout {
            RecurrentLayout::PyTorch { layer, reverse } => self.pytorch_params(input, layer, reverse),
            RecurrentLayout::ConvCell => self.conv_cell_params(),
            RecurrentLayout::Keras | RecurrentLayout::KerasConvLstm2d => self.keras_params(input),
        }
    }

    fn pytorch_params(&self, input: &Shape, layer: usize, reverse: bool) -> Vec<ParamSpec> {
        let (k, gates) = (self.filters, self.gates());
        let initial = Initial::Uniform { fan_in: k };
        let name = |what: &str| format!("{what}_l{layer}{}", if reverse { "_reverse" } else { "" });
        let mut params = vec![
            features::rows_first(name("weight_ih"), gates, input, initial),
            ParamSpec::permuted(name("weight_hh"), vec![gates, k], &[0, 1], initial),
        ];
        if self.bias {
            params.push(ParamSpec::vector(name("bias_ih"), gates, initial));
            params.push(ParamSpec::vector(name("bias_hh"), gates, initial));
        }
        params
    }

    fn conv_cell_params(&self) -> Vec<ParamSpec> {
        let (h, w, gates) = (self.kernel.h, self.kernel.w, self.gates());
        let initial = |channels: usize| Initial::Uniform { fan_in: self.kernel.volume().saturating_mul(channels) };
        let weight =
            |name, channels| ParamSpec::permuted(name, vec![gates, channels, h, w], &[0, 2, 3, 1], initial(channels));
        let mut params = vec![weight("input.weight", self.in_channels), weight("hidden.weight", self.filters)];
        if self.bias {
            params.push(ParamSpec::vector("bias", gates, initial(self.in_channels)));
            if self.cell == Cell::GruResetAfter {
                params.push(ParamSpec::vector("hidden.bias", gates, initial(self.filters)));
            }
        }
        params
    }

    fn keras_params(&self, input: &Shape) -> Vec<ParamSpec> {
        let (h, w, c, k, gates) = (self.kernel.h, self.kernel.w, self.in_channels, self.filters, self.gates());
        let fan = |channels| self.kernel.volume().saturating_mul(channels);
        let glorot = Initial::GlorotUniform { fan_in: fan(c), fan_out: fan(gates) };
        let orthogonal = Initial::Orthogonal { columns: gates };
        let mut params = if self.over_features() {
            vec![
                features::rows_last("kernel", gates, input, glorot),
                ParamSpec::permuted("recurrent_kernel", vec![k, gates], &[1, 0], orthogonal),
            ]
        } else {
            let kernel = |name, channels, initial| {
                ParamSpec::permuted(name, vec![h, w, channels, gates], &[3, 0, 1, 2], initial)
            };
            vec![kernel("kernel", c, glorot), kernel("recurrent_kernel", k, orthogonal)]
        };
        if self.bias {
            params.push(match self.cell {
                Cell::Lstm if self.unit_forget_bias => {
                    ParamSpec::vector("bias", gates, Initial::OnesWithin { from: k, to: 2 * k })
                }
                Cell::Lstm | Cell::GruResetBefore => ParamSpec::vector("bias", gates, Initial::Zeros),
                Cell::GruResetAfter => ParamSpec::permuted("bias", vec![2, gates], &[0, 1], Initial::Zeros),
            });
        }
        params
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::identity(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads { input: true, output: true }
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        let taps = self.kernel.volume() * (self.in_channels + self.filters);
        let gates = output.per_clip() * self.cell.gates_per_unit();
        Operations::product(2 * (gates as u64) * taps as u64)
    }

    pub(super) fn kind(&self) -> &'static str {
        match (self.layout, self.cell) {
            (RecurrentLayout::KerasConvLstm2d, Cell::Lstm) => "ConvLSTM2D",
            (RecurrentLayout::ConvCell, Cell::Lstm) => "ConvLSTM",
            (
                RecurrentLayout::KerasConvLstm2d | RecurrentLayout::ConvCell,
                Cell::GruResetAfter | Cell::GruResetBefore,
            ) => "ConvGRU",
            (RecurrentLayout::Keras | RecurrentLayout::PyTorch { .. }, Cell::Lstm) => "LSTM",
            (RecurrentLayout::Keras | RecurrentLayout::PyTorch { .. }, Cell::GruResetAfter | Cell::GruResetBefore) => {
                "GRU"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{at, dims, flat, flat_frames, message, output, stored, tensors, values, video};
    use super::*;
    use crate::axes::Order;

    const PYTORCH: RecurrentLayout = RecurrentLayout::PyTorch { layer: 0, reverse: false };

    fn conv_lstm(in_channels: usize, filters: usize, kernel: Dims3) -> Recurrent {
        let same = dims(0, kernel.h.saturating_sub(1) / 2, kernel.w.saturating_sub(1) / 2);
        let end = dims(0, kernel.h / 2, kernel.w / 2);
        let layout = RecurrentLayout::KerasConvLstm2d;
        let of_features = Recurrent::features(Cell::Lstm, in_channels, filters, layout);
        Recurrent { kernel, padding: same, padding_end: end, ..of_features }
    }

    fn features(cell: Cell, layout: RecurrentLayout) -> Recurrent {
        Recurrent::features(cell, 17, 9, layout)
    }

    fn count(op: &Recurrent) -> usize {
        values(&op.params(&video(3, 1, 1, op.in_channels)))
    }

    fn of(name: &str, dims: &[usize]) -> (String, Vec<usize>) {
        (name.to_owned(), dims.to_vec())
    }

    #[test]
    fn the_seed_s_conv_lstm_has_59_200_values() {
        let op = conv_lstm(1, 40, dims(1, 3, 3));
        assert_eq!(count(&op), 59_200);
        assert_eq!(output(&Op::Recurrent(op), video(4800, 135, 240, 1)), video(4800, 135, 240, 40));
    }

    #[test]
    fn even_kernels_pad_one_more_at_the_end() {
        let op = conv_lstm(2, 3, dims(1, 2, 4));
        assert_eq!(op.recurrent_padding(), dims(0, 0, 1));
        assert_eq!(op.recurrent_padding_end(), dims(0, 1, 2));
        assert_eq!(output(&Op::Recurrent(op), video(3, 4, 5, 2)), video(3, 4, 5, 3));
        let odd = conv_lstm(2, 3, dims(1, 3, 5));
        assert_eq!((odd.recurrent_padding(), odd.recurrent_padding_end()), (dims(0, 1, 2), dims(0, 1, 2)));
    }

    #[test]
    fn the_frame_s_convolution_takes_stride_and_dilation() {
        let strided = Recurrent { stride: dims(1, 2, 1), ..conv_lstm(2, 3, dims(1, 3, 3)) };
        assert_eq!(output(&Op::Recurrent(strided), video(3, 5, 4, 2)), video(3, 3, 4, 3));
        let dilated = Recurrent {
            dilation: dims(1, 2, 2),
            padding: dims(0, 0, 0),
            padding_end: dims(0, 0, 0),
            ..conv_lstm(2, 3, dims(1, 3, 3))
        };
        assert_eq!(output(&Op::Recurrent(dilated), video(3, 6, 5, 2)), video(3, 2, 1, 3));
    }

    #[test]
    fn parameters_are_as_many_as_in_the_framework() {
        for (cell, layout, want) in [
            (Cell::Lstm, PYTORCH, 4 * 9 * (17 + 9 + 2)),
            (Cell::GruResetAfter, PYTORCH, 3 * 9 * (17 + 9 + 2)),
            (Cell::Lstm, RecurrentLayout::Keras, 4 * (9 * (17 + 9) + 9)),
            (Cell::GruResetAfter, RecurrentLayout::Keras, 3 * 9 * (17 + 9) + 2 * 3 * 9),
            (Cell::GruResetBefore, RecurrentLayout::Keras, 3 * 9 * (17 + 9) + 3 * 9),
        ] {
            let op = features(cell, layout);
            assert_eq!(count(&op), want, "{op:?}");
            let no_bias = Recurrent { bias: false, ..op };
            assert_eq!(count(&no_bias), cell.gates_per_unit() * 9 * (17 + 9), "{no_bias:?}");
        }
    }

    #[test]
    fn tensors_have_the_user_s_names_and_extents() {
        let input = video(3, 1, 1, 17);
        let second = RecurrentLayout::PyTorch { layer: 1, reverse: true };
        assert_eq!(
            tensors(&Op::Recurrent(features(Cell::GruResetAfter, second)), input),
            [
                of("weight_ih_l1_reverse", &[27, 17]),
                of("weight_hh_l1_reverse", &[27, 9]),
                of("bias_ih_l1_reverse", &[27]),
                of("bias_hh_l1_reverse", &[27]),
            ]
        );
        assert_eq!(
            tensors(&Op::Recurrent(features(Cell::GruResetAfter, RecurrentLayout::Keras)), input),
            [of("kernel", &[17, 27]), of("recurrent_kernel", &[9, 27]), of("bias", &[2, 27])]
        );
        let cell = |cell| {
            let layout = RecurrentLayout::ConvCell;
            Op::Recurrent(Recurrent { cell, layout, ..conv_lstm(2, 3, dims(1, 3, 5)) })
        };
        let input = video(3, 8, 8, 2);
        assert_eq!(
            tensors(&cell(Cell::Lstm), input),
            [of("input.weight", &[12, 2, 3, 5]), of("hidden.weight", &[12, 3, 3, 5]), of("bias", &[12])]
        );
        assert_eq!(tensors(&cell(Cell::GruResetAfter), input)[3], of("hidden.bias", &[9]));
        assert_eq!(tensors(&cell(Cell::GruResetBefore), input).len(), 3);
    }

    #[test]
    fn weights_are_stored_gate_by_gate() {
        let input = flat_frames(Order::PyTorch, video(3, 2, 4, 5));
        let (h, w, c, gates) = (2, 4, 5, 12);
        let feature = at(&[c, h, w], &[3, 1, 2]);
        for (layout, user) in
            [(PYTORCH, at(&[gates, 40], &[7, feature])), (RecurrentLayout::Keras, at(&[40, gates], &[feature, 7]))]
        {
            let op = Recurrent::features(Cell::Lstm, 40, 3, layout);
            let specs = op.params(&input);
            assert_eq!(specs[0].stored.dims(), [gates, h, w, c]);
            assert_eq!(stored(&specs[0], user), at(&[gates, h, w, c], &[7, 1, 2, 3]), "{layout:?}");
            assert_eq!(specs[1].stored.dims(), [gates, 3]);
        }
        let keras = Recurrent::features(Cell::Lstm, 40, 3, RecurrentLayout::Keras).params(&input);
        assert_eq!(stored(&keras[1], at(&[3, gates], &[2, 7])), at(&[gates, 3], &[7, 2]));
        let frames = video(3, 8, 8, 2);
        for (layout, user) in [
            (RecurrentLayout::KerasConvLstm2d, at(&[3, 5, 2, gates], &[1, 4, 0, 7])),
            (RecurrentLayout::ConvCell, at(&[gates, 2, 3, 5], &[7, 0, 1, 4])),
        ] {
            let specs = Recurrent { layout, ..conv_lstm(2, 3, dims(1, 3, 5)) }.params(&frames);
            assert_eq!(specs[0].stored.dims(), [gates, 3, 5, 2]);
            assert_eq!(stored(&specs[0], user), at(&[gates, 3, 5, 2], &[7, 1, 4, 0]), "{layout:?}");
            assert_eq!(specs[1].stored.dims(), [gates, 3, 5, 3]);
        }
    }

    #[test]
    fn weights_start_as_in_the_framework() {
        let starts = |op: Recurrent| -> Vec<Initial> {
            op.params(&video(3, 1, 1, 17)).into_iter().map(|spec| spec.initial).collect()
        };
        assert_eq!(starts(features(Cell::Lstm, PYTORCH)), [Initial::Uniform { fan_in: 9 }; 4]);
        let glorot = Initial::GlorotUniform { fan_in: 17, fan_out: 36 };
        let orthogonal = Initial::Orthogonal { columns: 36 };
        let lstm = features(Cell::Lstm, RecurrentLayout::Keras);
        assert_eq!(starts(lstm.clone()), [glorot, orthogonal, Initial::OnesWithin { from: 9, to: 18 }]);
        let closed = Recurrent { unit_forget_bias: false, ..lstm };
        assert_eq!(starts(closed)[2], Initial::Zeros);
        assert_eq!(starts(features(Cell::GruResetAfter, RecurrentLayout::Keras))[2], Initial::Zeros);
    }

    #[test]
    fn gates_lie_in_the_framework_s_order() {
        let order = |cell, layout| features(cell, layout).gate_order();
        assert_eq!(order(Cell::Lstm, RecurrentLayout::Keras), GateOrder::InputForgetCandidateOutput);
        assert_eq!(order(Cell::Lstm, PYTORCH), GateOrder::InputForgetCandidateOutput);
        assert_eq!(order(Cell::GruResetAfter, PYTORCH), GateOrder::ResetUpdateCandidate);
        assert_eq!(order(Cell::GruResetAfter, RecurrentLayout::Keras), GateOrder::UpdateResetCandidate);
    }

    #[test]
    fn a_recurrent_dropout_is_from_0_to_below_1() {
        let op = |p| Op::Recurrent(Recurrent { recurrent_dropout: p, ..features(Cell::Lstm, RecurrentLayout::Keras) });
        let input = video(3, 1, 1, 17);
        for p in [0.0, 0.5, 0.99] {
            assert_eq!(output(&op(p), input), video(3, 1, 1, 9));
        }
        let text = message(&op(1.0), &[input]);
        let rule = "the recurrent dropout must be a number from 0 to below 1, but is 1";
        assert_eq!(text, format!("layer: {rule} (built-in model)"));
        assert!(message(&op(f64::NAN), &[input]).contains("but is NaN"));
    }

    #[test]
    fn features_are_one_vector_per_frame() {
        let op = Op::Recurrent(Recurrent::features(Cell::GruResetAfter, 40, 3, PYTORCH));
        let frames = video(6, 2, 4, 5);
        let flattened = flat_frames(Order::PyTorch, frames);
        assert_eq!(output(&op, flattened), flat_frames(Order::PyTorch, video(6, 1, 1, 3)));
        assert_eq!(output(&op, video(6, 1, 1, 40)), video(6, 1, 1, 3));
        let text = message(&op, &[frames]);
        assert!(text.contains("put a Flatten of each frame or a pooling over it before this layer"), "{text}");
        let text = message(&op, &[flat(Order::PyTorch, frames)]);
        assert!(text.contains("flatten each frame, not the whole clip"), "{text}");
        let text = message(&op, &[flat_frames(Order::PyTorch, video(6, 2, 4, 4))]);
        assert_eq!(text, "layer expects 40 features, but receives 32 (built-in model)");
    }
}
