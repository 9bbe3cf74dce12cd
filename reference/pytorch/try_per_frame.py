"""Trains a recurrent model on a frames.csv, a label per frame, once per seed, and prints validation by epoch.

A stand-in for `framefit train`, to choose defaults by trying:

    python try_per_frame.py ../../examples/moving_digits/frames.csv conv-lstm --filters 8 --stride 2 --norm after

A clip is a whole recording, or with --segment N one of its runs of N frames, each from zero states. Validation
always reads whole recordings.
"""

import argparse
import csv
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from try_hyperparameters import decode


def read_recordings(table, rgb):
    """-> labels, and per split a list of (frames [T,C,H,W] u8, label indices [T])"""
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    labels = sorted({row["label"] for row in rows})
    splits = {"train": [], "val": []}
    for video in sorted({row["video"] for row in rows}):
        own = sorted((row for row in rows if row["video"] == video), key=lambda row: int(row["frame"]))
        frames = torch.from_numpy(decode(table.parent / video, 3 if rgb else 1).copy()).permute(0, 3, 1, 2)
        frames = frames[[int(row["frame"]) for row in own]].contiguous()
        splits[own[0]["split"]].append((frames, torch.tensor([labels.index(row["label"]) for row in own])))
    return labels, splits


class PerFrame(nn.Module):
    """(Conv2d, ReLU, MaxPool2d) on each frame, one or more times; subclasses add the recurrent part."""

    def __init__(self, options, channels):
        super().__init__()
        layers = []
        for width in options.widths:
            layers += [nn.Conv2d(channels, width, 3, stride=options.front_stride, padding=1), nn.ReLU()]
            if options.front_pool > 1:
                layers.append(nn.MaxPool2d(options.front_pool))
            channels = width
        self.front, self.channels = nn.Sequential(*layers), channels


