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

OTHERWISE = {
    "selective_state_space": "the first turn's state is 0, and nobody needs its gradient",
    "sigmoid_mixture_of_experts": "a share of a sum is written out",
    "state_space_duality": "the first turn's state is 0, and nobody needs its gradient",
    "time_mixing": "the first turn's state is 0, and nobody reads the last one's",
    "gpt_oss": "a softmax with a sink is written out",
    "mamba": "the first turn's state is 0, and nobody needs its gradient",
    "mamba2": "the first turn's state is 0, and nobody needs its gradient",
    "rwkv": "the first turn's state is 0, and nobody reads the last one's",
}
"""What a program says otherwise than its table, of layers and families that have other elementwise operations read."""


LEARNING = [name for name in shipped() if name not in UNREAD and shipped_layer(name).table.weights]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("attention", "norm", "jiang_block", "alternating_mean") else pytest.mark.slow)
        for n in LEARNING
    ],
)
def test_what_is_emitted_is_read_back(name):
    table = shipped_layer(name).table
    trip = round_trip(table, small_sizes(table))
    assert trip.apart < 1e-10
    assert trip.read["matmul"] == trip.written["matmul"]
    _check_operations(trip, name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "vit" else pytest.mark.slow) for n in FAMILIES])
def test_a_family_is_read_back(name):
    table = build(small(name)).table
    trip = round_trip(table, small_sizes(table))
    assert trip.apart < 1e-10
    assert trip.read["matmul"] == trip.written["matmul"]
    _check_operations(trip, name)


def _check_operations(trip, name):
    """Under `run` the same, but where a program says it otherwise; what it does more adds up to the difference."""
    forward, step = (read - written for read, written in zip(trip.read["run"], trip.written["run"], strict=True))
    assert ((forward, step) == (0, 0)) == (name not in OTHERWISE)
    assert sum(flops for (each, _), flops in trip.apart_by.items() if each == "forward") == forward
    assert sum(trip.apart_by.values()) == step
