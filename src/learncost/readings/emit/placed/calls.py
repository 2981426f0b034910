"""The lines of a step as calls that write where they are told: library products, kernels, sums in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from learncost.equation.table import Kernel, Line, Product, Repeat, Statement, Sum, Table, Word, defined
from learncost.readings.emit.c import Function
from learncost.readings.emit.placed.matrix import MatrixProduct, Scatter, matrix_product, scatter

Axes: TypeAlias = Mapping[str, tuple[str, ...]]
Written: TypeAlias = Callable[[Sequence[Line], Axes, frozenset[str], str], Function]
"""Writes the lines of a kernel as a function, given their axes, which names others read, and a wish for its name."""


@dataclass(frozen=True)
class Call:
    """One statement of a program: the lines that it computes, the arrays that it reads and those that it fills.

    added    of a product or a scatter: the array that its result is added to, in whose place the sum then stands
    shares   pairs of a read and a filled array that may be one and the same memory
    """

    lines: tuple[Line, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shares: tuple[tuple[str, str], ...] = ()
    function: Function | None = None
    product: MatrixProduct | None = None
    scatter: Scatter | None = None
    added: str = ""

    @property
    def required(self) -> tuple[tuple[str, str], ...]:
        """The pairs that must be one memory: a weight or an optimizer's state, and what becomes of it."""
        return tuple(pair for pair in self.shares if pair[1] == f"{pair[0]}.new")


@dataclass(frozen=True)
class Loop:
    """A repeat, and the calls of one turn."""

    repeat: Repeat
    body: tuple[Call | Loop, ...]


Item: TypeAlias = "Call | Loop"


def calls(table: Table, dtypes: Mapping[str, str], written: Written) -> tuple[Item, ...]:
    """The calls of a table. Raises `InputError` for a line that no call can compute in place."""
    return tuple(_calls(table.lines, dict(table.axes), set(table.outputs), dtypes, written))


def _calls(
    lines: Sequence[Statement], axes: Axes, handed: set[str], dtypes: Mapping[str, str], written: Written
) -> Iterator[Item]:
    """The items of one scope; `handed` are the names that leave it."""
    lines = tuple(lines)
    sums = _sums_in_place(lines, handed, dtypes)
    done = {id(line) for line, _ in sums.values()}
    for group in _groups([line for line in lines if id(line) not in done]):
        first = group[0]
        if isinstance(first, Repeat):
            ends = {carry.end for carry in first.carry} | {own for own, _ in first.keep}
            yield Loop(first, tuple(_calls(first.lines, axes_within(first, axes), ends, dtypes, written)))
        elif id(first) in sums:
            assert isinstance(first, Line)
            yield _added(first, *sums[id(first)])
        else:
            own = [line for line in group if isinstance(line, Line)]
            ours = {id(line) for line in own}
            others = handed | {name for line in lines if id(line) not in ours for name in line.reads}
            yield _call(own, axes, frozenset(others), written)


def _groups(lines: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Lines of one kernel together, every other statement alone."""
    group: list[Statement] = []
    for line in lines:
        kernel = line.tag.kernel if isinstance(line, Line) else None
        if group and (kernel is None or not isinstance(group[-1], Line) or group[-1].tag.kernel != kernel):
            yield group
            group = []
        group.append(line)
        if kernel is None:
            yield group
            group = []
    if group:
        yield group


def _call(lines: list[Line], axes: Axes, others: frozenset[str], written: Written) -> Call:
    first = lines[0]
    kernel = first.tag.kernel
    if kernel is None:
        product = matrix_product(first)
        if product:
            return Call((first,), product.reads, (first.name,), product=product)
        if isinstance(first, Word) and first.word == "zeros":
            return Call((first,), (), (first.name,))
        if rows := scatter(first):
            return Call((first,), (rows.rows, rows.index), (first.name,), scatter=rows)
        kernel = Kernel(first.tag.layer or "line", _turns(first))
        lines = [replace(first, tag=replace(first.tag, kernel=kernel))]
    if others.isdisjoint(defined(lines)):
        others |= {*lines[-1].makes}  # nobody reads it, but the step says that it is done
    function = written(lines, axes, others, kernel.name)
    return Call(tuple(lines), function.reads, function.writes, function.shares, function)


def _turns(line: Line) -> tuple[str, ...]:
    """The axes that a line alone takes turns over: those that all factors of a product have, else all but the last."""
    acted = line.axes if isinstance(line, Word) else ()
    plain = [axis for axis in line.left[0].axes if isinstance(axis, str)]  # what is read at an index is no turn's own
    if isinstance(line, Product) and len(line.right) > 1:
        return tuple(a for a in plain if all(a in term.loops for term in line.right if term.axes))
    return tuple(axis for axis in plain[:-1] if axis not in acted)


def _sums_in_place(
    lines: Sequence[Statement], handed: set[str], dtypes: Mapping[str, str]
) -> dict[int, tuple[Line, str]]:
    """Products and scatters that only a sum of two reads, made after the other one: each with the sum and the other."""
    readers: Counter[str] = Counter(name for line in lines for name in line.reads)
    readers.update(handed)
    place = {name: at for at, line in enumerate(lines) for name in line.makes}
    makers = {line.name: line for line in lines if isinstance(line, Line) and _can_add(line)}
    found: dict[int, tuple[Line, str]] = {}
    for line in lines:
        if not isinstance(line, Sum) or line.tag.kernel or line.signs != (1, 1):
            continue
        one, two = line.right
        if one.axes != two.axes or one.axes != line.left[0].axes:
            continue
        for made, other in ((one.name, two.name), (two.name, one.name)):
            same = made in makers and dtypes[made] == dtypes[other] == dtypes[line.name]
            if same and readers[made] == 1 and place.get(other, -1) < place[made]:
                found[id(makers[made])] = (line, other)
    return found


def _can_add(line: Line) -> bool:
    if line.tag.kernel or not isinstance(line, Product):
        return False
    return scatter(line) is not None or matrix_product(line) is not None


def _added(producer: Line, line: Line, added: str) -> Call:
    product, rows = matrix_product(producer), scatter(producer)
    reads = product.reads if product else producer.reads
    shares = ((added, line.name),)
    return Call((producer, line), (*reads, added), (line.name,), shares, None, product, rows, added)


def every_call(items: Iterable[Item]) -> Iterator[Call]:
    """All calls, those of loops once."""
    for item in items:
        if isinstance(item, Loop):
            yield from every_call(item.body)
        else:
            yield item


def axes_within(repeat: Repeat, axes: Axes) -> dict[str, tuple[str, ...]]:
    """The axes of the names that one turn knows: slices have those of their stacks but the first."""
    slices = {inside: axes[outer][1:] for inside, outer in repeat.each}
    return {**axes, **slices, **repeat.axes}
