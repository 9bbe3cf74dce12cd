"""Runs single Keras layers in f64 on PyTorch's automatic differentiation, for the scripts beside this file."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
import keras  # noqa: E402
import torch  # noqa: E402
from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE  # noqa: E402

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from cases import F64, Cases, random  # noqa: E402, F401

keras.config.set_floatx("float64")
# Keras' type promotion knows f64 on TensorFlow only; elsewhere it would pass through f32.
BIT64_TO_BIT32_DTYPE["float64"] = "float64"
keras.config.set_image_data_format("channels_last")


def made_by(script, seed):
    command = f"python reference/keras/{script}.py"
    return {"command": command, "keras": keras.__version__, "torch": torch.__version__, "seed": seed}


def weight_names(layer):
    """-> the layer's weights by name; those of a Bidirectional as forward.NAME and backward.NAME"""
    if isinstance(layer, keras.layers.Bidirectional):
        halves = {"forward": layer.forward_layer, "backward": layer.backward_layer}
        return {
            f"{half}.{name}": variable for half, own in halves.items() for name, variable in weight_names(own).items()
        }
    return {variable.name: variable for variable in layer.weights}


def build(layer, *shape, scale=0.4):
    """Builds the layer for an input of this shape and gives all its weights random values, biases too."""
    layer.build(shape)
    for variable in layer.trainable_variables:
        variable.assign(scale * random(*variable.shape))


def add_layer_case(cases, name, op, attributes, layer, inputs, output_names=("output",), fixed=None, **call):
    """One call of a built layer, and back; statistics that it changed are stored once more, as NAME_after.

    inputs: the layer's input and, if more than one, its initial states, differentiated by name; fixed: tensors to
    be stored that are neither differentiated nor given to the layer
    """
    x, *states = [value.requires_grad_() for value in inputs.values()]
    if states:
        call["initial_state"] = states
    variables = weight_names(layer)
    before = {key: variable.value.detach().clone() for key, variable in variables.items()}
    values = layer(x, **call)
    outputs = dict(zip(output_names, values if isinstance(values, (list, tuple)) else [values], strict=True))
    changed = {
        f"{key}_after": variable.value
        for key, variable in variables.items()
        if not torch.equal(before[key], variable.value)
    }
    trainable = {key: variable.value for key, variable in variables.items() if variable.trainable}
    attributes = dict(attributes, keras_layer=type(layer).__name__)
    tensors = inputs | before | changed | (fixed or {})
    cases.differentiate(name, op, attributes, outputs, inputs | trainable, tensors)
