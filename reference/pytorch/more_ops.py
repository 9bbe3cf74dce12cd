"""Pooling, normalisation, activations, blocks and losses in f64: inputs, parameters, outputs and gradients.

    python reference/pytorch/more_ops.py

writes pooling, norms, activations, blocks and losses, each as .safetensors and .json, beside this file. Tensors are
in PyTorch's own layouts: [N,C,T,H,W], [N,C,H,W] or [N,C,T].
"""

import sys
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from cases import F64, Cases, random  # noqa: E402

SEED = 43


class ModuleCases(Cases):
    def module(self, name, op, attributes, module, **inputs):
        """One call of a module and back; its buffers before the call as NAME, those after it as NAME_after."""
        inputs = {key: value.clone().requires_grad_() for key, value in inputs.items()}
        parameters = dict(module.named_parameters())
        before = {
            key: value.clone() for key, value in module.named_buffers() if not key.endswith("num_batches_tracked")
        }
        output = module(*inputs.values())
        after = dict(module.named_buffers())
        changed = {
            f"{key}_after": after[key] for key, value in before.items() if not torch.equal(value, after[key])
        }
        tensors = inputs | parameters | before | changed
        self.differentiate(name, op, attributes, {"output": output}, inputs | parameters, tensors)


def with_random_parameters(module, scale=0.5):
    """f64, every parameter random, running statistics too"""
    module.to(F64)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=scale)
    for key, buffer in module.named_buffers():
        if key.endswith("running_mean"):
            buffer.copy_(random(*buffer.shape))
        elif key.endswith("running_var"):
            buffer.copy_(random(*buffer.shape).exp())
    return module


