"""A kernel as one function: its turns, the phases of a turn, what all turns add to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays
from learncost.backends.c.nests import nests, scaled, zero
from learncost.backends.c.numbers import Numbers
from learncost.backends.c.once import computed_once
from learncost.backends.c.products import product
from learncost.backends.c.schedule import AFTER, BEFORE, MAIN, LoopNode, ScheduledValue
from learncost.backends.c.tree import TURN, ZERO, joined, plus, smaller, times


def routine(arrays: Arrays) -> tree.Routine:
    """The kernel that computes a schedule."""
    schedule, values = arrays.schedule, arrays.values.values()
    added = [value for value in values if value.added and not value.shared]
    zeros = (zero(arrays, value, [axis for axis in value.axes if axis not in schedule.iterations]) for value in added)
    shared = [value for value in values if value.shared]
    sums = () if arrays.alone else tuple(_sum(arrays, value) for value in shared)
    before, iterations, sums = computed_once(_iterations(arrays, (*zeros, *iteration(arrays))), arrays.parameters, sums)
    totals = tuple(_total(arrays, value, number) for value, number in zip(shared, sums, strict=False))
    after: tuple[tree.CStatement, ...] = ()
    if arrays.alone:  # added up where they are to lie
        before = (*(zero(arrays, value, value.axes) for value in shared), *before)
        after = tuple(scaled(arrays, value) for value in shared if value.late)
    widest = max(values, key=lambda value: len(value.space))
    work = arrays.count([*dict.fromkeys((*schedule.iterations, *widest.space))])
    return tree.Routine(before, iterations, totals, work if schedule.iterations else None, after)


def iteration(arrays: Arrays) -> Iterator[tree.CStatement]:
    """What is done in one turn."""
    yield from _phase(arrays, BEFORE)
    yield from _main(arrays)
    yield from _phase(arrays, AFTER)


def _iterations(arrays: Arrays, body: Sequence[tree.CStatement]) -> tree.ForLoop:
    """A turn for all places along all its axes together."""
    axes = arrays.schedule.iterations
    counters, counts = [*map(arrays.counter, axes)], [*map(arrays.size, axes)]
    if len(counters) == 1:
        return tree.ForLoop(counters[0], ZERO, counts[0], tuple(body))
    start = []
    for i, (counter, count) in enumerate(zip(counters, counts, strict=True)):
        place = joined("/", [tree.LoopCounter(TURN), *counts[i + 1 :]])
        start.append(tree.Let(counter, "place", tree.OperationExpression("%", (place, count)) if i else place))
    return tree.ForLoop(TURN, ZERO, times(*counts), (*start, *body), over=tuple(counters))


def _sum(arrays: Arrays, value: ScheduledValue) -> tree.Expression:
    """What becomes of an element's `sum` over all threads."""
    numbers = Numbers(arrays, LoopNode(value.at, ()))
    return times(tree.NameExpression("sum"), *(numbers.number(factor, {}) for factor in value.late))


def _total(arrays: Arrays, value: ScheduledValue, number: tree.Expression) -> tree.Total:
    sums, to = arrays.storage(value).array, arrays.output(value)
    return tree.Total(sums, to, arrays.narrowed(number, to.type))


def _phase(arrays: Arrays, phase: int) -> Iterator[tree.CStatement]:
    """The segments of a phase: loops, then products."""
    values = [value for value in arrays.values.values() if value.at.phase == phase]
    nodes = [node for node in arrays.schedule.nodes if node.place.phase == phase]
    for segment in sorted({value.at.segment for value in values} | {node.place.segment for node in nodes}):
        yield from _rows(arrays, [node for node in nodes if node.place.segment == segment], phase)
        for value in values:
            if value.kind == "product" and value.at.segment == segment:
                yield from product(arrays, value)


def _rows(arrays: Arrays, nodes: Sequence[LoopNode], phase: int) -> Iterator[tree.CStatement]:
    """Loops, in the main phase for one row of the block after another."""
    body = [statement for node in nodes for statement in nests(arrays, node)]
    if body and arrays.block and phase == MAIN:
        first, last = arrays.bounds(arrays.block, MAIN)
        yield tree.ForLoop(arrays.counter(arrays.block), first, last, tuple(body))
    else:
        yield from body


def _main(arrays: Arrays) -> list[tree.CStatement]:
    """The turns over the sequential axes, one after another, and over the blocks."""
    body = [*_phase(arrays, MAIN)]
    if not body:
        return body
    if arrays.block:
        body = [_blocks(arrays, body)]
    for axis in reversed(arrays.schedule.sequence):
        body = [arrays.loop(axis, body)]
    return body


def _blocks(arrays: Arrays, body: Sequence[tree.CStatement]) -> tree.ForLoop:
    axis, size = arrays.block, arrays.size(arrays.block)
    first, last = arrays.edge("from", axis), arrays.edge("to", axis)
    start = [tree.Let(last.text, "place", smaller(plus(first, arrays.block_size), size))]
    if arrays.bounded:
        for side, limit in zip(("from", "to"), arrays.limits(), strict=True):
            start.append(tree.Let(arrays.edge(side, arrays.bounded).text, "place", limit))
    return tree.ForLoop(first.text, ZERO, size, (*start, *body), arrays.block_size, (arrays.counter(axis),))
