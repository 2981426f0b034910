"""Published memory and time of trainings on many devices: the committed rows, by the committed command."""

import json
import statistics
import sys
from pathlib import Path

import pytest

import learncost as lc

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import clusters  # noqa: E402 - its folder is found by then

ROWS = json.loads((BENCHMARKS / "clusters.json").read_text(encoding="utf-8"))["rows"]


def answers(text):
    return [clusters.answer(row) for row in ROWS if text in row["id"]]


def off(found, kind):
    return [abs(each.off) for each in found if each.kind == kind]


def test_activations_of_korthikanti_are_exact():
    """Korthikanti et al. 2022, figures 1 and 7: recomputation, tensor and sequence parallelism, pipelines."""
    found = answers("korthikanti-fig")
    assert len(found) == 21
    assert not [each.name for each in found if each.kind != "memory"]
    assert statistics.median(off(found, "memory")) < 0.002
    assert max(off(found, "memory")) < 0.02


def test_what_is_printed_as_a_formula():
    """Korthikanti et al. 2022, table 2, which leaves out statistics of norms; Narayanan et al. 2021, section 2.2."""
    found = [*answers("korthikanti-tab2"), *answers("narayanan")]
    assert len(found) == 16
    assert not [each.name for each in found if each.kind != "printed" or abs(each.off) > clusters.SMALL]
    assert clusters.answer({"id": "x", "unit": "formula", "value": "1", "quantity": "", "config": {}}).why
    with pytest.raises(lc.InputError):
        clusters._value("__import__('os')", {"s": 1})


def test_time_of_korthikanti():
    found = answers("korthikanti-tab5")
    assert len(found) == 6
    assert max(off(found, "time")) < 0.08


@pytest.mark.parametrize("text", ["simumax-llama3_70b", "simumax-deepseek"])
def test_allocated_memory_on_b200(text):
    assert max(off(answers(f"{text}"), "memory")) < 0.05


def test_what_is_not_known_is_not_answered():
    unknown = {"id": "x", "config": {"device": "Abacus 9"}, "quantity": "memory"}
    assert clusters.answer(unknown).why == "no cluster is known of its device, Abacus 9"
    row = {**ROWS[0], "config": {key: value for key, value in ROWS[0]["config"].items() if key != "hidden"}}
    assert clusters.answer(row).why == "its configuration lacks 'hidden'"
