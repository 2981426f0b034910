"""Steps in place: equal to the interpreter's, whatever the plan, the type, the procedure and the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import learncost as lc
from learncost.backends.placed import placed
from learncost.cli.command import main
from learncost.engines.compiler import compiler
from learncost.engines.numpy_engine import Training
from learncost.interpreter import execute
from learncost.ir.errors import InputError
from learncost.layers.layer import shipped_layer
from learncost.layers.names import propagate_copies, written_once
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.program.calls import every_call
from learncost.verification.sample import random_arrays, small_sizes
from tiny_models import GPT2, LLAMA

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler found")

ALL = "flash,fused,chunked-loss,fused-update,recompute=gelu+silu+norm"


def _training(
    model: tuple[str, dict[str, Any]], procedure: str, optimizer: str, dtype: Any, **options: Any
) -> Training:
    return Training(configure(*model), procedure, optimizer, learning_rate=0.05, dtype=dtype, seed=3, **options)


def _batch(batch: int = 3, length: int = 13) -> dict[str, Any]:
    numbers = np.random.default_rng(1)
    return {name: numbers.integers(0, 61, (batch, length)) for name in ("tokens", "targets")}


def _table(training: Training, plan: str) -> Any:
    return planned(without_gradients(training.table()), plan)


def _steps(training: Training, plan: str, dtype: str, steps: int = 2) -> tuple[list[float], dict[str, Any]]:
    """Losses and new weights of steps in place, on the same batch."""
    from learncost.engines.in_place import InPlace

    tensors = {name: torch.from_numpy(np.array(array)) for name, array in (training.weights | training.state).items()}
    losses = []
    sizes = dict(training.prepare(**_batch()).sizes)
    step = InPlace(_table(training, plan), sizes, dtype, tensors)
    for number in range(steps):
        training.steps = number
        losses.append(float(step(training.prepare(**_batch()).values)["loss"]))
    training.steps = 0
    return losses, {name: tensors[name].numpy() for name in training.weights}


@pytest.mark.one_in(every=22)
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize(
    "plan", ["", "fused", "flash,fused", "chunked-loss,fused-update,fused", "epilogue-update", f"{ALL},epilogue-update"]
)
def test_equals_the_interpreter(model: Any, plan: str) -> None:
    """Two steps, of which the second sees what the first did to weights and moments."""
    losses, weights = _steps(_training(model, "bp", "momentum", np.float64), plan, "fp64")
    other = _training(model, "bp", "momentum", np.float64)
    assert losses == pytest.approx([other.step(**_batch()) for _ in range(2)], abs=1e-12)
    for name, array in other.weights.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-12, err_msg=name)


SQUARES = """squares(L own) -> u
  Q[B B'] = log_softmax[B](L[B B'])
  u[B] = Q[B'=own[B] B]"""
NEITHER_CARRIED_NOR_LAST = """kept(X Z; W) -> Y S X
  repeat n carry X each z=Z keep Y=g S=X:
    g[B d] = X[B d'] W[d' d]
    X[B d] = g[B d] z[B d]"""


@pytest.mark.parametrize("text", [SQUARES, NEITHER_CARRIED_NOR_LAST, "recurrent", "jiang_block", "convolution"])
def test_a_layer_and_its_gradients_equal_the_interpreter(text: str) -> None:
    """Rows written at an index along an axis that the index loops over, values kept beside the last, inner names."""
    from learncost.engines.in_place import InPlace

    step = lc.derive(lc.layer(text) if "->" in text else shipped_layer(text)).step
    sizes = small_sizes(step)
    arrays = random_arrays(step, sizes)
    expected = dict(arrays)
    execute(lower(step), expected, sizes)
    noise = torch.full((2**16,), 255, dtype=torch.uint8)
    results = InPlace(step, sizes, "fp64", {}, noise)({name: np.asarray(array) for name, array in arrays.items()})
    assert results.keys() == set(step.outputs)
    for name, tensor in results.items():
        np.testing.assert_allclose(tensor.numpy().reshape(np.shape(expected[name])), expected[name], atol=1e-11)


@pytest.mark.parametrize("procedure", ["recompute", "pepita", "mempepita", "sign-symmetric", "kolen-pollack"])
def test_every_procedure(procedure: str) -> None:
    losses, weights = _steps(_training(GPT2, procedure, "sgd", np.float64), "flash,fused", "fp64")
    other = _training(GPT2, procedure, "sgd", np.float64)
    assert losses == pytest.approx([other.step(**_batch()) for _ in range(2)], abs=1e-12)
    for name, array in other.weights.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-12, err_msg=name)


