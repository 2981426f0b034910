"""Matrix products inside of a turn: where the factors lie, which are turned, packed or copied first.

Those in float are made of tiles, of which one factor at least lies in packed cells; all others take matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from learncost.equation.errors import InputError
from learncost.equation.table import Product, Term
from learncost.readings.emit.c.arrays import Arrays, Storage
from learncost.readings.emit.c.schedule import Value
from learncost.readings.emit.c.tree import (
    ONE,
    TURN,
    ZERO,
    Array,
    Call,
    Constant,
    Counter,
    Dot,
    Element,
    Expression,
    Loop,
    Matrix,
    Once,
    Pack,
    Packed,
    Remark,
    Statement,
    Store,
    minus,
    plus,
    times,
)


def product(arrays: Arrays, value: Value, tiles: bool) -> Iterator[Statement]:
    """C = A B, or C += A B where the turns of the blocks add to it."""
    line, schedule = value.line, arrays.schedule
    assert isinstance(line, Product)
    a, b = (term for term in line.right if isinstance(term, Term))
    inside = set(schedule.inner(value.space)) | ({arrays.block} if arrays.block else set())
    (row,) = (str(x) for x in value.axes if x in inside and x in a.axes and x not in b.axes)
    (column,) = (str(x) for x in value.axes if x in inside and x in b.axes and x not in a.axes)
    (summed,) = (str(x) for x in a.axes if x in inside and x in b.axes and x not in value.axes)
    yield Remark(str(line))
    factors = _Factors(arrays, value.at.phase, line)
    c = factors.matrix(value.axes, arrays.storage(value), row, column)
    if c.first.array.type != arrays.real:
        raise InputError(f"a product cannot be stored as {c.first.array.type}, in line: {line}")
    if c.strides[1] != ONE:
        a, b, c, row, column = b, a, c.transposed, column, row
    if c.strides[1] != ONE:
        raise factors.refused()
    types = {arrays.given(term.name).array.type for term in (a, b) if term.name not in arrays.values}
    left: Matrix | Packed
    right: Matrix | Packed
    if not tiles:
        before = [*factors.copied(a, row, summed), *factors.copied(b, summed, column)]
        left, right = factors.plain(a, row, summed), factors.plain(b, summed, column)
    else:
        cell = "pair" if types == {"bf16"} else "float"  # of arrays in bf16: what the kernel made is rounded too
        pack, right = factors.packed(b, summed, column, cell, "strips")
        before = [pack]
        if cell == "pair":
            pack, left = factors.packed(a, summed, row, cell, "rows")
            before.append(pack)
        else:
            before += factors.copied(a, row, summed)
            left = factors.plain(a, row, summed)
    yield from before
    rows, columns, places = (factors.extent(axis) for axis in (row, column, summed))
    yield Dot((rows, columns, places), left, right, c, value.added or value.shared)


@dataclass(frozen=True)
class _Factors:
    """The factors of one product; what all blocks read is prepared once a turn, all else once a block."""

    arrays: Arrays
    phase: int
    line: Product

    def refused(self) -> InputError:
        return InputError(f"a product of a library needs an axis with neighbouring places, in line: {self.line}")

    def extent(self, axis: str, whole: bool = False) -> Expression:
        """How many places of an axis the product goes over."""
        first, last = self._range(axis, whole)
        return minus(last, first)

    def _range(self, axis: str, whole: bool = False) -> tuple[Expression, Expression]:
        free = whole and axis != self.arrays.block
        return (ZERO, self.arrays.size(axis)) if free else self.arrays.bounds(axis, self.phase)

    def _is_whole(self, term: Term) -> bool:
        return not self.arrays.schedule.steps & set(map(str, term.axes))

    def _within(self, term: Term) -> str:
        return TURN if self._is_whole(term) else self.arrays.base(self.phase)

    def _storage(self, term: Term) -> Storage:
        value = self.arrays.values.get(term.name)
        return self.arrays.given(term.name) if value is None else self.arrays.storage(value)

    def matrix(self, axes: tuple[str, ...], store: Storage, one: str, two: str, whole: bool = False) -> Matrix:
        """The part of an array that two axes span, all others standing where they are."""
        arrays = self.arrays
        kept = [axis for axis in axes if len(store.axes) == len(axes) or axis in store.axes]
        at: list[tuple[int, Expression]] = []
        i = 0
        while i < len(kept):
            group = arrays.group(kept[i])
            if kept[i] not in (one, two):
                if kept[i] == store.block:
                    raise InputError(f"a product cannot read {store.array.name} row by row")
                at.append((len(group), arrays.here(group)))
            elif kept[i] == store.block:
                at.append((1, arrays.edge("from", store.block)))
            else:
                at.append((1, self._range(kept[i], whole)[0]))
            i += at[-1][0]
        extents = [
            arrays.block_size if axis == store.block else arrays.size(own)
            for axis, own in zip(kept, store.axes, strict=True)
        ]
        strides = [times(*extents[kept.index(axis) + 1 :]) for axis in (one, two)]
        return Matrix(arrays.element(store, at), (strides[0], strides[1]))

    def _along(self, matrix: Matrix) -> Matrix:
        """The matrix, if the places of one of its axes are neighbours."""
        if ONE not in matrix.strides:
            raise self.refused()
        return matrix

    def _is_copied(self, term: Term) -> bool:
        return self._storage(term).array.type != self.arrays.real

    def _copy(self, term: Term, one: str, two: str) -> Storage:
        arrays, block = self.arrays, self.arrays.block if self.arrays.block in (one, two) else ""
        axes = tuple(str(axis) for axis in term.axes if axis in (one, two))
        name = f"{self._storage(term).array.name}_copy"
        return Storage(Array(name, arrays.real, "scratch", term.name, times(*arrays.room(axes, block))), axes, block)

    def plain(self, term: Term, one: str, two: str) -> Matrix:
        """A factor as it lies in memory, or its copy."""
        if self._is_copied(term):
            store = self._copy(term, one, two)
            return self._along(self.matrix(store.axes, store, one, two))
        return self._along(self.matrix(tuple(map(str, term.axes)), self._storage(term), one, two))

    def copied(self, term: Term, one: str, two: str) -> Iterator[Statement]:
        """A copy of a factor that is not stored as the product takes it."""
        if not self._is_copied(term):
            return
        copy, whole = self._copy(term, one, two), self._is_whole(term)
        one, two = copy.axes
        source = self.matrix(tuple(map(str, term.axes)), self._storage(term), one, two, whole)
        to = self.matrix(copy.axes, copy, one, two, whole)
        number = self.arrays.widened(_place(source), source.first.array.type)
        store = Store(_place(to), number)
        extents = [self.extent(axis, whole) for axis in copy.axes]
        inner = Loop("j", ZERO, extents[1], (store,))
        yield Once(("copy", copy), self._within(term), Loop("i", ZERO, extents[0], (inner,)))

    def packed(self, term: Term, summed: str, outer: str, cell: str, form: str) -> tuple[Statement, Packed]:
        """A factor in rows or strips: what packs it, and where the product begins."""
        arrays, whole = self.arrays, self._is_whole(term)
        one, two = (outer, summed) if form == "rows" else (summed, outer)
        source = self._along(self.matrix(tuple(map(str, term.axes)), self._storage(term), one, two, whole))
        name = f"{arrays.names.of(term.name)}_{form}_of_{arrays.counter((summed,))}"
        room = arrays.room((summed, outer), arrays.block)
        to = Array(name, cell, "scratch", term.name, Call(form.upper(), (Constant(cell), *room)))
        pack = Pack(form, source, to, (self.extent(one, whole), self.extent(two, whole)))
        first = [self._range(axis)[0] if whole else ZERO for axis in (summed, outer)]
        packed = Packed(form, to, self.extent(summed, whole), (first[0], first[1]))
        return Once(("packed", name), self._within(term), pack), packed


def _place(matrix: Matrix) -> Element:
    """The element of a matrix in row i and column j."""
    row, column = (times(Counter(text), stride) for text, stride in zip("ij", matrix.strides, strict=True))
    return Element(matrix.first.array, (ONE,), (plus(matrix.first.offset, plus(row, column)),))
