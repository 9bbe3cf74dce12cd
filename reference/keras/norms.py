"""Keras' BatchNormalization and LayerNormalization in f64: inputs, weights, outputs, gradients, statistics.

    python reference/keras/norms.py

writes norms.safetensors and norms.json beside this file. Activations are [N,T,H,W,C], [N,H,W,C] or [N,C].
"""

import torch
from layer_cases import FOLDER, Cases, add_layer_case, build, keras, made_by, random

SEED = 47


def add_batch_norm(cases, name, shape, training=True, calls=1, **options):
    """Calls follow each other: the moving statistics after one are those before the next."""
    attributes = dict(momentum=0.99, epsilon=1e-3, center=True, scale=True) | options
    layer = keras.layers.BatchNormalization(**attributes)
    build(layer, *shape, scale=0.7)
    layer.moving_mean.assign(random(shape[-1]))
    layer.moving_variance.assign(random(shape[-1]).exp())
    for call in range(1, calls + 1):
        suffix = f"_call_{call}" if calls > 1 else ""
        inputs = {"input": 2 * random(*shape) + 3 * random(shape[-1])}
        given = dict(attributes, training=training, call=call)
        add_layer_case(cases, f"batch_norm_{name}{suffix}", "batch_norm", given, layer, inputs, training=training)


def add_layer_norm(cases, name, shape, **options):
    attributes = dict(axis=-1, epsilon=1e-3, center=True, scale=True) | options
    layer = keras.layers.LayerNormalization(**attributes)
    build(layer, *shape, scale=0.7)
    add_layer_case(cases, f"layer_norm_{name}", "layer_norm", attributes, layer, {"input": random(*shape) + 1})


def make_cases():
    cases = Cases()
    frames = (2, 3, 4, 4, 3)
    add_batch_norm(cases, "training", frames, calls=3)
    add_batch_norm(cases, "inference", frames, training=False)
    add_batch_norm(cases, "other_settings", frames, momentum=0.8, epsilon=1e-5)
    add_batch_norm(cases, "no_center", frames, center=False)
    add_batch_norm(cases, "no_scale", frames, scale=False)
    add_batch_norm(cases, "one_clip", (1, 1, 3, 4, 2))
    add_batch_norm(cases, "images", (3, 4, 5, 3), calls=2)
    add_batch_norm(cases, "rows", (6, 5))
    add_layer_norm(cases, "channels_last", (2, 3, 4, 6))
    add_layer_norm(cases, "whole_frames", (2, 2, 3, 4, 2), axis=[2, 3, 4])
    add_layer_norm(cases, "no_center", (2, 4, 6), center=False)
    return cases


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    make_cases().write(FOLDER, "norms", made_by("norms", SEED))


if __name__ == "__main__":
    main()