def make_pooling():
    cases = ModuleCases()

    def pool(name, kind, shape, kernel, stride, padding=None, **options):
        padding = (0,) * len(kernel) if padding is None else padding
        attributes = dict(kernel=kernel, stride=stride, padding=padding) | options
        module = getattr(nn, kind)(kernel, stride, padding, **options)
        op = {"MaxPool": "max_pool", "AvgPool": "avg_pool"}[kind[:7]] + kind[7:]
        cases.module(f"{op}_{name}", op, attributes, module, input=random(*shape))

    def average(name, *given, ceil_mode=False, count_include_pad=True, **options):
        pool(name, *given, ceil_mode=ceil_mode, count_include_pad=count_include_pad, **options)

    average("2x2x2", "AvgPool3d", (2, 2, 4, 6, 4), (2, 2, 2), (2, 2, 2))
    average("1x4x5_whole_frame", "AvgPool3d", (2, 3, 4, 4, 5), (1, 4, 5), (1, 4, 5))
    average("remainder", "AvgPool3d", (1, 2, 5, 7, 5), (2, 2, 2), (2, 2, 2))
    average("overlapping", "AvgPool3d", (1, 2, 5, 4, 5), (3, 3, 3), (2, 2, 1))
    padded = ("AvgPool3d", (1, 2, 5, 6, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1))
    average("padded", *padded)
    average("padded_not_counted", *padded, count_include_pad=False)
    average("ceil", "AvgPool3d", (1, 2, 5, 7, 6), (2, 2, 3), (2, 2, 2), ceil_mode=True)
    # The window's last part may lie beyond input and padding; that part is counted in neither mode.
    padded_ceil = ("AvgPool3d", (1, 2, 6, 8, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1))
    average("ceil_padded", *padded_ceil, ceil_mode=True)
    average("ceil_padded_not_counted", *padded_ceil, ceil_mode=True, count_include_pad=False)
    average("divisor", "AvgPool3d", (1, 2, 4, 4, 4), (2, 2, 2), (2, 2, 2), divisor_override=5)
    average("gaps", "AvgPool3d", (1, 1, 7, 7, 8), (2, 2, 2), (3, 3, 3))
    average("2x3", "AvgPool2d", (2, 3, 4, 6), (2, 3), (2, 3))
    average("padded", "AvgPool2d", (2, 2, 5, 6), (3, 3), (2, 2), (1, 1))
    padded_ceil = ("AvgPool2d", (1, 2, 6, 7), (3, 3), (2, 2), (1, 1))
    average("ceil_padded", *padded_ceil, ceil_mode=True)
    average("ceil_padded_not_counted", *padded_ceil, ceil_mode=True, count_include_pad=False)
    average("2", "AvgPool1d", (2, 3, 8), (2,), (2,))
    average("padded", "AvgPool1d", (2, 3, 7), (3,), (2,), (1,))
    padded_ceil = ("AvgPool1d", (1, 3, 8), (3,), (2,), (1,))
    average("ceil_padded_not_counted", *padded_ceil, ceil_mode=True, count_include_pad=False)

    def largest(name, *given, dilation=None, ceil_mode=True):
        kernel = given[2]
        pool(name, *given, dilation=dilation or (1,) * len(kernel), ceil_mode=ceil_mode)

    largest("ceil", "MaxPool3d", (1, 2, 5, 7, 6), (2, 2, 2), (2, 2, 2))
    largest("ceil_overlapping", "MaxPool3d", (1, 2, 6, 5, 6), (3, 3, 3), (2, 2, 2))
    largest("ceil_padded", "MaxPool3d", (1, 2, 6, 7, 8), (3, 3, 3), (2, 2, 2), (1, 1, 1))
    largest("ceil_1x3x3", "MaxPool3d", (2, 2, 3, 6, 7), (1, 3, 3), (1, 2, 2))
    largest("ceil_stride_3", "MaxPool3d", (1, 2, 5, 8, 6), (2, 2, 2), (3, 3, 3))
    largest("dilation_2", "MaxPool3d", (1, 2, 5, 6, 7), (2, 2, 2), (1, 2, 2), dilation=(2, 2, 3), ceil_mode=False)
    largest("ceil", "MaxPool2d", (2, 2, 5, 7), (2, 2), (2, 2))
    largest("ceil", "MaxPool1d", (2, 3, 7), (2,), (2,))

    for name, size, shape in (
        ("1x1x1", (1, 1, 1), (2, 3, 3, 5, 4)),
        ("1_of_time", (1, None, None), (1, 2, 5, 3, 4)),
        ("1_of_space", (None, 1, 1), (2, 2, 4, 5, 3)),
        ("2x2x2", (2, 2, 2), (1, 2, 4, 6, 8)),
        ("uneven", (2, 3, 4), (1, 2, 5, 7, 6)),
        ("larger_than_input", (3, 5, 4), (1, 2, 2, 4, 6)),
        ("3x1x2", (3, 1, 2), (1, 2, 7, 3, 5)),
    ):
        for op, kind in (("avg", nn.AdaptiveAvgPool3d), ("max", nn.AdaptiveMaxPool3d)):
            op = f"adaptive_{op}_pool3d"
            cases.module(f"{op}_{name}", op, {"output_size": size}, kind(size), input=random(*shape))
    return cases


