"""The peak memory of a step or a pass on the device of a request, and the changes that save most of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import attrgetter
from typing import Any

from learncost.devices.device import device as find_device
from learncost.devices.rates import calibrated
from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, dataclass, field, replace
from learncost.ir.errors import InputError, counted
from learncost.models.tables import has_batch
from learncost.procedures.procedure import INFERENCE
from learncost.reports.memory.engines import GRAPH, memory_engines
from learncost.reports.memory.memory import Memory, MemoryQuestion, memory_question
from learncost.reports.memory.runs import engine_of
from learncost.reports.memory.types import excess
from learncost.reports.question import flags_typed
from learncost.reports.request import GPU, Request
from learncost.reports.sheet import seconds_of, size_of


def _is_known(memory: DeviceMemory) -> bool:
    return not memory.unavailable


@dataclass(frozen=True)
class DeviceMemory(Serializable):
    """The peak memory of a step or a pass on a device, and the bytes that the device has.

    engine       the engine that executes the step
    is_bound     whether the step takes at least the peak: weights and optimizer state alone do not fit
    unfit        why its arrays do not fit the regions of the memory; else empty
    batch_size   of inference, the largest batch that fits; None of a training step
    unavailable  why the peak is not known; else empty
    instead      why the memory is not that of eager, whose operators are timed; else empty
    plan         the plan of the step as its engine executes it
    where        the remark that the device is one of several
    host         bytes of what is offloaded, in the memory of the host
    moved        bytes that a step copies to the host, and back
    host_gbs     10^9 bytes per second between the two, each way; None where it is not known
    """

    available: int
    peak: int = field(default=0, metadata=Key(when=_is_known, after="schema").field)
    engine: str = field(default="", metadata=Key(when=_is_known, after="fits").field)
    is_bound: bool = field(default=False, metadata=Key("at_least", when=_is_known, optional=True, after="peak").field)
    unfit: str = field(default="", metadata=HIDDEN)
    batch_size: int | None = field(default=None, metadata=OPTIONAL)
    unavailable: str = field(default="", metadata=OPTIONAL)
    instead: str = field(default="", metadata=HIDDEN)
    plan: str = field(default="", metadata=HIDDEN)
    where: str = field(default="", metadata=HIDDEN)
    host: int = field(default=0, metadata=OPTIONAL)
    moved: tuple[int, int] = field(default=(0, 0), metadata=Key(when=attrgetter("host")).field)
    host_gbs: float | None = field(default=None, metadata=HIDDEN)

    @property
    @Key("copying_seconds", optional=True, after="moved")
    def copying(self) -> float | None:
        """The seconds of all copies to the host and back, one after the other; None without one, or a rate."""
        return sum(self.moved) / (self.host_gbs * 1e9) if self.host and self.host_gbs else None

    @property
    def notes(self) -> list[str]:
        """The notes on memory that is unknown, or predicted by another engine than the time."""
        unknown = f"Whether it fits the memory of the device is not known: {self.unavailable}."
        other = f"The memory is that of engine {self.engine}, as eager {self.instead}; --engine {self.engine} has both."
        return [note for note, given in ((unknown, self.unavailable), (other, self.instead)) if given]

    @property
    def offload(self) -> str:
        """The note on what is offloaded; empty if nothing is."""
        if not self.host:
            return ""
        there, back = map(size_of, self.moved)
        took = "not timed, as the device's rate to the host is not known"
        if self.copying is not None:
            took = f"{seconds_of(self.copying)} at {self.host_gbs:g} GB/s each way where nothing overlaps"
        return (
            f"Offloaded: {size_of(self.host)} on the host; a step copies {there} there and {back} back ({took}). The "
            "host's work is not timed, and an update there has the time of one on the GPU."
        )

    def with_copies(self, seconds: float, low: float, high: float) -> tuple[float, float, float]:
        """Return the seconds of a step with the copies: behind each other, at least overlapped, and at most."""
        copying = self.copying or 0.0
        return seconds + copying, max(low, copying), high + copying

    @property
    @Key(when=_is_known, after="available")
    def fits(self) -> bool:
        """Return whether the device has the memory, in regions that hold the arrays."""
        return self.peak <= self.available and not self.unfit

    @property
    def note(self) -> str:
        """Return that the step does not fit, as the first line of an answer says it; empty if it fits."""
        return excess(self.peak, self.available, self.unfit, self.is_bound, self.where)


def memory_on_device(request: Request) -> DeviceMemory | None:
    """Return the memory of a request on its device; None without one, or if the memory of the device is not known.

    The peak is that of `learncost memory` with the same flags, for this step alone: the largest batch is not searched.
    Raises `InputError` for an unknown device.
    """
    if request.on is None or request.on == GPU or calibrated(request.on) or not find_device(request.on).data:
        return None
    question = memory_question(replace(request, budget=None))
    return replace(memory_of(question, question.budget or 0), where=request.one_of_several)


def memory_of(question: MemoryQuestion, available: int) -> DeviceMemory:
    """Return the peak of a question's step or pass, with the bytes that there are."""
    request = question.request
    try:
        if request.procedure in INFERENCE:
            from learncost.reports.memory.inference import serving_of  # imported when used, for a fast start

            _, serving = serving_of(replace(request, engine=question.engine))
            largest = serving.largest(available) if has_batch(serving.model.table) else None
            return DeviceMemory(available, serving.peak(), GRAPH, batch_size=largest, plan=serving.plan)
        if (least := question.least(request.procedure, question.engine)) > available:
            return DeviceMemory(available, least, question.engine, is_bound=True)  # no program is laid out for it
        step = question.step(request.procedure, question.engine)
        engine = engine_of(step, question.engine)
        chosen, step = engine.chosen_engine, engine.step
        if least or step.eager.hosted:
            needs = chosen.takes(step, step.sizes())
            rate = None if request.on is None or request.on == GPU else find_device(request.on).host_gbs
            found = DeviceMemory(available, needs.bytes, chosen.name, unfit=needs.unfit, plan=step.plan)
            return replace(found, host=needs.host, moved=needs.moved, host_gbs=rate)
        peak = chosen.peak(step, step.sizes())
        return DeviceMemory(available, peak, chosen.name, instead=engine.why, plan=step.plan)
    except InputError as error:
        return DeviceMemory(available, unavailable=str(error))


SHOWN, LEAST = 3, 0.01
"""The changes that are shown, and the part of the peak that each saves at least."""

SUGGESTED_CHANGES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
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
    yield from SUGGESTED_CHANGES.items()
    if answer.batch_size > 1 and counted(request.microbatches) == 1 and not request.is_sharded:
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
