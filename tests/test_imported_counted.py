"""Products of a table beside FlopCounterMode's: where they differ, the difference has a name."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from learncost.models.imported.walk import read_module
from learncost.proof.imported import products


class OfEach(nn.Module):
    """A convolution by channel, and one whose weight is another for each image, as CondConv has it."""

    def __init__(self):
        super().__init__()
        self.first, self.experts = nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4, 6 * 4 * 3 * 3)

    def forward(self, x):
        images, channels, *sides = x.shape
        weights = self.experts(x.mean((2, 3))).view(images * 6, channels, 3, 3)
        folded = self.first(x).reshape(1, images * channels, *(side - 2 for side in sides))
        return functional.conv2d(folded, weights, groups=images).view(images, 6, -1)


class OfPositions(nn.Module):
    """Angles that are a product of positions and frequencies, and an answer of a product."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.register_buffer("frequencies", torch.randn(3, 8))

    def forward(self, x):
        positions = torch.arange(x.shape[1] * 3).view(-1, 3).float()
        return self.linear(x) * (positions @ self.frequencies).cos()


@pytest.mark.parametrize(
    ("module", "shape", "reason"),
    [(OfEach(), (2, 4, 7, 7), "grouped convolutions"), (OfPositions(), (2, 5, 6), "positions and settings alone")],
)
def test_what_pytorch_counts_otherwise_has_a_name(module, shape, reason):
    given = (torch.randn(shape),)
    counts = products(module, given, read_module(module, given))
    assert not counts.equal
    assert reason in counts.reason
    assert counts.reason.endswith(": equal")
