"""Group priced lines into units of execution, which are kernels or operators, with their products, elements and bytes.

Sizes are ints, or arrays for many steps at once; the numbers of units are then arrays, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, Protocol

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import FusedKernel, Line, Op, Product, Sum, alias, sides
from learncost.ir.loop import check_derived, groups, in_kernel
from learncost.ir.polynomial import Polynomial, base, is_received_shard, larger, size_of, smaller, whole
from learncost.ir.precision import BYTES
from learncost.ir.term import Literal, Term, terms_of
from learncost.layers.active import is_norm
from learncost.layers.products import direct, matrix_maccs
from learncost.ops.collectives import is_collective
from learncost.passes.lower import lower_line
from learncost.passes.rematerialization import dequantization


class Priced(Protocol):
    """The attributes of a priced line that are needed here."""

    @property
    def repeat(self) -> Polynomial:
        """The number of its executions in a step."""

    @property
    def source(self) -> Line | str:
        """The line."""


@dataclass(frozen=True)
class MatmulShape:
    """A batch of products of matrices m x k and k x n; a T in `orientation` marks a transposed factor.

    routed   the length, m, n or k, that is divided among the experts
    experts  the number of experts
    """

    batch: Any
    m: Any
    n: Any
    k: Any
    orientation: str = "NN"
    routed: str = ""
    experts: Any = 1

    @property
    def flops(self) -> Any:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def half_of_expert(self) -> tuple[Any, Any, Any]:
        """Return m, n and k of half of an expert's rows, of which each has an equal share."""
        m, n, k = (getattr(self, name) / (2 * self.experts if name == self.routed else 1) for name in "mnk")
        return m, n, k

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Return, for each of the two factors, whether it is transposed in memory."""
        return self.orientation[0] == "T", self.orientation[1] == "T"

    def __str__(self) -> str:
        """Return text such as `72 × (64 × 256)ᵀ (256 × 256)`; ᵀ marks a factor that is transposed in memory."""
        times = f"{self.batch:,} × " if self.batch > 1 else ""
        first_mark, second_mark = ("ᵀ" if transposed else "" for transposed in self.transposed)
        return f"{times}({self.m:,} × {self.k:,}){first_mark} ({self.k:,} × {self.n:,}){second_mark}"


@dataclass(frozen=True)
class Work:
    """A unit of execution: a kernel, a product or an operator. Its numbers are those of one iteration.

    rows        the numbers of its lines among the priced lines
    main        the number of the line with the most operations
    iterations  the number of executions in a step
    products    its matrix products
    points      the number of evaluations of each operator or primitive
    bytes       the bytes that it accesses of each array, by name
    result_bytes  the bytes of its results
    share       the share of products and evaluations that is not masked out
    together    the number of tiles of a kernel that can run in parallel; 0 if it is not a kernel
    chosen      whether its main product reads a gathered factor, such as experts' weights
    """

    rows: tuple[int, ...]
    main: int
    iterations: Any
    phase: str
    products: tuple[MatmulShape, ...]
    points: Mapping[str, Any]
    bytes: Mapping[str, Any]
    result_bytes: Mapping[str, Any] = field(default_factory=dict)
    share: Any = 1.0
    together: Any = 0
    chosen: bool = False


Extent = tuple[tuple[str, ...], int]
"""Axes that are iterated over, and how often: the count is the product of their sizes times this number."""

AccessExtent = tuple[tuple[str, ...], int, tuple[str, ...]]
"""The extent of an access to an array, with the array's axes: a row that is read several times counts once."""


@dataclass(frozen=True)
class LineAxes:
    """A line before sizes are inserted: its number among the priced lines, and its matrix product or evaluations."""

    place: int
    product: ProductAxes | None
    points: tuple[tuple[str, Extent], ...]

    def operations(self, sizes: Mapping[str, Any]) -> float:
        """Return the number of operations at given sizes; their total if sizes are arrays."""
        flops = self.product.at(sizes).flops if self.product else 0
        several = flops + sum(_points_of(axes, sizes) * often for _, (axes, often) in self.points)
        return float(several.sum() if hasattr(several, "sum") else several)


