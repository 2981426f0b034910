"""A module in C99 beside PyTorch: its training, its evaluation, its state_dict on the way in and on the way out."""

from __future__ import annotations

import copy
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import learncost as lc
from kernels_in_c import needs_compiler
from learncost.cli.command import main
from learncost.cli.emit_c99 import FirmwareOptions, FirmwareSource, program_of
from learncost.cli.verified_c99 import NEAR, parity
from learncost.engines import freestanding as alone
from learncost.engines.compiler import compiler
from learncost.engines.state import to_state
from learncost.ir.errors import InputError
from learncost.models.configuration import configure

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
modules = pytest.importorskip("modules_in_c99")

pytestmark = needs_compiler

RATE, STEPS, SEED = 0.05, 3, 4


def built(name: str, seed: int) -> Any:
    """A module, its parameters and its buffers drawn."""
    torch.manual_seed(seed)
    module = modules.CASES[name].build()
    with torch.no_grad():
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.dtype.is_floating_point:
                tensor.add_(0.1 * torch.rand(tensor.shape))
            else:
                tensor.fill_(seed if path.endswith("num_batches_tracked") else 0)
    return module


@cache
def layer_of(name: str) -> Any:
    """The table of a module drawn with `SEED`, which is exported once for all tests."""
    return lc.from_module(built(name, SEED), modules.CASES[name].inputs)


def trained(module: Any, batches: list[dict[str, Any]]) -> list[float]:
    """The losses of steps of PyTorch's own SGD."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=RATE), []
    for batch in batches:
        optimizer.zero_grad()
        loss = module(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ran(source: FirmwareSource, batches: list[dict[str, Any]]) -> alone.FirmwareRun:
    """The compiled program from the values that stand in it."""
    program = source.program.firmware
    initial = source.program.content.values
    begin = {n: np.asarray(initial.get(n, np.zeros(alone.shape(program, n)))) for n in alone.changed(program)}
    calls = [{n: batch[n].numpy().reshape(alone.shape(program, n)) for n in alone.fed(program)} for batch in batches]
    return alone.run(program, {**begin, "lr": RATE}, calls, ("-O1",))


def loss_of(scores: Any, targets: Any) -> float:
    """The cross-entropy of scores, or of logarithms of probabilities."""
    answers = targets.flatten()
    return float(torch.nn.functional.cross_entropy(torch.tensor(scores).reshape(len(answers), -1), answers))


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize("name", modules.CASES)
def test_a_state_dict_goes_in_learns_as_in_pytorch_and_comes_out(name: str, tmp_path: Path) -> None:
    """The table is of a module with other values: all of them come from the file."""
    case = modules.CASES[name]
    module = built(name, 3)
    safetensors.save_model(module, str(tmp_path / "begin.safetensors"))
    read = layer_of(name)
    source = lc.emit(
        read,
        "c99",
        optimizer="sgd",
        dtype="fp64",
        plan="fused-update,fused",
        batch_size=4,
        learning_rate=RATE,
        weights=str(tmp_path / "begin.safetensors"),
        state_dict=str(tmp_path / "same.safetensors"),
    )
    same, begun = safetensors.load_file(tmp_path / "same.safetensors"), module.state_dict()
    assert same.keys() == begun.keys()
    assert all(torch.equal(same[path], tensor) for path, tensor in begun.items())

    twin = copy.deepcopy(module).double()
    batches = [case.batch(seed) for seed in range(STEPS)]
    losses = trained(twin, batches)
    result = ran(source, batches)
    assert result.losses == pytest.approx(losses, rel=1e-12)
    learned = to_state(source.program.stored, {**source.program.training.buffers, **result.arrays}, twin.state_dict())
    fresh = case.build().double()
    fresh.load_state_dict(modules.values(learned))
    for path, tensor in twin.state_dict().items():
        assert torch.allclose(fresh.state_dict()[path], tensor, rtol=1e-9, atol=1e-12), path
    twin.eval()
    assert loss_of(result.scores, batches[-1]["targets"]) == pytest.approx(twin(**batches[-1]).item(), rel=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_verify_holds_a_module_with_running_statistics_to_numpy(optimizer: str) -> None:
    """Under AdamW a bias before a norm over the batch moves by rounding alone, and its running mean with it."""
    read = layer_of("twice")
    settings = FirmwareOptions(plan="", batch_size=4, dtype="fp64")
    found = parity(program_of(configure(read, {}), settings, {"optimizer": optimizer}), 3, ("-O0",))
    assert max(found.losses, found.weights, found.scores) <= NEAR, found


FILE = """
import sys
sys.path.insert(0, {folder!r})
from modules_in_c99 import CASES

