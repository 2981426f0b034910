"""Eliminate dead code: remove the lines, inputs and weights that a table's outputs do not need."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.ir.dataclass import replace
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.table import Table


def needed(table: Table, outputs: Iterable[str]) -> Table:
    """Return the table with only the lines, inputs, weights and values that these outputs need."""
    outputs = tuple(outputs)
    needed_names = set(outputs)
    lines = _lines(table.lines, needed_names)
    names = needed_names | {name for line, _ in walk(lines) for name in (*line.reads, *line.makes)}
    names |= {name for line in lines for name in line.makes}  # a loop may have unread outputs
    return replace(
        table,
        lines=lines,
        values={name: value for name, value in table.values.items() if name in names},
        inputs=tuple(name for name in table.inputs if name in needed_names),
        weights=tuple(name for name in table.weights if name in needed_names),
        outputs=outputs,
    )


def _lines(lines: Iterable[Statement], needed_names: set[str]) -> tuple[Statement, ...]:
    """Return the lines that compute the wanted names; the names that these lines read are added to `wanted`."""
    result: list[Statement] = []
    for line in reversed(tuple(lines)):
        if isinstance(line, Loop):
            repeat = _repeat(line, needed_names)
            if repeat is None:
                continue
            line = repeat
        elif needed_names.isdisjoint(line.makes):
            continue
        needed_names.update(line.reads)
        result.append(line)
    return tuple(reversed(result))


def _repeat(line: Loop, needed_names: set[str]) -> Loop | None:
    keep = tuple(pair for pair in line.keep if pair[1] in needed_names)
    carry = tuple(carried for carried in line.carry if carried.final in needed_names)
    if not keep and not carry:
        return None
    while True:
        inside = {name for name, _ in keep} | {carried.end for carried in carry}
        body = _lines(line.lines, inside)
        more = tuple(carried for carried in line.carry if carried in carry or carried.start in inside)
        if more == carry:
            break
        carry = more
    each = tuple(pair for pair in line.each if pair[0] in inside)
    return replace(line, lines=body, carry=carry, each=each, keep=keep)
