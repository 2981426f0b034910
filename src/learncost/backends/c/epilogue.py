"""Epilogue fusion: a kernel applies its lines to each tile of a matrix product when its sums are complete.

Only one tile of the product's result exists at a time: the following lines read it, and the next tile overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays, ArrayStorage
from learncost.backends.c.function import computed_once, iteration
from learncost.backends.c.printer import Printer
from learncost.backends.c.schedule import KernelSchedule
from learncost.backends.c.sides import is_library, sides_within
from learncost.backends.c.tree import ONE, ZERO, minus, plus, smaller, times
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Product
from learncost.ir.term import Term


@dataclass(frozen=True)
class Tile:
    """The axes of a product: of a tile of its result, of its outer loops, and the summed ones."""

    product: Product
    row: str
    column: str
    others: tuple[str, ...]
    summed: tuple[str, ...]


def ended(schedule: KernelSchedule) -> Tile | None:
    """Return the product whose elementwise epilogue the other lines are; None otherwise."""
    (first, *others) = schedule.values.values()
    line = first.line
    if (
        not others
        or first.output
        or first.name not in schedule.dtypes
        or not isinstance(line, Product)
        or not is_library(line, set())
    ):
        return None
    whole = set(first.axes) == set(schedule.iterations) and line.left[0].loops == first.axes
    if not whole or line.where or any(schedule.inner(value.space) or value.shared for value in others):
        return None
    sides = sides_within(line, set())
    column = first.axes[-1]
    side = sides.columns if column in sides.rows else sides.rows
    if column not in (*sides.rows, *sides.columns) or sides.lone:
        return None
    row = next(axis for axis in reversed(first.axes) if axis in side)
    return Tile(line, row, column, tuple(a for a in first.axes if a not in (row, column)), sides.summed)


class Epilogue(Arrays):
    """The arrays of an epilogue, which reads the product's result in a tile of rows and columns."""

    def __init__(
        self,
        schedule: KernelSchedule,
        axes: Mapping[str, tuple[str, ...]],
        dtypes: Mapping[str, str],
        printer: Printer,
        real: str,
        sizes: Mapping[str, int],
        tile: Tile,
    ) -> None:
        lines = [value.line for value in schedule.values.values() if value.line is not tile.product]
        behind = KernelSchedule(lines, schedule.iterations, None, schedule.outputs, dtypes, schedule.parts)
        super().__init__(behind, axes, dtypes, printer, real, lines, sizes)
        self.tile, self.gradient = tile, tile.product.name
        self.extents = extents = printer.tile
        for name in tile.product.reads:
            self.parameters.add(self.names.of(name))
        self.positions = {axis: tree.LoopCounter(self.counter(axis)) for axis in (*self.positions, *tile.product.loops)}
        name = f"{self.names.of(self.gradient)}_tile"
        array = tree.ArrayMemory(
            name, real, "scratch", self.gradient, tree.NameExpression(str(extents[0] * extents[1]))
        )
        lengths = dict(zip((tile.row, tile.column), (tree.NameExpression(str(size)) for size in extents), strict=True))
        axes_of_tile = tile.product.left[0].loops
        self.tile_storage = ArrayStorage(array, axes_of_tile, tuple(lengths.get(axis, ONE) for axis in axes_of_tile))

    def read_array(self, term: Term) -> ArrayStorage:
        return self.tile_storage if term.name == self.gradient else super().read_array(term)

    def element(self, store: ArrayStorage, at: Sequence[tree.Expression]) -> tree.Element:
        if store is not self.tile_storage:
            return super().element(store, at)
        places, lengths = (dict(zip(store.axes, each, strict=True)) for each in (at, store.extents))
        indices = tuple(minus(places[axis], self.edge("from", axis)) for axis in self.sides)
        return tree.Element(store.array, tuple(lengths[axis] for axis in self.sides), indices)

    @property
    def sides(self) -> tuple[str, str]:
        return self.tile.row, self.tile.column

    def can_be_tiled(self) -> bool:
        """Return whether both factors are stored as products need them: a library's need one contiguous axis each."""
        summed = self.tile.summed[-1]
        matrices = [_matrix(self, term, side, summed) for term, side in zip(_terms(self), self.sides, strict=True)]
        if not self.alone and any(ONE not in matrix.strides for matrix in matrices):
            return False
        kinds = {self.read_array(term).array.type for term in self.tile.product.right if isinstance(term, Term)}
        return all(map(self.multiplies, kinds)) or (self.tiles and kinds == {"bf16"})


def ending(arrays: Epilogue) -> tree.Routine:
    """Return the kernel by tiles: parallel iterations over blocks of columns, each over blocks of rows."""
    tile = arrays.tile
    row, column = arrays.sides
    last = tree.ForLoop(arrays.counter(column), *_edges(arrays, column), tuple(iteration(arrays)), independent=True)
    behind = tree.ForLoop(arrays.counter(row), *_edges(arrays, row), (last,))
    body: list[tree.CStatement] = [_blocks(arrays, row, arrays.extents[0], (*_product(arrays), behind))]
    if len(tile.summed) == 1:
        body[:0] = _packed(arrays)
    for axis in reversed(tile.others):
        body = [arrays.loop(axis, body)]
    iterations = _blocks(arrays, column, arrays.extents[1], body)
    before, iterations, _ = computed_once(iterations, arrays.parameters)
    return tree.Routine(before, iterations, (), arrays.count([*dict.fromkeys(tile.product.loops)]))


