"""Memory of a step in a library: the peak of the program that `emit` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from learncost.backends import ProgramText, fill, leaves, program
from learncost.backends.placed import TYPES as IN_PLACE
from learncost.backends.placed import InPlaceProgram as InPlace
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, to_install
from learncost.ir.loop import repeats
from learncost.ir.polynomial import shape_of, size_of
from learncost.ir.table import Table
from learncost.layers.spelling import condition_names
from learncost.program.fake_arrays.numpy import OBJECTS, NumPyRun, running_line
from learncost.program.program import Program, ProgramBuilder, peak

TYPES: Mapping[str, str] = {"fp32": "float32", "fp64": "float64"}
"""The data types in which NumPy and PyTorch compute what tables say; PyTorch also in bf16, with fp32 given."""


def run_of(library: str, builder: ProgramBuilder) -> Any:
    """Return the run of a library's program. Raises `InputError` for one on PyTorch without PyTorch."""
    if library == "numpy":
        return NumPyRun(builder)
    try:
        from learncost.program.fake_arrays.torch import TorchRun
    except ImportError:
        raise InputError(f"--engine torch runs the step's operators, without values: {to_install('torch')}") from None
    return TorchRun(builder)


@dataclass(frozen=True)
class AllocatedArray:
    """An allocation at the peak: its bytes, the program's line that made it, and that line's function.

    Both are empty for what the program was given; Python's objects of all arrays are one.
    """

    bytes: int
    line: str
    function: str = ""


@dataclass(frozen=True)
class Executed:
    """The peak bytes of a program, inputs included; the line of the peak and the live allocations, largest first."""

    peak: int
    line: str
    allocations: tuple[AllocatedArray, ...]


def executed(
    table: Table,
    sizes: Mapping[str, int],
    dtype: str = "fp32",
    library: str = "numpy",
    mesh: Mapping[str, int] | None = None,
) -> Executed:
    """Return the peak of one step of a table when a library runs its emitted program.

    sizes    of all axes, and the counts of repeats
    library  numpy, exactly; torch: the bytes of the allocator of a processor
    mesh     the devices along each axis, of a placed table
    Indices are of 8 bytes, conditions of one, all other arrays of the data type.
    """
    for loop in repeats(table.lines):
        size_of(loop.count, sizes)  # the text divides a loop into segments without a check
    written = program(table, library, sizes=sizes, dtype=dtype)
    most, text = peak(recorded(written, table, sizes, dtype, library, mesh)), written.text.splitlines()
    functions = [line.removeprefix("def ").partition("(")[0] if line.startswith("def ") else "" for line in text]
    around = list(accumulate(functions, lambda before, name: name or before, initial=""))

    def array(size: int, label: str) -> AllocatedArray:
        return (
            AllocatedArray(size, text[int(label) - 1].strip(), around[int(label)])
            if label
            else AllocatedArray(size, "")
        )

    arrays = [(each.bytes // each.count, each.label, each.count) for each in most.live if each.role != OBJECTS]
    arrays += [(most.op.scratch, most.op.label, 1)] if most.op.scratch else []
    allocations = [array(size, label) for size, label, count in arrays for _ in range(count)]
    if objects := sum(each.bytes for each in most.live if each.role == OBJECTS):
        allocations.append(AllocatedArray(objects, "Python's objects of the arrays"))
    line = array(0, most.op.label).line
    return Executed(most.bytes, line, tuple(sorted(allocations, key=lambda allocation: -allocation.bytes)))


def recorded(
    written: ProgramText,
    table: Table,
    sizes: Mapping[str, int],
    dtype: str,
    library: str,
    mesh: Mapping[str, int] | None,
) -> Program:
    """Record the run of a step's text on arrays without values; labels are the numbers of its lines."""
    builder = ProgramBuilder(where=running_line)
    with (run := run_of(library, builder)):
        names = run.load(written.text)
        parameters = dict.fromkeys(name for tree in written.parameters for name in leaves(tree))
        types = dict.fromkeys(table.indices, "int64") | dict.fromkeys(condition_names(table.lines), "bool")
        values = {
            name: run.array(shape_of(table.axes[name], sizes), types.get(name) or TYPES.get(dtype, "float32"))
            for name in parameters
        }
        arguments = [fill(tree, values, names) for tree in written.parameters]
        devices = (run.devices(mesh or {}),) if written.meets else ()
        names[written.function](*arguments, *devices)
    return builder.program()


class _NoKernels:
    """A substitute for compiled kernels, which allocate nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *operands: None


def communication_buckets(program: InPlace, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> int:
    """Return the communication buckets of a step in place, outside its arena."""
    builder = ProgramBuilder(where=running_line)
    with (run := run_of("torch", builder)):
        names = run.load(program.text)
        given = {name: run.array(shape_of(axes, sizes), IN_PLACE[kind]) for name, (axes, kind) in program.given.items()}
        memory = names["lay_out"](given, run.array((program.bytes,), "uint8"))
        before = builder.in_use
        names["step"](memory, _NoKernels(), run.devices(mesh))
    return peak(builder.program()).bytes - before
