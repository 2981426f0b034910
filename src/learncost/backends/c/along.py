"""Words that go along an axis place by place: sums up to each place, and the places that are chosen of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays
from learncost.backends.c.numbers import Numbers
from learncost.backends.c.schedule import ScheduledValue
from learncost.backends.c.tree import ONE, ZERO, chosen, joined, larger, minus
from learncost.ir.line import Op
from learncost.ops import OpDef, entry


def op_of(value: ScheduledValue) -> OpDef:
    """The word that a value is made by."""
    assert isinstance(value.line, Op)
    return entry(value.line.op)


def along(numbers: Numbers, value: ScheduledValue) -> Iterator[tree.CStatement]:
    """Loops over all other axes around what goes along one."""
    assert isinstance(value.line, Op)
    arrays, (axis,) = numbers.arrays, value.line.axes
    (term,) = value.line.right
    result_axis = next(
        (candidate for candidate in value.axes if candidate == axis or candidate not in term.loops), ""
    )  # of the result, if it has one
    body = _scan(numbers, value, axis) if value.kind == "scan" else _choice(numbers, value, axis, result_axis)
    yield from _loops(arrays, [loop for loop in arrays.schedule.inner(value.axes) if loop != result_axis], body)


def _loops(arrays: Arrays, axes: Sequence[str], body: Sequence[tree.CStatement]) -> Sequence[tree.CStatement]:
    """Loops over the axes, the first outermost."""
    for axis in reversed(axes):
        body = (arrays.loop(axis, body),)
    return body


def _variable(arrays: Arrays, value: ScheduledValue, ending: str) -> tree.NameExpression:
    return tree.NameExpression(arrays.names.of(f"{value.name}.{ending}", "along"))


def _scan(numbers: Numbers, value: ScheduledValue, axis: str) -> Sequence[tree.CStatement]:
    """A sum that is stored at each place."""
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
    """Place after place: of those behind the last one in the order of values, and of places of one value, the first."""
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