@dataclass(frozen=True)
class TiledBlocks:
    """The tiles of a kernel along an axis, with their largest length and the windows of conditions."""

    axis: str
    most: int
    ordered: bool
    windows: tuple[str, ...]
    zigzag: bool = False


@dataclass(frozen=True)
class WorkAxes:
    """A unit of execution before sizes are inserted.

    bits    the bits of an element of each array that it reads or writes
    bytes   the accesses to each of these arrays, of which the largest counts
    made    the extents of its results
    """

    lines: tuple[LineAxes, ...]
    repeat: Polynomial
    phase: str
    bits: Mapping[str, int]
    bytes: Mapping[str, tuple[AccessExtent, ...]]
    made: Mapping[str, Extent]
    width: int
    kernel: tuple[str, ...] | None = None
    blocks: TiledBlocks | None = None

    def at(self, sizes: Mapping[str, Any]) -> Work:
        """Return the unit at given sizes."""
        products = tuple(line.product.at(sizes) for line in self.lines if line.product)
        points: dict[str, Any] = defaultdict(int)
        for name, (axes, often) in (point for line in self.lines for point in line.points):
            points[name] += _points_of(axes, sizes) * often
        operations = [line.operations(sizes) for line in self.lines] if len(self.lines) > 1 else [0.0]
        share: Any = 1.0
        together: Any = 0
        iterations = self.repeat.at(sizes)
        if self.kernel is not None:
            together = _points_of(self.kernel, sizes)
            if self.blocks:
                several = [line.product for line in self.lines if line.product]
                products = tuple(_in_blocks(product, self.blocks, sizes) for product in several)
                share = _seen(self.blocks, sizes)
        main = self.lines[operations.index(max(operations))]
        return Work(
            rows=tuple(line.place for line in self.lines),
            main=main.place,
            iterations=iterations if hasattr(iterations, "shape") else int(iterations),
            phase=self.phase,
            products=products,
            points=points,
            bytes={
                name: reduce(larger, (_touched(part, sizes) for part in parts)) * self.bits[name] // 8
                for name, parts in self.bytes.items()
            },
            result_bytes={name: _points_of(axes, sizes) * self.width for name, (axes, _) in self.made.items()},
            share=share,
            together=together,
            chosen=bool(main.product and main.product.routed),
        )


def works(
    rows: Sequence[Priced],
    sizes: Mapping[str, int],
    dtype: str,
    operators: bool,
    ops: Iterable[str] = (),
    updated: Mapping[str, int] | None = None,
) -> Iterator[Work]:
    """Yield the units of a step at given sizes, in order, as `works_axes` groups them."""
    return (work.at(sizes) for work in works_axes(rows, dtype, operators, ops, updated))


def works_axes(
    rows: Sequence[Priced],
    dtype: str,
    operators: bool,
    ops: Iterable[str] = (),
    updated: Mapping[str, int] | None = None,
) -> Iterator[WorkAxes]:
    """Yield the units of a step in order, without aliases and rows that have no line.

    operators  whether lines are grouped as PyTorch's operators: a bias with the product before it, the lines of a norm;
               otherwise only the lines of a kernel are grouped
    ops        the operators whose time was measured; others are counted by the primitives of their bodies
    updated    the bytes per element that the optimizer reads and writes, for arrays that differ from `dtype`
    """
    check_derived((row.source for row in rows if isinstance(row.source, Line)), "its time is unknown")
    op_names, width = frozenset(ops), BYTES[dtype]
    several = list(_groups(rows, operators))
    names = _leaving([[line for _, line in group] for group in several])
    for group, leaves in zip(several, names, strict=True):
        lines = [line for _, line in group]
        packed, arrays = _packed(lines, 8 * width), _arrays(lines, leaves)
        if updated and lines[0].meta.phase == "optimizer_step":
            packed = {**packed, **{name: 8 * updated[name] for name in arrays if name in updated}}
        kernel = lines[0].meta.kernel
        yield WorkAxes(
            lines=tuple(LineAxes(place, *_operations(line, group, op_names, operators)) for place, line in group),
            repeat=rows[group[0][0]].repeat,
            phase=lines[0].meta.phase,
            bits={name: packed.get(name, 8 * width) for name in arrays},
            bytes=arrays,
            made={term.name: (term.declared, 1) for line in lines for term in line.left if term.name in leaves},
            width=width,
            kernel=tuple(kernel.axes) if kernel else None,
            blocks=_blocks(group, kernel) if kernel and kernel.blocks else None,
        )


