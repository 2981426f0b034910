"""What a step in place consists of, before it is written down: its calls, their kernels, every array in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from learncost.equation.arrays import BYTES
from learncost.equation.count import shape_of, size_of
from learncost.equation.table import Line, Table
from learncost.readings.emit.c import Function, kernel
from learncost.readings.emit.identifiers import Identifiers
from learncost.readings.emit.placed.calls import Axes, calls
from learncost.readings.emit.placed.matrix import matrix_product
from learncost.readings.emit.placed.timeline import Timeline
from learncost.readings.emit.precision import Rounding, typed

WIDTHS = {**BYTES, "int64": 8, "bool": 1}
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
        self.items = calls(table, dtypes, self._kernel)
        self.timeline = Timeline(table, self.count, self._bytes)
        self.timeline.lay_out(self.items)

    @property
    def given(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """What the caller owns and some call reads: axes and type by name."""
        owned = {value.owner for fields in self.timeline.fields.values() for value in fields.values()}
        names = (*self.table.inputs, *self.table.weights)
        return {name: (self.table.axes[name], self.dtypes[name]) for name in names if name in owned}

    def count(self, count: str) -> int:
        """The turns of a loop."""
        return int(size_of(count, self.sizes))

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return shape_of(axes, self.sizes)

    def _bytes(self, name: str, axes: Axes) -> int:
        return prod(self.shape(axes[name])) * WIDTHS[self.dtypes[name]]

    def _kernel(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> Function:
        name = self._named.of(f"{wish}.{len(self.functions) + 1}" if wish in self._wishes else wish)
        self._wishes.add(wish)
        function = kernel(lines, axes, others, self.dtypes, self.sizes, name)
        self.functions.append(function)
        return function
