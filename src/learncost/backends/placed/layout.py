"""The layout of a step in place: its calls, their kernels, and every array's address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod

from learncost.backends.c import KernelFunction
from learncost.backends.placed.kernels import KernelTable
from learncost.backends.precision import Rounding, typed
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import check_derived
from learncost.ir.polynomial import shape_of, size_of
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.program import arena
from learncost.program.calls import Axes, InPlaceRules, MatrixProduct, matrix_product
from learncost.program.lifetimes import Lifetimes, ScheduledArray, Stack, every_iteration

WIDTHS = {**BYTES, "int64": 8, "uint8": 1, "bool": 1}
"""Bytes of an element of every type of array in a program for PyTorch."""


@dataclass(frozen=True)
class ArenaRules:
    """The memory of the arrays of a step in place, by the program that runs it.

    widths   bytes of an element of every type of array
    aligned  the alignment of every offset in bytes; 0: that of the widest type in the arena
    arenas   the arena of every type of array; none: one for all types
    effort   the limit of the search for an arena of the size of the live arrays
    codes    whether products of 8-bit integers are calls, as those of numbers are
    copies   whether the program copies back weights and states that iterations update elsewhere
    """

    widths: Mapping[str, int]
    aligned: int = 0
    arenas: Mapping[str, str] | None = None
    effort: int = 0
    codes: bool = False
    copies: bool = False

    def arena(self, dtype: str) -> str:
        """Return the arena that stores arrays of a type."""
        return self.arenas[dtype] if self.arenas else ""

    def widest(self, dtypes: Iterable[str]) -> dict[str, int]:
        """Return the bytes of an element of each arena: of the widest type in it."""
        widest: dict[str, int] = {}
        for dtype in dtypes:
            widest[self.arena(dtype)] = max(self.widths[dtype], widest.get(self.arena(dtype), 1))
        return widest


PYTORCH = ArenaRules(WIDTHS, arena.ALIGNED)
"""One tensor of bytes is the arena."""

IN_PLACE = Rounding(
    product=lambda line: matrix_product(line) is not None and line.meta.kernel is None,
    keeps=lambda line: False,  # a kernel computes in fp32 and rounds only what it hands on
)
"""The rounding of an in-place step in bf16."""


def laid_out(
    table: Table,
    sizes: Mapping[str, int],
    dtype: str = "fp32",
    kernels: KernelTable | None = None,
    rules: ArenaRules = PYTORCH,
) -> InPlaceLayout:
    """Return the layout of a step, with the arguments of `placed`. Raises `InputError` for a line that needs a copy.

    kernels  those of other steps, where these and the step's are to be one library
    """
    check_derived(table.lines, "no program computes it")
    return InPlaceLayout(*typed(table, dtype, IN_PLACE), sizes, kernels or KernelTable(sizes), rules)


class InPlaceLayout:
    """The calls of a step, the kernels that these need with their workspace, and the address of each array.

    bytes   of all arenas
    arenas  elements of each arena, by name
    """

    def __init__(
        self,
        table: Table,
        dtypes: Mapping[str, str],
        sizes: Mapping[str, int],
        kernels: KernelTable,
        rules: ArenaRules,
    ) -> None:
        self.dtypes, self.sizes, self.kernels, self.rules = dict(dtypes), sizes, kernels, rules
        self._scratch: dict[str, Value] = {}
        InPlaceRules(dtypes, self._noted, self._product).scheduled(table)
        self.items = InPlaceRules(dtypes, self._kernel, self._product).scheduled(table)
        self.table = replace(table, values={**table.values, **self._scratch}) if self._scratch else table
        self.lifetimes = Lifetimes(self.table, self.items, self.count, every_iteration, wholes=True)
        if not rules.copies:
            self._check()
        self._widest = rules.widest(self.dtypes.values())
        taken = arena.laid_out(self.lifetimes, self._size, self.arena_of, rules.aligned or 1, rules.effort)
        self.bytes = sum(taken.values())
        self.arenas = {name: size // self._widest[name] for name, size in taken.items() if size}

    @property
    def functions(self) -> list[KernelFunction]:
        return self.kernels.functions

    @property
    def allocates(self) -> int:
        """Return the most bytes that a library allocates in one call, and frees."""
        return max((function.allocates for function in self.functions), default=0)

    @cached_property
    def given(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """The axes and types of the caller's arrays that calls read, by name."""
        owned = {value.owner for fields in self.lifetimes.fields.values() for value in fields.values()}
        names = (*self.table.inputs, *self.table.weights)
        return {name: (self.table.axes[name], self.dtypes[name]) for name in names if name in owned}

    @cached_property
    def copies(self) -> dict[str, str]:
        """The given bf16 copies of weights that the step updates, each with its weight."""
        values = self.table.values
        return {name: values[name].of for name in self.given if values[name].role == "copy"}

    @property
    def copied(self) -> int:
        """Return the bytes of these copies."""
        return sum(prod(self.shape(axes)) * WIDTHS[kind] for axes, kind in map(self.given.__getitem__, self.copies))

    def count(self, count: str) -> int:
        """Return the iterations of a loop."""
        return int(size_of(count, self.sizes))

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return shape_of(axes, self.sizes)

    def width(self, array: ScheduledArray) -> int:
        """Return the bytes of an element of an array."""
        return self.rules.widths[self.dtypes[array.name]]

    def arena_of(self, array: ScheduledArray) -> str:
        """Return the arena that stores an array."""
        return self.rules.arena(self.dtypes[array.name])

    def number(self, size: str) -> int:
        """Return the value of a kernel's parameter."""
        return self.kernels.number(size)

    @property
    def map(self) -> arena.Arena:
        """Return the offset of every array during the calls."""
        taken = {name: -(-points * self._widest[name] // 4) * 4 for name, points in self.arenas.items()}
        return arena.mapped(self.lifetimes, self.arena_of, taken)

    @property
    def alive(self) -> dict[str, int]:
        """Return the peak live elements of each arena."""
        return {
            name: arena.alive(array for array in self.lifetimes.roots if self.arena_of(array) == name)
            // self._widest[name]
            for name in self.arenas
        }

    @property
    def fullest(self) -> tuple[str, dict[str, int]]:
        """Return the line of the arenas' peak and the live arrays with their bytes."""
        moment = arena.fullest(self.lifetimes.roots)
        names: dict[str, int] = {}
        for root in self.lifetimes.roots:
            if root.bytes and root.first <= moment <= root.last:
                there = [each for each in self.lifetimes.arrays if each.root is root]
                name = [each for each in there if each.first <= moment <= each.last][-1].name
                name = f"scratch of {name.partition('~')[0]}" if name in self._scratch else name
                names[name] = names.get(name, 0) + root.bytes
        return (str(self.lifetimes.lines[moment - 1][0]) if names else ""), names

    def _size(self, array: ScheduledArray) -> int:
        """Return the bytes of an array, rounded up where the arena's alignment is that of a type."""
        step = 1 if self.rules.aligned else self._widest[self.arena_of(array)]
        return -(-prod(self.shape(array.axes)) * self.width(array) // step) * step

    def _check(self) -> None:
        """Refuse weights and states that iterations update out of place, since they are not copied back."""
        for old, new in self.table.renewed.items():
            lifetime = self.lifetimes.outputs.get(new)
            if isinstance(lifetime, Stack) and any(array.owner != old for array in lifetime.arrays()):
                raise InputError(f"{old} is not updated in place in a loop; a copy would be needed")

    def _product(self, line: Line) -> MatrixProduct | None:
        """Return the line as a product that is a call; None if a kernel computes it."""
        product = matrix_product(line)
        if product and not self.rules.codes and any(self.dtypes[name] == "int8" for name in product.reads):
            return None
        return product

    def _noted(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> KernelFunction:
        """Record the sizes of a kernel's call."""
        self.kernels.note(lines, axes, others, self.dtypes)
        return KernelFunction(wish, "", (), (), (), ())

    def _kernel(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> KernelFunction:
        """The kernel of a call, which writes its workspace, too, in a dialect without allocation."""
        function = self.kernels.written(lines, axes, others, wish, self.dtypes)
        names = [f"{function.name}~{scratch.name}~{len(self._scratch)}" for scratch in function.scratch]
        for name, scratch in zip(names, function.scratch, strict=True):
            self._scratch[name] = Value((str(scratch.points),), "step")
            self.dtypes[name] = scratch.dtype
        return replace(function, writes=(*function.writes, *names)) if names else function