def make_norms():
    cases = ModuleCases()

    def batch_norm(name, kind, shape, calls=1, training=True, **options):
        """Calls follow each other: the running statistics after one are those before the next."""
        attributes = dict(num_features=shape[1], eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)
        attributes |= options
        module = with_random_parameters(getattr(nn, kind)(**attributes)).train(training)
        op = "batch_norm" + kind[-2:]
        for call in range(1, calls + 1):
            suffix = f"_call_{call}" if calls > 1 else ""
            x = 2 * random(*shape) + 3 * random(1, shape[1], *(1 for _ in shape[2:]))
            cases.module(f"{op}_{name}{suffix}", op, dict(attributes, training=training, call=call), module, input=x)

    size = (2, 3, 3, 4, 4)
    batch_norm("training", "BatchNorm3d", size, calls=3)
    batch_norm("inference", "BatchNorm3d", size, training=False)
    batch_norm("cumulative", "BatchNorm3d", size, calls=3, momentum=None)
    batch_norm("other_settings", "BatchNorm3d", size, momentum=0.3, eps=1e-3)
    batch_norm("no_affine", "BatchNorm3d", size, affine=False)
    batch_norm("no_running_statistics", "BatchNorm3d", size, track_running_stats=False)
    batch_norm("one_clip", "BatchNorm3d", (1, 2, 1, 3, 4))
    batch_norm("training", "BatchNorm2d", (6, 3, 4, 4))
    batch_norm("inference", "BatchNorm2d", (6, 3, 4, 4), training=False)
    batch_norm("training_rows", "BatchNorm1d", (6, 5))
    batch_norm("training", "BatchNorm1d", (2, 5, 4))

    def group_norm(name, groups, shape, **options):
        attributes = dict(num_groups=groups, num_channels=shape[1], eps=1e-5, affine=True) | options
        module = with_random_parameters(nn.GroupNorm(**attributes))
        cases.module(f"group_norm_{name}", "group_norm", attributes, module, input=random(*shape) + 1)

    group_norm("1_group", 1, (2, 4, 3, 3, 4))
    group_norm("2_groups", 2, (2, 4, 3, 3, 4))
    group_norm("4_of_4_groups", 4, (2, 4, 3, 3, 4))
    group_norm("no_affine", 3, (1, 6, 2, 3, 3), affine=False)
    group_norm("frames", 2, (3, 4, 4, 5))

    def layer_norm(name, shape, normalized, **options):
        attributes = dict(normalized_shape=normalized, eps=1e-5, elementwise_affine=True, bias=True) | options
        module = with_random_parameters(nn.LayerNorm(**attributes))
        cases.module(f"layer_norm_{name}", "layer_norm", attributes, module, input=random(*shape) + 1)

    layer_norm("channels_last", (2, 4, 6), [6])
    layer_norm("channels_last_of_frames", (1, 3, 3, 4, 5), [5])
    layer_norm("whole_frames", (2, 3, 2, 4, 5), [2, 4, 5])
    layer_norm("no_bias", (2, 4, 6), [6], bias=False)
    layer_norm("no_affine", (2, 4, 6), [6], elementwise_affine=False)

    instance = dict(num_features=3, eps=1e-5, affine=True, track_running_stats=False)
    module = with_random_parameters(nn.InstanceNorm3d(**instance))
    cases.module("instance_norm3d", "instance_norm3d", instance, module, input=random(2, 3, 3, 3, 4))
    return cases


class Hardsigmoid(nn.Module):
    """As PyTorch documents it; PyTorch's own rounds the slope 1/6 to f32 even where all else is f64."""

    def forward(self, x):
        return functional.relu6(x + 3) / 6


