"""Visits to the lines and loops of a table, compared with its text, whose indentation is the depth of a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learncost.ir.loop import Loop, map_lines, map_loops, map_scopes, repeats, visit, walk
from learncost.ir.table import Table
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.passes.plan import planned
from learncost.procedures.step import step

SUBJECTS = {
    "t5-small": "",  # two stacks of blocks
    "gpt2": "recompute=block/3",  # loops in loops
    "mamba-130m": "",  # the loop of a scan inside the blocks
}


@pytest.fixture(params=SUBJECTS, scope="module")
def table(request: pytest.FixtureRequest) -> Table:
    plan = SUBJECTS[request.param]
    made = step(build(configure(request.param)), "bp")
    return planned(made, plan) if plan else made


def depths(table: Table) -> list[tuple[int, str]]:
    """Every line of the text, without its indentation, and how many loops it is in."""
    lines = str(table).splitlines()
    return [((len(line) - len(line.lstrip())) // 2, line.strip()) for line in lines]


def first(text: object) -> str:
    return str(text).splitlines()[0].strip()


def test_every_line_and_loop_is_visited_in_the_order_of_the_text(table):
    assert [(len(nest.loops), first(line)) for line, nest in visit(table.lines)] == depths(table)
    assert [(len(nest.counts), first(line)) for line, nest in walk(table.lines)] == [
        (depth, text) for depth, text in depths(table) if not text.startswith("repeat ")
    ]
    assert [f"repeat {loop.count}" for loop in repeats(table.lines)] == [
        " ".join(text.rstrip(":").split()[:2]) for _, text in depths(table) if text.startswith("repeat ")
    ]


def test_a_slice_of_a_stack_has_its_axes_without_the_trip_counts(table):
    found = 0
    for _, nest in visit(table.lines):
        for name, stack in nest.stacks.items():
            if stack in table.weights:
                inside = [axis for axis in nest.axes[name] if not axis.isdecimal()]  # a number: several slices
                assert [*table.axes[stack][1:]] == inside
                found += 1
    assert found


def test_what_is_rewritten_at_every_depth(table):
    removed = replace(table, lines=map_loops(table.lines, lambda loop: None))
    assert depths(removed) == [(0, text) for depth, text in depths(table) if not depth and text[:7] != "repeat "]
    innermost = replace(table, lines=map_loops(table.lines, lambda loop: loop if loop.repeats else None))
    deepest = max(len(nest.loops) for _, nest in visit(innermost.lines))
    assert deepest == max(depth for depth, _ in depths(table)) - 1 or not deepest
    twice = replace(table, lines=map_lines(table.lines, lambda line: (line, line)))
    assert sorted(depths(twice)) == sorted(
        pair for pair in depths(table) for _ in range(1 if pair[1].startswith("repeat ") else 2)
    )
    backwards = map_scopes(table.lines, lambda lines: reversed(lines))
    assert map_scopes(backwards, lambda lines: reversed(lines)) == table.lines
    flat = [line for line in table.lines if not isinstance(line, Loop)]
    assert [line for line in reversed(backwards) if not isinstance(line, Loop)] == flat
