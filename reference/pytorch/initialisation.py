"""What PyTorch's default initialisation draws for each parameter of the default cnn3d: bounds and measured spread.

    python reference/pytorch/initialisation.py

writes initialisation.json beside this file. Conv3d and Linear draw their weights with
kaiming_uniform(a = sqrt(5)), which is uniform in ±1/sqrt(fan_in), and their biases uniform in the same bounds.
fan_in is C/groups * kT * kH * kW for a convolution, and the number of inputs for a linear layer.
"""

import json
import math
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

SEEDS = range(20)
CHANNELS, WIDTHS, HIDDEN, CLASSES = 3, (32, 64), 512, 20
FOLDER = Path(__file__).parent


def make_model():
    layers, channels = OrderedDict(), CHANNELS
    for index, width in enumerate(WIDTHS, start=1):
        layers |= {f"conv{index}": nn.Conv3d(channels, width, 3, padding=1)}
        channels = width
    layers |= {"fc1": nn.Linear(channels, HIDDEN), "fc2": nn.Linear(HIDDEN, CLASSES)}
    return nn.Sequential(layers)


def main():
    drawn = {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        for name, value in make_model().named_parameters():
            drawn.setdefault(name, []).append(value.detach().double())

    rows = []
    for name, values in drawn.items():
        weight = drawn[name.rsplit(".", 1)[0] + ".weight"][0]
        fan_in = weight[0].numel()
        bound = 1 / math.sqrt(fan_in)
        values = torch.stack(values)
        assert values.abs().max() <= bound
        rows.append(
            {
                "name": name,
                "shape": list(values.shape[1:]),
                "fan_in": fan_in,
                "bound": bound,
                "std": bound / math.sqrt(3),
                "measured_std": values.std(correction=0).item(),
                "measured_largest": values.abs().max().item(),
            }
        )
    made_by = {
        "command": "python reference/pytorch/initialisation.py",
        "torch": torch.__version__,
        "seeds": [SEEDS.start, SEEDS.stop],
    }
    model = {"channels": CHANNELS, "widths": WIDTHS, "hidden": HIDDEN, "classes": CLASSES, "kernel": [3, 3, 3]}
    lines = ",\n".join("    " + json.dumps(row) for row in rows)
    head = f'  "made_by": {json.dumps(made_by)},\n  "model": {json.dumps(model)},\n'
    text = f'{{\n{head}  "parameters": [\n{lines}\n  ]\n}}\n'
    (FOLDER / "initialisation.json").write_text(text)


if __name__ == "__main__":
    main()
