"""Variances over open sizes: the count less one is a number of the notation, as it is where sizes are fixed."""

import numpy as np
import pytest
import torch
from module_parity import parity, read_module
from torch import nn

import learncost as lc
from programs import execute
from sampling import sampled


class Between(nn.Module):
    """A function of a linear layer's result."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


SPREADS = {
    "std of a batch": lambda y: y.std(0),
    "var of all": lambda y: y.var(),
    "std of all": lambda y: y.std(),
    "var of a batch": lambda y: y.var(0, keepdim=True),
    "var of rows": lambda y: y.var((0, 1)),
    "std and mean of all": lambda y: torch.std_mean(y)[0],
    "two less": lambda y: torch.var(y, 0, correction=2),
    "standardized": lambda y: (y - y.mean(0)) / y.std(0),
    "by hand": lambda y: (y - y.mean(0)).square().sum(0) / (y.shape[0] - 1),
    "one over a double": lambda y: y.sum(0) / (2 * y.shape[0]),
    "an average of pairs": lambda y: y.sum(0) * y.shape[0],
    "of features, which are fixed": lambda y: y.var(-1),
    "biased": lambda y: y.std(0, unbiased=False),
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("name", sampled(SPREADS, 3))
def test_an_open_size_costs_what_a_fixed_one_does(name):
    module = Between(SPREADS[name])
    opened = lc.from_module(module, {"x": "float B M 6"})
    for B, M in ((5, 7), (4, 3)):
        fixed = lc.from_module(module, {"x": f"float {B} {M} 6"})
        for book in ("run", "matmul"):
            assert lc.cost(opened, price_book=book, B=B, M=M).total == lc.cost(fixed, price_book=book).total


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("name", sampled(SPREADS, 3))
def test_its_values_are_those_of_the_module(name):
    module = Between(SPREADS[name])
    opened = read_module(module, (torch.randn(5, 7, 6),), {"x": "B M 6"})
    for B, M in ((5, 7), (3, 2)):
        apart = parity(module, (torch.randn(B, M, 6),), opened)
        assert max(apart.value, apart.gradient) < 1e-12


PROGRAM = """spread(X) -> Y
  U[] = #(2 B M-3)^-0.5[] X[B M]
  V[B] = X[B M] #(B M-1)^-1[]
  Y[B] = V[B] + U[]
"""


def test_a_count_less_one_in_programs():
    layer = lc.layer(PROGRAM)
    X = np.arange(6.0).reshape(2, 3)
    expected = X.sum(1) / 5 + X.sum() / 3
    np.testing.assert_allclose(lc.run(layer, {"X": X})["Y"], expected)
    for backend in ("numpy", "torch"):
        np.testing.assert_allclose(execute(layer.table, backend, {"X": X}, {})["Y"], expected, rtol=1e-6)
    assert "#(B M-1)^-1" in str(layer.table)
    assert str(lc.layer(f"again(X) -> Y\n{layer.table}").table) == str(layer.table)
    with pytest.raises(lc.InputError, match="divides by -1"):
        lc.run(layer, {"X": np.ones((1, 1))})
    with pytest.raises(lc.InputError, match="#K is not the size of an axis"):
        lc.layer("wrong(X) -> Y\n  Y[B] = #(B K-1)^-1[] X[B M]")


def test_a_variance_of_one_number_is_refused_with_what_to_do():
    module = Between(lambda y: y.var(0))
    with pytest.raises(lc.InputError, match=r"a variance of 1 numbers, which divides by 0.*unbiased=False"):
        lc.from_module(module, {"x": "float 1 6"})
    assert lc.from_module(module, {"x": "float 2 6"})
    assert lc.from_module(Between(lambda y: y.var(0, unbiased=False)), {"x": "float 1 6"})
