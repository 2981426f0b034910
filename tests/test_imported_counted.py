"""Enlargements, windows, roots of sizes and pairs of operands, counted as PyTorch counts them, at sizes left open."""

import math

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.verification.imported import products
from sampling import sampled


class Between(nn.Module):
    """What a function makes of a convolution's result, and a convolution of that."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)
        self.function = function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


change = functional.interpolate
ENLARGEMENTS = {
    "nearest": lambda y: change(y, scale_factor=2.0, mode="nearest"),
    "nearest by halves": lambda y: change(y, scale_factor=1.5, mode="nearest"),
    "linear": lambda y: change(y, scale_factor=2, mode="bilinear"),
    "linear between corners": lambda y: change(y, scale_factor=2, mode="bilinear", align_corners=True),
    "cubic": lambda y: change(y, scale_factor=2, mode="bicubic"),
    "to a size": lambda y: change(y, size=(7, 9), mode="bilinear"),
    "as large as another": lambda y: y + change(functional.max_pool2d(y, 2), size=y.shape[-2:], mode="bilinear"),
    "half as large": lambda y: change(y, scale_factor=0.5, mode="bilinear"),
}


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("name", sampled(sorted(ENLARGEMENTS), 4))
def test_an_enlargement_at_open_sides_is_the_module_at_others(name):
    module = Between(ENLARGEMENTS[name])
    opened = read_module(module, (torch.randn(2, 3, 8, 12),), {"x": "B 3 H W"})
    table = lc.layer(opened.text)
    for batch, height, width in ((4, 4, 4), (3, 5, 6), (1, 8, 4)):
        given = (torch.randn(batch, 3, height, width),)
        apart = parity(module, given, opened)
        assert max(apart.value, apart.gradient) < 1e-12
        counted = products(module, given, opened)
        assert counted.equal
        # Shares of places are no matrix product: PyTorch counts the convolutions alone.
        sizes = {"B": batch, "H": height, "W": width}
        assert lc.cost(table, price_book="matmul", **sizes).total.flops == sum(counted.torch)
        fixed = lc.layer(read_module(module, given).text)
        assert lc.cost(table, **sizes).total.flops == lc.cost(fixed).total.flops


def between_of(count, pool):
    """A pool between two convolutions of signals, images or volumes."""
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[count - 1]
    return nn.Sequential(convolution(3, 4, 3, padding=1), pool, convolution(4, 2, 3, padding=1))


class Resized(nn.Module):
    """Resizing without aliases."""

    def __init__(self, size, mode):
        super().__init__()
        self.how = {"size": size, "mode": mode, "antialias": True}

    def forward(self, y):
        return change(y, **self.how)


POOLS = {
    "of images": ((7, 9), nn.AdaptiveAvgPool2d((3, 4))),
    "of images, one side evenly": ((7, 9), nn.AdaptiveAvgPool2d((3, 3))),
    "to more places": ((3, 5), nn.AdaptiveAvgPool2d((7, 4))),
    "of one row": ((1, 5), nn.AdaptiveAvgPool2d((3, 2))),
    "of signals": ((11,), nn.AdaptiveAvgPool1d(4)),
    "of volumes": ((3, 5, 7), nn.AdaptiveAvgPool3d((2, 5, 3))),
    "smoothed": ((7, 9), Resized((3, 13), "bilinear")),
    "smoothed cubic": ((8, 6), Resized((3, 4), "bicubic")),
    "the largest": ((7, 9), nn.AdaptiveMaxPool2d((3, 3))),
    **{f"to {bins} by {bins}": ((7, 7), nn.AdaptiveAvgPool2d(bins)) for bins in (1, 2, 3, 6)},
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("name", sampled(sorted(POOLS), 3))
def test_uneven_pools_and_smoothed_sides_are_no_matrix_product(name):
    sides, pool = POOLS[name]
    module, given = between_of(len(sides), pool), (torch.randn(2, 3, *sides),)
    opened = read_module(module, given, {"input": " ".join(("B", "3", *map(str, sides)))})
    for batch in (1, 3):
        given = (torch.randn(batch, 3, *sides),)
        apart = parity(module, given, opened)
        assert max(apart.value, apart.gradient) < 1e-12
        assert products(module, given, opened).equal
        counter = FlopCounterMode(display=False)
        with counter:
            module(*given).sum().backward()
        counted = lc.cost(lc.layer(opened.text), B=batch, price_book="matmul").total.flops
        assert counted == counter.get_total_flops()


class Lengths(nn.Module):
    """A length under a root, and windows of it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Conv1d(3, 4, 3, padding=1)

    def forward(self, x):
        return functional.max_pool1d(self.weight(x), 2) / math.sqrt(x.shape[-1])


