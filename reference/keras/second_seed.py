"""ConvLSTM2D, BatchNormalization, AveragePooling3D and a Dense per frame: ten steps of Keras' Adam.

    python reference/keras/second_seed.py

writes, for 4 and 2 filters, a .safetensors and a .json file into the folder second_seed beside this file, and
second_seed/parameter_counts.json. Each model is trained in f64 and in f32 from the same f32 start weights.
"""

import json

import torch
from layer_cases import FOLDER, F64, keras, made_by
from safetensors.torch import save

SEED = 23
STEPS = 10
FRAMES, HEIGHT, WIDTH, CLASSES = 12, 9, 11, 5
FRAMES_PER_LABEL = 4
OUTPUT = FOLDER / "second_seed"
# Which of the two clips each step sees.
RUNS = {
    "batch_1": lambda step: [0],
    "batch_2": lambda step: [0, 1],
    "batch_1_alternating": lambda step: [step % 2],
}


def make_model(filters, classes, frame, dtype="float32", activation=None):
    """frame: (H,W); x: [N,T,H,W,1] -> logits: [N,T,classes]"""
    keras.backend.clear_session()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, *frame, 1), dtype=dtype),
            layers.ConvLSTM2D(filters, (3, 3), padding="same", return_sequences=True, dtype=dtype),
            layers.BatchNormalization(dtype=dtype),
            layers.AveragePooling3D((1, *frame), padding="same", dtype=dtype),
            layers.Reshape((-1, filters), dtype=dtype),
            layers.Dense(classes, activation=activation, dtype=dtype),
        ]
    )


