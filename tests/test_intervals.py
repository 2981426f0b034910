"""Intervals out of published runs: percentiles as NumPy has them, whole sources set aside, and what is said of few."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from learncost.devices import assumptions
from learncost.devices.assumptions import (
    FEWEST_ROWS,
    NEEDED,
    Observation,
    groups,
    interval_coverage,
    power_groups,
    powers,
    trusted,
    typical,
    utilizations,
)
from learncost.devices.device import devices


@pytest.fixture(scope="module")
def intervals():
    path = Path(__file__).parent.parent / "benchmarks" / "intervals.py"
    spec = importlib.util.spec_from_file_location("intervals", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["intervals"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["intervals"]


def test_nine_in_ten_of_the_sources_set_aside_are_inside(intervals):
    cases = list(intervals.set_aside(utilizations()))
    whole_runs = [case for case in cases if "whole runs" in case.row.groups]
    assert len(cases) > 400
    assert len({case.row.source for case in cases}) >= 30
    for some_cases in (cases, whole_runs):
        coverage = intervals.coverage(some_cases)
        assert coverage.held >= NEEDED
        assert coverage.held_of_sources >= NEEDED
        assert coverage.width < 8  # the old one of 2.2 held four in ten


def test_the_page_has_what_the_benchmark_prints(intervals):
    page = (Path(__file__).parent.parent / "docs" / "run-cost.md").read_text(encoding="utf-8")
    cases = list(intervals.set_aside(utilizations()))
    rows = {
        "utilization, all": cases,
        "fine-tuning": [case for case in cases if "fine-tuning" in case.row.groups],
        "steps of clusters": [case for case in cases if "steps of clusters" in case.row.groups],
        "steps of one server": [case for case in cases if "steps of one server" in case.row.groups],
        "whole runs, so device-hours": [case for case in cases if "whole runs" in case.row.groups],
        "power": list(intervals.set_aside(powers())),
    }
    for name, row in rows.items():
        coverage = intervals.coverage(row)
        shares = f"{100 * coverage.held:.1f} % | {100 * coverage.held_of_sources:.1f} %"
        assert f"| {name} | {coverage.rows} | {coverage.sources} | {shares} | {coverage.width:.1f} |" in page


def test_the_benchmark_prints_coverage_and_width(intervals, capsys):
    intervals.main()
    out = capsys.readouterr().out
    assert "Device-hours of whole runs" in out
    assert "below nine in ten" in out  # power, which five sources do not tell
    assert "fewer than ten" in out


@pytest.mark.parametrize("name", devices())
def test_no_interval_is_wider_than_the_percentiles_of_its_rows(name):
    device = lc.device(name)
    for rows, group_names in (
        (utilizations(), groups(device.family, "whole runs")),
        (utilizations(), groups(device.family, "fine-tuning")),
        (powers(), power_groups(device)),
    ):
        evidence = trusted(rows, group_names)
        values = [row.value for row in rows if evidence.group in row.groups]
        assert (evidence.low, evidence.high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))
        assert evidence.rows == len(values)
        assert ("fewer than" in evidence.many) == (len(values) < FEWEST_ROWS)
        assert str(len(values)) in evidence.many
    mfu = assumptions.mfu(device)
    assert 0 < mfu.low <= mfu.value <= mfu.high < 1
    assert "published numbers of" in mfu.source


def test_what_is_held_by_hand():
    """Three sources, two alike and one apart."""
    rows = tuple(
        Observation(source, value, ("all",))
        for source, values in {"a": (1.0, 2.0, 3.0), "b": (1.0, 2.0, 3.0), "c": (2.0, 9.0)}.items()
        for value in values
    )
    # Set aside a: of 1, 2, 3, 2, 9 from 1.0 x to 8.4; 1 is outside (the 2.5th percentile is 1.1). So is b's.
    # Set aside c: of 1, 1, 2, 2, 3, 3 from 1 to 3: 2 is inside, 9 is not.
    assert interval_coverage(rows) == pytest.approx(min(5 / 8, (2 / 3 + 2 / 3 + 1 / 2) / 3))


def test_the_narrowest_group_that_holds_what_is_set_aside():
    identical = [Observation(f"s{place % 5}", 1 + place % 7, ("own", "all")) for place in range(70)]
    apart = [Observation(f"t{place % 5}", 100.0 * (place % 5), ("other", "all")) for place in range(20)]
    rows = (*identical, *apart)
    assert trusted(rows, ("own", "all")).group == "own"
    few = (*identical, Observation("one", 5.0, ("few", "all")))
    assert typical(few, ("few", "all")).group == "all"  # one number of one source says little
    assert trusted(few, ("few", "all")).group == "all"


def test_the_screen_says_on_which_runs_it_rests():
    text = " ".join(str(lc.run_cost("gpt2", 10**9, "H100 SXM", 8)).split())
    assert "published numbers of 30 sources (all that are known)" in text
    assert "leave-one-source-out coverage: 92%" in text
    assert "Run time uses the modelled steps" in text