def test_a_root_of_a_length_and_windows_along_it_leave_it_open():
    module = Lengths()
    opened = read_module(module, (torch.randn(2, 3, 8),), {"x": "B 3 M"})
    assert not opened.exported.letters.fixed
    for batch, length in ((3, 4), (4, 4), (1, 6)):
        given = (torch.randn(batch, 3, length),)
        apart = parity(module, given, opened)
        assert max(apart.value, apart.gradient) < 1e-12
        assert products(module, given, opened).equal
    assert math.sqrt(2) == 2**0.5  # it is Python's own again


class Chosen(nn.Module):
    """Three operands, of which the two on the right are the smaller."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(4, 2)

    def forward(self, x):
        choices = self.weight(x).softmax(1)
        return torch.einsum("bte,be,bed->btd", choices, choices.amax(1), choices.mT @ x)


def test_several_operands_are_paired_as_pytorch_pairs_them_at_fixed_sizes():
    pytest.importorskip("opt_einsum")
    module = Chosen()
    fixed, opened = (lc.from_module(module, {"x": f"float 3 {length} 4"}) for length in (9, "M"))
    assert lc.cost(fixed).total.flops == lc.cost(lc.from_module(module, (torch.randn(3, 9, 4),))).total.flops
    assert lc.cost(fixed).total.flops < lc.cost(opened, M=9).total.flops
    read = read_module(module, (torch.randn(3, 9, 4),), {"x": "3 9 4"})
    assert products(module, (torch.randn(3, 9, 4),), read).equal


class Pixels(nn.Module):
    """Causal attention over the pixels of an image, row by row: positions are made of two sides."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Conv2d(4, 12, 1)

    def forward(self, x):
        q, k, v = (part.flatten(2).mT.unsqueeze(1) for part in self.parts(x).chunk(3, 1))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).mT.reshape(x.shape)


@pytest.mark.parametrize(("sizes", "sides"), [((3, 3, 3), "H W"), ((2, 1, 1), "1 1"), ((4, 1, 4), "1 W")])
def test_causal_attention_over_positions_of_several_sides_or_of_none(sizes, sides):
    batch, height, width = sizes
    module, given = Pixels(), (torch.randn(batch, 4, height, width),)
    read = read_module(module, given, {"x": f"B 4 {sides}"})
    apart = parity(module, given, read)
    assert max(apart.value, apart.gradient, apart.module) < 1e-6
    assert max(apart.value, apart.gradient) < 1e-12
    assert products(module, given, read).equal


def test_sides_of_one_example_are_apart_and_halve_as_often():
    module = Between(lambda y: functional.max_pool2d(y, 4))
    opened = read_module(module, (torch.randn(2, 3, 8, 8),), {"x": "B 3 H W"})
    given = (torch.randn(3, 3, 4, 12),)
    apart = parity(module, given, opened)
    assert max(apart.value, apart.gradient) < 1e-12


class Distances(nn.Module):
    """Scores with a vector for each distance, as Shaw, Uszkoreit & Vaswani 2018 have them."""

    def __init__(self):
        super().__init__()
        self.queries, self.vectors = nn.Linear(6, 8), nn.Parameter(torch.randn(9, 4))

    def forward(self, x):
        queries = self.queries(x).unflatten(-1, (2, 4)).transpose(1, 2)
        places = torch.arange(x.shape[1])
        rows = self.vectors[(places - places[:, None]).clamp(-4, 4) + 4]
        return torch.einsum("bhid,ijd->bhij", queries, rows)


def test_rows_that_are_columns_of_a_matrix_are_counted():
    module = Distances()
    opened = read_module(module, (torch.randn(2, 5, 6),), {"x": "B M 6"})
    for batch, length in ((2, 2), (3, 7)):
        given = (torch.randn(batch, length, 6),)
        counted = products(module, given, opened)
        assert counted.equal
        cost = lc.cost(lc.layer(opened.text), B=batch, M=length, price_book="matmul")
        assert cost.total.flops == sum(counted.torch)
