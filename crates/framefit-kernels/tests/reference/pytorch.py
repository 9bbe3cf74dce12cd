"""Writes pytorch.txt: inputs and results of PyTorch's own operators, in framefit's layouts.

Each line is a name and its numbers. Run with the versions named in the file's first line:

    python pytorch.py > pytorch.txt
"""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def show(name, tensor):
    print(name, *(repr(x) for x in tensor.detach().double().flatten().tolist()))


def frames(x):
    """[N, C, T, H, W] to [T, N, H, W, C]."""
    return x.permute(2, 0, 3, 4, 1)


def taps(w):
    """[K, C, kT, kH, kW] to [K, kT, kH, kW, C]."""
    return w.permute(0, 2, 3, 4, 1)


print("# PyTorch", torch.__version__)

x = torch.randn(2, 4, 4, 5, 6, requires_grad=True)
w = torch.randn(6, 2, 2, 3, 2, requires_grad=True)
bias = torch.randn(6, requires_grad=True)
y = F.conv3d(x, w, bias, stride=(1, 2, 1), padding=(1, 1, 0), dilation=(1, 1, 2), groups=2)
dy = torch.randn_like(y)
y.backward(dy)
for name, tensor in [("x", frames(x)), ("y", frames(y)), ("dy", frames(dy)), ("dx", frames(x.grad))]:
    show("conv." + name, tensor)
for name, tensor in [("w", taps(w)), ("dw", taps(w.grad)), ("bias", bias), ("db", bias.grad)]:
    show("conv." + name, tensor)

x = torch.randint(-2, 3, (2, 3, 4, 5, 5)).double()
x[torch.rand_like(x) < 0.05] = float("nan")
x[torch.rand_like(x) < 0.05] = float("-inf")
x.requires_grad_()
y = F.max_pool3d(x, kernel_size=(2, 3, 2), stride=(2, 2, 1), padding=(1, 1, 0))
dy = torch.randn_like(y)
y.backward(dy)
for name, tensor in [("x", x), ("y", y), ("dy", dy), ("dx", x.grad)]:
    show("pool." + name, frames(tensor))

logits = torch.randn(4, 3, requires_grad=True)
weights = torch.rand(3) + 0.5
labels = torch.tensor([2, 0, 1, 2])
losses = F.cross_entropy(logits, labels, weights, reduction="none")
(losses.sum() * 0.25).backward()
for name, tensor in [("logits", logits), ("weights", weights), ("labels", labels), ("losses", losses)]:
    show("loss." + name, tensor)
show("loss.dlogits", logits.grad)

w = torch.randn(5, requires_grad=True)
adam = torch.optim.Adam([w], lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
show("adam.from", w)
for step in range(1, 5):
    w.grad = torch.randn(5)
    show(f"adam.g{step}", w.grad)
    adam.step()
    show(f"adam.w{step}", w)
