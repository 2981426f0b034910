"""What editors read of the public names is what the questions are: their parameters, choices and meanings."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

STUBS = Path(__file__).parents[1] / "benchmarks" / "stubs.py"


def test_it_is_that_of_todays_questions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change of flags, docstrings or lists: python benchmarks/stubs.py --write."""
    monkeypatch.setattr(sys, "argv", [str(STUBS)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(STUBS), run_name="__main__")
    assert not ended.value.code, capsys.readouterr().err


@pytest.mark.slow
def test_a_choice_is_completed_and_another_spelling_is_no_error(tmp_path: Path) -> None:
    """Literal types list the choices; AdamW for adamw, a path or a hub's name stay strings that a checker accepts."""
    api = pytest.importorskip("mypy.api", reason="mypy is in the development extra")
    asked = tmp_path / "asked.py"
    asked.write_text(
        "import learncost as lc\n"
        "reveal_type(lc.memory)\n"
        "lc.cost('net/config.json', procedure='pepita', optimizer='AdamW', hidden_size=64)\n"
        "lc.cost('gpt2', bacth_size=3)\n"
        "lc.memory('gpt2', batch_size=[2])\n"
        "lc.no_such_question\n"
    )
    printed, _, _ = api.run(["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(asked)])
    assert "Literal['bp'] | Literal['recompute']" in printed
    assert "'gpt2'" in printed
    assert [line.split(":")[1] for line in printed.splitlines() if "error:" in line] == ["5", "6"]
