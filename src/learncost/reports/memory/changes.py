"""The changes of a step that save most memory, each with the peak that is left when all else stays as it was asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from learncost.ir.errors import InputError, counted
from learncost.ir.serializable import HIDDEN, Serializable
from learncost.procedures.procedure import INFERENCE
from learncost.reports.memory.engines import memory_engines
from learncost.reports.memory.memory import Memory, MemoryQuestion, memory_question
from learncost.reports.memory.on_device import memory_of
from learncost.reports.question import flags_typed
from learncost.reports.request import Request

SHOWN, LEAST = 3, 0.01
"""The changes that are shown, and the part of the peak that each saves at least."""

TRIED: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "gradient checkpointing": ({"procedure": "recompute"}, {"plan": "recompute=block"}),
    "8-bit optimizer states": ({"optimizer": "adamw8bit"},),
    "QLoRA": ({"precision": "nf4-double", "lora": "all-linear"}, {"precision": "nf4-double"}),
    "LoRA": ({"lora": "all-linear"},),
    "chunked loss": ({"plan": "chunked-loss"},),
}
"""The changes by name, each as the settings of a request: the first that the model and the engine support is tried."""


@dataclass(frozen=True)
class MemoryChange(Serializable):
    """A change of a step, as flags, with the peak that is left.

    settings  the fields of the request that the change sets
    """

    name: str
    flags: str
    peak: int
    settings: Mapping[str, Any] = field(metadata=HIDDEN)


def changes_of(question: MemoryQuestion, answer: Memory) -> tuple[MemoryChange, ...]:
    """Return the changes that save most, the largest saving first, and all of them together; empty if none saves."""
    request = question.request
    if not memory_engines()[answer.engine].lengths:
        return ()
    every = [
        change
        for name, settings in _tried(request, answer)
        if (change := next(filter(None, (_tried_as(request, answer, name, each) for each in settings)), None))
    ]
    adapters = [change for change in every if "lora" in change.settings or "precision" in change.settings]
    left_out = sorted(adapters, key=lambda change: change.peak)[1:]
    best = sorted((change for change in every if change not in left_out), key=lambda change: change.peak)[:SHOWN]
    if len(best) < 2:
        return tuple(best)
    together: dict[str, Any] = reduce(_joined, (change.settings for change in best), {})
    count = {2: "both", 3: "all three"}[len(best)]
    return (*best, *filter(None, [_tried_as(request, answer, f"{count} together", together)]))


def _tried(request: Request, answer: Memory) -> Iterator[tuple[str, tuple[Mapping[str, Any], ...]]]:
    """Yield the changes that differ from the request."""
    if answer.procedure in INFERENCE:
        yield "4-bit weights", ({"precision": "nf4-double"},)
        if answer.batch_size > 1:
            yield "half the batch", ({"batch_size": answer.batch_size // 2},)
        if answer.context:
            yield "half the context", ({"context": answer.context // 2},)
        return
    yield from TRIED.items()
    if answer.batch_size > 1 and (counted(request.accumulate) or 1) == 1 and not request.is_sharded:
        yield "microbatches of one", ({"accumulate": answer.batch_size},)
    if answer.seq_len > 1:
        yield "half the length", ({"seq_len": answer.seq_len // 2},)


def _tried_as(request: Request, answer: Memory, name: str, settings: Mapping[str, Any]) -> MemoryChange | None:
    """Return the change with its peak; None if the model or the engine does not support it, or if it saves nothing."""
    if any(getattr(request, field_name) == value for field_name, value in settings.items()):
        return None
    joined = _joined({"plan": request.plan or ""}, settings) if "plan" in settings else settings
    changed = replace(request, **joined)
    if "precision" in settings:
        changed = replace(changed, dtype=None)
    try:
        memory = memory_of(memory_question(changed), 0)
    except InputError:
        return None
    if memory.unavailable or memory.engine != answer.engine or memory.peak > (1 - LEAST) * answer.peak:
        return None
    return MemoryChange(name, " ".join(flags_typed(joined)), memory.peak, settings)


def _joined(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of several changes together; plans are joined."""
    plans = ",".join(filter(None, (settings.get("plan", ""), more.get("plan", ""))))
    return {**settings, **more, **({"plan": plans} if plans else {})}
