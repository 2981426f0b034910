"""How a line of a word's table is spelled with the axes of the word's own line, and which operands have gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.ir.line import Line, Meta, Op
from learncost.ir.loop import Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.term import Term
from learncost.ops import entry


def operand(line: Line, i: int) -> Term:
    """An operand that is a named value."""
    term = line.right[i]
    assert isinstance(term, Term)
    return term


def differentiable(line: Line) -> list[int]:
    """Which operands on the right can have a gradient."""
    terms = [i for i, term in enumerate(line.right) if isinstance(term, Term)]
    if isinstance(line, Op):
        if line.part != "body" or line.opaque:
            return terms if line.part == "body" else []
        gradients = {term.name for line in entry(line.op).gradient for term in line.left}
        return [i for i in terms if f"d{line.given[i]}" in gradients]
    return terms


def primed(axis: str, used: Iterable[str]) -> str:
    """A second axis of an axis's size, beside those that are there."""
    used = set(used)
    axis += "'"
    while axis in used:
        axis += "'"
    return axis


def condition_names(lines: Iterable[Statement]) -> frozenset[str]:
    """Names of values that hold or not at each element: those that a word asks whether they do."""
    bodies = (line for line, _ in walk(lines) if isinstance(line, Op) and line.part == "body")
    return frozenset(
        term.name
        for line in bodies
        if line.right
        for term, name in zip(line.right, line.given, strict=False)
        if name in entry(line.op).conditions
    )


def spell(axes: Iterable[str], line: Op, second: Mapping[str, str] = {}) -> tuple[str, ...]:
    """The axes of a body's line (`_`, `n`, `n'`) as the word's line has them."""
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
    """What is said of a line that adds parts of a gradient, of a value that a line of this tag reads or makes."""
    return Meta(meta.layer, meta.block, phase, local="merge", binding=meta.binding, module=meta.module)
