"""The memory layout of a bare-metal program, exact before compiling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod

from learncost.backends.c import kernel
from learncost.backends.c.c99 import C99
from learncost.backends.placed.kernels import KernelTable
from learncost.backends.placed.layout import ArenaRules, InPlaceLayout, laid_out
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.value import RANDOM, Value
from learncost.program.arena import ARENA, Region, assigned, too_large

WIDTHS = {"fp32": 4, "fp64": 8, "int64": 4, "uint8": 1, "bool": 1, "int8": 1, "int32": 4}
"""Bytes of an element: places and indices are of 32 bits."""

ARENAS = {
    **dict.fromkeys(("fp32", "fp64", "int32", "int8"), "arena"),
    "int64": "places",
    **dict.fromkeys(("uint8", "bool"), "flags"),
}
"""The arena that stores arrays of a type: memory never changes its type, which C forbids, but for bytes that are read
as such (6.5, paragraph 7)."""

STATIC = ArenaRules(WIDTHS, arenas=ARENAS, effort=300_000, codes=True, copies=True)
"""Arrays of C, whose type is that of their arena; the search for their places takes a second or two at most."""


write_c99 = partial(kernel, printer=C99)
"""The printer of kernels in C99."""


def alone(
    table: Table, sizes: Mapping[str, int], dtype: str = "fp32", kernels: KernelTable | None = None
) -> InPlaceLayout:
    """Return the layout of a step for a processor without an operating system.

    table    a step whose outputs are results and new weights and states
    dtype    fp32 or fp64; int32, where all numbers are whole ones
    kernels  of other steps, in one file with which this one is
    Raises `InputError` for a line that cannot be computed in place.
    """
    return laid_out(table, sizes, dtype, kernels or KernelTable(sizes, write_c99), STATIC)


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
    kernels = KernelTable(sizes, write_c99)
    layouts = [alone(table, sizes, dtype, kernels) for table in tables]
    return counted(layouts, frozenset(fixed))


def counted(layouts: Sequence[InPlaceLayout], fixed: frozenset[str]) -> ProgramMemory:
    """Return the joint memory of laid out steps."""
    wide = STATIC.widest(dtype for layout in layouts for dtype in layout.dtypes.values())
    groups = dict.fromkeys(("weights", "states", "inputs", "constants", "variables", "masks"), 0)
    for kind, axes, dtype in given(layouts, fixed).values():
        groups[kind] += declared(prod(shape_of(axes, layouts[0].sizes)), dtype) * WIDTHS[dtype]
    trains = [layout for layout in layouts if layout.table.renewed]
    width = wide["arena"]
    if trains:
        groups["variables"] += 4 + 4 + width * any("loss" in layout.table.outputs for layout in trains)  # steps, seed
        roles = {layout.table.values[name].role for layout in trains for name in layout.given}
        groups["variables"] += 4 * ("gathered" in roles)  # microbatches so far
    if any(layout.table.values[name].of == "decay" for layout in layouts for name in layout.given):
        groups["constants"] += width  # the weight decay itself
    return ProgramMemory(in_all(layouts, together(layout.arenas for layout in layouts)), **groups)


def arrays(layouts: Sequence[InPlaceLayout], fixed: frozenset[str]) -> dict[str, int]:
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


def placed(layouts: Sequence[InPlaceLayout], fixed: frozenset[str], regions: Sequence[Region]) -> dict[str, str]:
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


def in_all(layouts: Sequence[InPlaceLayout], elements: Mapping[str, int]) -> int:
    """Return the bytes of arenas, given their elements."""
    wide = STATIC.widest(dtype for layout in layouts for dtype in layout.dtypes.values())
    return sum(_whole(points * wide[name]) for name, points in elements.items())


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


def given(layouts: Sequence[InPlaceLayout], fixed: frozenset[str]) -> dict[str, tuple[str, tuple[str, ...], str]]:
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
