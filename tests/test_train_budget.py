"""`learncost train --budget`: the plan is chosen so that what the engine lays out fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.engines.compiler import compiler
from learncost.engines.options import Options
from learncost.training.loop import start
from sampling import sampled
from trainings_on_disk import Silent

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler found")

SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 200, encoding="utf-8")
    return path


def _run(text: Path, out: Path, budget: str | None, procedure: str = "bp") -> tuple[str, int]:
    """The plan that was taken, and the bytes that weights, states and the arena have in the end."""
    options = Options(
        paths=(str(text),), model="gpt2", sizes=SIZES, engine="torch", budget=budget, procedure=procedure, steps=1
    )
    found = start(Options(**{**vars(options), "batch_size": 4, "seq_len": 64}), out, Silent())
    assert found.last is not None
    assert found.last.predicted is not None
    return json.loads((out / "training.json").read_text(encoding="utf-8"))["plan"], found.last.predicted


@pytest.mark.slow
def test_a_budget_is_kept(text: Path, tmp_path: Path) -> None:
    plan, free = _run(text, tmp_path / "free", None)
    assert plan is None  # the engine's own
    # Below what the step takes where nothing but the nearly free is made again: something more must be.
    plan, taken = _run(text, tmp_path / "kept", str(free - 1000))
    assert "recompute" in plan
    assert taken < free


@pytest.mark.parametrize("procedure", sampled(("pepita", "bp"), 2))
def test_a_run_takes_what_memory_says(procedure: str, text: Path, tmp_path: Path) -> None:
    """`train --budget` and `memory`, one answer; a run's PEPITA is `stable`."""
    budget = "10MB"
    plan, taken = _run(text, tmp_path / "run", budget, procedure)
    vocabulary = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    more = {**SIZES, "vocab_size": vocabulary, "batch_size": 4, "seq_len": 64, "engine": "torch", "mode": "stable"}
    needs = lc.memory("gpt2", procedure, budget=budget, **more)
    assert (needs.plan, needs.peak) == (plan, taken)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--budget", "much"], "budget must be bytes such as 8GB, 256KiB or 1e9, not 'much'"),
        (["--budget", "10KB"], "budget: 10,000 bytes are too few for one sequence"),
        (["--budget", "600KB", "--batch-size", "64"], "a step needs at least"),
        (["--budget", "1GB", "--plan", "flash"], "cannot be combined with --plan"),
        (["--budget", "1GB", "--engine", "numpy"], "cannot be combined with --engine"),
        (["--budget", "1GB", "--clip", "1"], "cannot be combined with --clip"),
    ],
)
def test_refusals(flags: list[str], says: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    out = tmp_path / "run"
    assert main(["train", str(text), "--model", "gpt2", "--seq-len", "64", *sizes, *flags, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert not out.exists()
