"""The engine torch in place: PyTorch's products and compiled kernels, which write into one arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from learncost.ir.errors import InputError
from learncost.ir.value import RANDOM
from learncost.passes.plan import CHOSEN
from learncost.reports.memory.engine import TYPES, Engine, MemoryUse, at_line, bytes_of, given_bytes, grouped, refusal
from learncost.reports.memory.engines import libraries
from learncost.reports.memory.planner import smallest
from learncost.reports.memory.step import MemoryStep


def _parts(step: MemoryStep, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the parts of the peak. Raises `InputError` for a line that cannot be in place."""
    from learncost.backends.placed import WIDTHS, laid_out, placed  # emits programs: only where it is asked for

    table = step.executed_table()
    program = placed(table, sizes, step.kind.name) if step.over else None
    layout = program or laid_out(table, sizes, step.kind.name)
    given = layout.given
    parts = given_bytes(step, table, sizes)
    batch = [name for name in table.inputs if name in given and table.values[name].role not in ("state", *RANDOM)]
    parts["batch"] = bytes_of(table, batch, sizes, lambda name: WIDTHS[given[name][1]])
    parts["arena"] = layout.bytes
    if step.over and program and program.meets:
        from learncost.backends.executed import communication_buckets

        parts["messages"] = communication_buckets(program, sizes, step.over.placed.mesh.sizes)
    return parts


def _peak(step: MemoryStep, sizes: Mapping[str, int]) -> int:
    try:
        return sum(_parts(step, sizes).values())
    except InputError:
        return libraries.peak("torch", step, sizes)


def _takes(step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    try:
        parts = _parts(step, sizes)
    except InputError as error:
        needs = libraries.takes("torch", step, sizes)
        return replace(needs, said=f"{libraries.OPERATORS} The step cannot run in place: {error}.")
    size, program_memory = sum(parts.values()), ((part_bytes, name) for name, part_bytes in parts.items() if part_bytes)
    return MemoryUse(
        size, at_line("", size), parts, grouped(program_memory), said=f"{SAID} {MESSAGES}" if step.over else ""
    )


SAID = (
    "Peak allocated memory of the step in place with compiled kernels: weights and optimizer states, the batch, and "
    "the arena. With bf16-masters, weights and states are fp32 and their bf16 copies are in the arena."
)
MESSAGES = (
    "This is one process of learncost train --mesh. Communication buckets are included; memory of the communication "
    "library is not."
)

ENGINES = (
    Engine(
        "torch",
        _peak,
        _takes,
        {
            "new weights and states": "over the old ones",
            "gradients": "until read",
            "saved for backward": "what lines read",
            "temporaries": "over operands",
        },
        SAID,
        lambda step: refusal(step, (*TYPES, "bf16-masters")),
        plan=lambda table: CHOSEN,
        planner=smallest,
        plans=(CHOSEN,),
        passes=partial(libraries.peak_of, "torch"),
        trains=True,
    ),
)
