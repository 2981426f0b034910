"""Memory by runner: the same step as each of them executes it."""

from __future__ import annotations

from typing import Any

from learncost.devices.rates import rates
from learncost.ir.errors import InputError
from learncost.reports.memory.engines import GRAPH, memory_engines
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.question import question
from learncost.reports.sheet import size_of
from learncost.viz.views.picture import MADE, BarRow, Bars, Picture, command_of

ADDRESSED = 2**32
"""Bytes that a 32-bit processor addresses: of more no program without an operating system is laid out here."""


@question(memory, "procedure batch_size seq_len target_len optimizer dropout dtype precision plan "
    "train train_layers lora lora_rank lora_alpha")  # fmt: skip
def by_runner(model: Any, *, engine: str = "", on: str | None = None, **sizes: Any) -> Picture:
    """The memory of a step at its peak, as every runner executes it.

    Parameters
    ----------
    on
        The device in whose type the step is, where no other is given.
    engine
        Who runs the step that the rest of the page shows: {choices}. The default is the table, line by line.

    Raises
    ------
    InputError
        As for `lc.memory`.
    """
    if on and not (sizes.get("precision") or sizes.get("dtype")):
        sizes["precision"] = rates(on).dtype
    table = memory(model, **sizes, engine=GRAPH)
    assert isinstance(table, Memory)
    rows = list[BarRow]()
    peaks: dict[str, int] = {}
    for name, chosen_engine in memory_engines().items():
        here = name == (engine or GRAPH)
        if chosen_engine.stored and (why := too_large(table)):
            rows.append(BarRow(name, refused=why, here=here))
            continue
        try:
            answer = table if name == GRAPH else memory(model, **sizes, engine=name)
        except InputError as error:
            rows.append(BarRow(name, refused=str(error).removeprefix(f"--engine {name} "), here=here))
            continue
        assert isinstance(answer, Memory)
        peaks[name] = answer.peak
        parts = {part: size for part, size in answer.split.items() if size}
        rows.append(BarRow(name, parts, answer.plan and f"plan {answer.plan}", {"engine": name}, here))
    rows.sort(key=lambda row: bool(row.refused))
    least, most = min(peaks, key=lambda name: peaks[name]), max(peaks, key=lambda name: peaks[name])
    title = (
        f"The same step takes {size_of(peaks[least])} by {least} and {size_of(peaks[most])} by {most}"
        if peaks[least] < peaks[most]
        else f"Every runner takes {size_of(peaks[most])}"
    )
    lead = (
        "Memory at the peak, as each runner executes the step. Choose one: the sentence above and the curve of memory "
        "are then of it."
    )
    names = [name for name, chosen_engine in memory_engines().items() if name in peaks]
    command = command_of(("memory",), model, {**sizes, "engine": ",".join(names)})
    notes = tuple(f"{name}: {memory_engines()[name].convention}" for name in names)
    return Picture(title, lead, (Bars("", "bytes", tuple(rows), made=MADE),), notes, command)


def too_large(table: Memory) -> str:
    """Why a step is not laid out for a processor without an operating system."""
    held = table.split["weights"] + table.split["optimizer state"]
    if held <= ADDRESSED:
        return ""
    return f"weights and optimizer state take {size_of(held)}; a 32-bit processor addresses {size_of(ADDRESSED)}"