def make_clips():
    """-> clips [2,T,H,W,1] u8: soft blotches in space and time, and some noise; labels [2,T]"""
    blotches = torch.nn.functional.interpolate(torch.rand(2, 1, 4, 3, 3), (FRAMES, HEIGHT, WIDTH), mode="trilinear")
    clips = 255 * (0.8 * blotches + 0.2 * torch.rand(2, 1, FRAMES, HEIGHT, WIDTH))
    labels = torch.randint(CLASSES, (2, FRAMES // FRAMES_PER_LABEL)).repeat_interleave(FRAMES_PER_LABEL, 1)
    return clips.to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous(), labels


def make_start(filters):
    """-> f32 weights by path: Keras' own, but none of the biases, beta and gamma left at 0 or 1"""
    model = make_model(filters, CLASSES, (HEIGHT, WIDTH))
    start = {}
    for variable in model.weights:
        value = variable.value.detach().clone()
        if variable.trainable and value.dim() == 1:
            value += 0.2 * torch.randn_like(value)
        start[variable.path] = value
    return start


class Run:
    """Trains from `start`; holds the losses, the first step's logits and gradients, and the moving statistics."""

    def __init__(self, filters, start, clips, labels, clips_of_step, dtype, softmax=False):
        activation = "softmax" if softmax else None
        self.model = model = make_model(filters, CLASSES, (HEIGHT, WIDTH), dtype, activation)
        for variable in model.weights:
            variable.assign(start[variable.path])
        loss_of = keras.losses.CategoricalCrossentropy(from_logits=not softmax, dtype=dtype)
        self.optimizer = optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_weights)
        x = clips.to(getattr(torch, dtype)) / 255
        wanted = torch.nn.functional.one_hot(labels, CLASSES).to(x.dtype)
        self.losses, self.moving = [], {"moving_mean": [], "moving_variance": []}
        for step in range(STEPS):
            chosen = clips_of_step(step)
            logits = model(x[chosen], training=True)
            loss = loss_of(wanted[chosen], logits)
            gradients = torch.autograd.grad(loss, [variable.value for variable in model.trainable_weights])
            if step == 0:
                self.logits = logits.detach()
                paths = [variable.path for variable in model.trainable_weights]
                self.gradients = dict(zip(paths, [gradient.clone() for gradient in gradients]))
            with torch.no_grad():
                optimizer.apply(list(gradients))
            self.losses.append(loss.item())
            for variable in model.non_trainable_weights:
                self.moving[variable.name].append(variable.value.detach().clone())
        self.end = {variable.path: variable.value.detach() for variable in model.weights}
        self.inference_logits = model(x[clips_of_step(STEPS)], training=False).detach()


def describe_optimizer(optimizer):
    settings = {"name": "adam", "lr": float(optimizer.learning_rate)}
    settings |= {"betas": [optimizer.beta_1, optimizer.beta_2], "eps": optimizer.epsilon}
    return settings | {"weight_decay": optimizer.weight_decay, "amsgrad": optimizer.amsgrad}


def make_reference(filters, clips, labels):
    keras.utils.set_random_seed(SEED + filters)
    start = make_start(filters)
    tensors = {"clips": clips, "labels": labels} | {f"start.{path}": value for path, value in start.items()}
    runs = []
    for name, clips_of_step in RUNS.items():
        given = (filters, start, clips, labels, clips_of_step)
        run, single, softmax = Run(*given, "float64"), Run(*given, "float32"), Run(*given, "float64", softmax=True)
        tensors |= {f"{name}.logits": run.logits, f"{name}.inference_logits": run.inference_logits}
        tensors |= {f"{name}.gradient.{path}": value for path, value in run.gradients.items()}
        tensors |= {f"{name}.{statistic}": torch.stack(values) for statistic, values in run.moving.items()}
        tensors |= {f"{name}.end.{path}": value for path, value in run.end.items()}
        apart = {path: (value - single.end[path].to(F64)).abs().max().item() for path, value in run.end.items()}
        runs.append(
            {
                "name": name,
                "clips_of_step": [clips_of_step(step) for step in range(STEPS)],
                "inference_clips": clips_of_step(STEPS),
                "losses_f64": run.losses,
                "losses_f32": single.losses,
                "losses_f64_of_softmax_and_probabilities": softmax.losses,
                "largest_difference_at_the_end_f32_to_f64": apart,
            }
        )
    normalization = run.model.layers[1]
    description = {
        "made_by": made_by("second_seed", SEED),
        "model": {
            "filters": filters,
            "kernel_size": [3, 3],
            "padding": "same",
            "activation": "tanh",
            "recurrent_activation": "sigmoid",
            "momentum": normalization.momentum,
            "epsilon": normalization.epsilon,
            "pool_size": [1, HEIGHT, WIDTH],
            "classes": CLASSES,
            "input": dict(zip("NTHWC", clips.shape)),
        },
        "pixels": "divided by 255",
        "loss": "softmax cross-entropy, mean over clips and frames",
        "optimizer": describe_optimizer(run.optimizer),
        "steps": STEPS,
        "parameters": {variable.path: list(variable.shape) for variable in run.model.trainable_weights},
        "statistics": {variable.path: list(variable.shape) for variable in run.model.non_trainable_weights},
        "runs": runs,
    }
    (OUTPUT / f"filters_{filters}.safetensors").write_bytes(
        save({key: value.contiguous() for key, value in tensors.items()})
    )
    (OUTPUT / f"filters_{filters}.json").write_text(json.dumps(description, indent=2) + "\n")


def count_parameters(filters, frame=(135, 240), classes=9):
    model = make_model(filters, classes, frame)

    def total(variables):
        return sum(variable.value.numel() for variable in variables)

    layers = [
        {
            "class": type(layer).__name__,
            "output": layer.output.shape,
            "parameters": layer.count_params(),
        }
        for layer in model.layers
    ]
    return {
        "filters": filters,
        "input": [None, None, *frame, 1],
        "layers": layers,
        "total": model.count_params(),
        "trainable": total(model.trainable_weights),
        "non_trainable": total(model.non_trainable_weights),
    }


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    OUTPUT.mkdir(exist_ok=True)
    clips, labels = make_clips()
    for filters in (4, 2):
        make_reference(filters, clips, labels)
    counts = {"made_by": made_by("second_seed", SEED), "models": [count_parameters(40), count_parameters(4)]}
    (OUTPUT / "parameter_counts.json").write_text(json.dumps(counts, indent=2) + "\n")


if __name__ == "__main__":
    main()
