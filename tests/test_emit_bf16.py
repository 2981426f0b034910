"""The emitted program in bf16: every matrix product in bf16, weights and sums in fp32, as far off as 8 bits are."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import trainings
from learncost.backends import program
from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.training.engine import engine
from learncost.verification.sample import random_arrays, small_sizes
from programs import execute
from sampling import sampled

torch = pytest.importorskip("torch")
dispatch = pytest.importorskip("torch.utils._python_dispatch")

TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 61}
MODELS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 61, "n_positions": 16},
    "llama": {"model_type": "llama", **TINY, "num_hidden_layers": 2, "num_key_value_heads": 1},
    "mamba": {"model_type": "mamba", "hidden_size": 16, "vocab_size": 61, "num_hidden_layers": 2, "state_size": 4},
}
PRODUCTS = ("matmul", "einsum")


class Products(dispatch.TorchDispatchMode):  # type: ignore[misc,name-defined]  # torch's own class has no types
    """The types of the operands of every matrix product that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function.overloadpacket.__name__ in PRODUCTS:
            operands = arguments[1] if isinstance(arguments[0], str) else arguments
            self.types.append({operand.dtype for operand in operands})
        return function(*arguments, **(keywords or {}))


def _batch() -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(4).integers(0, 61, (3, 14))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def _engine(name: str, kind: str, dtype: str, **more: Any) -> Any:
    options = {"engine": kind, "dtype": dtype, "optimizer": "adamw", "learning_rate": 0.01, **more}
    return engine(configure(MODELS[name]), Options(**options))


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(("kind", "name"), sampled(product(("torch", "jax"), MODELS), 3))
def test_steps_are_those_of_fp32_but_for_rounding(name: str, kind: str) -> None:
    # cpu:0 is another device by name: PyTorch's operators run it.
    more = {"device": "cpu:0"} if kind == "torch" else {}
    trained, other = _engine(name, kind, "bf16-masters", **more), _engine(name, "numpy", "fp32")
    apart = []
    for _ in range(4):
        table, two = trained.step(_batch(), 0.01), other.step(_batch(), 0.01)
        apart.append(abs(table - two) / two)
    assert 0 < max(apart) < 1e-2  # bf16 has 2**-9; a mistake, such as a gradient that is missing, is far more
    for weight, array in other.weights.items():
        if weight.endswith("bK"):
            continue  # adds the same to all scores of a query: its gradient is 0, and what AdamW sees is rounding
        assert trained.weights[weight].dtype == np.float32
        # AdamW divides by the gradient's own size, so that a step is about 0.01 whatever the gradient: 4 are 0.04.
        assert np.abs(trained.weights[weight] - array).mean() < 0.01, weight


def test_every_product_is_in_bf16() -> None:
    trained = _engine("gpt2", "torch", "bf16-masters", device="cpu:0", plan="flash")
    with Products() as products:
        trained.step(_batch(), 0.01)
    # Forward 6 a block (q, k, v, scores, values, output) + 2 of the feed-forward network, backward twice as many and
    # the scores made again; the head 3.
    assert len(products.types) == 2 * (8 * 3 + 1) + 3
    assert set.union(*products.types) == {torch.bfloat16}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", ["gpt2", "bert-base-uncased", "encoder-decoder"])
@pytest.mark.parametrize("procedure", ["recompute", "pepita", "mempepita"])
def test_every_procedure(model: str, procedure: str) -> None:
    from learncost.training.torch_engine import TorchProgram

    training = trainings.training(model, procedure, dtype=np.float32)
    tokens, extra = trainings.batch(model)
    prepared = training.prepare(tokens, **extra)
    emitted = [TorchProgram(prepared.table, prepared.sizes, precision, "cpu") for precision in ("fp32", "bf16-masters")]
    tensors = {name: torch.from_numpy(prepared.values[name]) for name in prepared.table.weights}
    exact, rounded = (runner.step(tensors, prepared.values) for runner in emitted)
    for name, array in exact.items():
        if name.removesuffix(".new").endswith("bK"):
            continue  # its gradient is 0, and the rest rounding
        assert rounded[name].dtype in (torch.float32, torch.bfloat16)
        distance = float((rounded[name].float() - array).norm() / array.norm())
        assert distance < 0.1, name


def test_numpy_has_no_bf16() -> None:
    table = trainings.training("gpt2").table()
    with pytest.raises(InputError, match="numpy has no bf16: choose torch or jax"):
        program(table, "numpy", dtype="bf16-masters")


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(
    ("plan", "procedure"), sampled(product((None, "fused"), ("recompute", "mempepita", "pepita")), 5)
)
def test_procedures_in_place(procedure: str, plan: str | None) -> None:
    # Modulated passes add rows of their own to the gradient of the embedding.
    trained = _engine("gpt2", "torch", "bf16-masters", procedure=procedure, plan=plan)
    other = _engine("gpt2", "numpy", "fp32", procedure=procedure)
    for _ in range(3):
        assert trained.step(_batch(), 0.01) == pytest.approx(other.step(_batch(), 0.01), rel=1e-2)


def test_experts() -> None:
    """Gates of experts are written at indices: what is added up there, and read by a product."""
    sizes = {"num_hidden_layers": 2, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
    table = without_gradients(step(build(configure({"model_type": "mixtral", **TINY, **sizes})), "bp", "sgd"))
    points = small_sizes(table)
    seed = 2  # with some others two scores are so near that a rounded one chooses another expert
    arrays = {
        name: np.float32(0.3) * array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in random_arrays(table, points, seed).items()
    }
    exact, rounded = (execute(table, "torch", arrays, points, dtype=dtype) for dtype in (None, "bf16-masters"))
    for name in table.weights:
        update = exact[f"{name}.new"] - arrays[name]
        assert np.linalg.norm(rounded[f"{name}.new"] - exact[f"{name}.new"]) < 0.05 * np.linalg.norm(update), name
