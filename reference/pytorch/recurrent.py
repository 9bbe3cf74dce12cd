"""LSTM, GRU, ConvLSTM and ConvGRU in f64: inputs, parameters, outputs and gradients, for tests to compare with.

    python reference/pytorch/recurrent.py

writes recurrent (LSTM, GRU) and conv_recurrent, each as .safetensors and .json, beside this file. Tensors are in
PyTorch's own layouts: [N,T,C], or [T,N,C] where batch_first is false; frames [N,C,T,H,W]; convolution weights
[K,C,kH,kW].
"""

import sys
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from cases import F64, Cases, random  # noqa: E402

SEED = 31


def zeros(*shape):
    return torch.zeros(*shape, dtype=F64)


class ConvLstmCell(nn.Module):
    """Shi et al. 2015 without peepholes: gates i, f, o, g by one convolution of [x, h], as written in many projects.

    x: [N,C,H,W]; h, c: [N,K,H,W] -> (h, c)
    """

    def __init__(self, channels, hidden, kernel):
        super().__init__()
        padding = tuple(k // 2 for k in kernel)
        self.hidden, self.states = hidden, 2
        self.conv = nn.Conv2d(channels + hidden, 4 * hidden, kernel, padding=padding)

    def forward(self, x, h, c):
        i, f, o, g = self.conv(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class ConvGruCell(nn.Module):
    """Ballas et al. 2016: gates z, r by a convolution of [x, h], candidate by a convolution of [x, r∘h].

    x: [N,C,H,W]; h: [N,K,H,W] -> h' = (1 − z)∘h + z∘candidate
    """

    def __init__(self, channels, hidden, kernel):
        super().__init__()
        padding = tuple(k // 2 for k in kernel)
        self.hidden, self.states = hidden, 1
        self.gates = nn.Conv2d(channels + hidden, 2 * hidden, kernel, padding=padding)
        self.candidate = nn.Conv2d(channels + hidden, hidden, kernel, padding=padding)

    def forward(self, x, h):
        z, r = self.gates(torch.cat([x, h], 1)).sigmoid().chunk(2, 1)
        candidate = self.candidate(torch.cat([x, r * h], 1)).tanh()
        return ((1 - z) * h + z * candidate,)


def unroll(cell, x, *states):
    """x: [N,C,T,H,W] -> the hidden states of all frames [N,K,T,H,W], and the last states"""
    hidden = []
    for frame in x.unbind(2):
        states = cell(frame, *states)
        hidden.append(states[0])
    return torch.stack(hidden, 2), *states


class RecurrentCases(Cases):
    def record(self, name, op, attributes, module, outputs, inputs):
        parameters = dict(module.named_parameters())
        self.differentiate(name, op, attributes, outputs, inputs | parameters, inputs | parameters)

    def rows(self, name, op, states=False, clips=2, frames=7, features=5, hidden=4, **options):
        """states: initial ones go in, and final ones come out, [layers · directions, N, hidden]"""
        attributes = dict(num_layers=1, bias=True, batch_first=True, bidirectional=False) | options
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[op]
        module = kind(features, hidden, dtype=F64, **attributes)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
        shape = (clips, frames) if attributes["batch_first"] else (frames, clips)
        inputs, names = {"input": random(*shape, features)}, ["hidden", "cell"][: 2 if op == "lstm" else 1]
        if states:
            rows = attributes["num_layers"] * (2 if attributes["bidirectional"] else 1)
            inputs |= {f"initial_{state}": random(rows, clips, hidden) for state in names}
        x, *initial = [value.requires_grad_() for value in inputs.values()]
        output, final = module(x, (tuple(initial) if op == "lstm" else initial[0]) if states else None)
        outputs = {"output": output}
        if states:
            final = final if op == "lstm" else (final,)
            outputs |= {f"final_{state}": value for state, value in zip(names, final)}
        attributes = dict(input_size=features, hidden_size=hidden, states=states, **attributes)
        self.record(f"{op}_{name}", op, attributes, module, outputs, inputs)

    def frames(self, name, op, states=False, clips=1, size=(4, 4, 5), channels=2, hidden=3, kernel=(3, 3)):
        """size: (T,H,W); states: initial ones go in, final ones come out, else they begin at 0"""
        cell = {"conv_lstm": ConvLstmCell, "conv_gru": ConvGruCell}[op](channels, hidden, kernel).to(F64)
        for parameter in cell.parameters():
            nn.init.normal_(parameter, std=0.3)
        inputs, names = {"input": random(clips, channels, *size)}, ["hidden", "cell"][: cell.states]
        initial = [(random if states else zeros)(clips, hidden, *size[1:]) for _ in names]
        if states:
            inputs |= {f"initial_{state}": value for state, value in zip(names, initial)}
        for value in inputs.values():
            value.requires_grad_()
        output, *final = unroll(cell, inputs["input"], *initial)
        outputs = {"output": output}
        if states:
            outputs |= {f"final_{state}": value for state, value in zip(names, final)}
        padding = [k // 2 for k in kernel]
        attributes = dict(in_channels=channels, hidden=hidden, kernel=kernel, padding=padding, states=states)
        self.record(f"{op}_{name}", op, attributes, cell, outputs, inputs)


def make_row_cases():
    cases = RecurrentCases()
    for op in ("lstm", "gru"):
        cases.rows("1_layer", op)
        cases.rows("2_layers", op, num_layers=2)
        cases.rows("bidirectional", op, bidirectional=True)
        cases.rows("2_layers_bidirectional", op, num_layers=2, bidirectional=True, features=3, hidden=3)
        cases.rows("no_bias", op, bias=False)
        cases.rows("time_first", op, batch_first=False)
        cases.rows("states", op, states=True)
        cases.rows("2_layers_states", op, states=True, num_layers=2)
        cases.rows("one_frame", op, frames=1, clips=1)
        cases.rows("17_to_9", op, features=17, hidden=9, frames=3, clips=1)
    return cases


def make_frame_cases():
    cases = RecurrentCases()
    for op in ("conv_lstm", "conv_gru"):
        cases.frames("3x3", op, clips=2)
        cases.frames("3x5", op, kernel=(3, 5), size=(3, 4, 6))
        cases.frames("1x1", op, kernel=(1, 1))
        cases.frames("states", op, states=True)
        cases.frames("one_frame", op, size=(1, 4, 4))
    return cases


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    made_by = {"command": "python reference/pytorch/recurrent.py", "torch": torch.__version__, "seed": SEED}
    for name, make in (("recurrent", make_row_cases), ("conv_recurrent", make_frame_cases)):
        make().write(FOLDER, name, made_by)


if __name__ == "__main__":
    main()
