"""Operators that a module writes out, and numbers computed from positions: the lines that are imported."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn

import learncost as lc
from sampling import sampled


class Of(nn.Module):
    """What a function makes of a projection, and of a weight that learns beside it."""

    def __init__(self, function):
        super().__init__()
        self.project, self.function = nn.Linear(4, 6), function
        self.sink = nn.Parameter(torch.rand(3, 1))

    def forward(self, x):
        return self.function(self.project(x), self.sink)


def with_sink(x, z):
    m = torch.maximum(x.amax(-1, keepdim=True), z)
    e = (x - m).exp()
    return e / ((z - m).exp() + e.sum(-1, keepdim=True))


WRITTEN_OUT = {
    "proportion": lambda p, _: (q := p.sigmoid()) / (1e-9 + q.sum(-1, keepdim=True)),
    "softmax_with_sink": with_sink,
    "softmax": lambda x, _: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, True),
}
"""The bodies of words, which PyTorch runs line by line, and whose gradients autograd derives line by line."""


def read(function):
    module, given = Of(function), (torch.randn(2, 3, 4),)
    imported = read_module(module, given)
    found = parity(module, given, imported)
    assert max(found.value, found.gradient) < 1e-12
    return imported.text


@pytest.mark.parametrize("name", sampled(WRITTEN_OUT, 2))
def test_what_a_module_writes_out_is_read_as_its_lines(name):
    text = read(WRITTEN_OUT[name])
    assert "divide(" in text
    assert f"= {name}[" not in text


def test_scores_are_masked_once():
    """By a mask that no softmax takes, of which two lines read the result."""

    def twice(x, _):
        scores = (x @ x.mT).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -1e9)
        return scores.amax(-1) + scores.exp().sum(-1)

    assert read(twice).count("select(") == 1


@pytest.mark.parametrize("bound", ["max", "min"])
def test_at_a_bound_a_gradient_passes_as_pytorch_has_it(bound):
    class Bounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.z = nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), nn.Parameter(torch.full((3,), 2.0))

        def forward(self):
            return (self.x * 1).clamp(**{bound: self.z * 1}), (self.x * 1).clamp(**{bound: 2.0})

    module = Bounded()
    found = parity(module, (), read_module(module, ()))
    assert max(found.value, found.gradient) == 0


class Angles(nn.Module):
    """What rotary positions are rotated by, as a model has it in a module of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 10_000 ** -(torch.arange(4) / 4))

    def forward(self, positions):
        angles = positions.float()[:, None] * self.frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin(), angles < 1


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.angles, self.project = Angles(), nn.Linear(4, 8)

    def forward(self, x, positions):
        cosine, sine, _ = self.angles(positions)
        return self.project(x) * cosine + sine


def test_what_makes_numbers_of_positions_is_its_own_table():
    """In a module that learns they are given, as models are given what their families make."""
    positions = torch.arange(5)
    imported = read_module(Angles(), (positions,))
    assert parity(Angles(), (positions,), imported).value < 1e-7  # which is 1 in fp32, of angles up to 4
    assert lc.cost(lc.layer(imported.text)).total.flops == 5 * (4 + 3 * 8)  # products; cosines, sines and comparisons
    x = torch.randn(5, 4)
    rotated = read_module(Turned(), (x, positions))
    forward = lc.cost(lc.layer(rotated.text)).macro_operations["forward"][1].flops
    assert forward == 5 * 8 * (2 * 4 + 1 + 2)  # the projection and its bias, and the rotation
