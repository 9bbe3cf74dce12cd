"""Keras' ConvLSTM2D: inputs, weights, outputs and gradients in f64, for tests to compare with.

    python reference/keras/conv_lstm.py

writes conv_lstm (kernels, strides, activations) and conv_lstm_sequences (directions, states), each as .safetensors
and .json, beside this file. Tensors are in Keras' own layouts: activations
[N,T,H,W,C], kernel [kH,kW,C,4·filters], recurrent_kernel [kH,kW,filters,4·filters], bias [4·filters], gates in the
order input, forget, cell, output.
"""

import torch
from layer_cases import FOLDER, Cases, add_layer_case, build, keras, made_by, random

SEED = 17


HARD_SIGMOIDS = {
    # Keras 3's, relu6(x + 3) / 6; PyTorch's own rounds the slope 1/6 to f32 even where all else is f64.
    "hard_sigmoid": lambda x: torch.clamp(x / 6 + 0.5, 0, 1),
    "keras_2_hard_sigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
}


class ConvLstmCases(Cases):
    def conv_lstm(
        self,
        name,
        filters=3,
        kernel=(3, 3),
        size=(3, 4, 5),
        channels=2,
        clips=1,
        merge_mode=None,
        states=False,
        recurrent_activation="sigmoid",
        **options,
    ):
        """size: (T,H,W); merge_mode: of a Bidirectional; states: initial states go in, final ones come out"""
        attributes = dict(filters=filters, kernel_size=kernel, strides=(1, 1), padding="same", activation="tanh")
        attributes |= dict(use_bias=True, unit_forget_bias=True, return_sequences=True, go_backwards=False)
        attributes |= dict(dilation_rate=(1, 1), stateful=False) | options
        layer = keras.layers.ConvLSTM2D(
            recurrent_activation=HARD_SIGMOIDS.get(recurrent_activation, recurrent_activation),
            return_state=states,
            **attributes,
        )
        attributes |= dict(recurrent_activation=recurrent_activation, return_state=states, merge_mode=merge_mode)
        if merge_mode is not None:
            layer = keras.layers.Bidirectional(layer, merge_mode=merge_mode)
        frames, height, width = size
        build(layer, clips, frames, height, width, channels)
        inputs, outputs = {"input": random(clips, frames, height, width, channels)}, ["output"]
        if states:
            state_shape = (clips, *layer.compute_output_shape(inputs["input"].shape)[1][1:])
            inputs |= {"initial_hidden": random(*state_shape), "initial_cell": random(*state_shape)}
            outputs += ["final_hidden", "final_cell"]
        add_layer_case(self, f"conv_lstm_{name}", "conv_lstm2d", attributes, layer, inputs, outputs)

    def stateful(self, name, calls=2):
        """The states at a call's end are where the next call begins; gradients end where a call begins."""
        options = dict(filters=3, kernel_size=(3, 3), padding="same", return_sequences=True, stateful=True)
        layer = keras.layers.ConvLSTM2D(**options)
        clips = 2
        build(layer, clips, 3, 4, 5, 2)
        for call in range(1, calls + 1):
            states = [value.value.detach().clone() for value in layer.states or ()]
            inputs = {"input": random(clips, 3, 4, 5, 2)}
            attributes = dict(options, call=call, return_state=False)
            before = dict(zip(("initial_hidden", "initial_cell"), states))
            case = f"conv_lstm_{name}_call_{call}"
            add_layer_case(self, case, "conv_lstm2d", attributes, layer, inputs, fixed=before)


def make_cases():
    cases = ConvLstmCases()
    cases.conv_lstm("3x3_same", size=(4, 5, 6), clips=2)
    cases.conv_lstm("3x3_valid", padding="valid")
    cases.conv_lstm("3x5_same", filters=4, kernel=(3, 5), size=(3, 4, 7), channels=1)
    cases.conv_lstm("3x5_valid", filters=3, kernel=(3, 5), size=(3, 5, 7), channels=1, padding="valid")
    cases.conv_lstm("2x4_same", kernel=(2, 4))
    cases.conv_lstm("1x1", kernel=(1, 1), filters=2)
    cases.conv_lstm("5_filters", filters=5, size=(3, 4, 4), channels=3)
    # 'same' with stride 2 pads an even extent after its end only, an odd one on both sides.
    cases.conv_lstm("stride_2_same_even", strides=(2, 2), size=(3, 6, 8))
    cases.conv_lstm("stride_2_same_odd", strides=(2, 2), size=(3, 5, 7), clips=2)
    cases.conv_lstm("stride_2_valid", strides=(2, 2), size=(3, 7, 8), padding="valid")
    cases.conv_lstm("stride_2_1_same", strides=(2, 1), size=(3, 5, 4))
    cases.conv_lstm("dilation_2", dilation_rate=(2, 2), size=(3, 6, 5))
    cases.conv_lstm("hard_sigmoid", recurrent_activation="hard_sigmoid", size=(4, 5, 5))
    cases.conv_lstm("keras_2_hard_sigmoid", recurrent_activation="keras_2_hard_sigmoid", size=(4, 5, 5))
    cases.conv_lstm("relu", activation="relu")
    cases.conv_lstm("no_bias", use_bias=False)
    return cases


def make_sequence_cases():
    cases = ConvLstmCases()
    cases.conv_lstm("last_frame", return_sequences=False, size=(4, 4, 5), clips=2)
    cases.conv_lstm("one_frame", size=(1, 4, 4))
    cases.conv_lstm("backwards", go_backwards=True, size=(4, 4, 5))
    cases.conv_lstm("backwards_last_frame", go_backwards=True, return_sequences=False)
    cases.conv_lstm("states", states=True, clips=2)
    cases.conv_lstm("states_last_frame", states=True, return_sequences=False)
    cases.conv_lstm("states_stride_2", states=True, strides=(2, 2), size=(3, 5, 6))
    cases.stateful("stateful")
    cases.conv_lstm("bidirectional_concat", merge_mode="concat", size=(4, 4, 4))
    cases.conv_lstm("bidirectional_concat_last_frame", merge_mode="concat", size=(3, 4, 4), return_sequences=False)
    cases.conv_lstm("bidirectional_sum", merge_mode="sum", filters=2, size=(3, 4, 4))
    return cases


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    for name, make in (("conv_lstm", make_cases), ("conv_lstm_sequences", make_sequence_cases)):
        make().write(FOLDER, name, made_by("conv_lstm", SEED))


if __name__ == "__main__":
    main()
