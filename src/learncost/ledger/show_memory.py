"""How the memory of a step is shown: the split, the arrays that make the peak, the curve by layer, what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learncost.ledger.memory_types import FORMATS
from learncost.ledger.sheet import Row, Sheet, number, size_of
from learncost.procedures.optimizer import state_of

if TYPE_CHECKING:
    from learncost.ledger.memory import Memory

SHOWN = 8
"""Witnesses in the table; --json has them all."""


def sheet(memory: Memory) -> Sheet:
    """The split, the largest witnesses, and the highest level of every macro-operation."""
    rows = [Row(("at the peak", "", number(memory.peak), size_of(memory.peak)), "bold")]
    for name, size in memory.split.items():
        if size:
            rows.append(Row((name, "", number(size), size_of(size)), depth=1))
    rows.append(Row(("alive then", "number x bytes" if memory.engine else "shape", "", ""), "bold"))
    held = [one for one in memory.witnesses if one.bytes]
    for one in held[:SHOWN]:
        shape = " x ".join(map(str, one.shape))
        rows.append(Row((one.name.rstrip("*"), shape, number(one.bytes), size_of(one.bytes)), depth=1))
    if rest := sum(one.bytes for one in held[SHOWN:]):
        rows.append(Row((f"{len(held) - SHOWN} more", "", number(rest), size_of(rest)), depth=1))
    macros = dict.fromkeys(one.macro_operation for one in memory.curve)
    if macros:
        rows.append(Row(("highest in", "line", "", ""), "bold"))
    for macro in macros:
        top = max((one for one in memory.curve if one.macro_operation == macro), key=lambda one: one.bytes)
        rows.append(Row((macro.replace("_", " "), top.line, number(top.bytes), size_of(top.bytes)), depth=1))
    return Sheet(title(memory), ("", "", "bytes", ""), tuple(rows), _notes(memory), frozenset({0, 1}))


def title(memory: Memory) -> str:
    """What was run."""
    name = "standard input" if memory.model == "-" else memory.model
    plan = (f" under {memory.plan}" if memory.plan else "") + (f" by {memory.engine}" if memory.engine else "")
    sides = "" if memory.target_len is None else f" and {memory.target_len:,}"
    sequences = f"{memory.batch_size:,} sequence{'s' if memory.batch_size > 1 else ''} of {memory.seq_len:,}{sides}"
    parts = f" in {memory.accumulate:,} microbatches" if memory.accumulate > 1 else ""
    return f"{name}, memory of one step of {memory.procedure}{plan}: {sequences} tokens{parts}"


def _notes(memory: Memory) -> tuple[str, ...]:
    at = memory.moment
    layer = f" of {at.layer.replace('_', ' ')}" if at.layer else ""
    macro = f", {at.macro_operation.replace('_', ' ')}" if at.macro_operation else ""
    notes = [f"The peak is at line {at.line}{layer}{macro}."] if at.line else []
    if memory.trained != "all":
        notes.append(f"Learns: {memory.trained}.")
    if memory.budget is not None:
        batch, length = ((memory.fits or {}).get(name) for name in ("batch_size", "seq_len"))
        text = f"In {size_of(memory.budget)} fit {batch or 0:,} sequences of {memory.seq_len:,} tokens"
        if length is not None:
            text += f"; of {memory.batch_size:,} sequences, {length:,} tokens each"
        notes.append(f"{text}.")
    if memory.engine:
        return (*notes, memory.convention)
    kind, state = FORMATS[memory.dtype], state_of(memory.optimizer)
    notes.append(f"{memory.dtype}: {kind.source}. {memory.optimizer}: {state.source}.")
    notes.append(
        "As the table says, line by line: new weights and states take the place of the old ones, nothing else is in "
        "place, and what stays inside of a kernel takes nothing. Not in it: the library's workspace, the allocator's."
    )
    return tuple(notes)