def _edges(arrays: Epilogue, axis: str) -> tuple[tree.NameExpression, tree.NameExpression]:
    return arrays.edge("from", axis), arrays.edge("to", axis)


def _blocks(arrays: Epilogue, axis: str, places: int, body: Sequence[tree.CStatement]) -> tree.ForLoop:
    first, last = _edges(arrays, axis)
    size, step = arrays.size(axis), tree.NameExpression(str(places))
    start = tree.Let(last.text, "place", smaller(plus(first, step), size))
    return tree.ForLoop(first.text, ZERO, size, (start, *body), step, (arrays.counter(axis),))


def _product(arrays: Epilogue) -> Iterator[tree.CStatement]:
    """Return the tile's sums; with several summed axes, one position of the outer ones after another."""
    tile = arrays.tile
    several = tile.summed[:-1]
    left, right = _factors(arrays)
    row, column = arrays.sides
    rows, columns = (minus(last, first) for first, last in (_edges(arrays, row), _edges(arrays, column)))
    to = tree.MatrixBlock(
        tree.Element(arrays.tile_storage.array, (), ()), (tree.NameExpression(str(arrays.extents[1])), ONE)
    )
    dot = tree.Dot(str(tile.product), (rows, columns, arrays.size(tile.summed[-1])), left, right, to, bool(several))
    statements: list[tree.CStatement] = [*(_packed(arrays) if several else ()), *_rows(arrays), dot]
    if several:
        zero = tree.Store(tree.Element(arrays.tile_storage.array, (ONE,), (tree.LoopCounter("i"),)), ZERO)
        yield tree.ForLoop("i", ZERO, arrays.tile_storage.array.points, (zero,), independent=True)
    for axis in reversed(several):
        statements = [arrays.loop(axis, statements)]
    yield from statements


def _terms(arrays: Epilogue) -> tuple[Term, Term]:
    """Return the factor with the tile's rows and that with its columns."""
    first, second = (term for term in arrays.tile.product.right if isinstance(term, Term))
    return (first, second) if arrays.tile.row in first.loops else (second, first)


def _cell(arrays: Epilogue) -> str:
    """Return the sources of packed factors."""
    return "pair" if {arrays.read_array(term).array.type for term in _terms(arrays)} == {"bf16"} else "float"


def _matrix(arrays: Epilogue, term: Term, row: str, column: str) -> tree.MatrixBlock:
    """Return the part of a factor that the tile reads."""
    store = arrays.read_array(term)
    begins = {axis: arrays.edge("from", axis) for axis in arrays.sides} | {arrays.tile.summed[-1]: ZERO}
    first = arrays.element(store, [begins.get(axis, arrays.positions[axis]) for axis in store.axes])
    after = (store.extents[store.axes.index(axis) + 1 :] for axis in (row, column))
    strides = [times(*extents) for extents in after]
    return tree.MatrixBlock(first, (strides[0], strides[1]))


def _factors(arrays: Epilogue) -> tuple[tree.MatrixBlock | tree.Packed, tree.MatrixBlock | tree.Packed]:
    summed = arrays.tile.summed[-1]
    (row, column), (rows, columns) = arrays.sides, _terms(arrays)
    length = arrays.size(summed)
    left: tree.MatrixBlock | tree.Packed = _matrix(arrays, rows, row, summed)
    right: tree.MatrixBlock | tree.Packed = _matrix(arrays, columns, summed, column)
    if arrays.tiles:
        right = tree.Packed("strips", _workspace(arrays, columns, "strips"), length, (ZERO, ZERO))
        if _cell(arrays) == "pair":
            left = tree.Packed("rows", _workspace(arrays, rows, "rows"), length, (ZERO, ZERO))
    return left, right


def _workspace(arrays: Epilogue, term: Term, form: str) -> tree.ArrayMemory:
    """Return workspace for a packed factor of a tile."""
    places = tree.NameExpression(str(arrays.extents[form == "strips"]))
    count = tree.CallExpression(
        form.upper(), (tree.NameExpression(_cell(arrays)), arrays.size(arrays.tile.summed[-1]), places)
    )
    return tree.ArrayMemory(f"{arrays.names.of(term.name)}_{form}", _cell(arrays), "scratch", term.name, count)


def _packed(arrays: Epilogue) -> Iterator[tree.CStatement]:
    """Pack the columns' factor in strips, for all rows."""
    if arrays.tiles:
        summed, column, term = arrays.tile.summed[-1], arrays.tile.column, _terms(arrays)[1]
        first, last = _edges(arrays, column)
        extents = (arrays.size(summed), minus(last, first))
        yield tree.Pack("strips", _matrix(arrays, term, summed, column), _workspace(arrays, term, "strips"), extents)


def _rows(arrays: Epilogue) -> Iterator[tree.CStatement]:
    """Pack the rows' factor in pairs, for one block of rows."""
    if arrays.tiles and _cell(arrays) == "pair":
        summed, row, term = arrays.tile.summed[-1], arrays.tile.row, _terms(arrays)[0]
        first, last = _edges(arrays, row)
        extents = (minus(last, first), arrays.size(summed))
        yield tree.Pack("rows", _matrix(arrays, term, row, summed), _workspace(arrays, term, "rows"), extents)