def build():
    return CASES["convolutions"].build()

def inputs():
    return CASES["convolutions"].inputs
"""


def test_a_file_begins_as_it_is_built_and_its_table_takes_the_state_dict(tmp_path: Path, capsys: Any) -> None:
    """Values, and the pass in evaluation, without PyTorch: from the table that `learncost import` writes."""
    (tmp_path / "net.py").write_text(FILE.format(folder=str(Path(__file__).parent)), encoding="utf-8")
    ops = ["--backend", "c99", "--B", "4", "--optimizer", "sgd", "--prefix", "net"]
    assert main(["emit", f"{tmp_path}/net.py:build", *ops, "-o", str(tmp_path / "a.c")]) == 0
    torch.manual_seed(0)
    module = modules.CASES["convolutions"].build()
    safetensors.save_file(module.state_dict(), str(tmp_path / "state.safetensors"))
    assert main(["import", f"{tmp_path}/net.py:build", "-o", str(tmp_path / "net.table")]) == 0
    table = [str(tmp_path / "net.table"), *ops, "--weights", str(tmp_path / "state.safetensors")]
    back = ["--state-dict", str(tmp_path / "back.safetensors")]
    assert main(["emit", *table, *back, "-o", str(tmp_path / "b.c")]) == 0
    module.load_state_dict(safetensors.load_file(tmp_path / "back.safetensors"))
    first, second = ((tmp_path / f"{name}.c").read_text(encoding="utf-8") for name in "ab")
    bodies = [text.partition('.h"')[2] for text in (first, second)]
    assert bodies[0] == bodies[1], "the same program: the values of build() after torch.manual_seed(0)"
    assert "net.py:build builds them after torch.manual_seed(0)" in re.sub(r"\n \* ", " ", first)
    assert not re.search(r"draw\(|zero\(\d+, net_features_1_running", first.partition("void net_begin")[2])
    assert f"{module.features[0].weight.flatten()[0]:.4f}"[:6] in second


def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path) -> None:
    read = layer_of("convolutions")
    state = built("convolutions", 2).state_dict()
    path = tmp_path / "w.safetensors"

    def refused(entries: dict[str, Any]) -> str:
        safetensors.save_file(entries, str(path))
        with pytest.raises(InputError) as error:
            lc.emit(read, "c99", batch_size=4, optimizer="sgd", weights=str(path))
        return str(error.value)

    assert "no features.1.running_mean" in refused({n: t for n, t in state.items() if "running_mean" not in n})
    assert "head.weight is (5, 95), but must be (5, 96)" in refused({**state, "head.weight": torch.zeros(5, 95)})
    with pytest.raises(InputError, match="more than one value"):
        lc.emit(layer_of("residual"), "c99", batch_size=1)


@pytest.mark.parametrize("parts", [1, 2])
def test_memory_says_what_the_program_takes(parts: int) -> None:
    """Running statistics are among what a step has in RAM; each microbatch updates them."""
    read = layer_of("blocks")
    source = lc.emit(read, "c99", batch_size=4, optimizer="sgd", entry="step", plan="", accumulate=parts)
    if parts == 1:
        assert (
            lc.memory(read, B=4, optimizer="sgd", engine="c99", plan="").peak
            == source.program.firmware.program_memory.ram
        )
        return
    twin = built("blocks", SEED).double()
    for seed in (0, 1):
        twin(**{name: tensor[:2] for name, tensor in modules.CASES["blocks"].batch(seed).items()})
    source = lc.emit(
        read, "c99", batch_size=4, optimizer="sgd", dtype="fp64", plan="", accumulate=2, learning_rate=RATE
    )
    batches = [{n: t[:2] for n, t in modules.CASES["blocks"].batch(seed).items()} for seed in (0, 1)]
    result = ran(source, batches)
    mean = np.stack([twin.features[1 + iteration].norm.running_mean.numpy() for iteration in range(3)])
    assert result.arrays["features.each.norm.running_mean"] == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("backend", ["c", "c99"])
def test_a_weight_along_positions_goes_where_the_table_fixes_their_number(backend: str) -> None:
    text = """k(tokens targets share; E P W) -> loss
      X[B M d] = E[v=tokens[B M] d]
      Y[B M d] = X[B M d] + P[M d]
      Z[B M v] = Y[B M d] W[d v]
      L[B M v] = log_softmax[v](Z[B M v])
      T[B M] = L[B M v=targets[B M]]
      loss[] = T[B M] share[B M]
      tokens: index of v
      targets: index of v
      share: share of targets
      sizes: M=8 d=6 v=11"""
    source = lc.emit(lc.layer(text), backend, optimizer="sgd", batch_size=2)
    if backend == "c99":
        assert "model_P[48]" in source
        assert "model_P[24]" in lc.emit(lc.layer(text), backend, optimizer="sgd", batch_size=2, seq_len=4)
    assert source


def test_the_header_says_the_models_name_its_axes_how_it_begins_and_what_is_in_the_arena() -> None:
    read = layer_of("convolutions")
    source = lc.emit(read, "c99", optimizer="sgd", batch_size=4, plan="")
    head = re.sub(r"\n \* ", " ", source.header)
    assert "Classifier: one step of bp with sgd" in head
    assert "For B = 4, under no plan" in head
    assert "Weights begin as the Classifier that was read has them" in head
    peak = re.search(r"Of the arena ([\d,]+) bytes are in use at .*? of step: (.*?)\.\s", head)
    assert peak
    parts = [int(size.replace(",", "")) for size in re.findall(r" (\d{1,3}(?:,\d{3})*)(?=, |$)", peak[2])]
    total = int(peak[1].replace(",", ""))
    assert sum(parts) == total <= source.program.firmware.program_memory.arena
    assert "legit_functional" not in re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)


def test_matrices_of_a_table_begin_by_their_inputs() -> None:
    """He et al. 2015: the root of 2 over the elements that a result sums, here 64, 64 and 32; biases at 0."""
    example = Path(__file__).parent.parent / "examples" / "microcontroller" / "net.table"
    text = str(lc.emit(str(example), "c99", batch_size=4, optimizer="sgd", plan="fused-update", prefix="net"))
    drawn = re.findall(r"draw\(\d+, \(real\)0\.0, \(real\)(\S+), net_seed \+ \d+u, net_(\w+)\)", text)
    assert {name: float(deviation) for deviation, name in drawn} == pytest.approx(
        {"W1": (2 / 64) ** 0.5, "W2": (2 / 64) ** 0.5, "W3": (2 / 32) ** 0.5, "b1": 0, "b2": 0, "b3": 0}
    )


@pytest.mark.parametrize("precision", ["fp32", "int8-learned", "int8-learned-products", "integer-only"])
def test_codes_and_frozen_matrices_of_a_table_begin_so_too(precision: str) -> None:
    """What stands in the program: the scales of codes, and frozen matrices."""
    example = Path(__file__).parent.parent / "examples" / "microcontroller" / "net.table"
    ways = {"train": "W3,b3"} if precision == "fp32" else {"precision": precision}
    source = lc.emit(str(example), "c99", batch_size=4, optimizer="sgd", plan="", entry="step", **ways)
    weights = source.program.training.plain_weights
    for name, inputs in {"W1": 64, "W2": 64, "W3": 32}.items():
        assert float(np.std(weights[name])) == pytest.approx((2 / inputs) ** 0.5, rel=0.1), name


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(("entry", "is_noted"), [("both", True), ("predict", True), ("step", False)])
def test_a_prediction_that_normalizes_over_its_batch_is_said_so(entry: str, is_noted: bool) -> None:
    """A table has no running statistics, nor has a module that keeps none; of others nothing is said."""
    text = """mine(X targets share; W) -> loss
      H[B d] = normalize[B](X[B d], 1e-05[])
      Y[B v] = H[B d] W[d v]
      P[B v] = log_softmax[v](Y[B v])
      L[B] = P[B v=targets[B]]
      loss[] = L[B] share[B]
    targets: index of v
    share: share of targets
    sizes: d=5 v=3
    """
    says = "mine has no running statistics: a prediction normalizes H by the mean and variance of the 4"
    assert (
        says in re.sub(r"\s+\* ", " ", lc.emit(lc.layer(text), "c99", batch_size=4, entry=entry).header)
    ) is is_noted
    kept = layer_of("twice")
    assert "has no running statistics" not in lc.emit(kept, "c99", batch_size=4, entry=entry).header


@pytest.mark.slow
def test_a_state_that_is_an_input_and_a_batch_of_one() -> None:
    torch.manual_seed(6)
    module, batches = modules.Sequence(), []
    for answer in range(STEPS):
        given = {"x": torch.randn(1, 8, 4).double(), "h0": torch.randn(1, 1, 6).double()}
        batches.append({**given, "targets": torch.tensor([answer])})
    read = lc.from_module(module, {"x": "float 1 8 4", "h0": "float 1 1 6", "targets": "int 1"})
    source = lc.emit(read, "c99", optimizer="sgd", dtype="fp64", learning_rate=RATE)
    assert ran(source, batches).losses == pytest.approx(trained(module.double(), batches), rel=1e-6)


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("kind", [modules.Begun, modules.Attending])
def test_states_at_zero_and_joined_gradients_under_fused(kind: type[Any]) -> None:
    """A state that begins at PyTorch's zeros is no input."""
    torch.manual_seed(6)
    module = kind()
    batches = [{"x": torch.randn(3, 2, 4).double(), "targets": torch.randint(0, 3, (3,))} for _ in range(STEPS)]
    read = lc.from_module(module, {"x": "float B 2 4", "targets": "int B"})
    plan = "fused-update,fused"
    source = lc.emit(read, "c99", optimizer="sgd", dtype="fp64", plan=plan, batch_size=3, learning_rate=RATE)
    twin = copy.deepcopy(module).double()
    result = ran(source, batches)
    assert result.losses == pytest.approx(trained(twin, batches), rel=1e-6)
    last = batches[-1]
    assert loss_of(result.scores, last["targets"]) == pytest.approx(twin.eval()(**last).item(), rel=1e-6)


