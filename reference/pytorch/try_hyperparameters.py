"""Trains one model of the cnn3d family on a clips.csv, once per seed, and prints validation accuracy by epoch.

A stand-in for `framefit train`, to choose defaults by trying:

    python try_hyperparameters.py ../../examples/moving_digits/clips.csv --widths 8,16 --epochs 6
"""

import argparse
import csv
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn


def decode(path, channels):
    """-> [T,H,W,C] u8, by ffmpeg."""
    probe = ["ffprobe", "-v", "error", "-select_streams", "v:0"]
    probe += ["-show_entries", "stream=width,height", "-of", "csv=p=0", str(path)]
    width, height = map(int, subprocess.run(probe, capture_output=True, check=True).stdout.split(b","))
    pixels = "gray" if channels == 1 else "rgb24"
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-vsync", "passthrough"]
    command += ["-f", "rawvideo", "-pix_fmt", pixels, "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, channels)


def read_clips(table, channels):
    """-> labels, and per split (clips [B,C,T,H,W] u8, label indices [B])."""
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    videos = {name: decode(table.parent / name, channels) for name in {row["video"] for row in rows}}
    labels = sorted({row["label"] for row in rows})
    splits = {}
    for split in ("train", "val"):
        own = [row for row in rows if row["split"] == split]
        clips = [videos[row["video"]][int(row["start_frame"]) : int(row["end_frame"])] for row in own]
        clips = torch.from_numpy(np.stack(clips)).permute(0, 4, 1, 2, 3).contiguous()
        splits[split] = clips, torch.tensor([labels.index(row["label"]) for row in own])
    return labels, splits


def cnn3d(widths, kernel, pool, head, hidden, classes, clip_shape):
    """clip_shape: (C,T,H,W)"""
    layers, channels = [], clip_shape[0]
    padding = tuple(k // 2 for k in kernel)
    for width in widths:
        layers += [nn.Conv3d(channels, width, kernel, padding=padding), nn.ReLU(), nn.MaxPool3d(pool)]
        channels = width
    if head == "cnn3d":
        layers.append(nn.AdaptiveAvgPool3d(1))
    layers.append(nn.Flatten())
    with torch.no_grad():
        features = nn.Sequential(*layers)(torch.zeros(1, *clip_shape)).shape[1]
    layers += [nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def flip(clips, horizontal, vertical):
    """Each clip of [B,C,T,H,W] mirrored, or not, by a coin of its own per direction."""
    for wanted, axis in ((horizontal, 4), (vertical, 3)):
        if wanted:
            coin = torch.rand(len(clips)) < 0.5
            clips = torch.where(coin.view(-1, 1, 1, 1, 1), clips.flip(axis), clips)
    return clips


def train(options, labels, splits, seed):
    torch.manual_seed(seed)
    clips, targets = splits["train"]
    held_clips, held_targets = splits["val"]
    counts = torch.bincount(targets, minlength=len(labels))
    balanced = len(targets) / (len(labels) * counts) if options.class_weights else None

    def prepare(batch):
        return (batch.float() / 255 - options.mean) / options.std

    model = cnn3d(
        options.widths, options.kernel, options.pool, options.head, options.hidden, len(labels), clips.shape[1:]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    loss_of = nn.CrossEntropyLoss(weight=balanced)
    accuracies, started = [], time.time()
    for epoch in range(options.epochs):
        total = 0.0
        for batch in torch.randperm(len(targets)).split(options.batch):
            x = flip(clips[batch], options.flip_horizontal, options.flip_vertical)
            loss = loss_of(model(prepare(x)), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        with torch.no_grad():
            parts = [model(prepare(part)).argmax(1) for part in held_clips.split(32)]
        right = torch.cat(parts) == held_targets
        recalls = [right[held_targets == k].float().mean().item() for k in range(len(labels))]
        accuracies.append(right.float().mean().item())
        print(
            f"seed {seed} epoch {epoch + 1:2} loss {total / len(targets):.4f} val {accuracies[-1]:.3f}"
            f" recall {' '.join(f'{recall:.2f}' for recall in recalls)} {time.time() - started:.0f} s",
            flush=True,
        )
    return {"seed": seed, "last": accuracies[-1], "best": max(accuracies), "by_epoch": accuracies}


def main():
    def numbers(text):
        return tuple(int(part) for part in text.replace("x", ",").split(","))

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--widths", type=numbers, default=(16, 32))
    parser.add_argument("--kernel", type=numbers, default=(3, 3, 3))
    parser.add_argument("--pool", type=numbers, default=(2, 2, 2))
    parser.add_argument("--head", choices=("cnn3d", "cnn3d-flatten"), default="cnn3d")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rgb", action="store_true")
    parser.add_argument("--mean", type=float, default=0.5)
    parser.add_argument("--std", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--class-weights", action="store_true", help="n / (K n_c) for class c")
    parser.add_argument("--flip-horizontal", action="store_true")
    parser.add_argument("--flip-vertical", action="store_true")
    parser.add_argument("--seeds", type=numbers, default=(0, 1, 2))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    labels, splits = read_clips(options.clips, 3 if options.rgb else 1)
    for seed in options.seeds:
        print(json.dumps(train(options, labels, splits, seed)), flush=True)


if __name__ == "__main__":
    main()
