"""Published figures on learning on microcontrollers: those of bp, PEPITA and MEMPEPITA, and why others are not ours."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def published() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published", BENCHMARKS / "published_microcontrollers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published"] = module
    spec.loader.exec_module(module)
    return module


def test_every_figure_is_ours_or_has_a_reason(published: ModuleType) -> None:
    rows = list(published.compared())
    assert [row.name for row in rows] == list(published.figures())
    for row in rows:
        assert row.why or float(row.published) == row.ours, row
        if row.ours is not None:
            assert row.ours == pytest.approx(float(row.published), rel=4e-3), row
    assert sum(row.ours is not None for row in rows) >= 15


def test_the_tables_count_the_autoencoder_as_its_authors_but_for_their_term(published: ModuleType) -> None:
    """640 fewer of every procedure: the error, which is subtracted and multiplied with nothing."""
    for procedure, maccs in (("bp", 711_296), ("pepita", 1_202_816), ("mempepita", 1_467_008)):
        assert published.maccs(procedure) == maccs - 640


def test_the_authors_rule_can_be_executed(published: ModuleType) -> None:
    """Without gradients in memory a step takes their weights and buffers, in fp32, and the input beside them."""
    taken = {(procedure, plan): (weights, arena) for procedure, plan, weights, arena, _ in published.executed()}
    weights, arena = taken["bp", "epilogue-update"]
    assert weights == int(published.figures()["pau-ae-parameters"]["value"])
    assert arena <= published.buffers("bp") + 1
    assert taken["bp", "fused-update"][1] > arena + 640 * 128 - 2 * 640
    assert arena < taken["pepita", "epilogue-update"][1] < taken["mempepita", "epilogue-update"][1]
