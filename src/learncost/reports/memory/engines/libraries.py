"""The engines numpy and torch: the emitted programs, run on arrays without values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from learncost.ir.table import Table
from learncost.ops.optimizers import OPTIMIZERS
from learncost.reports.memory.engine import TYPES, Engine, MemoryUse, at_line, given_bytes, grouped, refusal
from learncost.reports.memory.step import MemoryStep


def peak(library: str, step: MemoryStep, sizes: Mapping[str, int]) -> int:
    """Return the peak bytes of the emitted program."""
    return peak_of(library, step.executed_table(), sizes, step.kind.name, _mesh(step))


def peak_of(
    library: str, table: Table, sizes: Mapping[str, int], dtype: str, mesh: Mapping[str, int] | None = None
) -> int:
    """Return the peak bytes of the program emitted for a table."""
    from learncost.backends.executed import executed  # emits programs: only where it is asked for

    return executed(table, sizes, dtype, library, mesh).peak


def _mesh(step: MemoryStep) -> Mapping[str, int] | None:
    """Return the number of devices along each mesh axis."""
    return step.over.placed.mesh.sizes if step.over else None


def takes(library: str, step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    """Return the peak of the emitted program with its live arrays."""
    from learncost.backends.executed import executed

    table = step.executed_table()
    execution = executed(table, sizes, step.kind.name, library, _mesh(step))
    parts = given_bytes(step, table, sizes)
    parts["new weights and states"] = sum(
        allocation.bytes for allocation in execution.allocations if allocation.function in OPTIMIZERS
    )
    parts["activations and workspace"] = execution.peak - sum(parts.values())
    allocations = ((allocation.bytes, allocation.line or "given") for allocation in execution.allocations)
    moment = at_line(execution.line, execution.peak)
    return MemoryUse(execution.peak, moment, parts, grouped(allocations), rules=_rules(library))


_TEMPORARIES = {"numpy": "results, buffers", "torch": "results, copies"}


def _rules(library: str) -> Mapping[str, str]:
    return {
        "new weights and states": "new arrays",
        "gradients": "to the end",
        "saved for backward": "what lines read",
        "temporaries": _TEMPORARIES[library],
    }


OPERATORS = (
    "Peak allocated memory of the emitted program in PyTorch's operators on a CPU, as torch's allocator would report "
    "it. New weights are separate arrays. Temporary buffers inside operators are not included."
)

ENGINES = (
    Engine(
        "numpy",
        partial(peak, "numpy"),
        partial(takes, "numpy"),
        _rules("numpy"),
        "Peak memory of the emitted program in NumPy, as tracemalloc would report it. New weights are separate arrays.",
        lambda step: refusal(step, TYPES),
        passes=partial(peak_of, "numpy"),
    ),
)
