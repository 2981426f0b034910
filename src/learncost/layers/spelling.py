"""Substitute the axes of an op into the lines of its table, and find operands that have gradients.

If a value is read one position at a time, such as a stack of blocks' weights, the parts of its gradient do not overlap,
so they are concatenated instead of added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from learncost.ir.affine import Affine, AffineTerm, total
from learncost.ir.line import Line, Meta, Op, Sum
from learncost.ir.loop import Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.term import Axis, Read, Term
from learncost.ops import entry


def operand(line: Line, i: int) -> Term:
    """Return an operand of a line, which must be a named value."""
    term = line.right[i]
    assert isinstance(term, Term)
    return term


def differentiable(line: Line) -> list[int]:
    """Return the numbers of the operands that can have a gradient."""
    terms = [i for i, term in enumerate(line.right) if isinstance(term, Term)]
    if isinstance(line, Op):
        if line.part != "body" or line.opaque:
            return terms if line.part == "body" else []
        gradients = {term.name for line in entry(line.op).gradient for term in line.left}
        return [i for i in terms if f"d{line.given[i]}" in gradients]
    return terms


def primed(axis: str, used: Iterable[str]) -> str:
    """Return an unused name for another axis of the same size, by appending primes."""
    used = set(used)
    axis += "'"
    while axis in used:
        axis += "'"
    return axis


def condition_names(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the names of boolean values, which an op reads as a condition."""
    bodies = (line for line, _ in walk(lines) if isinstance(line, Op) and line.part == "body")
    return frozenset(
        term.name
        for line in bodies
        if line.right
        for term, name in zip(line.right, line.given, strict=False)
        if name in entry(line.op).conditions
    )


def spell(axes: Iterable[str], line: Op, second: Mapping[str, str] = {}) -> tuple[str, ...]:
    """Return the axes of a line of an op's body, with the axes of the op's call substituted for `_`, `n` and `n'`."""
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
    """Return the metadata of a line that adds parts of a gradient, derived from that of a line which reads the
    value."""
    return Meta(meta.layer, meta.block, phase, local="merge", binding=meta.binding, module=meta.module)


ONE = "1"
"""The name of an axis of length 1, which is also its size, as for stacks of one iteration."""


def place_of(axis: Axis) -> int | None:
    """Return the fixed position at which an axis is read; None if it is read in any other way."""
    at = axis.at if isinstance(axis, Read) else None
    if not isinstance(at, Affine) or not at.fixed or at.sizes:
        return None
    return sum(part.factor for part in at.parts)


def tiled(terms: Sequence[Term], sizes: Mapping[str, int]) -> int | None:
    """Return the number of an axis along which each term reads a single position and the terms together read all; None
    if there is none."""
    for number, axes in enumerate(zip(*(term.axes for term in terms), strict=True)):
        places = {place_of(axis) for axis in axes}
        axis = axes[0]
        if isinstance(axis, Read) and len(places) > 1 and places == {*range(sizes.get(base(axis.axis), 0))}:
            return number
    return None


def read_place_by_place(lines: Iterable[Statement], sizes: Mapping[str, int]) -> set[str]:
    """Return those axes with known sizes along which some value is read at single positions that together cover the
    axis."""
    read: dict[str, list[Term]] = {}
    for line, _ in walk(lines) if sizes else ():
        for term in line.right:
            if isinstance(term, Term) and term.indexed:
                read.setdefault(term.name, []).append(term)
    return {base(axis) for terms in read.values() for axis in _tiled_axes(terms, sizes)}


def _tiled_axes(terms: Sequence[Term], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the axes along which the reads of a value are tiles that cover it, and recursively those within each
    tile."""
    number = tiled(terms, sizes)
    if number is None:
        return
    yield terms[0].declared[number]
    tiles: dict[int | None, list[Term]] = {}
    for term in terms:
        tiles.setdefault(place_of(term.axes[number]), []).append(Term(term.name, with_one(term.axes, number)))
    for tile in tiles.values():
        yield from _tiled_axes(tile, sizes)


def with_one(axes: Sequence[Axis], number: int) -> tuple[Axis, ...]:
    """Return the axes with one of them replaced by an axis of length 1."""
    one = primed(ONE, map(str, axes)) if ONE in axes else ONE
    return (*axes[:number], one, *axes[number + 1 :])


def stacking_line(left: Term, names: Iterable[str], number: int, meta: Meta) -> Line:
    """Return a line that concatenates arrays along an axis in which each has length 1."""
    along = str(left.axes[number])
    declared = with_one(left.axes, number)
    one = str(declared[number])
    terms = []
    for start, name in enumerate(names):
        at = Affine(total((AffineTerm(1, (), along), AffineTerm(-start, (ONE,)))))
        terms.append(Term(name, (*declared[:number], Read(one, at), *declared[number + 1 :])))
    return Sum((left,), tuple(terms), (), meta, (1,) * len(terms))
