"""The table itself as a runner: line by line, as a library of kernels would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from learncost.equation.count import shape_of
from learncost.layers.rewrite_quantized import bytes_of_array
from learncost.ledger.memory_step import Step
from learncost.ledger.runner import FIXED, Runner, Taken
from learncost.models.quantization import quantized_widths
from learncost.readings.live import Held, Stay

SPLIT = ("weights", "master weights", "gradients", "optimizer state", "activations", "workspace")
"""What memory holds. Activations are values of the forward pass that later passes read, and the batch; workspace is
what is made and gone within a pass."""

_PART = {
    "weight": "weights",
    "gradient": "gradients",
    "kept": "activations",
    "index": "activations",
    "projection": FIXED,
}


def _takes(step: Step, sizes: Mapping[str, int]) -> Taken:
    found, beside = step.live(), step.beside
    split = dict.fromkeys(SPLIT, 0)
    for one in found.witnesses:
        part = _part(step, one)
        split[part] = split.get(part, 0) + one.bytes
    split["weights"] += step.quantized - step.flash
    split["optimizer state"], split["master weights"] = step.state, step.master
    curve = tuple(replace(moment, bytes=moment.bytes + beside) for moment in found.curve)
    moment = next(one for one in curve if one.bytes == found.peak + beside)
    stays = tuple(_stays(step, found.stays, len(curve)))
    return Taken(found.peak + beside, moment, split, _with_quantized(found.witnesses, step), curve, stays)


def _stays(step: Step, stays: Iterable[Stay], lines: int) -> Iterator[Stay]:
    """The arrays over the lines with what they are for, as `SPLIT` has it, and what no line says beside them.

    Where frozen weights lie in flash, they are not among them.
    """

    def throughout(name: str, size: int, part: str, axes: tuple[str, ...] = (), shape: tuple[int, ...] = ()) -> Stay:
        return Stay(name, axes, shape or (size,), 1, size, 0, lines - 1, "given", part=part)

    away = {*quantized_widths(step.model), *(step.frozen if step.in_flash else ())}
    yield from (replace(one, part=_part(step, one)) for one in stays if one.name not in away)
    if not step.in_flash:
        for one in (array for several in step.model.quantized for array in (several.codes, *several.scales)):
            shape = shape_of(one.axes, step.run.axes)
            yield throughout(one.name, bytes_of_array(one, step.run.axes), "weights", one.axes, shape)
    for name, size in (("optimizer state", step.state), ("master weights", step.master)):
        if size:
            yield throughout(name, size, name)


def _with_quantized(witnesses: tuple[Held, ...], step: Step) -> tuple[Held, ...]:
    """The arrays that are alive, the largest first, with codes and scales as they are packed in RAM."""
    if step.in_flash or not step.quantized:
        return witnesses
    arrays = [array for one in step.model.quantized for array in (one.codes, *one.scales)]
    sizes = step.run.axes
    packed = [
        Held(one.name, one.axes, shape_of(one.axes, sizes), bytes_of_array(one, sizes), role="weight") for one in arrays
    ]
    others = [one for one in witnesses if one.name not in quantized_widths(step.model)]
    return tuple(sorted((*others, *packed), key=lambda one: -one.bytes))


def _part(step: Step, one: Held | Stay) -> str:
    value = step.table.values.get(one.name)
    if value is not None and value.role == "gathered":
        return "gradients"
    return _PART.get(one.role, "workspace")


RUNNERS = (
    Runner(
        "table",
        lambda step, sizes: step.peak(sizes),
        _takes,
        {
            "new weights and states": "over the old ones",
            "gradients": "until read",
            "kept for backward": "what lines read",
            "temporaries": "none",
        },
        "As the table says, line by line: new weights and states take the place of the old ones, nothing else is in "
        "place, and what stays inside of a kernel takes nothing. Not in it: the library's workspace, the allocator's.",
        largest=lambda step, budget: step.largest(budget),
        lengths=True,
    ),
)
