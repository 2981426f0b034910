"""Sixty public reports about cost and memory (benchmarks/reports): each is answered right, both ways."""

from dataclasses import replace

import pytest
from reports import modules
from reports.asked import judged, listed
from reports.runner import main

from learncost.engines.boards import BOARDS
from sampling import sampled

REPORTS = {report.source: report for report in listed()}
LONG = (
    "meta-pytorch/tnt#624", "TylerYep/torchinfo#32", "TylerYep/torchinfo#187", "Dao-AILab/flash-attention#741",
    "deepspeedai/DeepSpeed#3816", "facebookresearch/fvcore#98", "facebookresearch/fvcore#143", "pytorch/pytorch#119806",
    "huggingface/transformers#15006", "NVIDIA-NeMo/Megatron-Bridge#2409", "harvard-edge/cs249r_book#1625",
)  # fmt: skip
"""Those that take seconds."""
CASES = [
    *sampled((source for source in REPORTS if source not in LONG), 10, lambda source: bool(REPORTS[source].module)),
    *(pytest.param(source, marks=pytest.mark.slow) for source in LONG),
]


def test_there_are_sixty_from_as_many_places():
    assert len(listed()) == len(REPORTS) == 60
    assert all(hasattr(modules, report.module) for report in REPORTS.values() if report.module)
    assert all(bool(report.answer) != bool(report.refused) for report in REPORTS.values())


@pytest.mark.parametrize("source", CASES)
def test_a_report_is_answered_right_on_the_command_line_and_in_python(source):
    report = REPORTS[source]
    compiles = any("static_ram" in right or "constants" in right for right in report.answer.values())
    if compiles and BOARDS["cortex-m3"].missing:
        pytest.skip(f"needs {BOARDS['cortex-m3'].missing}")
    verdict = judged(report)
    assert verdict.kind == "right", (verdict.predicted, verdict.right, verdict.message)


def test_a_wrong_answer_is_seen_and_shown(monkeypatch, capsys):
    report = REPORTS["TylerYep/torchinfo#137"]
    monkeypatch.setattr("reports.runner.listed", lambda: [replace(report, answer={"trained_parameters": "12"})])
    assert main([]) == 1
    screen = capsys.readouterr().out
    assert "TylerYep/torchinfo#137: wrong" in screen
    assert "trained_parameters = 14, right: 12" in screen
    assert main(["--only", "nobody"]) == 1
