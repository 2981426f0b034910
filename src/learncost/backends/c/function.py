"""Build a kernel as one function: its iterations, the phases of an iteration, and sums over iterations."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays, ArrayStorage
from learncost.backends.c.nests import nests, scaled, zero
from learncost.backends.c.numbers import Numbers
from learncost.backends.c.schedule import AFTER, BEFORE, MAIN, LoopNode, ScheduledValue
from learncost.backends.c.sides import sides_within
from learncost.backends.c.tree import ITERATION, ONE, ZERO, joined, minus, plus, smaller, times
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Product
from learncost.ir.term import Term


def product(arrays: Arrays, value: ScheduledValue) -> Iterator[tree.CStatement]:
    """Return C = A B, or C += A B if the iterations over blocks add to it."""
    line = value.line
    assert isinstance(line, Product)
    a, b = (term for term in line.right if isinstance(term, Term))
    axes = sides_within(line, {*arrays.schedule.iterations, *arrays.schedule.sequence})
    (row,), (column,), (summed,) = axes.rows, axes.columns, axes.summed
    factors = _Factors(arrays, value.at.phase, line)
    c = factors.matrix(arrays.storage(value), row, column)
    if c.first.array.type != arrays.real:
        raise InputError(f"a product cannot be stored as {c.first.array.type}, in line: {line}")
    if c.strides[1] != ONE:
        a, b, c, row, column = b, a, c.transposed, column, row
    types = {arrays.read_array(term).array.type for term in (a, b) if term.name not in arrays.values}
    cell = "pair" if types == {"bf16"} else "float"  # for bf16 arrays, the kernel's results are rounded too
    tiles, pairs = arrays.tiles, arrays.tiles and cell == "pair"
    first, right = factors.packed(b, summed, column, cell, "strips") if tiles else factors.plain(b, summed, column)
    then, left = factors.packed(a, summed, row, cell, "rows") if pairs else factors.plain(a, row, summed)
    rows, columns, places = (factors.extent(axis) for axis in (row, column, summed))
    yield from (*first, *then)
    yield tree.Dot(str(line), (rows, columns, places), left, right, factors.along(c, 1), value.added or value.shared)


@dataclass(frozen=True)
class _Factors:
    """The factors of one product; those of all blocks are prepared once per iteration, others once per block."""

    arrays: Arrays
    phase: int
    line: Product

    def bounds(self, axis: str, whole: bool = False) -> tuple[tree.Expression, tree.Expression]:
        """Return the bounds of the product, or of all blocks' products, over an axis."""
        free = whole and axis != self.arrays.block
        return (ZERO, self.arrays.size(axis)) if free else self.arrays.bounds(axis, self.phase)

    def extent(self, axis: str, whole: bool = False) -> tree.Expression:
        """Return the extent of these bounds."""
        first, last = self.bounds(axis, whole)
        return minus(last, first)

    def _is_whole(self, term: Term) -> bool:
        return not self.arrays.schedule.steps & set(map(str, term.axes))

    def _once(self, term: Term, statement: tree.CStatement) -> list[tree.CStatement]:
        return [tree.Hoisted(self.arrays.base(BEFORE if self._is_whole(term) else self.phase), statement)]

    def along(self, matrix: tree.MatrixBlock, *ones: int) -> tree.MatrixBlock:
        """Return the matrix if one of its axes, or the required one, is contiguous."""
        if all(matrix.strides[i] != ONE for i in ones or (0, 1)):
            raise InputError(f"a product of a library needs an axis with neighbouring places, in line: {self.line}")
        return matrix

    def _storage(self, term: Term) -> ArrayStorage:
        value = self.arrays.values.get(term.name)
        return self.arrays.read_array(term) if value is None else self.arrays.storage(value)

    def matrix(self, store: ArrayStorage, row: str, column: str, whole: bool = False) -> tree.MatrixBlock:
        """Return the matrix that two axes span, with all others fixed."""
        if store.block and store.block not in (row, column):
            raise InputError(f"a product cannot read {store.array.name} row by row")
        at = {axis: self.bounds(axis, whole)[0] for axis in (row, column)}
        first = self.arrays.element(store, [at.get(axis, self.arrays.positions[axis]) for axis in store.axes])
        after = (store.extents[store.axes.index(axis) + 1 :] for axis in (row, column))
        strides = [times(*extents) for extents in after]
        return tree.MatrixBlock(first, (strides[0], strides[1]))

    def plain(self, term: Term, row: str, column: str) -> tuple[list[tree.CStatement], tree.MatrixBlock]:
        """Return a factor in memory, or a copy in the layout that the product needs."""
        arrays, store, is_whole = self.arrays, self._storage(term), self._is_whole(term)
        if arrays.multiplies(store.array.type):
            return [], self.along(self.matrix(store, row, column))
        first, second = order = tuple(axis for axis in store.axes if axis in (row, column))
        copy = arrays.scratch(f"{store.array.name}_copy", arrays.real, term.name, order)
        source, to = (self.matrix(each, first, second, is_whole) for each in (store, copy))
        put = tree.Store(_place(to), arrays.widened(_place(source), store.array.type))
        rows, columns = (self.extent(axis, is_whole) for axis in order)
        loops = tree.ForLoop("i", ZERO, rows, (tree.ForLoop("j", ZERO, columns, (put,)),))
        return self._once(term, loops), self.along(self.matrix(copy, row, column))

    def packed(
        self, term: Term, summed: str, outer: str, cell: str, form: str
    ) -> tuple[list[tree.CStatement], tree.Packed]:
        """Return a factor in rows or strips: its packing and the start of the product."""
        arrays, is_whole = self.arrays, self._is_whole(term)
        row, column = (outer, summed) if form == "rows" else (summed, outer)
        source = self.along(self.matrix(self._storage(term), row, column, is_whole))
        name = f"{arrays.names.of(term.name)}_{form}_of_{arrays.counter(summed)}"
        points = tree.CallExpression(form.upper(), (tree.NameExpression(cell), *arrays.block_extents((summed, outer))))
        to = tree.ArrayMemory(name, cell, "scratch", term.name, points)
        rows, columns = (self.extent(axis, is_whole) for axis in (row, column))
        first, other = (self.bounds(axis)[0] if is_whole else ZERO for axis in (summed, outer))
        length = self.extent(summed, is_whole)
        pack = tree.Pack(form, source, to, (rows, columns))
        return self._once(term, pack), tree.Packed(form, to, length, (first, other))