def test_every_result_of_a_prediction_can_be_read(tmp_path: Path) -> None:
    torch.manual_seed(6)
    module = modules.Stream()
    read = lc.from_module(module, {"x": "float 1 8 4", "h0": "float 1 1 6"})
    source = lc.emit(read, "c99", entry="predict", prefix="net")
    given = {"x": torch.randn(1, 8, 4), "h0": torch.randn(1, 1, 6)}
    scores, state = module(**given)
    lines = ["#include <stdio.h>", '#include "net.h"', "int main(void) {"]
    for name, tensor in given.items():
        lines += [f"net_{name}[{place}] = (float){value};" for place, value in enumerate(tensor.flatten().tolist())]
    lines += ["const net_real *scores = net_predict(), *state = net_output_2();"]
    lines += [f'printf("%.9g ", (double)scores[{place}]);' for place in range(scores.numel())]
    lines += [f'printf("%.9g ", (double)state[{place}]);' for place in range(state.numel())]
    (tmp_path / "main.c").write_text("\n".join((*lines, "return 0;", "}", "")))
    (tmp_path / "net.c").write_text(source.program.firmware.source)
    (tmp_path / "net.h").write_text(source.program.firmware.header)
    subprocess.run([*(compiler() or ()), *alone.STRICT, "net.c", "main.c", "-o", "both"], cwd=tmp_path, check=True)
    found = subprocess.run(["./both"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    expected = [*scores.flatten().tolist(), *state.flatten().tolist()]
    assert [float(each) for each in found.split()] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_buffers_that_a_forward_pass_changes_are_named() -> None:
    read = lc.from_module(modules.Average(), {"x": "float 4 4", "targets": "int 4"})
    with pytest.raises(InputError, match="changes average in its forward pass, and trains only without"):
        lc.emit(read, "c99", optimizer="sgd")
    with pytest.raises(InputError, match="changes average in its forward pass, which constants of a prediction"):
        lc.emit(lc.from_module(modules.Average(), {"x": "float 4 4"}), "c99", entry="predict")
