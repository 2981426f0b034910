"""Classify lines by their axes: moves, library products, and axes that can be merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learncost.backends.c.common_subexpressions import is_reduction, needs
from learncost.ir.affine import Affine
from learncost.ir.dataclass import replace
from learncost.ir.line import Line, MatmulDims, Op, Product, sides
from learncost.ir.term import Literal, Operand, Read, Term


def is_move(line: Line) -> bool:
    """Return whether every element of the result depends on one point."""
    return not is_reduction(line) and not line.left[0].indexed


def sides_within(line: Line, fixed: set[str]) -> MatmulDims:
    """Return the MatmulDims of a product inside of an iteration with some fixed axes."""
    factors = (*line.right, line.left[0])
    first, second, result = ([axis for axis in term.loops if axis not in fixed] for term in factors)
    return sides(first, second, result)


def is_library(line: Line, fixed: set[str]) -> bool:
    """Return whether the line is a true matrix product inside of an iteration."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.left[0].indexed:
        return False
    if any(isinstance(term, Literal) or term.indexed for term in line.right):
        return False
    return sides_within(line, fixed).are_of_matrices


def is_ended(line: Line) -> bool:
    """Return whether the line is a matrix product of a kernel over its elements, which is then tiled."""
    iterations = set(line.meta.kernel.axes if line.meta.kernel else ())
    return is_library(line, set()) and iterations == {*line.left[0].loops}


def groups(lines: Sequence[Line], apart: frozenset[str], iterations: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Map every axis of a group of always adjacent axes to the group."""
    following: dict[str, set[str]] = {}
    loose = set(apart)
    for line in lines:
        loose |= {axis for condition in line.where for axis in condition.axes}
        if isinstance(line, Op) and line.op == "eye":
            loose |= set(line.loops)
        if isinstance(line, Op) and line.axes:
            loose |= set(line.axes) if len(line.axes) == 1 else set()
        for term in (*line.left, *(term for term, _ in needs(line))):
            for i, axis in enumerate(term.axes):
                if isinstance(axis, Read):
                    loose |= {axis.axis, *(axis.at.loops if isinstance(axis.at, Affine) else ())}
                    continue
                after = term.axes[i + 1] if i + 1 < len(term.axes) else ""
                following.setdefault(axis, set()).add(after if isinstance(after, str) else "")
    before: dict[str, set[str]] = {}
    for line in lines:
        for term in (*line.left, *(term for term, _ in needs(line))):
            for i, axis in enumerate(term.axes):
                if isinstance(axis, str):
                    prior = term.axes[i - 1] if i else ""
                    before.setdefault(axis, set()).add(prior if isinstance(prior, str) else "")

    def follower(axis: str) -> str:
        (after, *more) = following.get(axis, {""})
        alone = more or not after or axis in loose or after in loose or (axis in iterations) != (after in iterations)
        return "" if alone or before.get(after) != {axis} else after

    result: dict[str, tuple[str, ...]] = {}
    for axis in following:
        if axis in result or any(follower(other) == axis for other in following):
            continue
        chain = [axis]
        while (after := follower(chain[-1])) and after not in chain:
            chain.append(after)
        result.update(dict.fromkeys(chain, tuple(chain)))
    return {axis: chain for axis, chain in result.items() if len(chain) > 1}


def joined(lines: Sequence[Line], grouped: Mapping[str, tuple[str, ...]]) -> list[Line]:
    """Return the lines with every group of axes merged into one axis."""

    def axis(given_axis: str | Read) -> str | Read:
        if isinstance(given_axis, Read):
            return Read(given_axis.axis, term(given_axis.at)) if isinstance(given_axis.at, Term) else given_axis
        return " ".join(grouped.get(given_axis, (given_axis,)))

    def term(old: Term) -> Term:
        first = (
            axis_or_read
            for axis_or_read in old.axes
            if isinstance(axis_or_read, Read) or grouped.get(axis_or_read, (axis_or_read,))[0] == axis_or_read
        )
        return Term(old.name, tuple(map(axis, first)))

    def operand(old: Operand) -> Operand:
        return term(old) if isinstance(old, Term) else old

    return [replace(line, left=tuple(map(term, line.left)), right=tuple(map(operand, line.right))) for line in lines]
