"""The memory of one step by engine."""

from __future__ import annotations

from learncost.devices.device import device
from learncost.devices.rates import THIS_MACHINE, calibrated
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.reports.memory.engines import DEFAULT_ENGINE, GRAPH, memory_engines
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.memory.on_device import memory_on_device
from learncost.reports.request import GPU, Request, takes_request
from learncost.reports.sheet import size_of
from learncost.viz.views.picture import MADE, BarRow, Bars, MemoryBlocks, Picture

ADDRESSED = 2**32
"""Bytes that a 32-bit processor addresses: of more no program without an operating system is laid out here."""


_STEP = (
    "model * procedure batch_size seq_len target_len optimizer dropout dtype precision plan train train_layers lora "
    "lora_rank lora_alpha dora"
)
"""The fields of a request that both views have."""


@takes_request(f"{_STEP} engine on")
def by_engine(request: Request) -> Picture:
    """Return the peak memory of a step under every engine.

    Parameters
    ----------
    on
        The device, which sets the precision if none is given.
    engine
        Who runs the step that the rest of the page shows: {choices}. The default is that of learncost
        memory on a device, and the table, line by line, without one.

    Raises
    ------
    InputError
        As for `lc.memory`.
    """
    on, engine = request.on, request.engine
    on_device = memory_on_device(request)
    request = replace(request.in_precision(request.kind().name), on=None, engine="")
    table = memory(replace(request, engine=GRAPH))
    assert isinstance(table, Memory)
    shown = engine or (
        DEFAULT_ENGINE if on_device and on_device.engine == DEFAULT_ENGINE and not on_device.is_bound else GRAPH
    )
    on_gpu = bool(on) and on != THIS_MACHINE and not calibrated(on) and device(on).torch == GPU
    rows = list[BarRow]()
    peaks: dict[str, int] = {}
    for name, chosen_engine in memory_engines().items():
        here = name == shown
        if chosen_engine.stored and (why := too_large(table)):
            rows.append(BarRow(name, refused=why, here=here))
            continue
        try:
            there = GPU if on_gpu and chosen_engine.module else None
            answer = table if name == GRAPH else memory(replace(request, on=there, engine=name))
        except InputError as error:
            rows.append(BarRow(name, refused=error.written.removeprefix(f"--engine {name} "), here=here))
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
        else f"Every engine takes {size_of(peaks[most])}"
    )
    lead = "Peak memory of the step by engine. Choose one for the sentence above and the memory curve."
    names = [name for name, chosen_engine in memory_engines().items() if name in peaks]
    command = replace(request, engine=",".join(names)).command("memory")
    notes = tuple(f"{name}: {memory_engines()[name].convention}" for name in names)
    return Picture(title, lead, (Bars("", "bytes", tuple(rows), made=MADE),), notes, command)


def too_large(table: Memory) -> str:
    """Return why a step cannot be laid out for a microcontroller; "" if it can."""
    held = table.split["weights"] + table.split.get("optimizer state", 0)
    if held <= ADDRESSED:
        return ""
    return f"weights and optimizer state take {size_of(held)}; a 32-bit processor addresses {size_of(ADDRESSED)}"


ENGINE = "c99"


@takes_request(_STEP)
def arena(request: Request) -> Picture:
    """Return the memory map of a step on a microcontroller.

    Raises
    ------
    InputError
        As for `lc.memory`, and for a step that is too large.
    """
    return _laid(request)


SMALL = 64 * 2**20
"""Bytes of a step that a report lays out for a microcontroller: of the largest with external memory."""


@takes_request(_STEP)
def small_arena(request: Request) -> Picture:
    """Return the memory map of a step that may fit a microcontroller. Raises `InputError` for others, too."""
    return _laid(request, SMALL)


def _laid(request: Request, most: int | None = None) -> Picture:
    """Return the picture of a step whose table takes at most a number of bytes."""
    table = memory(replace(request, engine=GRAPH))
    assert isinstance(table, Memory)
    if why := too_large(table):
        raise InputError(why)
    if most is not None and table.peak > most:
        raise InputError(f"the step takes {size_of(table.peak)}, more than {size_of(most)}")
    answer = memory(replace(request, engine=ENGINE))
    assert isinstance(answer, Memory)
    laid = answer.arena
    assert laid is not None
    parts = {part: size for part, size in answer.split.items() if size}
    held = answer.peak - laid.bytes
    title = (
        f"As a program in C99 the step takes {size_of(answer.peak)} of RAM, {size_of(laid.bytes)} of it in the arena"
    )
    lead = (
        f"The arena holds the results of the step, each from the call that computes it to its last reader. "
        f"Another {size_of(held)} are static: weights, optimizer state, the batch."
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
    flash = f" {size_of(answer.flash)} of constants are in flash." if answer.flash else ""
    notes = (
        f"{answer.convention}{flash}",
        *((f"Plan: {answer.plan}.",) if answer.plan else ()),
        "Choose a smaller model by its sizes above, or another plan, to see what a microcontroller takes.",
    )
    return Picture(title, lead, charts, notes, replace(request, engine=ENGINE).command("memory"))
