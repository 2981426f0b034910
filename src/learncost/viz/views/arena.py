"""The arena of a program in C99: where every array lies over the calls of a step."""

from __future__ import annotations

from typing import Any

from learncost.ir.errors import InputError
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.question import question
from learncost.reports.sheet import size_of
from learncost.viz.views.picture import MADE, BarRow, Bars, MemoryBlocks, Picture, command_of
from learncost.viz.views.runners import too_large

ENGINE = "c99"


@question(memory, "procedure batch_size seq_len target_len optimizer dropout dtype precision plan "
    "train train_layers lora lora_rank lora_alpha")  # fmt: skip
def arena(model: Any, **sizes: Any) -> Picture:
    """Where every array of a step lies in the memory of a processor without an operating system.

    Raises
    ------
    InputError
        As for `lc.memory`, and for a step that is too large.
    """
    return _laid(model, sizes)


SMALL = 64 * 2**20
"""Bytes of a step that a report lays out for a microcontroller: what the largest have with memory beside them."""


def small_arena(model: Any, **sizes: Any) -> Picture:
    """The same of a step that a microcontroller may hold. Raises `InputError` for others, too."""
    return _laid(model, sizes, SMALL)


def _laid(model: Any, sizes: dict[str, Any], most: int | None = None) -> Picture:
    """The picture of a step that takes at most so many bytes as the table says."""
    table = memory(model, **sizes, engine=GRAPH)
    assert isinstance(table, Memory)
    if why := too_large(table):
        raise InputError(why)
    if most is not None and table.peak > most:
        raise InputError(f"the step takes {size_of(table.peak)}, more than {size_of(most)}")
    answer = memory(model, **sizes, engine=ENGINE)
    assert isinstance(answer, Memory)
    laid = answer.arena
    assert laid is not None
    parts = {part: size for part, size in answer.split.items() if size}
    held = answer.peak - laid.bytes
    title = (
        f"As a program in C99 the step takes {size_of(answer.peak)} of RAM, {size_of(laid.bytes)} of it in the arena"
    )
    lead = (
        f"The arena holds what the step makes, each array from the call that makes it to the last one that reads it. "
        f"Beside it lie {size_of(held)} that stay: weights, optimizer state, the batch."
    )
    boxes = tuple(
        (
            array.name.partition("~")[0],
            array.macro_operation,
            " ".join(filter(None, (array.block, array.layer.replace("_", " ")))),
            array.first,
            array.last,
            array.place,
            array.bytes,
        )
        for array in laid.arrays
    )
    charts = (
        Bars("RAM of the program", "bytes", (BarRow("RAM", parts),), made=MADE),
        MemoryBlocks("The arena over the step", "call", "bytes", laid.bytes, boxes, laid.passes),
    )
    flash = f" {size_of(answer.flash)} of constants lie in flash." if answer.flash else ""
    notes = (
        f"{answer.convention}{flash}",
        *((f"Plan: {answer.plan}.",) if answer.plan else ()),
        "Choose a smaller model by its sizes above, or another plan, to see what a microcontroller takes.",
    )
    return Picture(title, lead, charts, notes, command_of(("memory",), model, {**sizes, "engine": ENGINE}))
