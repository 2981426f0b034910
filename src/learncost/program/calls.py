"""The calls of a step: lines as an engine executes them, with each call's operands, results and in-place results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line, Op, Product, Sum, alias
from learncost.ir.loop import Loop, Statement, defined, groups, in_kernel, walk
from learncost.ir.polynomial import base, sharded_over, whole
from learncost.ir.table import Table
from learncost.ir.term import Operand, Read, Term
from learncost.ir.value import Value
from learncost.ops.collectives import JOINED, REDUCES, is_collective


@dataclass(frozen=True)
class MatrixView:
    """An array read as a matrix: `rows` of its axes are the rows, the others the columns; possibly transposed."""

    name: str
    rows: int
    transposed: bool = False


@dataclass(frozen=True)
class MatrixProduct:
    """The product `out = one @ two` of three arrays in their layouts."""

    left: MatrixView
    right: MatrixView
    out: MatrixView

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.left.name, self.right.name)))


def matrix_product(line: Line) -> MatrixProduct | None:
    """Return a product as a matrix product, if its axes have a suitable order; otherwise None."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.where:
        return None
    a, b = line.right
    out = line.left[0]
    if not all(isinstance(term, Term) and not term.indexed for term in (a, b, out)):
        return None
    if any(len(term.axes) != len(set(term.axes)) for term in (a, b, out)):
        return None
    sides = line.sides
    if not sides.are_of_matrices or sides.batch or sides.lone:
        return None
    rows, columns = sides.rows, sides.columns
    if out.loops == (*columns, *rows):
        a, b, rows, columns = b, a, columns, rows
    if out.loops != (*rows, *columns):
        return None
    first = _matrix(a, rows, sides.summed)
    second = _matrix(b, sides.summed, columns)
    return MatrixProduct(first, second, MatrixView(out.name, len(rows))) if first and second else None


def _matrix(term: Operand, rows: tuple[str, ...], columns: tuple[str, ...]) -> MatrixView | None:
    if term.loops == (*rows, *columns):
        return MatrixView(term.name, len(rows))
    if term.loops == (*columns, *rows):
        return MatrixView(term.name, len(columns), transposed=True)
    return None


@dataclass(frozen=True)
class Scatter:
    """Rows that are added to those of a table at an index, such as the gradient of an embedding.

    rows     the array that has them, first those axes over which they are summed
    summed   the number of these
    columns  the number of axes of a row
    """

    index: str
    rows: str
    summed: int
    columns: int


def scatter(line: Line) -> Scatter | None:
    """Return the line as rows added at an index; None if it is something else."""
    left = line.left[0]
    if not isinstance(line, Product) or len(line.right) != 1 or line.where or not left.axes:
        return None
    (right,), (first, *columns) = line.right, left.axes
    if not isinstance(right, Term) or right.indexed or not isinstance(first, Read) or not isinstance(first.at, Term):
        return None
    axes = (*first.at.loops, *columns)
    before = len(right.axes) - len(axes)
    if before < 0 or right.axes[before:] != axes or len(first.at.loops) != len(first.at.axes):
        return None
    return Scatter(first.at.name, right.name, before, len(columns))


Axes: TypeAlias = Mapping[str, tuple[str, ...]]
Values: TypeAlias = Mapping[str, Value]


class InPlaceSlot(Enum):
    """The place of a result relative to an operand of the same size."""

    SAME = "another name of the operand"
    OVER = "over the operand, which must be possible"
    FREE = "over the operand, where nothing reads that afterwards"


@dataclass(frozen=True)
class AliasedMemory:
    """An operand and a result of a call that may share memory, or must."""

    read: str
    written: str
    place: InPlaceSlot = InPlaceSlot.FREE


class LibraryFunction(Protocol):
    """A function of a compiled library: the arrays that it reads and writes, and its sizes.

    shares  pairs of a read and a written array that may be the same memory
    """

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...
    @property
    def writes(self) -> tuple[str, ...]: ...
    @property
    def sizes(self) -> tuple[str, ...]: ...
    @property
    def shares(self) -> tuple[tuple[str, str], ...]: ...


