"""The loops of a kernel: every node of the schedule as a nest of loops, with the reductions that end with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from learncost.backends.c import tree
from learncost.backends.c.along import along, op_of
from learncost.backends.c.arrays import Arrays
from learncost.backends.c.numbers import Numbers, primitive
from learncost.backends.c.schedule import LoopNode, ScheduledValue
from learncost.backends.c.tree import ZERO, times
from learncost.ir.errors import InputError
from learncost.ir.term import Literal
from learncost.ops import entry


def nests(arrays: Arrays, node: LoopNode) -> Iterator[tree.CStatement]:
    """What the schedule puts into one node: a nest for every scatter, and one for all else."""
    schedule = arrays.schedule
    roots = [value for value in arrays.values.values() if _is_here(arrays, value, node)]
    for value in roots:
        if value.kind == "scatter":
            yield zero(arrays, value, schedule.inner(value.axes), node.place.phase)
            yield from _nest(arrays, node, [value], independent=False)
        elif value.kind in ("scan", "choice"):
            yield from along(Numbers(arrays, node), value)
    together = [value for value in roots if value.kind not in ("scatter", "scan", "choice")]
    if together:
        yield from _nest(arrays, node, together, independent=True)


def zero(arrays: Arrays, value: ScheduledValue, axes: Sequence[str], phase: int | None = None) -> tree.CStatement:
    """Zeros along these axes of a value, at the present position along the others."""
    statement: tree.CStatement = tree.Store(arrays.address(value, arrays.positions), ZERO)
    for axis in reversed(axes):
        statement = arrays.loop(axis, [statement], phase)
    return statement


def scaled(arrays: Arrays, value: ScheduledValue) -> tree.CStatement:
    """A sum over all turns, where it lies, multiplied by what it is multiplied by."""
    to = arrays.address(value, arrays.positions)
    numbers = Numbers(arrays, LoopNode(value.at, ()))
    statement: tree.CStatement = tree.Store(to, times(to, *(numbers.number(factor, {}) for factor in value.late)))
    for axis in reversed(value.axes):
        statement = arrays.loop(axis, [statement])
    return statement


def _is_here(arrays: Arrays, value: ScheduledValue, node: LoopNode) -> bool:
    if value.kind == "pointwise":
        return value.stored and value.spec == node
    return value.kind != "product" and node == LoopNode(value.at, arrays.schedule.inner(value.space))


def _order(arrays: Arrays, node: LoopNode, roots: Sequence[ScheduledValue]) -> list[str]:
    """The loops from the outermost in: the axes of reductions' results first, else as the arrays lie in memory."""
    inner, space = arrays.schedule.inner, node.space
    order: list[str] = []
    for value in sorted(roots, key=lambda value: value.kind not in ("sum", "extreme")):
        loops = inner(value.axes)
        order += loops if value.kind == "extreme" or len(loops) < len(space) else ()
    for value in roots:
        for axes in (value.axes, *(term.loops for term in value.line.right)):
            order += inner(axes)
    return [axis for axis in dict.fromkeys((*order, *space)) if axis in space]


def _nest(
    arrays: Arrays, node: LoopNode, roots: Sequence[ScheduledValue], independent: bool
) -> Iterator[tree.CStatement]:
    """Loops around what is computed; numbers that are summed there are set before the loops that sum them."""
    order = _order(arrays, node, roots)
    outer: dict[str, int] = {}  # how many loops go over the result's own axes, where the others are inside of them
    for value in roots:
        if value.kind in ("sum", "extreme"):
            loops = arrays.schedule.inner(value.axes)
            if len(loops) < len(order) and set(order[: len(loops)]) == set(loops):
                outer[value.name] = len(loops)
                continue
            if value.kind == "extreme":
                raise InputError(f"a kernel cannot take the largest along an outer axis, in line: {value.line}")
            if not (value.added or value.shared):
                yield zero(arrays, value, arrays.schedule.inner(value.axes), node.place.phase)
            independent = independent and (not order or order[-1] in loops)
    numbers = Numbers(arrays, node)
    partial = {value.name: _partial(numbers, value) for value in roots if value.name in outer}
    body: list[tree.CStatement] = [tree.SimultaneousStores(tuple(_store(numbers, value, partial) for value in roots))]
    for i, axis in reversed([*enumerate(order)]):
        ending = [value for value in roots if outer.get(value.name) == i]
        sums = [partial[value.name] for value in ending]
        first = [tree.Let(s.name, s.type, s.value, s.key, changes=True) for s in sums]
        loop = arrays.loop(axis, body, node.place.phase, independent and i == len(order) - 1)
        body = [*first, loop, *(end for value in ending for end in _ends(arrays, value, partial[value.name]))]
    yield from body


def _partial(numbers: Numbers, value: ScheduledValue) -> tree.Named:
    """The number that a reduction adds to; where it is complete in the end, it is the value at this position."""
    arrays = numbers.arrays
    at = tuple(arrays.positions[axis] for axis in value.axes)
    key = ("part" if value.added or value.shared else "made", value.name, *at)
    first = numbers.number(Literal(op_of(value).outside or 0.0), {}) if value.kind == "extreme" else ZERO
    return tree.Named(key, arrays.names.of(value.name), arrays.real, first)


def _ends(arrays: Arrays, value: ScheduledValue, number: tree.Named) -> Iterator[tree.CStatement]:
    """The loop is over: the result goes to memory where others read it from there."""
    if value.stored or value.added or value.shared:
        yield _put(arrays, value, number, value.added or value.shared)


def _store(numbers: Numbers, value: ScheduledValue, partial: Mapping[str, tree.Named]) -> tree.Store:
    """What is done for a root in the innermost loop."""
    arrays, positions = numbers.arrays, numbers.arrays.positions
    if value.kind == "pointwise":
        return _put(arrays, value, numbers.value_at(value, positions))
    factors = (operand for operand in value.line.right if operand not in value.late)
    number = arrays.summand(times(*(numbers.number(factor, positions) for factor in factors)))
    if value.kind == "scatter":
        left = value.line.left[0]
        to = arrays.address(value, numbers.inside(value, left, positions))
        return tree.Store(to, numbers.written(left, number, positions), "+=")
    if value.kind == "extreme":
        both = (number, partial[value.name])
        return tree.Store(partial[value.name], primitive(entry(op_of(value).by), both, arrays.real))
    if value.name in partial:
        return tree.Store(partial[value.name], number, "+=")
    return _put(arrays, value, number, add=True)


def _put(arrays: Arrays, value: ScheduledValue, number: tree.Expression, add: bool = False) -> tree.Store:
    """Put a number where the value lies, at the present position."""
    to = arrays.address(value, arrays.positions)
    return tree.Store(to, number, "+=") if add else tree.Store(to, arrays.narrowed(number, to.array.type))