_Numbered = tuple[int, Line]


def _in_operators(group: Sequence[Line], line: Line) -> bool:
    """Return whether a line is of the same PyTorch operator: a bias after a product, a norm; or of a kernel."""
    first, last = group[0], group[-1]
    if line.meta.kernel or first.meta.kernel:
        return in_kernel(group, line)
    same = (line.meta.layer, line.meta.module) == (first.meta.layer, first.meta.module)
    return _is_bias(line, last) or (_of_norm(line) and _of_norm(first) and same)


def _is_matrix(line: Line) -> bool:
    """Return whether a line is a matrix product."""
    return isinstance(line, Product) and bool(matrix_maccs(line))


def _is_bias(line: Line, product: Line) -> bool:
    """Return whether a line adds a vector to the product right before it."""
    if not isinstance(line, Sum) or len(line.right) != 2 or not _is_matrix(product):
        return False
    product_term, vector = line.right
    return product_term.name == product.name and len(vector.axes) < len(product_term.axes)


def _of_norm(line: Line) -> bool:
    """Return whether a line is of a norm; sums of the parts of a gradient are not."""
    return line.meta.local != "merge" and (is_norm(line.meta.layer) or is_norm(line.meta.operator))


def _masks_padding(line: Line) -> bool:
    """Return whether a line only masks an axis from a number on: kernels that read it mask what they load."""
    within = [each for each in line.where if each.relation == "<" and each.upper.isdigit()]
    return isinstance(line, Op) and line.op == "select" and len(within) == len(line.where) > 0


def _leaving(groups: Sequence[Sequence[Line]]) -> list[set[str]]:
    """Return the names that each group defines for others, or that nothing reads: those are carried, saved, or outputs.

    A name may be defined again, as by recomputation: its later readers read the later one.
    """
    makers: dict[str, int] = {}
    by_group: list[set[str]] = []
    for number, group in enumerate(groups):
        makes = {term.name for line in group for term in line.left}
        read = {name for line in group for name in line.reads}
        for name in read - makes:
            if name in makers:
                by_group[makers[name]].add(name)
        by_group.append(makes - read)
        makers |= dict.fromkeys(makes, number)
    return by_group


def _groups(rows: Sequence[Priced], operators: bool) -> Iterator[list[_Numbered]]:
    numbered = [each for each in _outside_kernels(rows) if operators or not _masks_padding(each[1])]
    rule = _in_operators if operators else in_kernel

    def together(group: Sequence[_Numbered], item: _Numbered) -> bool:
        number, line = item
        return rule([member for _, member in group], line) and rows[number].repeat == rows[group[0][0]].repeat

    return groups(numbered, together)


def _outside_kernels(rows: Sequence[Priced]) -> list[_Numbered]:
    """Return the lines in order, with collectives moved out of kernels, so that the kernels are not divided.

    A collective moves before the kernel if the kernel does not compute its operands, otherwise after it.
    """
    result: list[_Numbered] = []
    deferred: list[_Numbered] = []
    for number, row in enumerate(rows):
        line = row.source
        if not isinstance(line, Line) or alias(line):
            continue
        first = _begin(result, rows, row)
        if is_collective(line) and first < len(result):
            if {name for _, other in (*result[first:], *deferred) for name in other.makes} & {*line.reads}:
                deferred.append((number, line))
            else:
                result.insert(first, (number, line))
            continue
        is_next = first < len(result) and line.meta.kernel == result[-1][1].meta.kernel
        if deferred and (not is_next or {name for _, other in deferred for name in other.makes} & {*line.reads}):
            result += deferred
            deferred = []
        result.append((number, line))
    return [*result, *deferred]


