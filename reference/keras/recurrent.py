"""Keras' LSTM and GRU in f64: inputs, weights, outputs and gradients, for tests to compare with.

    python reference/keras/recurrent.py

writes recurrent.safetensors and recurrent.json beside this file. Tensors are in Keras' own layouts: activations
[N,T,C], kernel [C,gates·units], recurrent_kernel [units,gates·units]. Gates of the LSTM are in the order input,
forget, cell, output; those of the GRU in the order update, reset, candidate.
"""

import torch
from layer_cases import FOLDER, Cases, add_layer_case, build, keras, made_by, random

SEED = 37


def add_recurrent(cases, name, op, clips=2, frames=7, features=5, units=4, merge_mode=None, states=False, **options):
    """merge_mode: of a Bidirectional; states: initial states go in, final ones come out"""
    attributes = dict(units=units, activation="tanh", recurrent_activation="sigmoid", use_bias=True)
    attributes |= dict(return_sequences=True, go_backwards=False) | options
    kind = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[op]
    layer = kind(return_state=states, **attributes)
    attributes |= dict(return_state=states, merge_mode=merge_mode)
    if merge_mode is not None:
        layer = keras.layers.Bidirectional(layer, merge_mode=merge_mode)
    build(layer, clips, frames, features, scale=0.5)
    inputs, outputs = {"input": random(clips, frames, features)}, ["output"]
    if states:
        for state in ["hidden", "cell"][: 2 if op == "lstm" else 1]:
            inputs[f"initial_{state}"] = random(clips, units)
            outputs.append(f"final_{state}")
    add_layer_case(cases, f"{op}_{name}", op, attributes, layer, inputs, outputs)


def make_cases():
    cases = Cases()
    for op, prefix, options in (
        ("lstm", "", {}),
        ("gru", "", {"reset_after": True}),
        ("gru", "reset_before_", {"reset_after": False}),
    ):
        add_recurrent(cases, f"{prefix}all_frames", op, **options)
        add_recurrent(cases, f"{prefix}last_frame", op, return_sequences=False, **options)
        add_recurrent(cases, f"{prefix}backwards", op, go_backwards=True, **options)
        add_recurrent(cases, f"{prefix}no_bias", op, use_bias=False, **options)
        add_recurrent(cases, f"{prefix}states", op, states=True, **options)
        add_recurrent(cases, f"{prefix}bidirectional", op, merge_mode="concat", features=3, units=3, **options)
    return cases


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    make_cases().write(FOLDER, "recurrent", made_by("recurrent", SEED))


if __name__ == "__main__":
    main()
