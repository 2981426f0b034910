"""Long recurrences: of many equal iterations a few run, and the peak, what is live and the curve are those of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import learncost as lc
from learncost.program import program

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 50, "hidden_size": 8, "intermediate_size": 16}
LENGTH = 34


@pytest.fixture
def all_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function from which on every iteration runs."""
    return lambda: monkeypatch.setattr(program, "ENDS", 10**9)


ASKED = [
    *(("numpy", "", procedure) for procedure in ("bp", "recompute", "pepita")),
    *(("eager", module, procedure) for module in ("transformers", "plain") for procedure in ("bp", "recompute")),
    ("eager", "transformers-reentrant", "recompute"),
]


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(("engine", "module", "procedure"), ASKED)
@pytest.mark.parametrize("model", ["mamba-370m", "rwkv-4-169m"])
def test_few_iterations_take_the_memory_of_all(
    model: str, engine: str, module: str, procedure: str, all_run: Callable[[], None]
) -> None:
    asking: dict[str, Any] = {**SMALL, "engine": engine, "batch_size": 7, "seq_len": LENGTH, "module": module or None}

    def asked() -> lc.Memory:
        return lc.memory(model, procedure=procedure, **asking)

    few = asked()
    all_run()
    every = asked()
    assert few.peak == every.peak
    assert few.split == every.split
    assert few.peak_at == every.peak_at
    assert few.live_at_peak == every.live_at_peak


def test_a_curve_says_all_iterations_of_a_recurrence(all_run: Callable[[], None]) -> None:
    curve = lc.memory("rwkv-4-169m", engine="eager", batch_size=7, seq_len=LENGTH, **SMALL).curve
    iterations = {number for moment in curve for _, _, number in moment.loops}
    assert LENGTH in iterations
    all_run()
    every = lc.memory("rwkv-4-169m", engine="eager", batch_size=7, seq_len=LENGTH, **SMALL).curve
    assert max(moment.bytes for moment in every) == max(moment.bytes for moment in curve)
    assert {moment.line for moment in every} == {moment.line for moment in curve}


def test_the_peak_of_loops_within_loops_is_that_of_all_their_iterations() -> None:
    """A curve shows every block, with the recurrence in it folded; the peak alone takes few of both."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 13, "vocab_size": 50, "state_size": 4}
    for procedure in ("bp", "recompute"):
        found = lc.memory("mamba-130m", procedure, engine="eager", batch_size=1, seq_len=24, **sizes)
        assert max(line.bytes for line in found.curve) == found.peak == sum(found.split.values())
        assert len(found.curve) > 13 * 20


WAYS: list[dict[str, Any]] = [
    {"procedure": "recompute", "accumulate": 2},
    {"optimizer": "rmsprop", "optimizer_implementation": "for-loop", "clip": 1.0, "dropout": 0.1},
    {"module": "transformers-reentrant", "procedure": "recompute", "lora": "all-linear", "precision": "nf4-double"},
    {"optimizer": "adamw8bit", "plan": "fused-update", "on": "H100-SXM"},
    {"module": "plain", "optimizer_implementation": "foreach"},
]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("flags", WAYS, ids=lambda flags: next(iter(flags.values())))
def test_few_blocks_take_the_memory_of_all(flags: dict[str, Any], all_run: Callable[[], None]) -> None:
    """Twenty-three blocks: the whole answer with its curve and its arrays is that of all blocks."""
    asking = {"num_hidden_layers": 23, "batch_size": 2, "seq_len": 64, "engine": "eager", **flags}
    few = lc.memory("llama-3.2-1b", **asking).to_dict()
    all_run()
    assert lc.memory("llama-3.2-1b", **asking).to_dict() == few
