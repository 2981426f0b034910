"""The lines of a step as calls with preallocated results: library products, kernels, in-place accumulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, defined, groups, in_kernel, walk
from learncost.ir.polynomial import base, sharded_over, whole
from learncost.ir.table import Table
from learncost.ops.collectives import JOINED, REDUCES, is_collective
from learncost.program.calls import (
    AliasedMemory,
    Axes,
    Call,
    InPlaceSlot,
    Item,
    LibraryFunction,
    MatrixProduct,
    Values,
    matrix_product,
    scatter,
    scheduled,
    updates,
)


@dataclass(frozen=True)
class InPlaceRules:
    """The rules of a step in place: kernels, products of a library, and messages, some of which add to an array.

    dtypes   the type of every array
    written  emits the lines of a kernel, given their axes, the names that others read, and a wished name
    product  returns a line as a library's matrix product; None: a kernel computes it
    """

    dtypes: Mapping[str, str]
    written: Callable[[Sequence[Line], Axes, frozenset[str], str], LibraryFunction]
    product: Callable[[Line], MatrixProduct | None] = matrix_product

    def scheduled(self, table: Table) -> tuple[Item, ...]:
        """Return the calls of a table. Raises `InputError` for a line that no call can compute in-place."""
        conditions = [condition for line, _ in walk(table.lines) for condition in line.where if any(condition.zigzag)]
        if axes := sorted({base(whole(axis)) for condition in conditions for axis in condition.axes}):
            raise InputError(f"{' and '.join(axes)} is in zigzag order, which kernels do not support")
        if any(isinstance(line, Op) and line.op == "pass_on" for line, _ in walk(table.lines)):
            raise InputError("ring attention is not supported in kernels: leave out the plan ring")
        return scheduled(table, self.calls)

    def calls(self, lines: Sequence[Statement], axes: Axes, values: Values, handed: set[str]) -> Iterator[Call | Loop]:
        """Yield the calls of one scope, and its loops."""
        sums = self._sums_in_place(lines, handed)
        done = {line.name for line, _ in sums.values()}
        readers = Counter(name for line in lines for name in line.reads)

        def together(group: Sequence[Statement], line: Statement) -> bool:
            return in_kernel(group, line) or _in_a_message(group, line, self.dtypes)

        for group in groups((line for line in lines if isinstance(line, Loop) or line.name not in done), together):
            first = group[0]
            if isinstance(first, Loop):
                yield first
            elif first.name in sums:
                yield self._added(first, *sums[first.name], values)
            else:
                own_lines = [line for line in group if isinstance(line, Line)]
                inside = Counter(name for line in own_lines for name in line.reads)
                others = frozenset(
                    name for name in defined(own_lines) if name in handed or readers[name] > inside[name]
                )
                yield self._call(own_lines, axes, values, others)

    def _call(self, lines: list[Line], axes: Axes, values: Values, others: frozenset[str]) -> Call:
        first = lines[0]
        if is_collective(first):
            return _message(lines)
        for line in lines:
            if axis := _counted(line):
                raise InputError(
                    f"{line.name} needs positions of the sharded axis {axis}, which kernels do not support"
                )
        kernel = first.meta.kernel
        if kernel is None:
            product = self.product(first)
            if product:
                return Call((first,), product.reads, (first.name,), product=product)
            if isinstance(first, Op) and first.op == "zeros":
                return Call((first,), (), (first.name,))
            if rows := scatter(first):
                return Call((first,), (rows.rows, rows.index), (first.name,), scatter=rows)
            kernel = FusedKernel(first.meta.layer or "line", _iterations(first))
            lines = [replace(first, meta=replace(first.meta, kernel=kernel))]
        if others.isdisjoint(defined(lines)):
            others |= {*lines[-1].makes}  # nothing reads it, but the step must define it
        function = self.written(lines, axes, others, kernel.name)
        return Call(tuple(lines), function.reads, function.writes, _shares(lines, function.shares, values), function)

    def _sums_in_place(self, lines: Sequence[Statement], handed: set[str]) -> dict[str, tuple[Line, str]]:
        """Return products and scatters that only a sum with an earlier array reads, with the sum and the array."""
        readers: Counter[str] = Counter(name for line in lines for name in line.reads)
        readers.update(handed)
        place = {name: at for at, line in enumerate(lines) for name in line.makes}
        products = [line for line in lines if isinstance(line, Product) and not line.meta.kernel]
        makers = {line.name: line for line in products if scatter(line) or self.product(line)}
        dtypes = self.dtypes
        sums: dict[str, tuple[Line, str]] = {}
        for line in lines:
            if not isinstance(line, Sum) or line.meta.kernel or line.signs != (1, 1):
                continue
            first, second = line.right
            if first.axes != second.axes or first.axes != line.left[0].axes:
                continue
            for summand, other in ((first.name, second.name), (second.name, first.name)):
                same = summand in makers and dtypes[summand] == dtypes[other] == dtypes[line.name]
                if same and readers[summand] == 1 and place.get(other, -1) < place[summand]:
                    sums[summand] = (line, other)
        return sums

    def _added(self, producer: Line, line: Line, added: str, values: Values) -> Call:
        product, rows = self.product(producer), scatter(producer)
        reads = product.reads if product else producer.reads
        shares = _shares((line,), ((added, line.name),), values)
        return Call((producer, line), (*reads, added), (line.name,), shares, None, product, rows, added)


def _in_a_message(group: Sequence[Statement], line: Statement, dtypes: Mapping[str, str]) -> bool:
    """Return whether a collective joins the bucket before it: of the same kind and type, and independent of it."""
    first = group[0]
    if not is_collective(first) or not is_collective(line) or line.op not in JOINED:
        return False
    same = (first.op, first.axes, dtypes[first.name]) == (line.op, line.axes, dtypes[line.name])
    return same and not any(name in line.reads for member in group for name in member.makes)


def _message(lines: Sequence[Line]) -> Call:
    """Return collectives that are sent at once; a reduction may be in-place."""
    reads = tuple(dict.fromkeys(name for line in lines for name in line.reads))
    shares = [
        AliasedMemory(name, line.name)
        for line in lines
        if isinstance(line, Op) and line.op in REDUCES
        for name in line.reads
    ]
    return Call(tuple(lines), reads, tuple(line.name for line in lines), tuple(shares))


def _counted(line: Line) -> str:
    """Return a sharded axis whose positions the line depends on; "" where there is none."""
    sides = [axis for condition in line.where for axis in condition.axes]
    reads = [axis.axis for axis in line.indexed_axes]
    return next((axis for axis in (*sides, *reads) if sharded_over(axis)), "")


def _shares(lines: Sequence[Line], pairs: Iterable[tuple[str, str]], values: Values) -> tuple[AliasedMemory, ...]:
    """Return pairs of a read and a written array that may share memory; updates must, and new copies of weights."""
    must = {(share.read, share.written) for share in updates(lines, values)}
    copies = {name: values[name].of for line in lines for name in line.makes if values[name].role == "new"}
    over = [(old, new) for new, old in copies.items() if values[old].role == "copy"]
    return (
        *(AliasedMemory(*pair, InPlaceSlot.OVER if pair in must else InPlaceSlot.FREE) for pair in pairs),
        *(AliasedMemory(*pair, InPlaceSlot.OVER) for pair in over),
    )


def _iterations(line: Line) -> tuple[str, ...]:
    """Return the axes that a line's kernel is tiled over: those that all factors share, otherwise all but the last."""
    acted = line.axes if isinstance(line, Op) else ()
    plain = [axis for axis in line.left[0].axes if isinstance(axis, str)]  # an axis read at an index is not tiled
    if isinstance(line, Product) and len(line.right) > 1:
        return tuple(a for a in plain if all(a in term.loops for term in line.right if term.axes))
    return tuple(axis for axis in plain[:-1] if axis not in acted)
