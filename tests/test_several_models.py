"""One table of several models and procedures: each row is that of one model alone, in one unit, with booktabs."""

from __future__ import annotations

import pytest

import learncost as lc
from learncost.cli.command import main

SIZES = {"seq_len": 16, "procedures": "bp,recompute"}
FLAGS = ["--seq-len", "16", "--procedure", "bp,recompute"]


def test_every_row_is_that_of_its_model_alone() -> None:
    found = lc.compare(["gpt2", "bert-base"], **SIZES)
    alone = [
        lc.cost(model, procedure=name, seq_len=16) for model in ("gpt2", "bert-base") for name in ("bp", "recompute")
    ]
    assert [(row.model, row.procedure, row.total) for row in found.rows] == [
        (cost.model, cost.procedure, cost.total) for cost in alone
    ]
    with pytest.raises(lc.InputError, match="two models or more"):
        lc.compare(["gpt2"])


def test_the_latex_table_has_booktabs_and_one_unit_for_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "gpt2", "bert-base", *FLAGS, "--format", "latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == r"% \usepackage{booktabs}"
    rules = [line for line in lines if line.endswith("rule")]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    heading = next(line for line in lines if line.startswith("model &"))
    assert "parameters, $10^{6}$" in heading
    assert "FLOPs, $10^{9}$" in heading
    step = lc.cost("gpt2", seq_len=16)
    row = next(line for line in lines if line.startswith("gpt2 & bp"))
    assert f"& {step.parameters / 1e6:,.3f} &" in row
    assert f"& {step.total.flops / 1e9:,.3f} &" in row


def test_the_screen_has_a_row_for_each_model_and_procedure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "gpt2", "bert-base", *FLAGS]) == 0
    text = capsys.readouterr().out
    assert [line.split()[:2] for line in text.splitlines() if line.startswith(("gpt2", "bert-base"))][:4] == [
        ["gpt2", "bp"], ["gpt2", "recompute"], ["bert-base", "bp"], ["bert-base", "recompute"],
    ]  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80
    assert main(["compare", "gpt2", "nothing"]) == 2
    assert main(["cost", "gpt2", "bert-base"]) == 2