def make_activations():
    cases = ModuleCases()
    # Around and exactly at the kinks of all of them, and far out on both sides.
    kinks = torch.tensor([-40.0, -21.0, -6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 21.0, 40.0], dtype=F64)
    for op, variant, module, attributes in (
        ("relu", "", nn.ReLU(), {}),
        ("relu6", "", nn.ReLU6(), {}),
        ("leaky_relu", "", nn.LeakyReLU(), {"negative_slope": 0.01}),
        ("leaky_relu", "_0.2", nn.LeakyReLU(0.2), {"negative_slope": 0.2}),
        ("elu", "", nn.ELU(), {"alpha": 1.0}),
        ("elu", "_0.7", nn.ELU(0.7), {"alpha": 0.7}),
        ("selu", "", nn.SELU(), {}),
        ("gelu", "", nn.GELU(), {"approximate": "none"}),
        ("gelu", "_tanh", nn.GELU(approximate="tanh"), {"approximate": "tanh"}),
        ("silu", "", nn.SiLU(), {}),
        ("sigmoid", "", nn.Sigmoid(), {}),
        ("hardsigmoid", "", Hardsigmoid(), {}),
        ("hardswish", "", nn.Hardswish(), {}),
        ("tanh", "", nn.Tanh(), {}),
        ("softplus", "", nn.Softplus(), {"beta": 1.0, "threshold": 20.0}),
        ("softplus", "_2", nn.Softplus(2.0), {"beta": 2.0, "threshold": 20.0}),
        ("mish", "", nn.Mish(), {}),
        ("hardtanh", "", nn.Hardtanh(), {"min_val": -1.0, "max_val": 1.0}),
    ):
        x = torch.cat([kinks, 3 * random(45)]).reshape(1, 2, 1, 4, 7)
        cases.module(op + variant, op, attributes, module, input=x)
    prelu = with_random_parameters(nn.PReLU(3))
    cases.module("prelu", "prelu", {"num_parameters": 3}, prelu, input=random(2, 3, 2, 3, 3))
    rows = random(4, 5) * 5
    cases.module("softmax", "softmax", {"dim": -1}, nn.Softmax(-1), input=rows)
    cases.module("log_softmax", "log_softmax", {"dim": -1}, nn.LogSoftmax(-1), input=rows)
    return cases


class Residual(nn.Module):
    """conv-bn-relu-conv-bn, plus the input or its strided projection, relu: ResNet's basic block in 3D."""

    def __init__(self, arrive, leave, stride):
        super().__init__()
        self.conv1 = nn.Conv3d(arrive, leave, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm3d(leave)
        self.conv2 = nn.Conv3d(leave, leave, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm3d(leave)
        self.downsample = None
        if stride != 1 or arrive != leave:
            projection = nn.Conv3d(arrive, leave, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm3d(leave))

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class Inception(nn.Module):
    """Three branches, concatenated by channels: 1×1×1; 1×1×1 and 3×3×3; maximum of 3×3×3 and 1×1×1."""

    def __init__(self, channels, widths):
        super().__init__()
        self.branch1 = nn.Conv3d(channels, widths[0], 1)
        self.branch2 = nn.Sequential(
            OrderedDict(
                reduce=nn.Conv3d(channels, widths[1], 1),
                relu=nn.ReLU(),
                conv=nn.Conv3d(widths[1], widths[2], 3, padding=1),
            )
        )
        self.branch3 = nn.Sequential(
            OrderedDict(pool=nn.MaxPool3d(3, stride=1, padding=1), project=nn.Conv3d(channels, widths[3], 1))
        )

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x)], 1).relu()


def make_blocks():
    cases = ModuleCases()

    def block(name, op, module, shape, training=True, **attributes):
        module = with_random_parameters(module, scale=0.3).train(training)
        cases.module(name, op, dict(attributes, training=training), module, input=random(*shape))

    for training in (True, False):
        suffix = "" if training else "_inference"
        strided = dict(arrive=2, leave=3, stride=2)
        block(f"residual_stride_2{suffix}", "residual", Residual(**strided), (2, 2, 5, 6, 5), training, **strided)
        plain = dict(arrive=3, leave=3, stride=1)
        block(f"residual_identity{suffix}", "residual", Residual(**plain), (2, 3, 3, 4, 4), training, **plain)
    time = dict(arrive=2, leave=3, stride=(2, 1, 1))
    block("residual_stride_2_of_time", "residual", Residual(**time), (1, 2, 6, 4, 3), **time)
    widths = dict(channels=3, widths=(2, 2, 3, 2))
    block("inception", "inception", Inception(**widths), (1, 3, 5, 4, 5), **widths)
    return cases


