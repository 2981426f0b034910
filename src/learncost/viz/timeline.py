"""A timeline of nested slices and counters in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from struct import pack
from typing import Any

from learncost.ir.dataclass import dataclass, field


@dataclass
class Slice:
    """A slice of time from `start` to `end`, in nanoseconds, with its parts.

    kind     what it is: a pass, a block, a layer, a kernel, a line
    category the pass or the passes that it belongs to
    facts    what else is known of it, by name
    """

    name: str
    kind: str
    category: str
    start: int
    end: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: list[Slice] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The time from start to end."""
        return self.end - self.start

    def walk(self) -> Iterator[Slice]:
        """Yield the slice, then its parts, in order of their starts."""
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(frozen=True)
class TimelineCounter:
    """A counter: its new values by time in nanoseconds."""

    name: str
    unit: str
    values: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TimelineProcess:
    """A process that runs in parallel with others: its slices and counters."""

    name: str
    slices: tuple[Slice, ...]
    counters: tuple[TimelineCounter, ...] = ()

    def walk(self) -> Iterator[Slice]:
        """Yield all slices in order of their starts."""
        for part in self.slices:
            yield from part.walk()


@dataclass(frozen=True)
class Timeline:
    """Parallel processes and the notes to read them."""

    processes: tuple[TimelineProcess, ...]
    facts: Mapping[str, str]


class Pen:
    """Draws consecutive slices. Every end is rounded separately, so that sums are exact to a nanosecond."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at
        self.slices: list[Slice] = []
        self._open = [self.slices]

    @contextmanager
    def around(self, name: str, kind: str, category: str, **facts: Any) -> Iterator[Slice]:
        """Draw a slice around all that is drawn in the block."""
        slice_ = Slice(name, kind, category, round(self.at), 0, facts)
        self._open[-1].append(slice_)
        self._open.append(slice_.parts)
        yield slice_
        self._open.pop()
        slice_.end = round(self.at)

    def draw(self, length: float, name: str, kind: str, category: str, **facts: Any) -> Slice:
        """Draw a slice of a length in nanoseconds."""
        start, self.at = self.at, self.at + length
        slice_ = Slice(name, kind, category, round(start), round(self.at), facts)
        self._open[-1].append(slice_)
        return slice_


def changes(values: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return values at moments without repetitions; the largest of each moment."""
    largest: dict[int, int] = {}
    for at, value in values:
        largest[at] = max(value, largest.get(at, value))
    changed: list[tuple[int, int]] = []
    for at, value in largest.items():
        if not changed or changed[-1][1] != value:
            changed.append((at, value))
    return tuple(changed)


SEQUENCE = 1
"""All packets are of one sequence."""

BEGIN, END, COUNTER = 1, 2, 4
"""TrackEvent.Type: a slice begins, a slice ends, a counter has a value."""

BYTES = 3
"""CounterDescriptor.Unit: UNIT_SIZE_BYTES."""

BOOT = 6
"""BuiltinClock: BUILTIN_CLOCK_BOOTTIME, in nanoseconds."""


def _varint(value: int) -> bytes:
    """Return a number as a varint: groups of seven bits, the lowest first; a negative one modulo 2^64."""
    value &= (1 << 64) - 1
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field of a message: integers are varints, floats doubles, strings and messages length-delimited."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def perfetto(timeline: Timeline) -> bytes:
    """Return the timeline as the bytes of a `perfetto.protos.Trace`."""
    return b"".join(_field(1, packet) for packet in _packets(timeline))  # Trace.packet


def _packets(timeline: Timeline) -> Iterator[bytes]:
    for number, process in enumerate(timeline.processes, 1):
        first = number << 32
        described = _field(1, number) + _field(6, process.name)  # ProcessDescriptor.pid, process_name
        yield _field(13, 1) + _described(first, _field(3, described), process.name)  # a sequence begins; process
        steps = first + 1
        yield _described(steps, _field(5, first), "step")  # TrackDescriptor.parent_uuid
        if number == 1:
            yield _event(0, BEGIN, steps, "about this trace", "facts", timeline.facts)
            yield _event(0, END, steps)
        yield from _slices(process.slices, steps)
        yield from _counters(process, steps)


def _described(uuid: int, kind: bytes, name: str) -> bytes:
    """Return TrackPacket.trusted_packet_sequence_id and track_descriptor: uuid, name and kind."""
    return _field(10, SEQUENCE) + _field(60, _field(1, uuid) + _field(2, name) + kind)


def _event(
    at: int, kind: int, track: int, name: str = "", category: str = "", facts: Mapping[str, Any] | None = None
) -> bytes:
    """Return TracePacket.timestamp, its clock, the sequence, and track_event: type, track_uuid, name, categories."""
    event = _field(9, kind) + _field(11, track)
    if name:
        event += _field(23, name) + _field(22, category)
    for key, value in (facts or {}).items():
        event += _field(4, _field(10, key) + _annotated(value))  # debug_annotations: name and value
    return _packet(at, event)


def _packet(at: int, event: bytes) -> bytes:
    return _field(8, at) + _field(58, BOOT) + _field(10, SEQUENCE) + _field(11, event)


def _annotated(value: Any) -> bytes:
    """Return DebugAnnotation.int_value, double_value or string_value."""
    if isinstance(value, int) and abs(value) < 2**63:
        return _field(4, value)
    return _field(5, value) if isinstance(value, float) else _field(6, str(value))


def _slices(slices: Iterable[Slice], track: int) -> Iterator[bytes]:
    for part in slices:
        yield _event(part.start, BEGIN, track, part.name, part.category, {"kind": part.kind, **part.facts})
        yield from _slices(part.parts, track)
        yield _event(part.end, END, track)


def _counters(process: TimelineProcess, steps: int) -> Iterator[bytes]:
    for number, counter in enumerate(process.counters, 1):
        track = steps + number
        kind = _field(3, BYTES) if counter.unit == "bytes" else _field(6, counter.unit)  # unit, or unit_name
        yield _described(track, _field(5, steps - 1) + _field(8, kind), counter.name)  # parent_uuid, counter
        for at, value in counter.values:
            event = _field(9, COUNTER) + _field(11, track) + _field(30, value)  # type, track_uuid, counter_value
            yield _packet(at, event)
