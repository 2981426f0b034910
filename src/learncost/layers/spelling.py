"""Substitution of the axes of an op into the lines of its table, and the operands that have gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.ir.line import Line, Meta, Op
from learncost.ir.loop import Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.term import Term
from learncost.ops import entry


def operand(line: Line, i: int) -> Term:
    """Return an operand that is a named value."""
    term = line.right[i]
    assert isinstance(term, Term)
    return term


def differentiable(line: Line) -> list[int]:
    """Return which operands on the right can have a gradient."""
    terms = [i for i, term in enumerate(line.right) if isinstance(term, Term)]
    if isinstance(line, Op):
        if line.part != "body" or line.opaque:
            return terms if line.part == "body" else []
        gradients = {term.name for line in entry(line.op).gradient for term in line.left}
        return [i for i in terms if f"d{line.given[i]}" in gradients]
    return terms


def primed(axis: str, used: Iterable[str]) -> str:
    """Return another axis of an axis's size, with a prime more than those in use."""
    used = set(used)
    axis += "'"
    while axis in used:
        axis += "'"
    return axis


def condition_names(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the names of boolean values: those that an op reads as a condition."""
    bodies = (line for line, _ in walk(lines) if isinstance(line, Op) and line.part == "body")
    return frozenset(
        term.name
        for line in bodies
        if line.right
        for term, name in zip(line.right, line.given, strict=False)
        if name in entry(line.op).conditions
    )


def spell(axes: Iterable[str], line: Op, second: Mapping[str, str] = {}) -> tuple[str, ...]:
    """Return the axes of a body's line (`_`, `n`, `n'`) with the op's own axes substituted."""
    result: list[str] = []
    for axis in axes:
        if axis == "_":
            result.extend(line.others)
        elif base(axis) == "n":
            result.extend(line.axes if axis == "n" else (second[a] for a in line.axes))
        else:
            result.append(axis)
    return tuple(result)


def merging(meta: Meta, phase: str) -> Meta:
    """Return the metadata of a line that adds parts of a gradient, from that of a line with the value."""
    return Meta(meta.layer, meta.block, phase, local="merge", binding=meta.binding, module=meta.module)