@dataclass(frozen=True)
class Call:
    """One execution unit: its lines, the arrays that it reads, those that it writes.

    Results of its lines that `writes` does not name stay inside of it, or of its kernel.
    function  of a compiled library, which computes it
    product   or a library's matrix product; scatter, rows that are added at an index
    added     for a product or a scatter: the array that accumulates its result in-place
    """

    lines: tuple[Line, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shares: tuple[AliasedMemory, ...] = ()
    function: LibraryFunction | None = None
    product: MatrixProduct | None = None
    scatter: Scatter | None = None
    added: str = ""


@dataclass(frozen=True, eq=False)
class CallLoop:
    """A loop, and the calls of one iteration."""

    repeat: Loop
    body: tuple[Item, ...]


Item: TypeAlias = "Call | CallLoop"


Rules: TypeAlias = "Callable[[Sequence[Statement], Axes, Values, set[str]], Iterator[Call | Loop]]"
"""The calls and loops of one scope as an engine runs its lines; the last argument are the names that leave it."""


@dataclass(frozen=True)
class ScheduleRules:
    """The rules of an engine that runs every line as a call.

    kernels  results that only lines of the same kernel read are not stored
    updates  new weights and states overwrite the old ones
    """

    kernels: bool = False
    updates: bool = False

    def calls(self, lines: Sequence[Statement], axes: Axes, values: Values, handed: set[str]) -> Iterator[Call | Loop]:
        """Yield the calls of one scope, and its loops."""
        inside = inside_of_kernels(lines, handed) if self.kernels else frozenset[str]()
        for line in lines:
            if isinstance(line, Loop):
                yield line
                continue
            reads = tuple(name for name in line.reads if name not in inside)
            writes = tuple(name for name in line.makes if name not in inside)
            shares = (share for share in _shares(line, values, self) if share.read not in inside)
            yield Call((line,), reads, writes, tuple(shares) if writes else ())


AS_WRITTEN = ScheduleRules()
"""Line by line; an alias is the same array, and nothing else is in-place."""

IN_KERNELS = ScheduleRules(kernels=True, updates=True)
"""Line by line, as a library of kernels: the engine graph."""


def scheduled(table: Table, rules: Rules) -> tuple[Item, ...]:
    """Return the calls of a table under the rules of an engine."""
    known = table.known

    def items(lines: Sequence[Statement], axes: Axes, handed: set[str]) -> Iterator[Item]:
        for each in rules(lines, axes, known, handed):
            if isinstance(each, Loop):
                yield CallLoop(each, tuple(items(each.lines, axes_within(each, axes), {*each.ends})))
            else:
                yield each

    return tuple(items(table.lines, table.axes, set(table.outputs)))


def _shares(line: Line, values: Values, rules: ScheduleRules) -> Iterator[AliasedMemory]:
    first = line.right[0] if line.right else None
    if alias(line) and isinstance(first, Term):
        yield AliasedMemory(first.name, line.name, InPlaceSlot.SAME)
    elif rules.updates and line.meta.phase == "optimizer_step":
        yield from updates((line,), values)


def updates(lines: Sequence[Line], values: Values) -> Iterator[AliasedMemory]:
    """Yield the pairs of a weight or an optimizer state and its new value in the lines of a call."""
    read = {name for line in lines for name in line.reads}
    for name in (name for line in lines for name in line.makes):
        if values[name].role == "new" and values[name].of in read:
            yield AliasedMemory(values[name].of, name, InPlaceSlot.OVER)


def inside_of_kernels(lines: Iterable[Statement], outputs: Iterable[str]) -> frozenset[str]:
    """Return the results that only lines of the same kernel read; `outputs` are the names that leave the scope."""
    maker: dict[str, str] = {}
    others = set(outputs)
    for line in lines:
        kernel = line.meta.kernel.name if isinstance(line, Line) and line.meta.kernel else ""
        others |= {name for name in line.reads if maker.get(name) != kernel}
        if kernel:
            maker |= dict.fromkeys(line.makes, kernel)
    return frozenset(maker.keys() - others)


def every_call(items: Iterable[Item]) -> Iterator[Call]:
    """Yield all calls, those of loops once."""
    for item in items:
        if isinstance(item, CallLoop):
            yield from every_call(item.body)
        else:
            yield item


def axes_within(repeat: Loop, axes: Axes) -> dict[str, tuple[str, ...]]:
    """Return the axes of the names in an iteration: slices have those of their stacks without the first."""
    slices = {inside: axes[outer][1:] for inside, outer in repeat.each if outer in axes}
    return {**axes, **slices, **repeat.axes}


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
        return Call(tuple(lines), function.reads, function.writes, _shared(lines, function.shares, values), function)

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
        shares = _shared((line,), ((added, line.name),), values)
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


def _shared(lines: Sequence[Line], pairs: Iterable[tuple[str, str]], values: Values) -> tuple[AliasedMemory, ...]:
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