def _place(matrix: tree.MatrixBlock) -> tree.Element:
    """Return the element of a matrix in row i and column j."""
    row, column = (times(tree.LoopCounter(text), stride) for text, stride in zip("ij", matrix.strides, strict=True))
    return tree.Element(matrix.first.array, (ONE,), (plus(matrix.first.offset, plus(row, column)),))


def computed_once(
    iterations: tree.ForLoop, used_names: Collection[str], numbers: Collection[tree.Expression] = ()
) -> tuple[tuple[tree.CStatement, ...], tree.ForLoop, tuple[tree.Expression, ...]]:
    """Return the statements before the iterations, and the iterations without hoisted ones and empty loops.

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
        elif isinstance(statement, tree.Hoisted):
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
        if isinstance(number, tree.HoistedValue):
            return self._named(number)
        if isinstance(number, tree.Element | tree.OperationExpression | tree.CallExpression):
            parts = [self.number(part) for part in number.operands]
            depth = max((depth for _, depth in parts), default=0)
            return replace(number, operands=tuple(part for part, _ in parts)), depth
        return number, 0

    def _named(self, number: tree.HoistedValue) -> tuple[tree.Expression, int]:
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
    totals = tuple(
        tree.ThreadSum(arrays.storage(value).array, to := arrays.output(value), arrays.narrowed(number, to.type))
        for value, number in zip(shared, sums, strict=False)
    )
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
