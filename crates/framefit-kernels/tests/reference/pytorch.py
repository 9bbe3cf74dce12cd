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


def run(name, inputs, y):
    """Shows inputs, y, dy and the gradients of the inputs, after a random dy; `frames` where they have five axes."""
    dy = torch.randn_like(y)
    y.backward(dy)
    layout = lambda x: frames(x) if x.dim() == 5 else x
    for key, tensor in {**inputs, "y": y, "dy": dy}.items():
        show(f"{name}.{key}", layout(tensor))
    for key, tensor in inputs.items():
        show(f"{name}.d{key}", layout(tensor.grad))


ACTIVATIONS = {
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.02),
    "elu": lambda x: F.elu(x, 1.4),
    "selu": F.selu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": F.sigmoid,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "tanh": F.tanh,
    "softplus": F.softplus,
}
for name, function in ACTIVATIONS.items():
    x = (torch.randn(20) * 3).requires_grad_()
    run("activation." + name, {"x": x}, function(x))

for ceil_mode in [False, True]:
    for name, options in {
        "padded": {"count_include_pad": True},
        "inputs": {"count_include_pad": False},
        "fixed": {"divisor_override": 5},
    }.items():
        x = torch.randn(2, 1, 4, 6, 4, requires_grad=True)
        y = F.avg_pool3d(x, (2, 3, 3), stride=(2, 3, 2), padding=(1, 1, 0), ceil_mode=ceil_mode, **options)
        run(f"avg_pool.{name}.{'ceil' if ceil_mode else 'floor'}", {"x": x}, y)
x = torch.randn(2, 1, 4, 6, 4, requires_grad=True)
run("max_pool.ceil", {"x": x}, F.max_pool3d(x, (2, 3, 3), stride=(2, 3, 2), padding=(1, 1, 0), ceil_mode=True))
for name, pool in {"avg": F.adaptive_avg_pool3d, "max": F.adaptive_max_pool3d}.items():
    x = torch.randn(2, 1, 4, 6, 4, requires_grad=True)
    run("adaptive." + name, {"x": x}, pool(x, (3, 4, 3)))

x = torch.randn(3, 6, 2, 2, requires_grad=True)
gamma, beta = torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)
y = F.group_norm(x, 3, gamma, beta, eps=1e-3)
dy = torch.randn_like(y)
y.backward(dy)
for name, tensor in [("x", x), ("y", y), ("dy", dy), ("dx", x.grad)]:
    show("group_norm." + name, tensor.permute(0, 2, 3, 1))
for name, tensor in [("gamma", gamma), ("beta", beta), ("dgamma", gamma.grad), ("dbeta", beta.grad)]:
    show("group_norm." + name, tensor)
x = torch.randn(4, 7, requires_grad=True)
gamma, beta = torch.randn(7, requires_grad=True), torch.randn(7, requires_grad=True)
run("layer_norm", {"x": x, "gamma": gamma, "beta": beta}, F.layer_norm(x, (7,), gamma, beta, eps=1e-3))
x = torch.randn(9, 4, requires_grad=True)
gamma, beta = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
run("batch_norm", {"x": x, "gamma": gamma, "beta": beta}, F.batch_norm(x, None, None, gamma, beta, True, 0.1, 1e-3))

# With identity weights and no biases the gates before activation are the inputs themselves.
K = 3
for name, cell, gates in [("lstm", torch.nn.LSTMCell(4 * K, K), 4), ("gru", torch.nn.GRUCell(3 * K, K), 3)]:
    with torch.no_grad():
        cell.weight_ih.copy_(torch.eye(gates * K))
        cell.bias_ih.zero_()
        cell.bias_hh.zero_()
    x = torch.randn(4, gates * K, requires_grad=True)
    h = torch.randn(4, K, requires_grad=True)
    if name == "lstm":
        with torch.no_grad():
            cell.weight_hh.zero_()
        c = torch.randn(4, K, requires_grad=True)
        run("lstm", {"x": x, "c": c}, torch.cat(cell(x, (h, c)), dim=1))
    else:
        product = h @ cell.weight_hh.T
        show("gru.product", product)
        show("gru.weight", cell.weight_hh)
        run("gru", {"x": x, "h": h}, cell(x, h))

logits = torch.randn(6, 4, requires_grad=True)
labels = torch.tensor([2, 0, -100, 3, 1, -100])
weights = torch.rand(4) + 0.5
show("smooth.labels", labels)
show("smooth.weights", weights)
losses = F.cross_entropy(logits, labels, weights, label_smoothing=0.2, reduction="none")
mean = F.cross_entropy(logits, labels, weights, label_smoothing=0.2)
mean.backward()
for name, tensor in [("logits", logits), ("losses", losses), ("mean", mean), ("dlogits", logits.grad)]:
    show("smooth." + name, tensor)

logits = torch.randn(4, 3, requires_grad=True)
targets = torch.rand(4, 3)
weights, positive = torch.rand(3) + 0.5, torch.rand(3) + 0.5
losses = F.binary_cross_entropy_with_logits(logits, targets, weights, pos_weight=positive, reduction="none").sum(1)
(losses.sum() / 12).backward()
for name, tensor in [("logits", logits), ("targets", targets), ("weights", weights), ("positive", positive)]:
    show("binary." + name, tensor)
show("binary.losses", losses)
show("binary.dlogits", logits.grad)
