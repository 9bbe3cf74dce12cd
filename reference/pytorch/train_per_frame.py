"""A CNN for each frame, a recurrent layer over them, a label for each frame: twenty steps of Adam.

    python reference/pytorch/train_per_frame.py

writes, for each model, a .safetensors and a .json file into the folder train_per_frame beside this file. All steps
see the same two clips. Each run is trained in f32 and in f64 from the same f32 start weights.
"""

import json
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

SEED = 41  # one where f32 and f64 choose the same maxima throughout, so that their weights stay together
STEPS = 20
LEARNING_RATE = 3e-3
CLIPS, FRAMES, HEIGHT, WIDTH, CHANNELS = 2, 10, 12, 14, 2
WIDTHS, HIDDEN, CLASSES = (4, 6), 7, 4
IGNORED = -100  # the label of a frame that does not count
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.75]
# Of torch.nn.functional.cross_entropy; "ignored" is whether some frames have the label that does not count.
RUNS = {
    "plain": {"ignored": False},
    "ignored": {"ignored": True},
    "weighted": {"ignored": True, "class_weights": CLASS_WEIGHTS},
    "smoothed": {"ignored": True, "label_smoothing": 0.1},
    "weighted_and_smoothed": {"ignored": True, "class_weights": CLASS_WEIGHTS, "label_smoothing": 0.1},
}
MODELS = {"cnn_lstm": ("lstm", "flatten"), "cnn_gru_mean": ("gru", "mean")}
FOLDER = Path(__file__).parent / "train_per_frame"


class PerFrame(nn.Module):
    """(Conv2d, ReLU, MaxPool2d) twice on each frame, flattened or averaged, an LSTM or GRU, Linear on each frame.

    x: [N,C,T,H,W] -> logits: [N,T,classes]
    """

    def __init__(self, recurrent, join):
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, WIDTHS[0], 3, padding=1)
        self.conv2 = nn.Conv2d(WIDTHS[0], WIDTHS[1], 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.join = join
        features = WIDTHS[1] * (1 if join == "mean" else (HEIGHT // 4) * (WIDTH // 4))
        self.rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[recurrent](features, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        clips, frames = x.shape[0], x.shape[2]
        x = x.permute(0, 2, 1, 3, 4).flatten(0, 1)
        x = self.pool(self.conv1(x).relu())
        x = self.pool(self.conv2(x).relu())
        x = x.mean((2, 3)) if self.join == "mean" else x.flatten(1)
        hidden, _ = self.rnn(x.view(clips, frames, -1))
        return self.fc(hidden)


def make_clips():
    """-> clips [N,T,H,W,C] u8: soft blotches in space and time, and some noise; labels [N,T]"""
    size = (FRAMES, HEIGHT, WIDTH)
    blotches = nn.functional.interpolate(torch.rand(CLIPS, CHANNELS, 4, 4, 4), size=size, mode="trilinear")
    clips = 255 * (0.8 * blotches + 0.2 * torch.rand(CLIPS, CHANNELS, *size))
    labels = torch.randint(CLASSES, (CLIPS, FRAMES // 2)).repeat_interleave(2, 1)
    return clips.to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous(), labels


def train(start, clips, labels, options, dtype):
    """-> the logits and gradients of the first step, the loss of each step, and the trained model"""
    model = deepcopy(start).to(dtype)
    x = clips.to(dtype).permute(0, 4, 1, 2, 3) / 255
    weights = options.get("class_weights")
    loss_of = nn.CrossEntropyLoss(
        None if weights is None else torch.tensor(weights, dtype=dtype),
        ignore_index=IGNORED,
        label_smoothing=options.get("label_smoothing", 0.0),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    losses, first = [], None
    for _ in range(STEPS):
        logits = model(x)
        loss = loss_of(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        if first is None:
            first = logits.detach(), {key: value.grad.clone() for key, value in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return *first, losses, model


def make_reference(name, clips, labels, ignored):
    torch.manual_seed(SEED)
    recurrent, join = MODELS[name]
    start = PerFrame(recurrent, join)
    tensors = {"clips": clips, "labels": labels, "labels_some_ignored": torch.where(ignored, IGNORED, labels)}
    tensors |= {f"start.{key}": value.detach() for key, value in start.named_parameters()}
    runs = []
    for run, options in RUNS.items():
        target = "labels_some_ignored" if options["ignored"] else "labels"
        given = (start, clips, tensors[target], options)
        _, _, single_losses, single = train(*given, torch.float32)
        logits, gradients, losses, model = train(*given, torch.float64)
        tensors["logits"] = logits
        end, single_end = dict(model.named_parameters()), dict(single.named_parameters())
        tensors |= {f"{run}.gradient.{key}": value.float() for key, value in gradients.items()}
        tensors |= {f"{run}.end.{key}": value.detach().float() for key, value in end.items()}
        runs.append(
            {
                "name": run,
                "labels": target,
                "class_weights": options.get("class_weights"),
                "label_smoothing": options.get("label_smoothing", 0.0),
                "losses_f64": losses,
                "losses_f32": single_losses,
                "largest_difference_at_the_end_f32_to_f64": {
                    key: (value - single_end[key]).abs().max().item() for key, value in end.items()
                },
            }
        )
    description = {
        "made_by": {
            "command": "python reference/pytorch/train_per_frame.py",
            "torch": torch.__version__,
            "seed": SEED,
        },
        "model": {
            "name": name,
            "recurrent": recurrent,
            "join": join,
            "clip": {"C": CHANNELS, "T": FRAMES, "H": HEIGHT, "W": WIDTH},
            "widths": WIDTHS,
            "kernel": [3, 3],
            "padding": [1, 1],
            "pool": [2, 2],
            "hidden": HIDDEN,
            "classes": CLASSES,
        },
        "pixels": "divided by 255",
        "ignore_index": IGNORED,
        "optimizer": {"name": "adam", "lr": LEARNING_RATE, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
        "steps": STEPS,
        "runs": runs,
    }
    (FOLDER / f"{name}.safetensors").write_bytes(save({key: value.contiguous() for key, value in tensors.items()}))
    (FOLDER / f"{name}.json").write_text(json.dumps(description, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    clips, labels = make_clips()
    ignored = torch.rand(labels.shape) < 0.25
    FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        make_reference(name, clips, labels, ignored)


if __name__ == "__main__":
    main()
