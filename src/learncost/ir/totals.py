"""Accumulators that start at zero, such as gradients of shared values: the first summand is not added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from learncost.ir.line import Line, Op, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.term import Term


def empty(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the names that hold only zeros, in the scope of these lines."""
    return frozenset(line.name for line in lines if isinstance(line, Op) and line.op == "zeros")


def begun(repeat: Loop, nothing: Set[str]) -> frozenset[str]:
    """Return the loop-carried accumulators that start as one of the names of zeros around the loop."""
    return frozenset(c.start for c in repeat.carry if c.initial in nothing and _is_total(repeat, c))


def added(line: Line, nothing: Set[str]) -> Line:
    """Return a line of the first iteration without the accumulators that are still zero."""
    if isinstance(line, Sum) and nothing & {*line.reads}:
        right = tuple(term for term in line.right if isinstance(term, Term) and term.name not in nothing)
        return line.with_changed(right=right, signs=(1,))
    return line


def beginnings(lines: Iterable[Statement]) -> Iterator[tuple[Line, tuple[str, ...]]]:
    """Yield the sums that add to an accumulator, with the counts of the loops that restart it."""
    return _beginnings(tuple(lines), {}, ())


def _beginnings(
    lines: tuple[Statement, ...], around: dict[str, tuple[str, ...]], iterations: tuple[str, ...]
) -> Iterator[tuple[Line, tuple[str, ...]]]:
    since = around | dict.fromkeys(empty(lines), iterations)
    for line in lines:
        if isinstance(line, Loop):
            starts = begun(line, since.keys())
            inside = {c.start: since[c.initial] for c in line.carry if c.start in starts}
            yield from _beginnings(line.lines, inside, (*iterations, line.count))
        elif isinstance(line, Sum) and (names := around.keys() & {*line.reads}):
            yield line, around[names.pop()]


def _is_total(repeat: Loop, carry: Carry) -> bool:
    """Return whether iterations only add to a loop-carried value: one line reads it, a sum with another value."""
    readers = [line for line in repeat.lines if carry.start in line.reads]
    if len(readers) != 1:
        return False
    (line,) = readers
    if isinstance(line, Loop):
        inner = [c for c in line.carry if c.initial == carry.start]
        read = {*line.shared, *(stack for _, stack in line.each)}
        return len(inner) == 1 and carry.start not in read and _is_total(line, inner[0])
    if not isinstance(line, Sum) or line.where or line.signs != (1, 1):
        return False
    plain = all(isinstance(term, Term) and not term.indexed for term in (*line.left, *line.right))
    return plain and len({frozenset(term.loops) for term in (*line.left, *line.right)}) == 1
