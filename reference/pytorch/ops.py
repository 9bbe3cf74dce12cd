"""One op at a time: inputs, parameters, outputs and gradients in f64, for tests to compare with.

    python reference/pytorch/ops.py

writes ops.safetensors and ops.json beside this file. Tensors are in PyTorch's own layouts: activations
[N,C,T,H,W], convolution weights [K,C/groups,kT,kH,kW], linear weights [out,in].
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from cases import F64, Cases, random  # noqa: E402

SEED = 3


def add_conv3d(
    cases,
    name,
    channels,
    size,
    kernel=(3, 3, 3),
    stride=(1, 1, 1),
    padding=(0, 0, 0),
    dilation=(1, 1, 1),
    groups=1,
    bias=True,
    clips=1,
):
    """channels: (C, K); size: (T,H,W)"""
    arrive, leave = channels
    attributes = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    inputs = {"input": random(clips, arrive, *size), "weight": random(leave, arrive // groups, *kernel)}
    if bias:
        inputs["bias"] = random(leave)
    described = dict(in_channels=arrive, out_channels=leave, kernel=kernel, bias=bias, **attributes)

    def convolve(**given):
        return functional.conv3d(**given, **attributes)

    cases.layer(f"conv3d_{name}", "conv3d", described, convolve, **inputs)


def add_max_pool3d(cases, name, x, kernel, stride, padding=(0, 0, 0)):
    attributes = dict(kernel=kernel, stride=stride, padding=padding)
    pool = nn.MaxPool3d(kernel, stride, padding)
    cases.layer(f"max_pool3d_{name}", "max_pool3d", attributes, lambda input: pool(input), input=x)


def add_cross_entropy(cases, name, logits, labels, weight=None):
    """The mean over clips; with class weights w, sum(w[label] * loss) / sum(w[label])."""
    target = torch.tensor(labels)
    tensors = {"input": logits, "target": target}
    if weight is not None:
        tensors["weight"] = torch.tensor(weight, dtype=F64)
    x = logits.clone().requires_grad_()
    loss = functional.cross_entropy(x, target, tensors.get("weight"))
    loss.backward()
    tensors |= {"output": loss, "grad_input": x.grad}
    cases.add(f"cross_entropy_{name}", "cross_entropy", {"weighted": weight is not None}, tensors)


def add_adam(cases, name, steps, **options):
    """Gradients given from outside: [S,...]; parameters after each step: [S,...]; moments after the last."""
    decoupled = options.pop("decoupled", False)
    attributes = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0) | options
    parameter = nn.Parameter(random(3, 4))
    start = parameter.detach().clone()
    gradients = random(steps, 3, 4) * torch.logspace(-6, 2, 4, dtype=F64)
    gradients[1:, 0, 0] = 0.0
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([parameter], **attributes)
    after = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        after.append(parameter.detach().clone())
    state = optimizer.state[parameter]
    tensors = {"start": start, "gradients": gradients, "parameters": torch.stack(after)}
    tensors |= {"first_moment": state["exp_avg"], "second_moment": state["exp_avg_sq"]}
    cases.add(f"adam_{name}", "adam", dict(attributes, decoupled=decoupled, steps=steps), tensors)


def make_cases():
    cases = Cases()

    add_conv3d(cases, "3x3x3", (3, 4), (4, 5, 6), padding=(1, 1, 1), clips=2)
    add_conv3d(cases, "1x3x3", (3, 4), (4, 5, 6), kernel=(1, 3, 3), padding=(0, 1, 1))
    add_conv3d(cases, "3x1x1", (3, 4), (6, 3, 4), kernel=(3, 1, 1), padding=(1, 0, 0))
    add_conv3d(cases, "5x3x7", (2, 2), (6, 4, 8), kernel=(5, 3, 7), padding=(2, 1, 3))
    add_conv3d(cases, "pointwise", (5, 6), (3, 4, 3), kernel=(1, 1, 1))
    add_conv3d(cases, "even_kernel", (2, 3), (5, 5, 6), kernel=(2, 2, 4), padding=(1, 0, 2))
    add_conv3d(cases, "valid", (2, 3), (4, 5, 5))
    add_conv3d(cases, "kernel_as_long_as_the_clip", (2, 3), (4, 4, 4), kernel=(4, 3, 3), padding=(0, 1, 1))
    add_conv3d(cases, "one_frame", (2, 3), (1, 4, 5), padding=(1, 1, 1))
    add_conv3d(cases, "stride_2", (3, 4), (5, 6, 7), stride=(2, 2, 2), padding=(1, 1, 1))
    add_conv3d(cases, "stride_2_1_3", (3, 4), (7, 4, 9), stride=(2, 1, 3), padding=(1, 0, 2))
    add_conv3d(cases, "stride_over_kernel", (2, 3), (7, 7, 8), kernel=(2, 2, 2), stride=(3, 3, 3))
    add_conv3d(cases, "dilation_2_1_1", (2, 3), (7, 4, 5), padding=(2, 1, 1), dilation=(2, 1, 1))
    add_conv3d(cases, "dilation_1_2_3", (2, 2), (4, 7, 9), padding=(1, 2, 3), dilation=(1, 2, 3))
    add_conv3d(
        cases, "stride_and_dilation", (2, 3), (9, 8, 7), stride=(2, 3, 2), padding=(1, 2, 0), dilation=(3, 2, 1)
    )
    add_conv3d(cases, "groups_2", (4, 6), (4, 5, 4), padding=(1, 1, 1), groups=2)
    add_conv3d(cases, "depthwise", (5, 5), (4, 5, 3), padding=(1, 1, 1), groups=5, clips=2)
    add_conv3d(cases, "depthwise_twofold", (3, 6), (5, 4, 5), padding=(1, 1, 1), groups=3)
    add_conv3d(cases, "depthwise_stride_2", (3, 3), (5, 6, 7), stride=(2, 2, 2), padding=(1, 1, 1), groups=3)
    add_conv3d(cases, "no_bias", (3, 4), (3, 3, 4), padding=(1, 1, 1), bias=False)
    add_conv3d(cases, "3_to_40_channels", (3, 40), (2, 3, 3), kernel=(1, 3, 3), padding=(0, 1, 1))
    add_conv3d(cases, "17_to_33_channels", (17, 33), (2, 2, 3), kernel=(1, 1, 3), padding=(0, 0, 1))

    add_max_pool3d(cases, "2x2x2", random(2, 3, 4, 6, 4), (2, 2, 2), (2, 2, 2))
    add_max_pool3d(cases, "1x2x2", random(2, 3, 3, 6, 4), (1, 2, 2), (1, 2, 2))
    add_max_pool3d(cases, "remainder", random(2, 2, 5, 7, 5), (2, 2, 2), (2, 2, 2))
    add_max_pool3d(cases, "overlapping", random(2, 2, 5, 4, 5), (3, 3, 3), (2, 2, 1))
    add_max_pool3d(cases, "padded", random(1, 3, 5, 6, 7) - 2, (3, 3, 3), (2, 2, 2), (1, 1, 1))
    add_max_pool3d(cases, "gaps", random(1, 1, 7, 7, 8), (2, 2, 2), (3, 3, 3))
    # Few distinct values: of equal ones, the first in order of frame, row, column receives the gradient.
    ties = torch.randint(0, 3, (1, 3, 4, 6, 6)).to(F64)
    add_max_pool3d(cases, "ties", ties, (2, 2, 2), (2, 2, 2))
    add_max_pool3d(cases, "overlapping_ties", ties.clone(), (3, 3, 3), (2, 2, 2), (1, 1, 1))

    average = nn.AdaptiveAvgPool3d(1)
    for name, shape in (("odd", (2, 3, 3, 5, 7)), ("one_frame", (2, 4, 1, 4, 5))):
        cases.layer(
            f"global_average_{name}", "adaptive_avg_pool3d", {"output_size": 1}, average, input=random(*shape)
        )

    for name, (arrive, leave) in (("7_to_5", (7, 5)), ("33_to_17", (33, 17))):
        cases.layer(
            f"linear_{name}",
            "linear",
            {"in_features": arrive, "out_features": leave, "bias": True},
            functional.linear,
            input=random(3, arrive),
            weight=random(leave, arrive),
            bias=random(leave),
        )
    cases.layer(
        "linear_no_bias",
        "linear",
        {"in_features": 6, "out_features": 4, "bias": False},
        functional.linear,
        input=random(2, 6),
        weight=random(4, 6),
    )

    signs = random(2, 3, 2, 3, 4)
    signs[:, :, 0, 0] = 0.0  # where the gradient is 0
    cases.layer("relu", "relu", {}, functional.relu, input=signs)

    add_cross_entropy(cases, "mean", random(5, 4), [0, 3, 1, 1, 2])
    add_cross_entropy(cases, "weighted", random(5, 4), [0, 3, 1, 1, 2], [0.5, 2.0, 1.0, 0.25])
    add_cross_entropy(cases, "large_logits", random(4, 3) * 400, [0, 1, 2, 2], [1.0, 3.0, 0.5])
    add_cross_entropy(cases, "one_clip", random(1, 6), [4], [0.5, 2.0, 1.0, 0.25, 3.0, 1.0])

    add_adam(cases, "defaults", steps=6)
    add_adam(cases, "weight_decay", steps=6, lr=1e-2, weight_decay=0.1)
    add_adam(cases, "other_moments", steps=6, lr=3e-3, betas=(0.5, 0.9), eps=1e-4)
    add_adam(cases, "decoupled_weight_decay", steps=6, lr=1e-2, weight_decay=0.1, decoupled=True)
    return cases


def main():
    torch.manual_seed(SEED)
    cases = make_cases()
    made_by = {"command": "python reference/pytorch/ops.py", "torch": torch.__version__, "seed": SEED}
    cases.write(FOLDER, "ops", made_by)


if __name__ == "__main__":
    main()
