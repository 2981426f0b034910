"""Memory of a step in a library: the peak of the program that `emit` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from learncost.backends import ProgramText, fill, leaves, program
from learncost.backends.placed import TYPES as IN_PLACE
from learncost.backends.placed import InPlaceProgram as InPlace
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.program.fake_arrays import (
    AllocationLog,
    DeviceMesh,
    FakeArray,
    FakeDevice,
    ShapeTensor,
    loaded,
    loaded_on_torch,
)

TYPES: Mapping[str, str] = {"fp32": "float32", "fp64": "float64"}
"""The data types in which NumPy and PyTorch compute what tables say; PyTorch also in bf16, with fp32 given."""

LIBRARIES: Mapping[str, Any] = {
    "numpy": (loaded, FakeArray.new, FakeDevice),
    "torch": (loaded_on_torch, ShapeTensor.new, DeviceMesh),
}
"""A library's program: how it is loaded, its inputs and its mesh."""


@dataclass(frozen=True)
class AllocatedArray:
    """An allocation at the peak: its bytes, the program's line that made it, and that line's function.

    Both are empty for what the program was given.
    """

    bytes: int
    line: str
    function: str = ""


@dataclass(frozen=True)
class Executed:
    """The peak bytes of a program, inputs included; the line of the peak and the live allocations."""

    peak: int
    line: str
    allocations: tuple[AllocatedArray, ...] = ()


def executed(
    table: Table,
    sizes: Mapping[str, int],
    dtype: str = "fp32",
    allocations: bool = False,
    library: str = "numpy",
    mesh: Mapping[str, int] | None = None,
) -> Executed:
    """Return the peak of one step of a table when a library runs its emitted program.

    sizes    of all axes, and the counts of repeats
    allocations  also find what is held at the peak, the largest first, which takes a second run
    library  numpy, exactly; torch: the bytes of the allocator of a processor
    mesh     the devices along each axis, of a placed table
    Indices are of 8 bytes, all other arrays of the data type.
    """
    written = program(table, library, sizes=sizes, dtype=dtype)
    first = _run(written, table, sizes, dtype, AllocationLog(), library, mesh)
    text = written.text.splitlines()

    def line_name(at: int | str) -> str:
        return text[int(at) - 1].strip() if at else ""

    if not allocations:
        return Executed(first.peak, line_name(first.line))
    second = _run(written, table, sizes, dtype, AllocationLog(stop_at=first.peak), library, mesh)
    functions = [line.removeprefix("def ").partition("(")[0] if line.startswith("def ") else "" for line in text]
    around = list(accumulate(functions, lambda before, name: name or before, initial=""))
    allocations_taken = [
        AllocatedArray(size, line_name(at), around[int(at)] if at else "") for size, at in second.allocations
    ]
    return Executed(
        first.peak, line_name(first.line), tuple(sorted(allocations_taken, key=lambda allocation: -allocation.bytes))
    )


def _run(
    written: ProgramText,
    table: Table,
    sizes: Mapping[str, int],
    dtype: str,
    account: AllocationLog,
    library: str,
    mesh: Mapping[str, int] | None,
) -> AllocationLog:
    load, new, devices_of = LIBRARIES[library]
    names = load(written.text, account)
    parameters = dict.fromkeys(name for tree in written.parameters for name in leaves(tree))
    values = {
        name: new(
            account,
            shape_of(table.axes[name], sizes),
            "int64" if name in table.indices else TYPES.get(dtype, "float32"),
        )
        for name in parameters
    }
    arguments = [fill(tree, values, names) for tree in written.parameters]
    devices = (devices_of(mesh or {}),) if written.meets else ()
    result = names[written.function](*arguments, *devices)
    del result
    return account


class _Idle:
    """A substitute for compiled kernels, which allocate nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *operands: None


def communication_buckets(program: InPlace, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> int:
    """Return the communication buckets of a step in place, outside its arena."""
    account = AllocationLog()
    names = loaded_on_torch(program.text, account)
    given = {
        name: ShapeTensor.new(account, shape_of(axes, sizes), getattr(names["torch"], IN_PLACE[kind]))
        for name, (axes, kind) in program.given.items()
    }
    arena = ShapeTensor.new(account, (program.bytes,), "uint8")
    before = account.now
    names["step"](names["lay_out"](given, arena), _Idle(), DeviceMesh(mesh))
    return account.peak - before
