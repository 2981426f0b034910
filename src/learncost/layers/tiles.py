"""Gradients of values that are read place by place, as a stack of blocks' weights is.

No two parts of such a gradient have a place in common, so they stand one behind another, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from learncost.ir.affine import Affine, AffineTerm, total
from learncost.ir.line import Line, Meta, Sum
from learncost.ir.loop import Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.term import Axis, Read, Term
from learncost.layers.spelling import primed

ONE = "1"
"""What an axis of one place is called: by its size, as stacks of so many turns are."""


def place_of(axis: Axis) -> int | None:
    """The number at which an axis is read; None of one that is not."""
    at = axis.at if isinstance(axis, Read) else None
    if not isinstance(at, Affine) or not at.fixed or at.sizes:
        return None
    return sum(part.factor for part in at.parts)


def tiled(terms: Sequence[Term], sizes: Mapping[str, int]) -> int | None:
    """The axis of a value along which terms read single places, all of them that there are; None where none is so."""
    for number, axes in enumerate(zip(*(term.axes for term in terms), strict=True)):
        places = {place_of(axis) for axis in axes}
        axis = axes[0]
        if isinstance(axis, Read) and len(places) > 1 and places == {*range(sizes.get(base(axis.axis), 0))}:
            return number
    return None


def read_place_by_place(lines: Iterable[Statement], sizes: Mapping[str, int]) -> set[str]:
    """Axes of these sizes of which a value is read at single places, at all that there are."""
    read: dict[str, list[Term]] = {}
    for line, _ in walk(lines) if sizes else ():
        for term in line.right:
            if isinstance(term, Term) and term.indexed:
                read.setdefault(term.name, []).append(term)
    return {base(axis) for terms in read.values() for axis in _tiled_axes(terms, sizes)}


def _tiled_axes(terms: Sequence[Term], sizes: Mapping[str, int]) -> Iterator[str]:
    """The axes along which reads of a value are tiles, and those along which what is read in a tile is tiles again."""
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
    """Axes of which one has one place."""
    one = primed(ONE, map(str, axes)) if ONE in axes else ONE
    return (*axes[:number], one, *axes[number + 1 :])


def behind_another(left: Term, names: Iterable[str], number: int, meta: Meta) -> Line:
    """A line that has arrays of one place each, one behind another along an axis."""
    along = str(left.axes[number])
    declared = with_one(left.axes, number)
    one = str(declared[number])
    terms = []
    for start, name in enumerate(names):
        at = Affine(total((AffineTerm(1, (), along), AffineTerm(-start, (ONE,)))))
        terms.append(Term(name, (*declared[:number], Read(one, at), *declared[number + 1 :])))
    return Sum((left,), tuple(terms), (), meta, (1,) * len(terms))
