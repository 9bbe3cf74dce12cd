"""One training step of the two-block 3D CNN on one clip in PyTorch: seconds and peak resident memory.

    bench/peers/.venv/bin/python bench/peers/one_step.py [--bf16] [--channels-last]

Two steps are made, and the second is timed. Memory is the whole process's, as the system counted it.
"""
import argparse
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F


class CNN3d(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv3d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv3d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64, 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool3d(F.relu(self.conv1(x)), 2)
        x = F.max_pool3d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.mean((2, 3, 4)))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--channels-last", action="store_true", help="channels_last_3d")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, clip = CNN3d(20), torch.rand(1, 3, 60, 230, 230)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last_3d)
        clip = clip.to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        started = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            loss = F.cross_entropy(model(clip).float(), torch.tensor([3]))
        loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads: {seconds:.2f} s, peak {peak:,.0f} MB")


if __name__ == "__main__":
    main()
