"""The forward of every shipped layer, emitted for PyTorch and read back: the same values, gradients and products."""

import numpy as np
import pytest
import torch

import learncost as lc
from learncost.layers.layer import shipped, shipped_layer
from learncost.models.imported.walk import read_module
from learncost.proof.imported import parity
from learncost.proof.sample import random_arrays, small_sizes
from learncost.readings.emit import fill, program
from programs import namespace

UNREAD = {"key_distances", "places"}
"""Layers of which every line only makes constants: their programs alone take no array."""

COMPOSED = {
    # what is written is padded, masked or stacked in the program, where a line of the notation reads at places
    "binary_loss",
    "channel_mixing",
    "clamped_mixture_of_experts",
    "convolution",
    "mixture_of_experts",
    "patch_embedding",
    "recurrent",
    "scaled_mixture_of_experts",
    "selective_state_space",
    "separable_convolution",
    "sigmoid_mixture_of_experts",
    "softmax_mixture_of_experts",
    "state_space_duality",
    "strided_convolution",
    "time_mixing",
}


class Emitted(torch.nn.Module):
    """The program of a table, its weights as parameters."""

    def __init__(self, table, arrays, sizes):
        super().__init__()
        self.table, self.written = table, program(table, "torch")
        self.names = namespace(self.written.text)
        self.more = {size: sizes[name] for name, size in self.written.sizes.items()}
        weights = {plain(name): torch.nn.Parameter(torch.as_tensor(np.array(arrays[name]))) for name in table.weights}
        self.weights = torch.nn.ParameterDict(weights)

    def forward(self, inputs):
        values = {name: inputs[plain(name)] for name in self.table.inputs}
        values |= {name: self.weights[plain(name)] for name in self.table.weights}
        arguments = [fill(tree, values, self.names) for tree in self.written.parameters]
        return self.names[self.written.function](*arguments, **self.more)


def plain(name):
    return name.replace(".", "_")


LEARNING = [name for name in shipped() if name not in UNREAD and shipped_layer(name).table.weights]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("attention", "norm") else pytest.mark.slow) for n in LEARNING],
)
def test_what_is_emitted_is_read_back(name):
    layer = shipped_layer(name)
    table = layer.table
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    inputs = {plain(n): torch.as_tensor(np.array(arrays[n])) for n in table.inputs}
    for n in set(table.inputs) - table.indices - table.constants:
        inputs[plain(n)].requires_grad_()
    module = Emitted(table, arrays, sizes)
    imported = read_module(module, {"inputs": inputs}, fold=False)
    found = parity(module, {"inputs": inputs}, imported)
    assert max(found.value, found.gradient) < 1e-10
    read = lc.layer(imported.text)
    for book in ("matmul", "run"):
        theirs, ours = (lc.cost(each, price_book=book, **more) for each, more in ((layer, sizes), (read, {})))
        if book == "matmul" or name not in COMPOSED:
            assert ours.macro_operations["forward"][1].flops == theirs.macro_operations["forward"][1].flops
        if book == "matmul":
            assert ours.total.flops == theirs.total.flops
