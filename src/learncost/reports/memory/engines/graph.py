"""The engine graph: the step's table, executed line by line, as a library of kernels would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.ir.dataclass import replace
from learncost.ir.polynomial import shape_of
from learncost.liveness import KINDS, SPLIT, Live, LiveArray, LiveInterval
from learncost.passes.plan import default_plan
from learncost.passes.quantized import bytes_of_array
from learncost.reports.memory.engine import IN_PLACE, Engine, MemoryUse
from learncost.reports.memory.step import MemoryStep


def _takes(step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    if step.on_mesh is not None:
        return step.on_mesh.takes(sizes)
    alive, uncounted = step.live(), step.uncounted
    split = dict.fromkeys(SPLIT, 0)
    for array in alive.live_at_peak:
        part = part_of(step, array.name, array.role)
        split[part] = split.get(part, 0) + array.bytes
    split["weights"] += step.quantized - step.flash
    split |= step.states_and_masters
    curve = tuple(replace(moment, bytes=moment.bytes + uncounted) for moment in alive.curve)
    moment = next(moment_of_peak for moment_of_peak in curve if moment_of_peak.bytes == alive.peak + uncounted)
    there = _complete(alive.live_at_peak, step)
    return MemoryUse(alive.peak + uncounted, moment, split, there, lambda: (curve, _intervals(step, alive, len(curve))))


def _intervals(step: MemoryStep, alive: Live, lines: int) -> Iterator[LiveInterval]:
    """Return the arrays over the lines with their parts of `SPLIT`, and the arrays of no line.

    Where frozen weights lie in flash, they are not among them.
    """
    away = {*step.model.quantized_widths, *(step.frozen if step.in_flash else ())}
    yield from (
        replace(stay, part=part_of(step, stay.name, stay.role)) for stay in alive.intervals if stay.name not in away
    )
    for array in _of_no_line(step):
        shape, part = array.shape or (array.bytes,), "weights" if array.role else array.name
        yield LiveInterval(array.name, array.axes, shape, 1, array.bytes, 0, lines - 1, "given", part=part)


def _complete(live_at_peak: tuple[LiveArray, ...], step: MemoryStep) -> tuple[LiveArray, ...]:
    """Return the arrays in RAM, the largest first, with packed codes and scales and the states of the optimizer."""
    away = {*step.model.quantized_widths, *(step.frozen if step.in_flash else ())}
    arrays = [array for array in live_at_peak if array.name not in away]
    return tuple(sorted((*arrays, *_of_no_line(step)), key=lambda array: -array.bytes))


def _of_no_line(step: MemoryStep) -> Iterator[LiveArray]:
    """Yield the arrays in RAM throughout: packed codes and scales, and the states of the optimizer."""
    for array in () if step.in_flash else step.packed:
        size, shape = bytes_of_array(array, step.sizes()), shape_of(array.axes, step.sizes())
        yield LiveArray(array.name, array.axes, shape, size, role="weight")
    for name, size in step.states_and_masters.items():
        yield LiveArray(name, (), (), size)


def part_of(step: MemoryStep, name: str, role: str) -> str:
    """Return the part of `SPLIT` that an array belongs to, by its name and its role."""
    value = step.table.values.get(name)
    if value is not None and value.role == "gathered":
        return "gradients"
    return KINDS.get(role, "workspace")


ENGINES = (
    Engine(
        "graph",
        lambda step, sizes: step.peak(sizes),
        _takes,
        {**IN_PLACE, "temporaries": "none"},
        "The step's table, line by line: the optimizer updates weights and states in place, nothing else is in "
        "place, and values inside a kernel take no memory. Library workspaces and allocator overhead are not "
        "included.",
        plan=default_plan,
        largest=lambda step, budget: step.largest(budget),
        lengths=True,
    ),
)
