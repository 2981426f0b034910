"""The forward of every shipped layer, emitted for PyTorch and read back: the same values, gradients and products."""

import pytest

from learncost.layers.layer import shipped, shipped_layer
from learncost.models.families import FAMILIES
from learncost.models.model import build
from learncost.models.small import small
from learncost.proof.round_trip import round_trip
from learncost.proof.sample import small_sizes

UNREAD = {"key_distances", "places"}
"""Layers of which every line only makes constants: their programs alone take no array."""

COMPOSED = {
    # what is written is padded, masked or stacked in the program, where a line of the notation reads at places
    "alternating_mean",
    "alternating_streams",
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


LEARNING = [name for name in shipped() if name not in UNREAD and shipped_layer(name).table.weights]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("attention", "norm") else pytest.mark.slow) for n in LEARNING],
)
def test_what_is_emitted_is_read_back(name):
    table = shipped_layer(name).table
    trip = round_trip(table, small_sizes(table))
    assert trip.apart < 1e-10
    assert trip.read["matmul"] == trip.written["matmul"]
    if name not in COMPOSED:
        assert trip.read["run"][0] == trip.written["run"][0]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "vit" else pytest.mark.slow) for n in FAMILIES])
def test_a_family_is_read_back(name):
    table = build(small(name)).table
    trip = round_trip(table, small_sizes(table))
    assert trip.apart < 1e-10
    assert trip.read["matmul"] == trip.written["matmul"]