class ConvLstm(PerFrame):
    """Keras' ConvLSTM2D, average or maximum over space, BatchNormalization before or after it, Linear on each frame."""

    def __init__(self, options, channels, frame, classes):
        super().__init__(options, channels)
        filters, k = options.filters, options.kernel
        self.input = nn.Conv2d(self.channels, 4 * filters, k, stride=options.stride, padding=k // 2)
        self.recurrent = nn.Conv2d(filters, 4 * filters, k, padding=k // 2, bias=False)
        nn.init.xavier_uniform_(self.input.weight)
        with torch.no_grad():
            rows = nn.init.orthogonal_(torch.empty(k * k * filters, 4 * filters))
            self.recurrent.weight.copy_(rows.view(k, k, filters, 4 * filters).permute(3, 2, 0, 1))
            self.input.bias.zero_()
            self.input.bias[filters : 2 * filters] = 1
        self.norm_at = options.norm
        kind = {"before": nn.BatchNorm3d, "after": nn.BatchNorm1d, "none": nn.Identity}[options.norm]
        self.norm = kind(filters, eps=1e-3, momentum=options.norm_momentum)
        self.pool, self.head = options.pool, nn.Linear(filters, classes)

    def forward(self, x):
        """x: [N,T,C,H,W] -> logits: [N,T,classes]"""
        clips, frames = x.shape[:2]
        gates = self.input(self.front(x.flatten(0, 1)))
        gates = gates.view(clips, frames, *gates.shape[1:])
        h = c = torch.zeros_like(gates[:, 0, : self.recurrent.in_channels])
        hidden = []
        for of_frame in gates.unbind(1):
            i, f, g, o = (of_frame + self.recurrent(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
        y = torch.stack(hidden, 2)
        if self.norm_at == "before":
            y = self.norm(y)
        y = y.mean((3, 4)) if self.pool == "average" else y.amax((3, 4))
        if self.norm_at == "after":
            y = self.norm(y)
        return self.head(y.transpose(1, 2))


class CnnLstm(PerFrame):
    """Frames to features, flattened or averaged, an LSTM over them, Linear on each frame."""

    def __init__(self, options, channels, frame, classes):
        super().__init__(options, channels)
        self.join = options.join
        with torch.no_grad():
            features = self.collect(self.front(torch.zeros(1, channels, *frame))).shape[1]
        self.rnn = nn.LSTM(features, options.filters, batch_first=True, bidirectional=options.bidirectional)
        self.head = nn.Linear(options.filters * (2 if options.bidirectional else 1), classes)

    def collect(self, x):
        return x.mean((2, 3)) if self.join == "mean" else x.flatten(1)

    def forward(self, x):
        """x: [N,T,C,H,W] -> logits: [N,T,classes]"""
        features = self.collect(self.front(x.flatten(0, 1))).view(*x.shape[:2], -1)
        return self.head(self.rnn(features)[0])


def cut(recordings, segment):
    if segment is None:
        return recordings
    return [
        (frames[at : at + segment], labels[at : at + segment])
        for frames, labels in recordings
        for at in range(0, len(frames) - segment // 2, segment)
    ]


def batches(clips, size):
    """Clips in random order; the shorter ones of a batch are filled up by frames whose label does not count."""
    for chosen in torch.randperm(len(clips)).split(size):
        frames, labels = zip(*(clips[index] for index in chosen))
        longest = max(map(len, frames))
        frames = [functional.pad(clip, (0, 0, 0, 0, 0, 0, 0, longest - len(clip))) for clip in frames]
        yield torch.stack(frames), nn.utils.rnn.pad_sequence(list(labels), True, -100)


def train(options, labels, splits, seed):
    torch.manual_seed(seed)
    clips = cut(splits["train"], options.segment)
    _, channels, *frame = clips[0][0].shape
    model = {"conv-lstm": ConvLstm, "cnn-lstm": CnnLstm}[options.model](options, channels, frame, len(labels))
    counts = torch.bincount(torch.cat([own for _, own in clips]), minlength=len(labels))
    balanced = counts.sum() / (len(labels) * counts) if options.class_weights else None
    loss_of = nn.CrossEntropyLoss(weight=balanced)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    steps_per_epoch = -(-len(clips) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, total_steps=options.epochs * steps_per_epoch, pct_start=0.2
    )
    accuracies, steps, started = [], 0, time.time()

    def prepare(frames):
        return (frames.float() / 255 - options.mean) / options.std

    for epoch in range(options.epochs):
        model.train()
        total = 0.0
        for frames, targets in batches(clips, options.batch):
            for wanted, axis in ((options.flip_horizontal, 4), (options.flip_vertical, 3)):
                if wanted and torch.rand(()) < 0.5:
                    frames = frames.flip(axis)
            loss = loss_of(model(prepare(frames)).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            if options.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
            optimizer.step()
            if options.cycle:
                schedule.step()
            steps += 1
            total += loss.item()
        model.eval()
        with torch.no_grad():
            right = [(model(prepare(frames[None]))[0].argmax(1) == own) for frames, own in splits["val"]]
        accuracies.append(torch.cat(right).float().mean().item())
        print(
            f"seed {seed} epoch {epoch + 1:2} steps {steps:4} loss {total / steps_per_epoch:.4f}"
            f" val {accuracies[-1]:.3f} {time.time() - started:.0f} s",
            flush=True,
        )
    return {"seed": seed, "steps": steps, "last": accuracies[-1], "best": max(accuracies), "by_epoch": accuracies}


def main():
    def numbers(text):
        return tuple(int(part) for part in text.split(",") if part)

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frames", type=Path)
    parser.add_argument("model", choices=("conv-lstm", "cnn-lstm"))
    parser.add_argument("--widths", type=numbers, default=(), help="of the convolutions on each frame")
    parser.add_argument("--front-stride", type=int, default=1)
    parser.add_argument("--front-pool", type=int, default=2)
    parser.add_argument("--filters", type=int, default=8, help="of the ConvLSTM, or hidden units of the LSTM")
    parser.add_argument("--kernel", type=int, default=3)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--norm", choices=("before", "after", "none"), default="none", help="where, of the pooling")
    parser.add_argument("--norm-momentum", type=float, default=0.1)
    parser.add_argument("--pool", choices=("average", "maximum"), default="average")
    parser.add_argument("--join", choices=("flatten", "mean"), default="flatten")
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--rgb", action="store_true")
    parser.add_argument("--mean", type=float, default=0.5)
    parser.add_argument("--std", type=float, default=0.25)
    parser.add_argument("--segment", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--cycle", action="store_true", help="the learning rate rises a fifth of the steps, then falls")
    parser.add_argument("--clip-norm", type=float, default=0.0)
    parser.add_argument("--class-weights", action="store_true", help="n / (K n_c) for class c")
    parser.add_argument("--flip-horizontal", action="store_true")
    parser.add_argument("--flip-vertical", action="store_true")
    parser.add_argument("--seeds", type=numbers, default=(0, 1, 2))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    labels, splits = read_recordings(options.frames, options.rgb)
    for seed in options.seeds:
        print(json.dumps(train(options, labels, splits, seed)), flush=True)


if __name__ == "__main__":
    main()
