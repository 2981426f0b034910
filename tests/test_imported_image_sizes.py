"""Symbolic image sizes: pooling with padding, upsampling, reflection padding, triangular masks."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional

import learncost as lc
from learncost.verification.imported import products
from sampling import sampled


class Halved(nn.Module):
    """A convolution that halves both sides, and a function of what it gives."""

    def __init__(self, function):
        super().__init__()
        self.convolution, self.function = nn.Conv2d(2, 3, 3, 2, 1), function

    def forward(self, x):
        return self.function(self.convolution(x))


FUNCTIONS = {
    "a mean over what is left": lambda y: functional.avg_pool2d(y, 2, 2, 0, True, False),
    "a mean over a border": lambda y: functional.avg_pool2d(y, 3, 2, 1, True, True),
    "a mean without a border": lambda y: functional.avg_pool2d(y, 3, 1, 1, False, False),
    "a sum over what is left": lambda y: functional.avg_pool2d(y, 3, 2, 0, True, True, 1),
    "a mean over both sides": lambda y: functional.avg_pool2d(y, y.shape[2:]),
    "places of a line": lambda y: y + torch.linspace(-1, 1, y.shape[3], dtype=y.dtype),
    "the largest of what is left": lambda y: functional.max_pool2d(y, 2, 2, 0, ceil_mode=True),
    "between places": lambda y: functional.interpolate(y, scale_factor=2, mode="bilinear"),
    "to a size": lambda y: functional.interpolate(y, (2 * y.shape[2] + 1, 5), mode="bicubic", align_corners=True),
    "smoothed": lambda y: functional.interpolate(y, scale_factor=0.5, mode="bilinear", antialias=True),
    "places again": lambda y: functional.interpolate(y, scale_factor=2.0),
    "places, half as many again": lambda y: functional.interpolate(y, scale_factor=1.5, recompute_scale_factor=True),
    "nearest places": lambda y: functional.interpolate(y, (3 * y.shape[2], y.shape[3] + 1), mode="nearest-exact"),
    "a mirror": lambda y: functional.pad(y, (2, 1, 1, 1), mode="reflect"),
    "a circle": lambda y: functional.pad(y, (2, 1, 1, 1), mode="circular"),
    "an edge": lambda y: functional.pad(y, (2, 1, 1, 1), mode="replicate"),
    "below the diagonal": lambda y: torch.tril(y, -1),
    "above the diagonal": lambda y: torch.triu(y, 2),
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("function", sampled(FUNCTIONS.values(), 4), ids=FUNCTIONS.keys())
def test_a_table_of_open_sides_is_that_of_each(function):
    torch.manual_seed(0)
    module = Halved(function)
    read = read_module(module, (torch.randn(2, 2, 14, 18),), {"x": "B 2 H W"})
    for height, width in ((13, 23), (16, 17)):
        given = (torch.randn(2, 2, height, width),)
        found = parity(module, given, read)
        assert max(found.value, found.gradient) < 1e-12
        assert found.module < 1e-5
        assert products(module, given, read).equal
        here, there = lc.layer(read.text), lc.layer(read_module(module, given).text)
        sizes = {"B": 2, "H": height, "W": width}
        if function is not FUNCTIONS["smoothed"]:  # at open sides a product with a whole matrix
            assert lc.cost(here, **sizes).total == lc.cost(there).total


def test_shares_of_windows_are_a_constant_and_whole_windows_have_none():
    alone = read_module(nn.AvgPool2d(3, 2, 1, True), (torch.randn(2, 2, 14, 18),))  # without weights, too
    assert "constants: input reciprocal\n" in alone.text
    read = read_module(Halved(lambda y: functional.avg_pool2d(y, 3, 1, 1)), (torch.randn(2, 2, 14, 18),))
    assert "constants: x\n" in read.text
    assert parity(Halved(lambda y: functional.avg_pool2d(y, 3, 1, 1)), (torch.randn(2, 2, 14, 18),), read).value < 1e-12


class HalvedOften(nn.Module):
    """Sides that are halved four times: of two places nothing would be left but one, which is another size."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(2, 2, 3, 2, 1) for _ in range(4)))

    def forward(self, x):
        return functional.interpolate(self.layers(x), x.shape[2:], mode="bilinear")


def test_letters_of_equal_sides_stay_apart():
    torch.manual_seed(0)
    module = HalvedOften()
    read = read_module(module, (torch.randn(1, 2, 32, 32),), {"x": "B 2 H W"})
    found = parity(module, (torch.randn(3, 2, 48, 80),), read)
    assert max(found.value, found.gradient) < 1e-12
