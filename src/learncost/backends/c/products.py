"""Matrix products inside of an iteration: find the factors; transpose, pack or copy them first.

Those in float are made of tiles, with at least one packed factor; all others take matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays, ArrayStorage
from learncost.backends.c.schedule import BEFORE, ScheduledValue
from learncost.backends.c.sides import sides_within
from learncost.backends.c.tree import ONE, ZERO, minus, plus, times
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
        return [tree.Once(self.arrays.base(BEFORE if self._is_whole(term) else self.phase), statement)]

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