def test_feedback_that_follows_weights_made_anew_inside_of_turns_is_refused() -> None:
    with pytest.raises(InputError, match="is not updated in place in a loop; a copy would be needed"):
        _steps(_training(GPT2, "kolen-pollack", "sgd", np.float64), "fused-update,fused", "fp64")


def test_masks_of_dropout_are_read_as_on_numpy() -> None:
    losses, weights = _steps(_training(GPT2, "bp", "sgd", np.float64, dropout=0.2), ALL, "fp64", 1)
    other = _training(GPT2, "bp", "sgd", np.float64, dropout=0.2)
    assert losses == pytest.approx([other.step(**_batch())], abs=1e-12)
    for name, array in other.weights.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("dtype", "apart"), [("fp32", 2e-6), ("bf16-masters", 2e-3)])
def test_other_types(dtype: str, apart: float) -> None:
    """bf16 has 8 bits: what is rounded is wrong by 1/256 at most, and losses of some 4 nats by far less."""
    losses, weights = _steps(_training(GPT2, "bp", "sgd", np.float32), ALL, dtype)
    other = _training(GPT2, "bp", "sgd", np.float64)
    other.weights = {
        name: array.astype(np.float64) for name, array in _training(GPT2, "bp", "sgd", np.float32).weights.items()
    }
    assert losses == pytest.approx([other.step(**_batch()) for _ in range(2)], abs=apart * 4)
    for name, array in other.weights.items():
        np.testing.assert_allclose(weights[name], array, atol=apart, err_msg=name)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 512), (64, 64, 64), (257, 96, 384), (300, 512, 700)])
def test_products_in_fp32_are_those_of_fp32(m: int, n: int, k: int) -> None:
    # A processor with bf16 tiles rounds the factors of some shapes where PyTorch is told that it may.
    from learncost.engines.in_place import library_products

    left, right = torch.rand(m, k) - 0.5, torch.rand(n, k) - 0.5
    exact = left.double() @ right.t().double()
    with library_products():
        for product in (left @ right.t(), (right @ left.t()).t()):
            assert float((product - exact).norm() / exact.norm()) < 1e-6  # bf16 has 2e-3


def test_mixed_precision_keeps_what_autocast_keeps() -> None:
    """Weights, moments and the stream between the blocks are fp32, what products read and make bf16."""
    training = _training(GPT2, "bp", "adamw", np.float32)
    program = placed(_table(training, ALL), {**training.model.sizes, "B": 3, "M": 13}, "bf16-masters")
    fields = {}
    for line in program.text.splitlines():
        if line.startswith('            "'):
            name, _, dtype = line.strip().partition(": ")
            fields[name.strip('"')] = "bfloat16" if "bfloat16" in dtype else "float32"
    for name in ("X", "X_2", "X_3", "dX", "dX_2", "wte", "mlp_W1", "wte_M", "loss"):
        assert fields[name] == "float32", name
    for name in ("attn_Q", "attn_A", "mlp_U", "mlp_G", "H", "mlp_W1_low", "dX_2_low", "dmlp_W1", "dattn_Q"):
        assert fields[name] == "bfloat16", name