def make_losses():
    cases = Cases()

    def cross_entropy(name, logits, target, weight=None, **options):
        """logits: [N,K] or [N,K,T]; target: [N] or [N,T]"""
        options = dict(ignore_index=-100, label_smoothing=0.0, reduction="mean") | options
        x, tensors = logits.clone().requires_grad_(), {"input": logits, "target": target}
        if weight is not None:
            weight = tensors["weight"] = torch.tensor(weight, dtype=F64)
        loss = functional.cross_entropy(x, target, weight, **options)
        (gradient,) = torch.autograd.grad(loss, x)
        tensors |= {"output": loss, "grad_input": gradient}
        cases.add(f"cross_entropy_{name}", "cross_entropy", dict(options, weighted=weight is not None), tensors)

    weight = [0.5, 2.0, 1.0, 0.25]
    per_frame, frames = random(2, 4, 6) * 2, torch.randint(4, (2, 6))
    some = frames.clone()
    some[0, :2] = some[1, 3] = -100
    cross_entropy("frames", per_frame, frames)
    cross_entropy("frames_ignored", per_frame, some)
    cross_entropy("frames_other_ignored", per_frame, frames, ignore_index=2)
    cross_entropy("frames_weighted", per_frame, some, weight)
    cross_entropy("frames_smoothed", per_frame, some, label_smoothing=0.1)
    cross_entropy("frames_weighted_smoothed", per_frame, some, weight, label_smoothing=0.1)
    cross_entropy("frames_weighted_sum", per_frame, some, weight, label_smoothing=0.2, reduction="sum")
    whole_clip = some.clone()
    whole_clip[1] = -100
    cross_entropy("frames_one_clip_ignored", per_frame, whole_clip, weight, label_smoothing=0.1)
    cross_entropy("large_logits_smoothed", random(3, 4) * 400, torch.tensor([0, 3, 1]), label_smoothing=0.1)
    cross_entropy("clips_smoothed", random(5, 4), torch.tensor([0, 3, 1, 1, 2]), weight, label_smoothing=0.3)

    def binary(name, logits, weight=None, pos_weight=None, soft=False, reduction="mean"):
        target = torch.rand(logits.shape, dtype=F64)
        target = target if soft else target.round()
        x, tensors = logits.clone().requires_grad_(), {"input": logits, "target": target}
        for key, value in (("weight", weight), ("pos_weight", pos_weight)):
            if value is not None:
                tensors[key] = torch.tensor(value, dtype=F64)
        loss = functional.binary_cross_entropy_with_logits(
            x, target, tensors.get("weight"), pos_weight=tensors.get("pos_weight"), reduction=reduction
        )
        (gradient,) = torch.autograd.grad(loss, x)
        tensors |= {"output": loss, "grad_input": gradient}
        cases.add(f"bce_with_logits_{name}", "bce_with_logits", {"reduction": reduction}, tensors)

    positive = [0.5, 3.0, 1.0]
    binary("clips", random(4, 3) * 2)
    binary("clips_pos_weight", random(4, 3) * 2, pos_weight=positive)
    binary("clips_soft_pos_weight", random(4, 3) * 2, pos_weight=positive, soft=True)
    binary("clips_weight_pos_weight", random(4, 3) * 2, weight=[1.0, 0.2, 2.0], pos_weight=positive)
    binary("clips_sum", random(4, 3) * 2, pos_weight=positive, reduction="sum")
    binary("large_logits", random(3, 3) * 300, pos_weight=positive)
    binary("frames", random(2, 5, 3) * 2)
    binary("frames_pos_weight", random(2, 5, 3) * 2, pos_weight=positive)
    binary("one_class_frames", random(2, 6, 1) * 2, pos_weight=[4.0])
    return cases


def main():
    torch.set_num_threads(1)
    made_by = {"command": "python reference/pytorch/more_ops.py", "torch": torch.__version__, "seed": SEED}
    for name, make in (
        ("pooling", make_pooling),
        ("norms", make_norms),
        ("activations", make_activations),
        ("blocks", make_blocks),
        ("losses", make_losses),
    ):
        torch.manual_seed(SEED)
        make().write(FOLDER, name, made_by)


if __name__ == "__main__":
    main()
