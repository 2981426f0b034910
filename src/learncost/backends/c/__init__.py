"""Kernels in C: consecutive lines of a table fused into one function, with intermediates in registers and caches.

A function runs its iterations in parallel threads (OpenMP), with loops that a compiler vectorises, and matrix products
inside of an iteration as tiles in registers (float, bf16) or as calls of a library (double). Sums over the iterations
are added up thread by thread, so that for a number of threads the result is always the same.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays, shared
from learncost.backends.c.common_subexpressions import lowered, unified
from learncost.backends.c.epilogue import Epilogue, ended, ending
from learncost.backends.c.function import routine
from learncost.backends.c.gnu import GNU
from learncost.backends.c.printer import Printer, indented
from learncost.backends.c.schedule import KernelSchedule
from learncost.backends.c.sides import groups, joined
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line, Sum
from learncost.ir.term import Term

__all__ = ["KernelFunction", "KernelLines", "Scratch", "SizeNeededError", "kernel", "source"]


class SizeNeededError(Exception):
    """A dialect needs a numeric size, for scratch memory or the power of a size."""


class _ConstantSizes(dict[str, int]):
    """The constant sizes by name."""

    def __missing__(self, size: str) -> int:
        raise SizeNeededError(size)


@dataclass(frozen=True)
class KernelLines:
    """Lines that are to be one kernel, in any language: they have the same kernel in their Meta.

    axes      the declared axes of every name in the lines
    outputs   the results that other lines read
    dtypes    of every array: fp32, fp64, bf16 (stored so, computed in float), int64 for an index, bool for a mask
    sizes     sizes that are constants in the kernel; all others are parameters
    name      of its function
    """

    lines: Sequence[Line]
    axes: Mapping[str, tuple[str, ...]]
    outputs: frozenset[str]
    dtypes: Mapping[str, str]
    sizes: Mapping[str, int]
    name: str

    def __hash__(self) -> int:
        return hash((*self.lines, *self.sizes.items(), self.outputs, self.name))


@dataclass(frozen=True)
class KernelFunction:
    """One kernel, in C or for a GPU.

    name     of the function, which returns nothing
    text     its definition
    reads    names of the arrays that it reads, in the order of its parameters
    writes   names of the arrays that it writes: the parameters after them
    sizes    axes (and windows) whose sizes are the parameters after them, of type ptrdiff_t
    shares   pairs of an array that is read and one that is written that may be one and the same memory
    scratch  workspace for a dialect without allocation: parameters after the written ones
    launches the kernels of a GPU that it launches, in order
    allocates bytes that a library allocates in it, and frees
    operators why its lines are operators of a library, and no kernel; empty for a kernel
    """

    name: str
    text: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: tuple[str, ...]
    shares: tuple[tuple[str, str], ...]
    scratch: tuple[Scratch, ...] = ()
    launches: tuple[Launch, ...] = ()
    allocates: int = 0
    operators: str = ""

    @property
    def by_atomics(self) -> bool:
        """Return whether a library may add in another order in another run: gradients of attention, and operators."""
        return bool(self.operators) or any(launch.shapes and len(launch.writes) > 2 for launch in self.launches)


@dataclass(frozen=True)
class Launch:
    """A kernel of a GPU, with the places of its arrays among those that the function reads, writes and needs.

    product  of tiles: the number of matrices, their rows and columns, and the length of a sum
    shapes   of what library attention reads: sequences, heads, positions, width; `causal` as there. Of what a library's
             operator reads and writes
    """

    name: str
    warps: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    product: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    causal: bool = False


@dataclass(frozen=True)
class Scratch:
    """A kernel's workspace: a number of elements of a type, by the notation's name of it."""

    name: str
    dtype: str
    points: int


def kernel(given: KernelLines, printer: Printer = GNU) -> KernelFunction:
    """Return the C function of lines, in a dialect of C.

    Raises `InputError` with a line that cannot be printed; SizeNeededError if the dialect needs a numeric size.
    """
    lines, axes, outputs, dtypes = tuple(given.lines), given.axes, given.outputs, given.dtypes
    sizes, name = _ConstantSizes(given.sizes), given.name
    _check(lines, axes, outputs, dtypes, printer)
    plan = lines[0].meta.kernel or FusedKernel(name, ())
    normal = lowered(lines, axes, outputs, plan.axes)
    names = {read for line in normal for read in line.reads} - {line.name for line in normal} | outputs
    computed = "fp64" if any(dtypes.get(array) == "fp64" for array in names) else "fp32"
    narrow = frozenset(name for name in outputs if printer.types[dtypes[name]] != printer.types[computed])
    schedule = _scheduled(normal, plan, outputs, dtypes, narrow)
    real = printer.real or printer.types[computed]
    arrays, iterations_of = _routine(schedule.joined(), axes, dtypes, printer, real, lines, sizes)
    scratch = _scratch(iterations_of, sizes, computed, printer) if printer.alone else ()
    reads = iterations_of.arrays("read")
    makes = [arrays.output(value) for value in arrays.values.values() if value.output]
    free = [axis for axis in iterations_of.sizes if axis not in sizes]
    comment = "\n".join(f"   {line}" for line in lines).replace("*/", "* /")
    parameters = [f"const {array.type} *{array.name}" for array in reads]
    parameters += [f"{array.type} *{array.name}" for array in makes]
    parameters += [f"{array.type} *{array.name}" for array in (iterations_of.arrays("scratch") if scratch else ())]
    parameters += [f"place {iterations_of.sizes[axis]}" for axis in free]
    head = f"{'static ' if printer.alone else ''}void {name}({', '.join(parameters)}) {{"
    head = textwrap.fill(head, 118, subsequent_indent="        ", break_long_words=False)
    text = "\n".join((f"/*\n{comment}\n*/", head, *indented(printer.function(iterations_of, sizes)), "}\n"))
    taken, made = (tuple(array.of for array in of_role) for of_role in (reads, makes))
    return KernelFunction(name, text, taken, made, tuple(free), shared(arrays, iterations_of), scratch)


def _scratch(
    iterations_of: tree.Routine, sizes: Mapping[str, int], computed: str, printer: Printer
) -> tuple[Scratch, ...]:
    """Return the workspace of a call."""
    known = _ConstantSizes({text: sizes[axis] for axis, text in iterations_of.sizes.items() if axis in sizes})
    dtypes = {printer.types[dtype]: dtype for dtype in ("int64", "bool", computed)}
    arrays = iterations_of.arrays("scratch")
    return tuple(Scratch(array.name, dtypes[array.type], tree.evaluated(array.points, known)) for array in arrays)


def _routine(
    schedule: KernelSchedule,
    axes: Mapping[str, tuple[str, ...]],
    dtypes: Mapping[str, str],
    printer: Printer,
    real: str,
    lines: Sequence[Line],
    sizes: Mapping[str, int],
) -> tuple[Arrays, tree.Routine]:
    """Return the kernel and its arrays: by tiles for a matrix product's epilogue, else by iterations."""
    tile = ended(schedule)
    if tile:
        arrays = Epilogue(schedule, axes, dtypes, printer, real, sizes, tile)
        if arrays.can_be_tiled():
            return arrays, ending(arrays)
    whole = Arrays(schedule, axes, dtypes, printer, real, unified(lines), sizes)
    return whole, routine(whole)


