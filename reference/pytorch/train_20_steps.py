"""Twenty steps of Adam on three small models: start weights, the loss at every step, weights at the end.

    python reference/pytorch/train_20_steps.py

writes, for each model, a .safetensors and a .json file into the folder train_20_steps beside this file. All
steps see the same three clips. Each model is trained with the plain and with the class-weighted
cross-entropy, in f32 and in f64 from the same f32 start weights.
"""

import json
from collections import OrderedDict
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

SEED = 9  # one where f32 and f64 choose the same maxima throughout, so that their weights stay together
STEPS = 20
LEARNING_RATE = 1e-3
MEAN, STD = 0.5, 0.5  # of every channel, after division by 255
CLIP = (3, 8, 20, 18)  # (C,T,H,W)
LABELS = [1, 3, 0]
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.75]
WIDTHS = (8, 16)
HIDDEN = 32
CLASSES = 4
FOLDER = Path(__file__).parent / "train_20_steps"
LARGEST_STORED_AT_THE_END = 10_000  # elements; of larger tensors only the start is stored


def separable(arrive, leave):
    depthwise = nn.Conv3d(arrive, arrive, 3, padding=1, groups=arrive)
    return nn.Sequential(OrderedDict(depthwise=depthwise, pointwise=nn.Conv3d(arrive, leave, 1)))


def make_model(name):
    """cnn3d: blocks, global average, head. cnn3d-separable: separable convolutions. cnn3d-flatten: no average."""
    layers, (channels, *size) = OrderedDict(), CLIP
    for index, width in enumerate(WIDTHS, start=1):
        if name == "cnn3d-separable":
            convolution = separable(channels, width)
        else:
            convolution = nn.Conv3d(channels, width, 3, padding=1)
        layers |= {f"conv{index}": convolution, f"relu{index}": nn.ReLU(), f"pool{index}": nn.MaxPool3d(2)}
        channels, size = width, [extent // 2 for extent in size]
    features = channels
    if name == "cnn3d-flatten":
        features *= size[0] * size[1] * size[2]
    else:
        layers["average"] = nn.AdaptiveAvgPool3d(1)
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(features, HIDDEN), "relu": nn.ReLU()}
    layers["fc2"] = nn.Linear(HIDDEN, CLASSES)
    return nn.Sequential(layers)


def make_clips():
    """-> [B,T,H,W,C] u8: soft blotches in space and time, differently coloured in each clip, and some noise."""
    blotches = nn.functional.interpolate(torch.rand(len(LABELS), 3, 3, 5, 4), size=CLIP[1:], mode="trilinear")
    tint = torch.rand(len(LABELS), 3, 1, 1, 1)
    noise = torch.rand(len(LABELS), *CLIP)
    return (255 * (0.5 * blotches + 0.3 * tint + 0.2 * noise)).to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous()


def train(start, clips, class_weights, dtype):
    """-> the logits and gradients of the first step, the loss of each step, and the trained model"""
    model = deepcopy(start).to(dtype)
    x = (clips.to(dtype).permute(0, 4, 1, 2, 3) / 255 - MEAN) / STD
    loss_of = nn.CrossEntropyLoss(None if class_weights is None else torch.tensor(class_weights, dtype=dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    losses, first = [], None
    for _ in range(STEPS):
        logits = model(x)
        loss = loss_of(logits, torch.tensor(LABELS))
        optimizer.zero_grad()
        loss.backward()
        if first is None:
            gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
            first = logits.detach(), gradients
        optimizer.step()
        losses.append(loss.item())
    return *first, losses, model


def small(named_tensors):
    return {key: value.detach() for key, value in named_tensors if value.numel() <= LARGEST_STORED_AT_THE_END}


def make_reference(name, clips):
    torch.manual_seed(SEED)
    start = make_model(name)
    tensors = {"clips": clips, "labels": torch.tensor(LABELS)}
    tensors |= {f"start.{key}": value.detach() for key, value in start.named_parameters()}

    runs = []
    for run, class_weights in (("plain", None), ("weighted", CLASS_WEIGHTS)):
        _, _, single_losses, single = train(start, clips, class_weights, torch.float32)
        logits, gradients, losses, model = train(start, clips, class_weights, torch.float64)
        tensors["logits"] = logits.float()
        tensors |= {f"{run}.gradient.{key}": value.float() for key, value in small(gradients.items()).items()}
        end, single_end = small(model.named_parameters()), dict(single.named_parameters())
        tensors |= {f"{run}.end.{key}": value.float() for key, value in end.items()}
        apart = {key: (value - single_end[key]).abs().max().item() for key, value in end.items()}
        runs.append(
            {
                "name": run,
                "class_weights": class_weights,
                "losses_f64": losses,
                "losses_f32": single_losses,
                "largest_difference_at_the_end_f32_to_f64": apart,
            }
        )

    description = {
        "made_by": {
            "command": "python reference/pytorch/train_20_steps.py",
            "torch": torch.__version__,
            "seed": SEED,
        },
        "model": {
            "name": name,
            "clip": dict(zip("CTHW", CLIP)),
            "widths": WIDTHS,
            "kernel": [3, 3, 3],
            "padding": [1, 1, 1],
            "pool": [2, 2, 2],
            "hidden": HIDDEN,
            "classes": CLASSES,
        },
        "mean": MEAN,
        "std": STD,
        "labels": LABELS,
        "optimizer": {"name": "adam", "lr": LEARNING_RATE, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
        "steps": STEPS,
        "runs": runs,
    }
    (FOLDER / f"{name}.safetensors").write_bytes(save({key: value.contiguous() for key, value in tensors.items()}))
    (FOLDER / f"{name}.json").write_text(json.dumps(description, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    clips = make_clips()
    FOLDER.mkdir(exist_ok=True)
    for name in ("cnn3d", "cnn3d-separable", "cnn3d-flatten"):
        make_reference(name, clips)


if __name__ == "__main__":
    main()
