"""Operators that a module writes out, and numbers computed from positions: the lines that are imported."""

import pytest
import torch
from module_parity import parity
from torch import nn

import learncost as lc
from learncost.importer.walk import read_module
from sampling import sampled


class Of(nn.Module):
    """What a function makes of a projection, and of a weight that learns beside it."""

    def __init__(self, function):
        super().__init__()
        self.project, self.function = nn.Linear(4, 6), function
        self.sink = nn.Parameter(torch.rand(3, 1))

    def forward(self, x):
        return self.function(self.project(x), self.sink)


def share(p, over=-1, epsilon=1e-9):
    p = p.sigmoid()
    return p / (epsilon + p.sum(over, keepdim=True))


def share_beside_its_sum(p, _):
    p = p.sigmoid()
    total = p.sum(-1, keepdim=True) + 1e-9
    return p / total, total


def with_sink(x, z, largest=torch.maximum, along=-1):
    m = largest(x.amax(along, keepdim=True), z)
    e = (x - m).exp()
    return e / ((z - m).exp() + e.sum(-1, keepdim=True))


def seen(x, z):
    scores = x @ x.transpose(-2, -1)
    return with_sink(scores.masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -torch.inf), z)


WORDS = {
    "proportion": lambda p, _: share(p),
    "proportion of all": lambda p, _: share(p, (-2, -1)),
    "proportion in others": lambda p, _: share(p, -2).exp(),
    "softmax_with_sink": with_sink,
    "softmax_with_sink where": seen,
    "safe_softmax": lambda x, _: (
        (e := (x - x.amax(-1, keepdim=True).clamp(min=-1e29)).exp()) / e.sum(-1, True).clamp(1)
    ),
}
"""What is one word, by its name."""

WRITTEN_OUT = {
    "whose sum is read elsewhere": share_beside_its_sum,
    "with a number that learns": lambda p, z: share(p, -1, z),
    "of another's sum": lambda p, _: p.sigmoid() / (p.sum(-1, keepdim=True) + 1e-9),
    "along another axis": lambda p, _: (q := p[..., :3]) / (q.sum(-2).unsqueeze(-1) + 1e-9),
    "that PyTorch has a function for": lambda x, _: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, True),
    "with the largest along another axis": lambda x, z: with_sink(x, z, along=-2),
    "with the smaller one": lambda x, z: with_sink(x, z, torch.minimum),
}
"""What looks like a word and is none."""


def read(function):
    module, given = Of(function), (torch.randn(2, 3, 4),)
    imported = read_module(module, given)
    found = parity(module, given, imported)
    assert max(found.value, found.gradient) < 1e-12
    return imported.text


@pytest.mark.parametrize("name", sampled(WORDS, 2))
def test_a_body_is_its_word(name):
    text = read(WORDS[name])
    op, *more = name.split()
    assert f"= {op}[" in text
    assert "divide" not in text
    assert ("where" in more) == (" where " in text and "select" not in text)


@pytest.mark.parametrize("name", sampled(WRITTEN_OUT, 2))
def test_what_is_no_body_stays_written_out(name):
    text = read(WRITTEN_OUT[name])
    assert "divide(" in text
    assert not any(f"= {op.split()[0]}[" in text for op in WORDS)


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
    """What rotary positions are turned by, as a model has it in a module of its own."""

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
    turned = read_module(Turned(), (x, positions))
    forward = lc.cost(lc.layer(turned.text)).macro_operations["forward"][1].flops
    assert forward == 5 * 8 * (2 * 4 + 1 + 2)  # the projection and its bias, and what is turned
