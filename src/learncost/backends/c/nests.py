"""Build the loops of a kernel: every node of the schedule as a loop nest with its reductions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays
from learncost.backends.c.numbers import Numbers, primitive
from learncost.backends.c.schedule import LoopNode, ScheduledValue
from learncost.backends.c.tree import ONE, ZERO, chosen, joined, larger, minus, times
from learncost.ir.errors import InputError
from learncost.ir.line import Op
from learncost.ir.term import Literal
from learncost.ops import OpDef, entry


def op_of(value: ScheduledValue) -> OpDef:
    """Return the op that computes a value."""
    assert isinstance(value.line, Op)
    return entry(value.line.op)


def along(numbers: Numbers, value: ScheduledValue) -> Iterator[tree.CStatement]:
    """Return loops over all other axes around one axis."""
    assert isinstance(value.line, Op)
    arrays, (axis,) = numbers.arrays, value.line.axes
    (term,) = value.line.right
    # of the result, if it has one
    result_axis = next((candidate for candidate in value.axes if candidate == axis or candidate not in term.loops), "")
    body = _scan(numbers, value, axis) if value.kind == "scan" else _choice(numbers, value, axis, result_axis)
    yield from _loops(arrays, [loop for loop in arrays.schedule.inner(value.axes) if loop != result_axis], body)


def _loops(arrays: Arrays, axes: Sequence[str], body: Sequence[tree.CStatement]) -> Sequence[tree.CStatement]:
    """Return loops over the axes, the first outermost."""
    for axis in reversed(axes):
        body = (arrays.loop(axis, body),)
    return body


def _variable(arrays: Arrays, value: ScheduledValue, ending: str) -> tree.NameExpression:
    return tree.NameExpression(arrays.names.of(f"{value.name}.{ending}", "along"))


def _scan(numbers: Numbers, value: ScheduledValue, axis: str) -> Sequence[tree.CStatement]:
    """Return the loops of a prefix sum, which is stored at each position."""
    arrays, place = numbers.arrays, dict(numbers.arrays.positions)
    if op_of(value).backwards:
        place[axis] = tree.OperationExpression("-", (minus(arrays.size(axis), ONE), place[axis]))
    total, to = _variable(arrays, value, "sum"), arrays.address(value, place)
    steps = (
        tree.Store(total, numbers.number(value.line.right[0], place), "+="),
        tree.Store(to, arrays.narrowed(total, to.array.type)),
    )
    return (tree.Let(total.text, arrays.real, ZERO, changes=True), arrays.loop(axis, steps))


def _choice(numbers: Numbers, value: ScheduledValue, axis: str, result_axis: str) -> Sequence[tree.CStatement]:
    """Return the loops of a choice: for each result, the next index in the order of values, ties by index."""
    arrays, none, sign = numbers.arrays, tree.NameExpression("-1"), ">" if op_of(value).largest else "<"
    last, best, last_number, best_number = (
        _variable(arrays, value, ending) for ending in ("last", "best", "last.number", "best.number")
    )
    at = tree.LoopCounter(_variable(arrays, value, "at").text)
    number = numbers.number(value.line.right[0], {**arrays.positions, axis: at})

    def holds(left: tree.Expression, relation: str, right: tree.Expression) -> tree.Expression:
        return tree.OperationExpression(relation, (left, right))

    tie = joined("&&", [holds(number, "==", last_number), holds(at, ">", last)])
    behind = joined("||", [holds(last, "<", ZERO), holds(last_number, sign, number), tie])
    before = joined("||", [holds(best, "<", ZERO), holds(number, sign, best_number)])
    look = (
        tree.Store(best, chosen(joined("&&", [behind, before]), at, best)),
        tree.Store(best_number, chosen(holds(best, "==", at), number, best_number)),
    )
    step = (
        tree.Let(best.text, "place", none, changes=True),
        tree.Let(best_number.text, arrays.real, ZERO, changes=True),
        tree.ForLoop(at.text, ZERO, arrays.size(axis), look),
        tree.Store(arrays.address(value, arrays.positions), larger(best, ZERO)),
        tree.Store(last, best),
        tree.Store(last_number, best_number),
    )
    return (
        tree.Let(last.text, "place", none, changes=True),
        tree.Let(last_number.text, arrays.real, ZERO, changes=True),
        *_loops(arrays, [result_axis] if result_axis else [], step),
    )


def nests(arrays: Arrays, node: LoopNode) -> Iterator[tree.CStatement]:
    """Return the loop nests of one node: one for every scatter, and one for everything else."""
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
    """Set a value to zero along these axes, at the current position of the others."""
    statement: tree.CStatement = tree.Store(arrays.address(value, arrays.positions), ZERO)
    for axis in reversed(axes):
        statement = arrays.loop(axis, [statement], phase)
    return statement


def scaled(arrays: Arrays, value: ScheduledValue) -> tree.CStatement:
    """Scale a sum over all iterations in place."""
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
    """Return the loop order: axes of reductions' results first, else the memory order of the arrays."""
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
    """Return loops around a computation; sums are initialized before their loops."""
    order = _order(arrays, node, roots)
    outer: dict[str, int] = {}  # the number of loops over the result's axes, with the others inside
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
        added = {value.name: value.added or value.shared for value in ending}
        read = [value for value in ending if value.stored or added[value.name]]  # by others, from memory
        body = [*first, loop, *(_put(arrays, value, partial[value.name], added[value.name]) for value in read)]
    yield from body


def _partial(numbers: Numbers, value: ScheduledValue) -> tree.HoistedValue:
    """Return the accumulator of a reduction, which ends as the value at this position."""
    arrays = numbers.arrays
    at = tuple(arrays.positions[axis] for axis in value.axes)
    key = ("part" if value.added or value.shared else "made", value.name, *at)
    first = numbers.number(Literal(op_of(value).outside or 0.0), {}) if value.kind == "extreme" else ZERO
    return tree.HoistedValue(key, arrays.names.of(value.name), arrays.real, first)


def _store(numbers: Numbers, value: ScheduledValue, partial: Mapping[str, tree.HoistedValue]) -> tree.Store:
    """Return the statements of a root in the innermost loop."""
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
    """Store a number in the value's memory, at the current position."""
    to = arrays.address(value, arrays.positions)
    return tree.Store(to, number, "+=") if add else tree.Store(to, arrays.narrowed(number, to.array.type))
