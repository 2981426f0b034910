"""Values: losses and gradients of models whose frozen matrices are codes and scales, against autograd on what these
stand for."""

from dataclasses import replace

import numpy as np
import pytest

import learncost as lc
from learncost.engines.adapted import constants, dequantized, quantize
from learncost.ir.precision import BLOCKS, PRECISIONS, BlockScales
from learncost.models.adaptation import adaptation, adapted
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.models.quantization import quantized
from learncost.procedures.step import step

SHORT = "short"
"""Blocks of three, so that those of small models end with a part."""

KINDS = [
    SHORT,
    *(name for name, kind in BLOCKS.items() if kind.levels and not kind.learns and name != "uint8-256"),
]
"""Of frozen matrices."""


@pytest.fixture
def precision(request, monkeypatch):
    """fp32 with frozen matrices in a type of blocks."""
    short = BlockScales(SHORT, 4, 3, "uint8-256", "a test", BLOCKS["nf4-64"].levels)
    monkeypatch.setitem(BLOCKS, SHORT, short)
    monkeypatch.setitem(PRECISIONS, "fp32-test", replace(PRECISIONS["fp32"], name="fp32-test", frozen=request.param))
    return PRECISIONS["fp32-test"]


def stands_for(kind, column):
    """What a column of numbers, which one result sums, becomes: number by number, as QLoRA's equations have it."""
    result = []
    size = kind.block or len(column)
    for start in range(0, len(column), size):
        block = column[start : start + size]
        scale = np.float32(np.float16(abs(block).max())) if kind.scales == "fp16" else np.float32(abs(block).max())
        result += [min(kind.levels, key=lambda level, x=x: abs(level - x / abs(block).max())) * scale for x in block]
    return np.array(result)


@pytest.mark.parametrize(
    "precision",
    [kind for kind in KINDS if BLOCKS.get(kind, BLOCKS["nf4-64"]).scales in ("fp32", "fp16") and kind != SHORT],
    indirect=True,
)
def test_codes_are_the_nearest_levels_of_each_block(precision):
    kind = precision.quantized
    model = quantized(adapted(build(configure("gpt2", SMALL)), adaptation(lora="all-linear")), precision)
    weight_codes = next(candidate for candidate in model.quantized if candidate.weight == "attn.WO@1")
    shape = [1, 2, 35, 70]
    weight = np.random.default_rng(1).normal(size=shape)
    decoded = dequantized(weight_codes, quantize(weight_codes, weight, model.sizes), model.sizes)
    columns = weight.reshape(70, 70)
    expected = np.stack([stands_for(kind, columns[:, place]) for place in range(0, 70, 9)], -1)
    np.testing.assert_allclose(decoded.reshape(70, 70)[:, ::9], expected, rtol=1e-6)


SMALL = {"n_layer": 2, "n_embd": 70, "n_head": 2, "vocab_size": 11, "n_positions": 8}
LLAMA = {"n_layer": 3, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 11}


def arrays_of(model, configuration, seed=3):
    """Random weights of a model, and its batch."""
    rng = np.random.default_rng(seed)
    training = lc.Training(configuration)
    tokens = rng.integers(0, 11, (2, 6))
    inputs = training.inputs(tokens)
    weights = {}
    for name in model.table.weights:
        shape = [model.sizes.get(axis) or int(axis) for axis in model.table.axes[name]]
        weights[name] = rng.normal(size=shape) * 0.3
    return {name: inputs[name] for name in model.table.inputs if name in inputs} | weights, weights


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("precision", KINDS, indirect=True)
@pytest.mark.parametrize("procedure", ["bp", "recompute"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_step_on_codes_is_that_on_what_they_stand_for(precision, procedure, name):
    """The same loss and the same gradients of all that learns as of a model that has the dequantized weights."""
    configuration = configure("gpt2", SMALL) if name == "gpt2" else configure("tinyllama-1.1b", LLAMA)
    plain = adapted(
        build(configuration), adaptation(train="biases" if name == "gpt2" else None, lora="all-linear", rank=2)
    )
    model = quantized(plain, precision)
    arrays, weights = arrays_of(plain, configuration)
    codes = {}
    for weight_codes in model.quantized:
        codes |= quantize(weight_codes, weights[weight_codes.weight], model.sizes)
        arrays[weight_codes.weight] = dequantized(weight_codes, codes, model.sizes)
    inputs = {name: array for name, array in arrays.items() if name in (*model.table.inputs, *model.table.weights)}
    inputs |= codes | constants(model.quantized, model.sizes, float)
    seed = {"dloss": np.array(1.0)}
    before, after = (
        lc.run(step(model_built, procedure), {**own_arrays, **seed}, model_built.sizes)
        for model_built, own_arrays in ((plain, arrays), (model, inputs))
    )
    np.testing.assert_allclose(after["loss"], before["loss"], rtol=1e-9)
    assert set(model.learning) == set(plain.learning)
    for weight in model.learning:
        np.testing.assert_allclose(after[f"d{weight}"], before[f"d{weight}"], rtol=1e-7, atol=1e-12, err_msg=weight)
