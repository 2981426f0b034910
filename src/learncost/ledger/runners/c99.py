"""A program in C99 on a processor without an operating system: one arena, every byte known before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from learncost.equation.table import Table
from learncost.ledger.memory_step import Step
from learncost.ledger.runner import TYPES, Runner, Taken, at_line, grouped, refusal
from learncost.models.made import names_made
from learncost.plans.planner import frugal

if TYPE_CHECKING:
    from learncost.readings.emit.c99.layout import Alone


def _rooms(step: Step, sizes: Mapping[str, int]) -> tuple[dict[str, int], Alone]:
    """What lies in RAM, by part, and the constants in flash; and the step as it is laid out."""
    from learncost.readings.emit.c99.layout import alone, counted  # emits kernels: only where it is asked for

    layout = alone(step.executed_table(), sizes, step.kind.computed)
    rooms = counted([layout], frozenset(names_made(step.model)))
    parts = {
        "weights": rooms.weights,
        "optimizer state": rooms.states,
        "batch": rooms.inputs,
        "variables": rooms.variables,
        "arena": rooms.arena,
        FLASH: rooms.constants,
    }
    if rooms.masks:
        parts["masks"] = rooms.masks
    return parts, layout


FLASH = "constants"
"""What of a program lies in flash beside its code."""


def _peak(step: Step, sizes: Mapping[str, int]) -> int:
    return sum(size for part, size in _rooms(step, sizes)[0].items() if part != FLASH)


def _takes(step: Step, sizes: Mapping[str, int]) -> Taken:
    parts, layout = _rooms(step, sizes)
    flash = parts.pop(FLASH)
    size = sum(parts.values())
    rooms = grouped((part_bytes, name) for name, part_bytes in parts.items() if part_bytes)
    return Taken(size, at_line("", size), parts, rooms, flash=flash, arena=layout.map)


def _ram(table: Table, sizes: Mapping[str, int], dtype: str) -> int:
    from learncost.readings.emit.c99 import rooms

    return rooms(table, sizes, dtype).ram


def _flash(table: Table, sizes: Mapping[str, int], dtype: str) -> int:
    from learncost.readings.emit.c99 import rooms

    return rooms(table, sizes, dtype).constants


RUNNERS = (
    Runner(
        "c99",
        _peak,
        _takes,
        {
            "new weights and states": "over the old ones",
            "gradients": "until read",
            "kept for backward": "what lines read",
            "temporaries": "over operands",
        },
        "The step of learncost emit --backend c99, to the byte: .data and .bss of the program. Stack and code are not "
        "measured here, and in no total: learncost verify --engine c99 measures them where there is a compiler.",
        lambda step: refusal(step, (*TYPES, "int32"), with_flash=True),
        plan="auto",
        planner=frugal,
        alone="its program is that of one board, which sends nothing",
        passes=_ram,
        stored=_flash,
        plans=("", "at-once", "in-product", "fused,in-product", "flash,fused,in-product,recompute=all"),
    ),
)