def test_no_two_arrays_that_are_needed_lie_in_one_place() -> None:
    """Every value as the interpreter has it, after the arena is filled with other numbers between any two statements.

    A program that reads what another array has written over would give another loss; here the arena begins as noise.
    """
    from learncost.engines.in_place import InPlace

    training = _training(GPT2, "bp", "sgd", np.float64)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in training.weights.items()}
    sizes = dict(training.prepare(**_batch()).sizes)
    noise = torch.full((2**20,), 255, dtype=torch.uint8)  # as fp64: not a number
    step = InPlace(_table(training, ALL), sizes, "fp64", tensors, noise)
    assert step.arena is noise
    values = training.prepare(**_batch()).values
    assert float(step(values)["loss"]) == pytest.approx(
        _training(GPT2, "bp", "sgd", np.float64).step(**_batch()), abs=1e-12
    )
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_plans_make_the_arena_smaller() -> None:
    """Each of them for the reason that it has: scores, gradients and logits are large here."""
    training = _training(("gpt2", {**GPT2[1], "vocab_size": 997, "n_positions": 64}), "bp", "adamw", np.float32)
    sizes = {**training.model.sizes, "B": 4, "M": 64}
    size = {
        plan: placed(_table(training, plan), sizes).bytes
        for plan in (
            "fused",
            "flash,fused",
            "fused,fused-update",
            "fused,chunked-loss",
            "flash,fused,recompute=gelu+norm",
            ALL,
        )
    }
    layers, scores, width = 3, 4 * 4 * 64 * 64 * 4, 4 * 64 * 24 * 4
    assert size["fused"] - size["flash,fused"] >= layers * scores
    assert size["fused"] - size["fused,fused-update"] >= 2 * 12 * 24 * 24 * 4  # the gradients of all layers but one
    assert size["fused"] - size["fused,chunked-loss"] >= 4 * 64 * 997 * 4 // 2  # half the logits at least
    # Of a layer: two normalised arrays, two after gain and bias, GELU's four widths - less the sum before norm 2.
    assert size["flash,fused"] - size["flash,fused,recompute=gelu+norm"] >= (layers - 1) * 6 * width
    assert size[ALL] == min(size.values())


def test_the_emitted_file_runs_alone(tmp_path: Path) -> None:
    """`emit --backend c` in a process that cannot import this package, against the interpreter's step."""
    training = _training(GPT2, "bp", "adamw", np.float64)
    prepared = training.prepare(**_batch())
    text = lc.emit(training.model, "c", optimizer="adamw", batch_size=3, seq_len=13, dtype="fp64")
    (tmp_path / "step_in_place.py").write_text(text, encoding="utf-8")
    np.savez(tmp_path / "given.npz", **{name: np.asarray(array) for name, array in prepared.values.items()})
    script = """
import sys, numpy, torch
sys.modules["learncost"] = None
import step_in_place as own
given = {name: torch.from_numpy(array.copy()) for name, array in numpy.load("given.npz").items()}
m = own.lay_out(given, torch.empty(own.BYTES, dtype=torch.uint8))
own.step(m, own.load())
numpy.savez("made.npz", loss=m.loss.numpy(), **{name: tensor.numpy() for name, tensor in given.items()})
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    loaded = np.load(tmp_path / "made.npz")
    assert float(loaded["loss"][0]) == pytest.approx(training.step(**_batch()), abs=1e-12)
    for name, array in (training.weights | training.state).items():
        np.testing.assert_allclose(loaded[name], array, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["gpt2", "--backend", "c", "--dtype", "fp8"], "programs have fp32, fp64, bf16, and no fp8"),
        (["gpt2", "--backend", "c", "--batch-size", "x"], "batch-size must be a whole number"),
        (["gpt2", "--dtype", "fp32"], "--dtype requires --backend c"),
        (["attention", "--backend", "c"], "--backend c applies to models"),
    ],
)
def test_what_cannot_be_emitted_is_said(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", *flags]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_repeats_in_repeats_are_done_in_place() -> None:
    """ALBERT's layers repeat in groups that repeat."""
    from learncost.engines.options import Options
    from learncost.training.engine import engine

    tiny = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 61, "embedding_size": 6}
    groups = {"num_hidden_layers": 4, "num_hidden_groups": 2, "architectures": ["AlbertForMaskedLM"]}
    albert = configure({"model_type": "albert", **tiny, **groups})
    trained, other = (
        engine(albert, Options(engine=name, dtype="fp64", optimizer="sgd", learning_rate=0.1))
        for name in ("torch", "numpy")
    )
    for _ in range(2):
        assert trained.step(_batch(), 0.1) == pytest.approx(other.step(_batch(), 0.1), abs=1e-12)
    for name, array in other.weights.items():
        np.testing.assert_allclose(trained.weights[name], array, atol=1e-12, err_msg=name)
    assert trained.says.endswith("kernels compiled by cc")


