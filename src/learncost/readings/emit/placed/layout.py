"""What a step in place consists of, before it is written down: its calls, their kernels, every array in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from learncost.equation.count import shape_of, size_of
from learncost.equation.precision import BYTES
from learncost.equation.table import Line, Table
from learncost.readings.emit.c import Function, kernel
from learncost.readings.emit.identifiers import Identifiers
from learncost.readings.emit.placed.alike import Alike, Pattern, alike, flat, named_by_word
from learncost.readings.emit.precision import Rounding, typed
from learncost.schedule import arena
from learncost.schedule.calls import Axes
from learncost.schedule.in_place import calls
from learncost.schedule.lifetimes import Array, Lifetimes, every_turn
from learncost.schedule.matrix import matrix_product

WIDTHS = {**BYTES, "int64": 8, "uint8": 1, "bool": 1}
"""Bytes of an element of every type of array."""

_ROUNDING = Rounding(
    product=lambda line: matrix_product(line) is not None and line.tag.kernel is None,
    keeps=lambda line: False,  # a kernel computes in fp32 and rounds only what it hands on
)


def laid_out(table: Table, sizes: Mapping[str, int], dtype: str = "fp32") -> Layout:
    """The lay-out of a step, given as to `placed`. Raises `InputError` for a line that cannot be computed in place."""
    return Layout(*typed(table, dtype, _ROUNDING), sizes)


class Layout:
    """The calls of a step, the kernels that these need, and where each array lies."""

    def __init__(self, table: Table, dtypes: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        self.table, self.dtypes, self.sizes = table, dtypes, sizes
        self.functions: list[Function] = []
        self._named, self._wishes = Identifiers(()), set[str]()
        self._sizes_of: dict[Pattern, set[tuple[int, ...]]] = {}
        self._written: dict[Pattern, tuple[Alike, Function]] = {}
        calls(table, dtypes, self._noted)
        self.items = calls(table, dtypes, self._kernel)
        self.lifetimes = Lifetimes(table, self.items, self.count, every_turn, wholes=True)
        self.bytes = arena.laid_out(self.lifetimes, self._bytes)

    @property
    def given(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """What the caller owns and some call reads: axes and type by name."""
        owned = {value.owner for fields in self.lifetimes.fields.values() for value in fields.values()}
        names = (*self.table.inputs, *self.table.weights)
        return {name: (self.table.axes[name], self.dtypes[name]) for name in names if name in owned}

    def count(self, count: str) -> int:
        """The turns of a loop."""
        return int(size_of(count, self.sizes))

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return shape_of(axes, self.sizes)

    def _bytes(self, array: Array) -> int:
        return prod(self.shape(array.axes)) * WIDTHS[self.dtypes[array.name]]

    def _noted(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> Function:
        """In place of a kernel, what is computed at which sizes: where these differ, they are parameters."""
        kernel = alike(*flat(lines, axes), others, self.dtypes)
        self._sizes_of.setdefault(kernel.pattern, set()).add(self._numbers(kernel.sizes))
        return Function(wish, "", (), (), (), ())

    def _kernel(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> Function:
        """The kernel of lines: one for all that differ in names and sizes alone, called with their own."""
        lines, axes = flat(lines, axes)
        like = alike(lines, axes, others, self.dtypes)
        if like.pattern not in self._written:
            name = self._named.of(f"{wish}.{len(self.functions) + 1}" if wish in self._wishes else wish)
            self._wishes.add(wish)
            several = zip(*self._sizes_of[like.pattern], strict=True)
            fixed = {
                size: numbers[0] for size, numbers in zip(like.sizes, several, strict=True) if len({*numbers}) == 1
            }
            words_names = named_by_word(lines)
            renamed = {words_names.get(array, array): array for array in like.arrays}
            function = kernel(
                [line.renamed(words_names) for line in lines],
                {array: axes[name] for array, name in renamed.items() if name in axes},
                frozenset(words_names.get(array, array) for array in others & {*like.arrays}),
                {array: self.dtypes[name] for array, name in renamed.items() if name in self.dtypes},
                fixed,
                name,
            )
            self.functions.append(function)
            names = tuple(renamed)
            self._written[like.pattern] = replace(like, arrays=names), function
        first, function = self._written[like.pattern]
        arrays = dict(zip(first.arrays, like.arrays, strict=True))
        sizes = dict(zip(first.sizes, like.sizes, strict=True))
        return replace(
            function,
            reads=tuple(arrays[name] for name in function.reads),
            writes=tuple(arrays[name] for name in function.writes),
            sizes=tuple(sizes[size] for size in function.sizes),
            shares=tuple((arrays[read], arrays[written]) for read, written in function.shares),
        )

    def number(self, size: str) -> int:
        """What a size comes to; one that `flat` made, to the points of its axes."""
        return prod(int(size_of(axis, self.sizes)) for axis in size.split())

    def _numbers(self, sizes: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.number, sizes))
