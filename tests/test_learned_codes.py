"""Weights that learn as codes of 8 bits: the step of the numbers that they stand for, rounded up as often as is due."""

from __future__ import annotations

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.cli.verified_c99 import NEAR, parity
from learncost.engines.adapted import dequantized
from learncost.ir.errors import InputError
from test_emit_c99 import MLP, made

PRECISIONS = ("int8-learned", "int8-learned-products")


def _batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    training = lc.Training(lc.layer(MLP))
    sizes = training.model.sizes
    axes = training.model.table.axes["X"]
    return {
        "X": rng.normal(size=[4 if axis == "B" else sizes[axis] for axis in axes]),
        "targets": rng.integers(0, sizes["v"], 4),
    }


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_step_of_codes_is_that_of_their_numbers_but_for_rounding(optimizer: str) -> None:
    """Lin et al. 2022, equation (5): with the square of the scale taken off, codes move as fast as weights do."""
    rng = np.random.default_rng(0)
    batch = _batch(rng)
    training = lc.Training(
        lc.layer(MLP), "bp", optimizer, precision="int8-learned", dtype=np.float64, learning_rate=3.0, seed=1
    )
    stored = {weight.weight: weight for weight in training.model.quantized}
    plain = lc.Training(
        lc.layer(MLP), "bp", optimizer, dtype=np.float64, learning_rate=3.0, weights=training.plain_weights
    )
    off = []
    before = dict(training.weights)
    training.step(**batch)
    plain.step(**batch)
    for name, weight in stored.items():
        scales = training.weights[weight.scales[0].name]
        exact = plain.weights[name] / scales
        codes = training.weights[weight.codes.name]
        inside = np.abs(exact) < 126
        assert np.all(np.abs(codes - exact)[inside] <= 1 + 1e-6)
        assert np.all(np.abs(codes) <= 127)
        assert np.any(codes != before[weight.codes.name])
        off.append((codes - exact)[inside].ravel())
        assert np.allclose(dequantized(weight, training.weights, training.model.sizes), codes * scales)
    every = np.concatenate(off)
    assert abs(np.mean(every)) <= 4 * 0.5 / np.sqrt(every.size), "rounding takes no side"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw", "rmsprop", "adamw8bit"])
def test_a_training_of_codes_goes_on_from_its_weights_and_states(precision: str, optimizer: str) -> None:
    """The states of a weight of codes are real numbers: rounded to integers, they give other steps or no numbers."""
    batch = _batch(np.random.default_rng(0))
    whole, loaded = (
        lc.Training(lc.layer(MLP), "bp", optimizer, precision=precision, learning_rate=0.01) for _ in range(2)
    )
    for _ in range(2):
        whole.step(**batch)
    loaded.load(whole.weights, whole.state, whole.steps)
    losses, again = ([training.step(**batch) for _ in range(3)] for training in (whole, loaded))
    assert losses == again
    for arrays, others in ((whole.weights, loaded.weights), (whole.state, loaded.state)):
        assert all(np.array_equal(array, others[name]) for name, array in arrays.items())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_codes_that_learn_in_c99_are_numpys(precision: str) -> None:
    learning = {"precision": precision, "optimizer": "momentum"}
    program = made("mlp", plan="epilogue-update", **learning)
    found = parity(program, 3, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found
    program_memory, plain = (
        program.firmware.program_memory,
        made("mlp", plan="epilogue-update", optimizer="momentum").firmware.program_memory,
    )
    codes = [np.size(array) for name, array in program.training.weights.items() if name.endswith(".codes")]
    saved = sum(8 * size - -(-size // 4) * 4 for size in codes)
    assert plain.weights - program_memory.weights == saved, "fp64 has eight bytes where a code has one; they fill words"
    assert not [name for name in program.tables["step"].outputs if name.startswith("dW")]


@pytest.mark.parametrize("plan", ["", "fused-update"])
def test_codes_that_are_not_changed_in_their_place_are_moved(plan: str) -> None:
    found = parity(made("mlp", plan=plan, precision="int8-learned", optimizer="sgd"), 2, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found


def test_a_column_of_zeros_can_learn() -> None:
    rng = np.random.default_rng(1)
    weights = {name: np.zeros_like(array) for name, array in lc.Training(lc.layer(MLP)).weights.items()}
    training = lc.Training(lc.layer(MLP), "bp", "sgd", precision="int8-learned", weights=weights, learning_rate=1.0)
    assert np.isfinite(training.step(**_batch(rng)))
    assert all(np.all(array > 0) for name, array in training.weights.items() if name.endswith(".scales"))


def test_who_cannot_have_codes_that_learn_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="already draws random numbers"):
        lc.Training(lc.layer(MLP), "forward-gradient-activities", "sgd", precision="int8-learned").table()
    assert main(["memory", "gpt2", "--engine", "eager", "--dtype", "int8-learned", "--seq-len", "8"]) == 2
    assert "does not support quantized weights" in capsys.readouterr().err
