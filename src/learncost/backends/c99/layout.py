"""The memory layout of a bare-metal program, exact before compiling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from learncost.backends.c import KernelFunction
from learncost.backends.c.c99 import C99
from learncost.backends.placed.kernels import KernelTable
from learncost.backends.placed.layout import IN_PLACE, InPlaceLayout
from learncost.backends.precision import typed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import check_derived
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.value import RANDOM, Value
from learncost.program import arena
from learncost.program.arena import Arena
from learncost.program.calls import Axes, MatrixProduct, matrix_product
from learncost.program.lifetimes import ScheduledArray
from learncost.program.regions import ARENA, Region, assigned, too_large

WIDTHS = {"fp32": 4, "fp64": 8, "int64": 4, "uint8": 1, "bool": 1, "int8": 1, "int32": 4}
"""Bytes of an element: places and indices are of 32 bits."""

ARENAS = {
    **dict.fromkeys(("fp32", "fp64", "int32", "int8"), "arena"),
    "int64": "places",
    **dict.fromkeys(("uint8", "bool"), "flags"),
}
"""The arena in which arrays of a type lie: memory never changes its type, which C forbids, but for bytes that are read
as such (6.5, paragraph 7)."""


def widths(dtypes: Iterable[str]) -> dict[str, int]:
    """Return the bytes of an element of each arena: those of its widest type."""
    alignments: dict[str, int] = {}
    for dtype in dtypes:
        alignments[ARENAS[dtype]] = max(WIDTHS[dtype], alignments.get(ARENAS[dtype], 1))
    return alignments


EFFORT = 300_000
"""The limit of the search for an arena of the size of the live arrays: a second or two at most."""


class Alone(InPlaceLayout):
    """The calls of a step, its C99 kernels with their workspace, and every array's offset.

    arenas  elements of each arena, by name
    """

    def __init__(
        self, table: Table, dtypes: Mapping[str, str], sizes: Mapping[str, int], kernels: KernelTable | None = None
    ) -> None:
        self._scratch: dict[str, tuple[str, str]] = {}
        self.arenas: dict[str, int] = {}
        super().__init__(table, dtypes, sizes, kernels or KernelTable(sizes, C99))

    def _kernel(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str) -> KernelFunction:
        function = super()._kernel(lines, axes, others, wish)
        names = [f"{function.name}~{scratch.name}~{len(self._scratch)}" for scratch in function.scratch]
        for name, scratch in zip(names, function.scratch, strict=True):
            self._scratch[name] = str(scratch.points), scratch.dtype
        return replace(function, writes=(*function.writes, *names))

    def _check(self) -> None:
        """Accept all: values that iterations update out of place are copied back (`StepsWriter`)."""

    def _product(self, line: Line) -> MatrixProduct | None:
        return matrix_product(line)

    def _with_scratch(self, table: Table) -> Table:
        self.dtypes |= {name: dtype for name, (_, dtype) in self._scratch.items()}
        values = {name: Value((points,), "step") for name, (points, _) in self._scratch.items()}
        return replace(table, values={**table.values, **values})

    def width(self, array: ScheduledArray) -> int:
        return WIDTHS[self.dtypes[array.name]]

    def arena(self, array: ScheduledArray) -> str:
        return ARENAS[self.dtypes[array.name]]

    def _arranged(self) -> int:
        wide = widths(self.dtypes.values())

        def size(array: ScheduledArray) -> int:
            """Return bytes rounded up to the arena's alignment."""
            step = wide[self.arena(array)]
            return -(-self.points(array) * self.width(array) // step) * step

        taken = arena.apart(self.lifetimes, size, self.arena, 1, EFFORT)
        self.arenas = {name: size // wide[name] for name, size in taken.items() if size}
        return sum(taken.values())

    @property
    def map(self) -> Arena:
        """Return the offset of every array during the calls."""
        wide = {ARENAS[dtype]: WIDTHS[dtype] for dtype in self.dtypes.values()}
        taken = {name: _whole(points * wide[name]) for name, points in self.arenas.items()}
        return arena.mapped(self.lifetimes, self.arena, taken)

    @property
    def alive(self) -> dict[str, int]:
        """Return the peak live elements of each arena."""
        wide, arrays = widths(self.dtypes.values()), self.lifetimes.arrays
        own = [array for array in arrays if array.over is None and not array.given and array.part is None]
        return {
            name: arena.alive(array for array in own if self.arena(array) == name) // wide[name] for name in self.arenas
        }

    @property
    def fullest(self) -> tuple[str, dict[str, int]]:
        """Return the line of the arenas' peak and the live arrays with their bytes."""
        lifetimes = self.lifetimes
        own = [each for each in lifetimes.arrays if each.bytes and not each.root.given and each.root.part is None]
        roots = [each for each in own if each.over is None and each.part is None]
        alive = [
            sum(each.bytes for each in roots if each.first <= moment <= each.last)
            for moment in range(1, len(lifetimes.lines) + 1)
        ]
        if not alive or not max(alive):
            return "", {}
        moment = alive.index(max(alive)) + 1
        names: dict[str, int] = {}
        for root in roots:
            if root.first <= moment <= root.last:
                there = [each for each in own if each.root is root and each.first <= moment <= each.last] or [root]
                name = there[-1].name
                name = f"scratch of {name.partition('~')[0]}" if "~" in name else name
                names[name] = names.get(name, 0) + root.bytes
        return str(lifetimes.lines[moment - 1][0]), names


def alone(table: Table, sizes: Mapping[str, int], dtype: str = "fp32", kernels: KernelTable | None = None) -> Alone:
    """Return the layout of a step for a processor without an operating system.

    table    a step whose outputs are results and new weights and states
    dtype    fp32 or fp64; int32, where all numbers are whole ones
    kernels  of other steps, in one file with which this one is
    Raises `InputError` for a line that cannot be computed in place.
    """
    check_derived(table.lines, "no program computes it")
    return Alone(*typed(table, dtype, IN_PLACE), sizes, kernels)


@dataclass(frozen=True)
class ProgramMemory:
    """The memory of a program in bytes, before it is compiled.

    arena      the arrays that live within a step
    weights    that learn, in RAM
    states     of the optimizer, and gradients that are gathered over microbatches
    inputs     that change from step to step
    constants  in flash: frozen weights, positions, shares, projections, numbers
    variables  single numbers that change: the learning rate, the number of steps, what follows from them
    masks      of dropout, which a step draws
    """

    arena: int
    weights: int
    states: int
    inputs: int
    constants: int
    variables: int
    masks: int = 0

    @property
    def ram(self) -> int:
        return self.arena + self.weights + self.states + self.inputs + self.variables + self.masks


def program_memory(
    tables: Table | Iterable[Table], sizes: Mapping[str, int], dtype: str = "fp32", fixed: Iterable[str] = ()
) -> ProgramMemory:
    """Return the memory of a program's entries: a training step and an optional prediction.

    fixed  inputs that never change though the table does not say so, such as the angles of positions
    Raises `InputError` as `alone` does.
    """
    tables = (tables,) if isinstance(tables, Table) else tuple(tables)
    kernels = KernelTable(sizes, C99)
    layouts = [alone(table, sizes, dtype, kernels) for table in tables]
    return counted(layouts, frozenset(fixed))


def counted(layouts: Sequence[Alone], fixed: frozenset[str]) -> ProgramMemory:
    """Return the joint memory of laid out steps."""
    wide = widths(dtype for layout in layouts for dtype in layout.dtypes.values())
    groups = dict.fromkeys(("weights", "states", "inputs", "constants", "variables", "masks"), 0)
    for kind, axes, dtype in given(layouts, fixed).values():
        groups[kind] += declared(prod(shape_of(axes, layouts[0].sizes)), dtype) * WIDTHS[dtype]
    trains = [layout for layout in layouts if layout.table.renewed]
    width = wide["arena"]
    if trains:
        groups["variables"] += 4 + 4 + width * any("loss" in layout.table.outputs for layout in trains)  # steps, seed
        groups["variables"] += 4 * any("gathered" in _roles(layout) for layout in trains)  # microbatches so far
    if any(layout.table.values[name].of == "decay" for layout in layouts for name in layout.given):
        groups["constants"] += width  # the weight decay itself
    return ProgramMemory(in_all(layouts, together(layout.arenas for layout in layouts)), **groups)


def arrays(layouts: Sequence[Alone], fixed: frozenset[str]) -> dict[str, int]:
    """Return the bytes in RAM that `counted` sums: arrays by name, arenas prefixed with `ARENA`, scalars as ""."""
    own = ("weights", "states", "inputs", "masks")
    result = {
        name: declared(prod(shape_of(axes, layouts[0].sizes)), dtype) * WIDTHS[dtype]
        for name, (kind, axes, dtype) in given(layouts, fixed).items()
        if kind in own
    }
    for name, points in together(layout.arenas for layout in layouts).items():
        result[f"{ARENA}{name}"] = in_all(layouts, {name: points})
    return {"": counted(layouts, fixed).variables, **result}


def placed(layouts: Sequence[Alone], fixed: frozenset[str], regions: Sequence[Region]) -> dict[str, str]:
    """Return the region of everything in RAM, by the names of `arrays`; empty without regions.

    Raises `InputError` where it does not fit.
    """
    if not regions:
        return {}
    sizes = arrays(layouts, fixed)
    places = assigned(sizes, regions)
    if places is None:
        raise InputError(f"the program takes {too_large(sizes, regions)}; learncost fit says what fits")
    return places


def in_all(layouts: Sequence[Alone], elements: Mapping[str, int]) -> int:
    """Return the bytes of arenas, given their elements."""
    wide = widths(dtype for layout in layouts for dtype in layout.dtypes.values())
    return sum(_whole(points * wide[name]) for name, points in elements.items())


def _roles(layout: Alone) -> set[str]:
    return {layout.table.values[name].role for name in layout.given}


def together(arenas: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the elements of arenas that fit every step, one at a time."""
    result: dict[str, int] = {}
    for elements in arenas:
        result |= {name: max(points, result.get(name, 0)) for name, points in elements.items()}
    return result


def declared(points: int, dtype: str) -> int:
    """Return the padded elements of an input array: bytes fill a word, so that there are no gaps."""
    return _whole(points * WIDTHS[dtype]) // WIDTHS[dtype]


def _whole(size: int) -> int:
    """Return bytes rounded up to a full word."""
    return -(-size // 4) * 4


_VARY = ("lr", "k1", "k2", "decay", "draw")


def varies(of: str) -> bool:
    """Return whether a number changes from step to step; of `draw/200` every 200 steps."""
    return of.partition("/")[0] in _VARY


"""Numbers that change from step to step, by their names in optimizers and procedures."""


def given(layouts: Sequence[Alone], fixed: frozenset[str]) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Return the inputs of the steps: group in `ProgramMemory`, axes, type."""
    renewed = {name for layout in layouts for name in layout.table.renewed}
    result: dict[str, tuple[str, tuple[str, ...], str]] = {}
    for layout in layouts:
        for name, (axes, dtype) in layout.given.items():
            value = layout.table.values[name]
            if name in renewed:
                kind = "weights" if name in layout.table.weights else "states"
            elif name in layout.table.weights or name in fixed or _is_fixed(value):
                kind = "constants"
            elif value.role == "number":
                kind = "variables" if varies(value.of) else "constants"
            elif value.role == "mask":
                kind = "masks"
            else:
                kind = "inputs"
            result.setdefault(name, (kind, axes, dtype))
            if kind in ("weights", "states"):
                result[name] = (kind, axes, dtype)
    return result


_CONSTANT = frozenset(("share", "sign", "buffer", "end", "padding", "gradient"))
"""Roles of inputs that are the same at every step of a full batch; the gradient of the loss is 1."""


def _is_fixed(value: Value) -> bool:
    """Return whether an input is the same at every step, such as the scales of a weight."""
    return value.role in _CONSTANT | RANDOM or bool(value.role == "constant" and value.of)
