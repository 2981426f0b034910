"""The engine on JAX takes NumPy's steps: the same tables, the same arrays, compiled by XLA."""

import numpy as np
import pytest

from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.training.engine import engine

jax = pytest.importorskip("jax")

SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 13}
MODELS = {
    "gpt2": configure(
        "gpt2", {**SIZES, "num_hidden_layers": 1, "max_position_embeddings": 16, "intermediate_size": 24}
    ),
    "llama": configure(
        "llama-3-8b",
        {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "rope_type": "default"},
    ),
}


def options(**more):
    return Options(**{"dtype": "fp64", "learning_rate": 1e-2, "mode": "stable", **more})


def batches(count, rows=4):
    generator = np.random.default_rng(1)
    for _ in range(count):
        tokens = generator.integers(0, SIZES["vocab_size"], (rows, 9))
        yield {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def losses(name, count=30, **more):
    """30 steps in fp64; arithmetic is the same but for the order of additions: some 1e-16 a step, and it may grow."""
    first, second = (engine(MODELS["gpt2"], options(engine=kind, **more)) for kind in ("numpy", name))
    return (
        np.array([[trained.step(batch, 1e-2) for trained in (first, second)] for batch in batches(count)]),
        first,
        second,
    )


@pytest.mark.parametrize(
    "more",
    [
        {"procedure": "bp", "optimizer": "adamw", "dropout": 0.1},
        pytest.param({"procedure": "recompute", "optimizer": "momentum", "accumulate": 2}, marks=pytest.mark.slow),
        {"procedure": "pepita", "optimizer": "sgd"},
    ],
)
def test_thirty_steps_are_numpys(more):
    loss_pairs, first, second = losses("jax", **more)
    assert np.isfinite(loss_pairs).all()
    assert np.ptp(loss_pairs[:, 0]) > 1e-3  # it learns: losses are not one and the same number
    np.testing.assert_allclose(loss_pairs[:, 0], loss_pairs[:, 1], rtol=0, atol=1e-9)
    for kind in ("weights", "state"):
        for name, array in getattr(first, kind).items():
            np.testing.assert_allclose(getattr(second, kind)[name], array, rtol=0, atol=1e-7, err_msg=name)


@pytest.mark.slow
def test_llama_too():
    first, second = (engine(MODELS["llama"], options(engine=kind)) for kind in ("numpy", "jax"))
    for batch in batches(3):
        assert second.step(batch, 1e-2) == pytest.approx(first.step(batch, 1e-2), abs=1e-9)
        assert second.loss(batch) == pytest.approx(first.loss(batch), abs=1e-9)
    assert first.flops(batch) == second.flops(batch)


def test_fp32_is_fp32_goes_on_where_it_stopped_and_gives_its_memory_away():
    trained = engine(MODELS["gpt2"], options(engine="jax", dtype="fp32"))
    batches_given = list(batches(4))
    before = dict(trained._training.weights | trained._training.state)
    for batch in batches_given[:2]:
        trained.step(batch, 1e-2)
    assert all(array.is_deleted() for array in before.values())  # XLA had their memory for the new ones
    weights, state = trained.weights, trained.state
    assert {array.dtype for array in (*weights.values(), *state.values())} == {np.dtype("float32")}
    later = [trained.step(batch, 1e-2) for batch in batches_given[2:]]
    other = engine(MODELS["gpt2"], options(engine="jax", dtype="fp32"))
    other.load(weights, state, 2)  # what was handed out is not changed by the steps after it
    assert [other.step(batch, 1e-2) for batch in batches_given[2:]] == later
    assert other.steps == trained.steps == 4
    assert all(np.array_equal(other.weights[name], array) for name, array in trained.weights.items())


def test_what_it_does_not_have():
    with pytest.raises(InputError, match="--engine jax keeps weights in fp32, and bf16-true has them in bf16"):
        engine(MODELS["gpt2"], options(engine="jax", dtype="bf16-true"))
    with pytest.raises(InputError, match="--engine jax does not round optimizer states"):
        engine(MODELS["gpt2"], options(engine="jax", optimizer="adamw8bit"))
    with pytest.raises(InputError, match="remove --plan"):
        engine(MODELS["gpt2"], options(engine="jax", plan="flash"))
