"""Engines side by side: the parts of a difference are the difference, and an engine is one module."""

import json
import sys
from importlib import import_module
from itertools import permutations

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.reports.memory import engines as package
from learncost.reports.memory.engine import RULES
from learncost.reports.memory.engines import memory_engines
from learncost.reports.memory.show import differences

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 30, "seq_len": 8}


def test_the_parts_of_a_difference_are_the_difference():
    asked = {name: {"engine": name} for name in memory_engines() if name != "compiled"}  # which takes modules of files
    asked |= {"foreach": {"engine": "eager", "optimizer_implementation": "foreach"}}
    asked |= {"hooks": {"engine": "eager", "plan": "fused-update"}}
    by_runner = {name: lc.memory("gpt2", **flags, **SMALL) for name, flags in asked.items()}
    assert len(by_runner) >= 6
    for first, other in permutations(by_runner, 2):
        parts = list(differences(by_runner[first], by_runner[other]))
        assert sum(part.bytes for part in parts) == by_runner[first].peak - by_runner[other].peak
        assert all(set(part.rules) <= {*RULES, "plan"} for part in parts)
    assert all(tuple(memory.rules) == RULES for memory in by_runner.values())


def test_the_screen_and_the_json(capsys):
    assert main(["memory", "gpt2", "--seq-len", "64", "--engine", "graph,eager,numpy"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "new weights and states: new arrays, not over the old ones" in screen
    assert main(["memory", "gpt2", "--seq-len", "64", "--engine", "graph,numpy", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer["engines"]) == ["graph", "numpy"]
    assert answer["engines"]["numpy"]["peak"] == lc.memory("gpt2", seq_len=64, engine="numpy").peak
    parts = answer["differences"]["by_engine"]["numpy"]
    peaks = [answer["engines"][name]["peak"] for name in ("numpy", "graph")]
    assert sum(part["bytes"] for part in parts) == peaks[0] - peaks[1]


@pytest.mark.parametrize(
    ("engine", "procedures", "message"),
    [
        ("graph,graph", "bp", "engines must be a comma-separated list of different names"),
        ("graph,fast", "bp", "no engine is called 'fast'"),
        ("graph,numpy", "bp,recompute", "several procedures and several engines cannot be compared"),
    ],
)
def test_refusals(engine, procedures, message):
    with pytest.raises(lc.InputError, match=message):
        lc.memory("gpt2", procedures, engine=engine, **SMALL)


ADDED = """
from learncost.reports.memory.engine import RULES, Engine, MemoryUse, at_line

def takes(step, sizes):
    return MemoryUse(7, at_line("", 7), {"weights": 7}, ())

def peak(step, sizes):
    return 7 * sizes["B"]

ENGINES = (Engine("seven", peak, takes, dict.fromkeys(RULES, "none"), "Always seven."),)
"""


def test_a_runner_is_added_by_one_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "seven.py").write_text(ADDED, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    memory_engines.cache_clear()
    try:
        assert import_module("learncost.reports.memory.engines.seven").ENGINES[0].name == "seven"
        assert lc.memory("gpt2", engine="seven", **SMALL).peak == 7
        assert lc.fit("gpt2", "1GB", procedures="bp", engine="seven", **SMALL).rows[0].ram == 7
        assert main(["memory", "gpt2", "--engine", "graph,seven", "--seq-len", "8"]) == 0
        assert "Always seven." in capsys.readouterr().out
    finally:
        sys.modules.pop("learncost.reports.memory.engines.seven", None)
        memory_engines.cache_clear()
