"""Build a kernel as one function: its iterations, the phases of an iteration, and sums over iterations."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays
from learncost.backends.c.nests import nests, scaled, zero
from learncost.backends.c.numbers import Numbers
from learncost.backends.c.products import product
from learncost.backends.c.schedule import AFTER, BEFORE, MAIN, LoopNode, ScheduledValue
from learncost.backends.c.tree import ITERATION, ZERO, joined, plus, smaller, times


def computed_once(
    iterations: tree.ForLoop, used_names: Collection[str], numbers: Collection[tree.Expression] = ()
) -> tuple[tuple[tree.CStatement, ...], tree.ForLoop, tuple[tree.Expression, ...]]:
    """Return the statements before the iterations, the iterations without `Named` and `Once`, and no empty loops.

    used_names   reserved names
    numbers      that are needed after the iterations and known before them
    """
    function_scope = _LoopScope(names={*used_names})
    after = tuple(function_scope.number(number)[0] for number in numbers)
    function_scope.add(iterations)
    *before, last = function_scope.body
    assert isinstance(last, tree.ForLoop)
    return tuple(before), last, after


@dataclass
class _LoopScope:
    """The statements of an open loop."""

    outer: _LoopScope | None = None
    still: tuple[str, ...] = ()
    depth: int = 0
    names: set[str] = field(default_factory=set)
    names_of_values: dict[Hashable, tree.NameExpression] = field(default_factory=dict)
    body: list[tree.CStatement] = field(default_factory=list)

    def _outwards(self) -> Iterator[_LoopScope]:
        yield self
        if self.outer:
            yield from self.outer._outwards()

    def _around(self, counter: str) -> _LoopScope:
        """Return the innermost loop in which it is invariant."""
        return next(scope for scope in self._outwards() if counter in scope.still)

    def add(self, statement: tree.CStatement) -> None:
        if isinstance(statement, tree.ForLoop):
            inside = _LoopScope(self, statement.still, self.depth + 1)
            for part in statement.body:
                inside.add(part)
            if inside.body:
                self.body.append(replace(statement, body=tuple(inside.body)))
        elif isinstance(statement, tree.SimultaneousStores):
            self.body += [self._store(store) for store in statement.stores]
        elif isinstance(statement, tree.Store):
            self.body.append(self._store(statement))
        elif isinstance(statement, tree.Let) and statement.key is not None:
            self._let(statement, self)
        elif isinstance(statement, tree.Once):
            spec = self._around(statement.within)
            if statement.statement not in spec.body:
                spec.body.append(statement.statement)
        else:
            self.body.append(statement)

    def _store(self, store: tree.Store) -> tree.Store:
        value, _ = self.number(store.value)
        return replace(store, value=value, to=self.number(store.to)[0])

    def number(self, number: tree.Expression) -> tuple[tree.Expression, int]:
        """Return the number with its names, and the depth of the innermost loop that it depends on."""
        if isinstance(number, tree.LoopCounter):
            return number, self._around(number.text).depth
        if isinstance(number, tree.Named):
            return self._named(number)
        if isinstance(number, tree.Element | tree.OperationExpression | tree.CallExpression):
            parts = [self.number(part) for part in number.operands]
            depth = max((depth for _, depth in parts), default=0)
            return replace(number, operands=tuple(part for part, _ in parts)), depth
        return number, 0

    def _named(self, number: tree.Named) -> tuple[tree.Expression, int]:
        for scope in self._outwards():
            if number.key in scope.names_of_values:
                return scope.names_of_values[number.key], scope.depth
        value, depth = self.number(number.value)
        if number.within:
            depth = max(depth, self._around(number.within).depth)
        spec = next(scope for scope in self._outwards() if scope.depth == depth)
        return self._let(tree.Let(number.name, number.type, value, number.key), spec), depth

    def _let(self, let: tree.Let, spec: _LoopScope) -> tree.NameExpression:
        """Return a name that is unused in open loops."""
        used_names = set[str]().union(*(scope.names for scope in self._outwards()))
        name, number = let.name, 2
        while name in used_names:
            name, number = f"{let.name}_{number}", number + 1
        spec.names.add(name)
        spec.names_of_values[let.key] = tree.NameExpression(name)
        spec.body.append(replace(let, name=name, key=None))
        return spec.names_of_values[let.key]


def routine(arrays: Arrays) -> tree.Routine:
    """Return the kernel that computes a schedule."""
    schedule, values = arrays.schedule, arrays.values.values()
    added = [value for value in values if value.added and not value.shared]
    zeros = (zero(arrays, value, [axis for axis in value.axes if axis not in schedule.iterations]) for value in added)
    shared = [value for value in values if value.shared]
    sums = () if arrays.alone else tuple(_sum(arrays, value) for value in shared)
    before, iterations, sums = computed_once(_iterations(arrays, (*zeros, *iteration(arrays))), arrays.parameters, sums)
    totals = tuple(_total(arrays, value, number) for value, number in zip(shared, sums, strict=False))
    after: tuple[tree.CStatement, ...] = ()
    if arrays.alone:  # summed in their final memory
        before = (*(zero(arrays, value, value.axes) for value in shared), *before)
        after = tuple(scaled(arrays, value) for value in shared if value.late)
    widest = max(values, key=lambda value: len(value.space))
    work = arrays.count([*dict.fromkeys((*schedule.iterations, *widest.space))])
    return tree.Routine(before, iterations, totals, work if schedule.iterations else None, after)


def iteration(arrays: Arrays) -> Iterator[tree.CStatement]:
    """Return the statements of one iteration."""
    yield from _phase(arrays, BEFORE)
    yield from _main(arrays)
    yield from _phase(arrays, AFTER)


def _iterations(arrays: Arrays, body: Sequence[tree.CStatement]) -> tree.ForLoop:
    """Return one loop over all positions of all its axes."""
    axes = arrays.schedule.iterations
    counters, counts = [*map(arrays.counter, axes)], [*map(arrays.size, axes)]
    if len(counters) == 1:
        return tree.ForLoop(counters[0], ZERO, counts[0], tuple(body))
    start = []
    for i, (counter, count) in enumerate(zip(counters, counts, strict=True)):
        place = joined("/", [tree.LoopCounter(ITERATION), *counts[i + 1 :]])
        start.append(tree.Let(counter, "place", tree.OperationExpression("%", (place, count)) if i else place))
    return tree.ForLoop(ITERATION, ZERO, times(*counts), (*start, *body), over=tuple(counters))


def _sum(arrays: Arrays, value: ScheduledValue) -> tree.Expression:
    """Return the store of an element's `sum` over all threads."""
    numbers = Numbers(arrays, LoopNode(value.at, ()))
    return times(tree.NameExpression("sum"), *(numbers.number(factor, {}) for factor in value.late))


