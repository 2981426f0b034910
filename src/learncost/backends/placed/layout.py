"""The layout of a step in place: its calls, their kernels, and every array's address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from learncost.backends.c import KernelFunction
from learncost.backends.placed.kernels import KernelTable
from learncost.backends.precision import Rounding, typed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.polynomial import shape_of, size_of
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.program import arena
from learncost.program.calls import Axes, MatrixProduct, matrix_product
from learncost.program.in_place import calls
from learncost.program.lifetimes import Lifetimes, ScheduledArray, Stack, every_iteration

WIDTHS = {**BYTES, "int64": 8, "uint8": 1, "bool": 1}
"""Bytes of an element of every type of array."""

IN_PLACE = Rounding(
    product=lambda line: matrix_product(line) is not None and line.meta.kernel is None,
    keeps=lambda line: False,  # a kernel computes in fp32 and rounds only what it hands on
)
"""The rounding of an in-place step in bf16."""


def laid_out(table: Table, sizes: Mapping[str, int], dtype: str = "fp32") -> InPlaceLayout:
    """Return the layout of a step, with the arguments of `placed`. Raises `InputError` for a line that needs a copy."""
    return InPlaceLayout(*typed(table, dtype, IN_PLACE), sizes)


class InPlaceLayout:
    """The calls of a step, their kernels, and the address of each array.

    kernels  those of other steps, where these and the step's are to be one library
    """

    def __init__(
        self, table: Table, dtypes: Mapping[str, str], sizes: Mapping[str, int], kernels: KernelTable | None = None
    ) -> None:
        self.dtypes, self.sizes = dict(dtypes), sizes
        self.kernels = kernels or KernelTable(sizes)
        calls(table, dtypes, self._noted, self._product)
        self.items = calls(table, dtypes, self._kernel, self._product)
        self.table = self._with_scratch(table)
        self.lifetimes = Lifetimes(self.table, self.items, self.count, every_iteration, wholes=True)
        self._check()
        self.bytes = self._arranged()

    @property
    def functions(self) -> list[KernelFunction]:
        return self.kernels.functions

    @property
    def given(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """The axes and types of the caller's arrays that calls read, by name."""
        owned = {value.owner for fields in self.lifetimes.fields.values() for value in fields.values()}
        names = (*self.table.inputs, *self.table.weights)
        return {name: (self.table.axes[name], self.dtypes[name]) for name in names if name in owned}

    def count(self, count: str) -> int:
        """Return the iterations of a loop."""
        return int(size_of(count, self.sizes))

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return shape_of(axes, self.sizes)

    def points(self, array: ScheduledArray) -> int:
        """Return the number of elements of an array."""
        return prod(self.shape(array.axes))

    def number(self, size: str) -> int:
        """Return the value of a kernel's parameter."""
        return self.kernels.number(size)

    def _arranged(self) -> int:
        """Assign every array an offset and return the bytes of the arena."""
        return arena.laid_out(self.lifetimes, lambda array: self.points(array) * WIDTHS[self.dtypes[array.name]])

    def _check(self) -> None:
        """Refuse weights and states that iterations update out of place, since they are not copied back."""
        for old, new in self.table.renewed.items():
            lifetime = self.lifetimes.outputs.get(new)
            if isinstance(lifetime, Stack) and any(array.owner != old for array in lifetime.arrays()):
                raise InputError(f"{old} is not updated in place in a loop; a copy would be needed")

    def _product(self, line: Line) -> MatrixProduct | None:
        """Return the line as a library product, whose factors have one type."""
        product = matrix_product(line)
        return product if product and all(self.dtypes[name] != "int8" for name in product.reads) else None

    def _with_scratch(self, table: Table) -> Table:
        return table

    def _noted(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> KernelFunction:
        """Record the sizes of a kernel's call."""
        self.kernels.note(lines, axes, others, self.dtypes)
        return KernelFunction(wish, "", (), (), (), ())

    def _kernel(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> KernelFunction:
        return self.kernels.written(lines, axes, others, wish, self.dtypes)
