"""The leading singular vectors of a matrix as lines of a step: the table of singular_vectors.table, for given axes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files

from learncost.ir.line import Meta, Product
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.layers.layer import layer
from learncost.procedures.needed import needed

_FILE = "singular_vectors.table"


def singular_vectors(
    matrix: Term, stack: Axes, rows: str, side: Axes, made: Term, meta: Meta
) -> tuple[list[Statement], dict[str, Value]]:
    """The lines that make `made`, [stack, side, rank], of a matrix: its singular vectors along a side, largest first.

    stack  the axes of a stack of matrices
    rows   the axis whose entries are rows that are rotated: that side, or all of the other one
    side   the axes along which the vectors lie
    """
    others = tuple(axis for axis in matrix.declared if axis not in (*stack, rows))
    again = f"{rows}'"
    while again in matrix.declared:
        again += "'"
    table = _table(stack, rows, again, others, "P" if side == (rows,) else "Q")
    rank = made.declared[-1]
    names = {name: f"{made.name}:{name}" for name in table.values} | {table.outputs[0]: made.name}
    axes = {_RANK: rank}
    lines: list[Statement] = []
    first = Term(names["X"], (*stack, rows, *others))
    if first.axes == matrix.axes:
        names["X"] = matrix.name
    else:
        lines.append(Product((first,), (matrix,), (), meta))
    for line in table.lines:
        if isinstance(line, Loop):
            lines.append(_of(made.name, line.renamed(names), meta))
        else:
            lines.append(replace(line.renamed(names, axes), meta=meta))
    values = {
        names[name]: replace(value, axes=tuple(axes.get(a, a) for a in value.axes), of=names.get(value.of, value.of))
        for name, value in table.values.items()
        if names[name] != matrix.name
    }
    values[made.name] = Value(made.declared)
    return lines, values


_RANK = "rank"


@cache
def _table(stack: Axes, rows: str, again: str, others: Axes, wanted: str) -> Table:
    """The table with these axes for its letters, and the lines that the vectors of one side need."""
    _, header, body = re.split(r"^(singular_vectors.*\n)", _text(), maxsplit=1, flags=re.MULTILINE)
    letters = {"_": " ".join(stack), "d": rows, "c": again, "f": " ".join(others), "r": _RANK}
    table = layer(header + re.sub(r"(?<![\w.'])(_|d|c|f|r)(?![\w.'])", lambda found: letters[found[1]], body)).table
    return needed(replace(table, outputs=tuple(name for name in table.outputs if name == wanted)), (wanted,))


@cache
def _text() -> str:
    return (files("learncost.procedures") / _FILE).read_text(encoding="utf-8")


def _of(owner: str, repeat: Loop, meta: Meta) -> Loop:
    """The repeat with names of its own, which no other matrix has: what is executed is told by a line's name."""
    iterations = repeat.with_own({name: f"{owner}:{name}" for name in repeat.inside})
    lines = (
        _of(owner, line, meta) if isinstance(line, Loop) else replace(line, meta=meta) for line in iterations.lines
    )
    return replace(iterations, lines=tuple(lines))
