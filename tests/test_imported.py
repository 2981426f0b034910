"""Modules that are read from PyTorch's exported graphs, against the modules themselves under autograd."""

import pytest

from learncost.models.imported.walk import read_module
from learncost.proof.imported import parity
from own_modules import CASES

REFUSED = {"transformer": "data-dependent"}


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED.keys()))
def test_values_and_gradients_are_those_of_the_module(name):
    module, inputs, symbols = CASES[name]()
    found = parity(module, inputs, read_module(module, inputs, symbols))
    assert found.value < 1e-10
    assert found.gradient < 1e-10
    assert found.module < 1e-4