def _total(arrays: Arrays, value: ScheduledValue, number: tree.Expression) -> tree.Total:
    sums, to = arrays.storage(value).array, arrays.output(value)
    return tree.Total(sums, to, arrays.narrowed(number, to.type))


def _phase(arrays: Arrays, phase: int) -> Iterator[tree.CStatement]:
    """Return the segments of a phase: loops, then products."""
    values = [value for value in arrays.values.values() if value.at.phase == phase]
    nodes = [node for node in arrays.schedule.nodes if node.place.phase == phase]
    for segment in sorted({value.at.segment for value in values} | {node.place.segment for node in nodes}):
        yield from _rows(arrays, [node for node in nodes if node.place.segment == segment], phase)
        for value in values:
            if value.kind == "product" and value.at.segment == segment:
                yield from product(arrays, value)


def _rows(arrays: Arrays, nodes: Sequence[LoopNode], phase: int) -> Iterator[tree.CStatement]:
    """Return loops, in the main phase row by row of the block."""
    body = [statement for node in nodes for statement in nests(arrays, node)]
    if body and arrays.block and phase == MAIN:
        first, last = arrays.bounds(arrays.block, MAIN)
        yield tree.ForLoop(arrays.counter(arrays.block), first, last, tuple(body))
    else:
        yield from body


def _main(arrays: Arrays) -> list[tree.CStatement]:
    """Return the iterations over sequential axes and over blocks."""
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