def test_another_device_gives_the_same_weights() -> None:
    """On a device that is not `cpu` by name tensors are moved there and back; here it is the processor all the same."""
    from learncost.engines.options import Options
    from learncost.training.engine import engine

    model = configure(*GPT2)
    common = {"dtype": "fp64", "optimizer": "adamw", "learning_rate": 0.05}
    trained, other = (
        engine(model, Options(engine="torch", device="cpu:0", **common)),
        engine(model, Options(engine="numpy", **common)),
    )
    for _ in range(2):
        assert trained.step(_batch(), 0.05) == pytest.approx(other.step(_batch(), 0.05), abs=1e-12)
    assert trained.says.endswith("on PyTorch's operators on cpu:0")
    for name, array in (other.weights | other.state).items():
        np.testing.assert_allclose((trained.weights | trained.state)[name], array, atol=1e-10, err_msg=name)
    again = engine(model, Options(engine="torch", device="cpu:0", **common))
    again.load(trained.weights, trained.state, trained.steps)
    assert again.step(_batch(), 0.05) == pytest.approx(other.step(_batch(), 0.05), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "abacus"}, "--device abacus cannot be used here"),
        ({"device": "cuda", "engine": "numpy"}, "--device is for --engine torch"),
    ],
)
def test_what_a_device_cannot_do_is_said(options: dict[str, Any], says: str) -> None:
    from learncost.engines.options import Options
    from learncost.training.engine import engine

    with pytest.raises(InputError, match=says):
        engine(configure(*GPT2), Options(**{"engine": "torch", "learning_rate": 0.1, **options}))


@pytest.mark.parametrize(("model", "most"), [("gpt2", 20), ("tinyllama-1.1b", 21), ("bert-base", 20)])
def test_a_kernel_for_all_lines_that_differ_in_names_and_sizes_alone(model: str, most: int) -> None:
    small = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "vocab_size": 50}
    small |= {"num_key_value_heads": 2, "intermediate_size": 40} if "llama" in model else {}
    built = build(configure(model, small))
    table = planned(without_gradients(step(built, "bp", "adamw")), "flash,fused,chunked-loss,fused-update")
    program = placed(table, run_sizes(built, 2, 8, None))
    calls = [call for call in every_call(program.calls) if call.function]
    assert {call.function.name for call in calls} == {function.name for function in program.functions}
    assert len(program.functions) <= most < len(calls) - 8
    # Every weight is updated by one function, whatever its shape: how many elements it has is an argument.
    updates = [call for call in calls if call.lines[0].meta.phase == "optimizer_step"]
    assert len({call.function.name for call in updates}) == 1
    assert {" ".join(call.function.sizes) for call in updates} > {"d", "v d"}
    assert "1200" in program.text


def test_names_are_given_once() -> None:
    """The same values under names of which no scope gives one twice, by the interpreter."""
    for procedure in ("recompute", "mempepita"):
        training = _training(GPT2, procedure, "sgd", np.float64)
        prepared = training.prepare(**_batch())
        for change in (propagate_copies, written_once):
            values = dict(prepared.values)
            execute(lower(change(prepared.table)), values, prepared.sizes)
            other = _training(GPT2, procedure, "sgd", np.float64)
            assert float(values["loss"]) == pytest.approx(other.step(**_batch()), abs=1e-13)
            for name, array in other.weights.items():
                np.testing.assert_allclose(values[f"{name}.new"], array, atol=1e-13)


SPLIT = """split(X; WQ WK WV WO) -> X
  repeat n_layer carry X:
    Q[B M h u k] = X[B M d] WQ[d h u k]
    K[B M h u k] = X[B M d] WK[d h u k]
    V[B M h u k] = X[B M d] WV[d h u k]
    R[B h M M'] = Q[B M h u k] K[B M' h u k]
    S[B h M M'] = R[B h M M'] #k^-0.5[]
    P[B h M M'] = softmax[M'](S[B h M M'])
    A[B M h u k] = P[B h M M'] V[B M' h u k]
    O[B M d] = A[B M h u k] WO[h u k d]
    X[B M d] = X[B M d] + O[B M d]
"""


def test_a_kernel_of_scores_sums_over_two_axes_that_lie_side_by_side() -> None:
    """As models do that turn halves of their heads, ModernBERT among them."""
    from learncost.engines.in_place import InPlace

    table = lc.derive(lc.layer(SPLIT)).step
    sizes = {"B": 2, "M": 37, "d": 6, "h": 2, "u": 2, "k": 3, "n_layer": 2}
    arrays = random_arrays(table, sizes)
    expected = dict(arrays)
    execute(lower(table), expected, sizes)
    for name, tensor in InPlace(planned(table, "flash,fused"), sizes, "fp64", {})(arrays).items():
        np.testing.assert_allclose(tensor.numpy().reshape(np.shape(expected[name])), expected[name], atol=1e-11)