def _begin(lines: Sequence[_Numbered], rows: Sequence[Priced], row: Priced) -> int:
    """Return the position at which the last kernel of the lines begins in the same iterations; the end if there is
    none."""
    first = len(lines)
    kernel = lines[-1][1].meta.kernel if lines else None
    while kernel is not None and first:
        number, line = lines[first - 1]
        if line.meta.kernel != kernel or rows[number].repeat != row.repeat:
            break
        first -= 1
    return first


def _size(axis: str, sizes: Mapping[str, Any]) -> Any:
    return sizes[axis] if axis in sizes else size_of(axis, sizes)


@dataclass(frozen=True)
class ProductAxes:
    """A matrix product before sizes are inserted, by its axes."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    orientation: str = "NN"
    routed: str = ""
    experts: tuple[str, ...] = ()

    def at(self, sizes: Mapping[str, Any]) -> MatmulShape:
        """Return the product at given sizes."""
        b, m, n, k = (_points_of(axes, sizes) for axes in (self.batch, self.rows, self.columns, self.summed))
        return MatmulShape(b, m, n, k, self.orientation, self.routed, _points_of(self.experts, sizes))


def product_axes(line: Line) -> ProductAxes:
    """Return a line's matrix product by its axes: rows, columns, and axes of both factors, which are summed or a batch.

    Weights that are read at an index, as those of experts, count as one matrix.
    """
    first, second = (term for term in line.right if isinstance(term, Term) and term.axes)
    last_axis = next(
        (axis for axis in reversed(direct(line.left[0])) if (axis in first.loops) != (axis in second.loops)), ""
    )
    if last_axis in first.loops:  # columns are the last axis of the result
        first, second = second, first
    # A scatter at an index of both factors sums over the index's axes: experts' rows.
    product_sides = sides(direct(first), direct(second), direct(line.left[0]))
    # The axes of an index are rows, or columns, of the gathered value.
    rows, columns = {*first.loops} - {*direct(second)}, {*second.loops} - {*first.loops}
    summed = {*product_sides.summed}

    def last(term: Term, axes: set[str]) -> int:
        return max((place for place, axis in enumerate(term.loops) if axis in axes), default=-1)

    transposed = last(first, summed) < last(first, rows), last(second, summed) > last(second, columns)
    orientation = "TN" if transposed[0] else "NT" if transposed[1] else "NN"
    if transposed == (True, True):  # the transpose of this product has plain factors
        rows, columns, orientation = columns, rows, "NN"
    batch, m, n, k = (tuple(sorted(axes)) for axes in (product_sides.batch, rows, columns, summed))
    several = (axis for term in (line.left[0], first, second) for axis in term.indexed_axes)
    experts = {axis.axis: axis.at.loops for axis in several if isinstance(axis.at, Term)}
    chosen = {name for names in experts.values() for name in names}
    routed = next((name for name, axes in zip("mnk", (m, n, k), strict=True) if chosen.intersection(axes)), "")
    return ProductAxes(batch, m, n, k, orientation, routed, tuple(experts) if routed else ())


def _points_of(axes: Iterable[str], sizes: Mapping[str, Any]) -> Any:
    return prod(_size(axis, sizes) for axis in axes)


def _touched(part: AccessExtent, sizes: Mapping[str, Any]) -> Any:
    axes, often, extent_axes = part
    points = _points_of(axes, sizes)
    return often * (points if axes == extent_axes else smaller(points, _points_of(extent_axes, sizes)))


def _blocks(group: list[_Numbered], kernel: FusedKernel) -> TiledBlocks:
    assert kernel.blocks is not None
    conditions = [condition for _, line in group for condition in line.where if condition.ordered]
    windows = tuple(condition.window for condition in conditions if condition.window)
    return TiledBlocks(*kernel.blocks, bool(conditions), windows, any(any(each.zigzag) for each in conditions))


def queried(product: ProductAxes, blocks: TiledBlocks) -> str:
    """Return which length of a product has the queries of its tiles: m, k or n, and "" where they are a batch axis."""
    of = {"m": product.rows, "k": product.summed, "n": product.columns}
    queries = {name for names in of.values() for name in names if base(name) == base(blocks.axis)}
    return next(
        (length for length, names in of.items() if any(not is_received_shard(n) for n in queries & {*names})), ""
    )


def _in_blocks(axes: ProductAxes, blocks: TiledBlocks, sizes: Mapping[str, Any]) -> MatmulShape:
    """Return a product in tiles of queries, which may be rows, columns or summed axes of the product."""
    product, queries = axes.at(sizes), _size(blocks.axis, sizes)
    rows = smaller(blocks.most, queries)
    if not (length := queried(axes, blocks)):
        return product
    tiled = replace(product, batch=product.batch * larger(1, queries // rows))
    return replace(tiled, **{length: getattr(product, length) // queries * rows})


def _seen(blocks: TiledBlocks, sizes: Mapping[str, Any]) -> Any:
    """Return the share of the keys that tiles of queries attend to: the mean share of keys up to a tile's last query.

    On several devices it is the share of the last device, for which all others wait, as it has the latest queries; in
    zigzag order it is the mean. With received shards it is the mean over all shards.
    """
    if not blocks.ordered:
        return 1.0
    queries, keys = _size(blocks.axis, sizes), _size(whole(blocks.axis), sizes)
    rows = smaller(blocks.most, queries)
    share = ((keys if blocks.zigzag else 2 * keys - queries) + rows) / (2 * keys)
    if blocks.windows:
        share = smaller(share, (max(_size(window, sizes) for window in blocks.windows) + rows) / keys)
    return share


def _operations(
    line: Line, group: list[_Numbered], op_names: frozenset[str], operators: bool
) -> tuple[ProductAxes | None, tuple[tuple[str, Extent], ...]]:
    """Return the matrix product of a line, or its evaluations; neither for a line that is fused into a product or
    norm."""
    if _is_matrix(line):
        return product_axes(line), ()
    has_op = any(isinstance(member, Op) for _, member in group)  # of a norm, to which the line may belong
    if operators and (_is_bias(line, group[0][1]) or (has_op and _of_norm(line) and not isinstance(line, Op))):
        return None, ()
    return None, tuple(_points(line, op_names))


def _points(line: Line, op_names: frozenset[str]) -> Iterator[tuple[str, Extent]]:
    """Yield the operators or primitives that a line evaluates, each with the extent of its evaluations."""
    if isinstance(line, Op):
        name = f"{line.op}'" if line.part == "gradient" else line.op
        if name in op_names:
            yield name, (line.loops, 1)
            return
    for part in lower_line(line):
        if all(isinstance(term, Literal) for term in part.right):
            continue
        if isinstance(part, Op):
            yield part.op, (part.loops, 1)
        elif isinstance(part, Sum):
            yield "add", (part.loops, len(part.right) - 1)
        else:
            if not set(part.left[0].loops).issuperset(part.loops):
                yield "sum", (part.loops, 1)
            yield "multiply", (part.loops, len(part.right) - 1)


def _packed(lines: Iterable[Line], bits: int) -> dict[str, int]:
    """Return the bits per element of arrays with another type than the run: codes and scales of weights."""
    if not any(map(dequantization, lines)):
        return {}
    from learncost.passes.rewrite_quantized import bits_of  # only where weights are quantized

    return {name: width for line in lines for name, width in bits_of(line, bits).items()}


def _arrays(lines: Sequence[Line], leaves: set[str]) -> dict[str, tuple[AccessExtent, ...]]:
    """Return the accesses to every array that a unit reads from outside or writes for others."""
    makes = {term.name for line in lines for term in line.left}
    extents_by_name: dict[str, tuple[AccessExtent, ...]] = {}
    for line in lines:
        read = (term for operand in line.right for term in terms_of(operand) if term.name not in makes)
        at_index = ((term, term.indexed and not term.beyond) for term in read)  # never out of bounds
        extents = [(term.name, (term.loops, 1, term.declared if inside else term.loops)) for term, inside in at_index]
        # The target of a scatter is first filled with zeros.
        extents += [(t.name, (t.declared, 2 if t.indexed else 1, t.declared)) for t in line.left if t.name in leaves]
        for name, extent in extents:
            if extent not in extents_by_name.get(name, ()):
                extents_by_name[name] = (*extents_by_name.get(name, ()), extent)
    return extents_by_name
