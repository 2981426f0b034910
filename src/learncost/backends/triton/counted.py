"""Write choices and scans as sums over pairs of positions, which kernels compute like all other sums."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.term import Axis, Literal, Operand, Term
from learncost.ops import applied, entry

ZERO = Literal(0.0)
MARK = "''''"
"""The end of the name of a second axis of the same size, whose positions are compared with those of the first."""


def counted(line: Line) -> Iterator[Line]:
    """Yield the lines that a choice or a scan is; every other line as it is.

    A cumulative sum adds up the elements at no later positions. A choice counts the elements that come before each one,
    which is its rank, and adds up the positions of the elements that have the rank of the result's place.
    """
    if not isinstance(line, Op) or entry(line.op).kind not in ("choice", "scan") or line.part != "body":
        yield line
        return
    row, numbers = entry(line.op), count(1)
    (x,), left, (axis,) = line.right, line.left[0], line.axes
    assert isinstance(x, Term)
    one, two = axis + MARK, axis + MARK + "'"
    other = tuple(each for each in x.axes if each != axis)

    def term(*axes: Axis) -> Term:
        return Term(f"{line.name}~c{next(numbers)}", axes)

    def at(place: str) -> Term:
        return Term(x.name, tuple(place if each == axis else each for each in x.axes))

    def positions(of: str) -> Iterator[Line]:
        """Yield the lines of the positions along an axis: how many there are before each."""
        before, place = term(of, f"{of}'{MARK}"), term(of)
        yield Op((before,), (), (Condition(f"{of}'{MARK}", of, "<"),), line.meta, "inside", gives=("Y",))
        yield Product((place,), (before,), (), line.meta)

    def select(made: Term, of: Operand, condition: Condition) -> Line:
        line_of = applied("select", made, (of, ZERO), line.meta)
        return line_of.with_changed(where=(condition,))

    if row.kind == "scan":
        no_later = Condition(axis, one) if row.backwards else Condition(one, axis)
        part = term(*left.axes, one)
        yield select(part, at(one), no_later)
        yield Product((left,), (part,), (), line.meta)
        return
    less, equal, earlier, ahead = (term(*other, one, two) for _ in range(4))
    yield applied("less", less, (at(one), at(two)) if row.largest else (at(two), at(one)), line.meta)
    yield applied("equal", equal, (at(one), at(two)), line.meta)
    yield select(earlier, equal, Condition(two, one, "<"))
    yield Sum((ahead,), (less, earlier), (), line.meta, (1, 1))
    rank = term(*other, one)
    yield Product((rank,), (ahead,), (), line.meta)
    *first, of_element = positions(one)
    yield from (*first, of_element)
    places = [each for each in left.axes if each not in other]
    wanted: Operand = ZERO
    if places:
        *first, of_place = positions(str(places[0]))
        yield from (*first, of_place)
        wanted = of_place.left[0]
    is_chosen = term(*left.axes, one)
    yield applied("equal", is_chosen, (rank, wanted), line.meta)
    yield Product((left,), (is_chosen, of_element.left[0]), (), line.meta)
