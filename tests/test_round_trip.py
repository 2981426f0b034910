"""The forward of every shipped layer, emitted for PyTorch and read back: the same values, gradients and products."""

import pytest
from round_trip import round_trip

from learncost.layers.layer import layer, shipped, shipped_layer
from learncost.models.families import FAMILIES
from learncost.models.model import build
from learncost.models.small import small
from learncost.ops import entries
from learncost.verification.sample import small_sizes

UNREAD = {"key_distances", "places"}
"""Layers of which every line only makes constants: their programs alone take no array."""

OTHERWISE = {
    **dict.fromkeys(
        ("separable_convolution", "short_convolution", "jamba"),
        "the gradient of a window is added position by position",
    ),
    **dict.fromkeys(
        ("gated_delta_net", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        "a window, and a norm that is written out",
    ),
    "selective_state_space": "the first turn's state is 0, and nobody needs its gradient",
    "state_space_duality": "the first turn's state is 0, and nobody needs its gradient",
    "time_mixing": "the first turn's state is 0, and nobody reads the last one's",
    "mamba": "the first turn's state is 0, and nobody needs its gradient",
    "falcon_h1": "the first turn's state is 0, and nobody needs its gradient",
    "mamba2": "the first turn's state is 0, and nobody needs its gradient",
    "rwkv": "the first turn's state is 0, and nobody reads the last one's",
    **dict.fromkeys(
        (
            *("normed_mixture_of_experts", "sigmoid_mixture_of_experts", "squared_mixture_of_experts"),
            *("deepseek_v3", "glm4_moe", "glm4_moe_lite", "nemotron_h", "gemma4_text", "gpt_oss"),
        ),
        "the shares of the chosen experts, or of scores beside a sink, are written out",
    ),
}
"""What a program says otherwise than its table, of layers and families that have other elementwise operations read."""

WRITTEN_OUT = ("proportion", "softmax_with_sink", "safe_softmax", "safe_log_softmax")
"""Words that PyTorch has no function for: their bodies are read as lines, with the gradient of each line."""


QUICK = ("attention", "norm", "jiang_block", "alternating_mean", "alibi_slopes", "rotary_halves", "same_chunk")


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in shipped() if n not in UNREAD],
)
def test_what_is_emitted_is_read_back(name):
    table = shipped_layer(name).table
    _check(round_trip(table, small_sizes(table)), name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "mpt" else pytest.mark.slow) for n in FAMILIES])
def test_a_family_is_read_back(name):
    table = build(small(name)).table
    _check(round_trip(table, small_sizes(table)), name)


def _check(trip, name):
    """The same, but where a program says it otherwise; what it does more adds up to the difference.

    Under `matmul` a program has more only where `einsum` runs a product without rows or columns, such as a mixture of
    experts' outputs, as bmm of one row: the operator counts there, as in FlopCounterMode, and the line of a table not.
    """
    assert trip.apart < 1e-10
    more = trip.read["matmul"][0] - trip.written["matmul"][0]
    assert more == trip.apart_by.get(("forward", "product"), 0)
    assert trip.read["matmul"] == trip.written["matmul"] or (more > 0 and trip.read["matmul"][0] == trip.counted)
    forward, step = (read - written for read, written in zip(trip.read["run"], trip.written["run"], strict=True))
    assert ((forward, step) == (0, 0)) == (name not in OTHERWISE)
    assert sum(flops for (each, _), flops in trip.apart_by.items() if each == "forward") == forward
    assert sum(trip.apart_by.values()) == step


def ops():
    """A line with each word that has a body, and with a mask for those that mean something then."""
    for op in entries():
        if not op.body or not op.gradient:
            continue
        learns = {term.name for line in op.gradient for term in line.left}
        more = ["z[B]" if f"d{name}" in learns else "0.25[]" for name in op.inputs[1:]]
        given = "X z" if "z[B]" in more else "X"
        out, acts = ("B M", "[n]") if op.reduces else ("B M n", "" if op.pointwise else "[n]")
        operands = ", ".join(["A[B M n]", *more])
        lines = f"  A[B M n] = X[B M d] W[d n]\n  Y[{out}] = {op.name}{acts}({operands})"
        yield op.name, f"t({given}; W) -> Y\n{lines}"
        if op.makes == "shares":
            scores = "  Q[B M e] = X[B M d] W[d e]\n  A[B M M'] = Q[B M e] Q[B M' e]"
            operands = ", ".join(["A[B M M']", *more])
            line = f"  Y[B M M'] = {op.name}[M']({operands}) where M' <= M"
            yield f"{op.name} where", f"t({given}; W) -> Y\n{scores}\n{line}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=() if "sink" in name or name == "elu" else pytest.mark.slow)
        for name, text in ops()
    ],
)
def test_a_word_is_read_back(text):
    """That which PyTorch has a function for, and that of which it has the body alone."""
    table = layer(text).table
    trip = round_trip(table, small_sizes(table))
    assert trip.apart < 1e-12
    assert trip.read["matmul"] == trip.written["matmul"]
    is_written_out = any(f" {op}[" in text for op in WRITTEN_OUT)
    assert (trip.read == trip.written) == (not is_written_out), trip.apart_by