def _check(
    lines: Sequence[Line],
    axes: Mapping[str, tuple[str, ...]],
    outputs: frozenset[str],
    dtypes: Mapping[str, str],
    printer: Printer,
) -> None:
    """Refuse names without axes or type before printing."""
    makes = {term.name for line in lines for term in line.left}
    for line in lines:
        for name in (*line.reads, *line.makes):
            if name not in axes:
                raise InputError(f"the axes of {name} are not known, in line: {line}")
            if (name not in makes or name in outputs) and dtypes.get(name) not in printer.types:
                raise InputError(
                    f"{name} is {dtypes.get(name)}, not one of {', '.join(printer.types)}, in line: {line}"
                )


def _scheduled(
    lines: tuple[Line, ...],
    plan: FusedKernel,
    outputs: frozenset[str],
    dtypes: Mapping[str, str],
    narrow: frozenset[str],
) -> KernelSchedule:
    """Return the schedule; without axes for its iterations, every element is an iteration if possible.

    narrow  outputs that are stored in another type than sums are taken in
    """
    iterations = plan.axes
    if not iterations and plan.blocks is None:
        widest = max((line.left[0].declared for line in lines), key=len)
        if not any(line.left[0].indexed for line in lines):
            try:
                return KernelSchedule(lines, widest, None, outputs, dtypes)
            except InputError:
                pass
    parts: dict[str, tuple[str, ...]] = {}
    try:
        schedule = KernelSchedule(lines, iterations, plan.blocks, outputs, dtypes)
    except InputError:  # a library's products sum over one axis: adjacent axes are merged
        together = groups(lines, frozenset(iterations).union(plan.blocks[:1] if plan.blocks else ()), iterations)
        if not together:
            raise
        lines, parts = tuple(joined(lines, together)), {" ".join(group): group for group in together.values()}
        schedule = KernelSchedule(lines, iterations, plan.blocks, outputs, dtypes, parts)
    late = {
        v.name
        for v in schedule.values.values()
        if v.output and v.name in narrow and (v.kind in ("product", "scatter") or v.added) and not v.shared
    }
    if not late:
        return schedule
    changed: list[Line] = []
    for line in lines:
        left = line.left[0]
        line = line.renamed({name: f"{name}~sum" for name in late})
        changed.append(line)
        if left.name in late:
            plain = Term(left.name, left.declared)
            changed.append(Sum((plain,), (replace(plain, name=f"{left.name}~sum"),), (), line.meta, (1,)))
    return KernelSchedule(changed, iterations, plan.blocks, outputs, dtypes, parts)


def source(functions: Sequence[KernelFunction], printer: Printer = GNU) -> str:
    """Return the full C file: the prelude and the functions."""
    return printer.preamble + "\n".join(function.text for function in functions)
