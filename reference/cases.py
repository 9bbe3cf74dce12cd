"""Collects the tensors of single cases and writes them as NAME.safetensors and NAME.json beside a script."""

import json

import torch
from safetensors.torch import save

F64 = torch.float64


def random(*shape):
    return torch.randn(*shape, dtype=F64)


class Cases:
    """Collects tensors by "case/tensor" and a description of each case."""

    def __init__(self):
        self.tensors, self.descriptions = {}, []

    def add(self, name, op, attributes, tensors):
        for key, value in tensors.items():
            # Cloned, so that tensors which share memory (a bias and its view, say) are stored one by one.
            self.tensors[f"{name}/{key}"] = value.detach().clone(memory_format=torch.contiguous_format)
        shapes = {key: list(value.shape) for key, value in tensors.items()}
        self.descriptions.append({"name": name, "op": op, "attributes": attributes, "tensors": shapes})

    def differentiate(self, name, op, attributes, outputs, wanted, tensors):
        """Adds `tensors`, `outputs` and the gradients of `wanted`, back from a random gradient per output, or 1.

        outputs, wanted, tensors: by name; each X of outputs and wanted comes with its `grad_X`
        """
        seeds = {
            key: random(*value.shape) if value.dim() else torch.ones((), dtype=value.dtype)
            for key, value in outputs.items()
        }
        gradients = torch.autograd.grad(list(outputs.values()), list(wanted.values()), list(seeds.values()))
        tensors = dict(tensors) | outputs | {f"grad_{key}": seed for key, seed in seeds.items()}
        tensors |= {f"grad_{key}": gradient for key, gradient in zip(wanted, gradients)}
        self.add(name, op, attributes, tensors)

    def layer(self, name, op, attributes, function, **inputs):
        """Runs function(**inputs) and back; the gradients are those of all floating-point inputs."""
        wanted = {key: value.requires_grad_() for key, value in inputs.items() if value.is_floating_point()}
        self.differentiate(name, op, attributes, {"output": function(**inputs)}, wanted, inputs)

    def write(self, folder, name, made_by):
        (folder / f"{name}.safetensors").write_bytes(save(self.tensors))
        lines = ",\n".join("    " + json.dumps(case) for case in self.descriptions)
        text = f'{{\n  "made_by": {json.dumps(made_by)},\n  "cases": [\n{lines}\n  ]\n}}\n'
        (folder / f"{name}.json").write_text(text)
