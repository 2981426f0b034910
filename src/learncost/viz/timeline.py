"""A timeline: slices inside of slices, and counters; times are whole nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


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
        """From its start to its end."""
        return self.end - self.start

    def walk(self) -> Iterator[Slice]:
        """Itself, then its parts, in the order in which they begin."""
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(frozen=True)
class TimelineCounter:
    """A number that changes: at each moment, in nanoseconds, its new value."""

    name: str
    unit: str
    values: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TimelineProcess:
    """A process that runs in parallel with others: its slices, and its counters."""

    name: str
    slices: tuple[Slice, ...]
    counters: tuple[TimelineCounter, ...] = ()

    def walk(self) -> Iterator[Slice]:
        """All slices, in the order in which they begin."""
        for part in self.slices:
            yield from part.walk()


@dataclass(frozen=True)
class Timeline:
    """Parallel processes and the notes to read them."""

    processes: tuple[TimelineProcess, ...]
    facts: Mapping[str, str]


class Pen:
    """Draws slices one behind the other. Every end is rounded by itself, so that sums are right to a nanosecond."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at
        self.slices: list[Slice] = []
        self._open = [self.slices]

    @contextmanager
    def around(self, name: str, kind: str, category: str, **facts: Any) -> Iterator[Slice]:
        """A slice of all that is drawn in the block."""
        slice_ = Slice(name, kind, category, round(self.at), 0, facts)
        self._open[-1].append(slice_)
        self._open.append(slice_.parts)
        yield slice_
        self._open.pop()
        slice_.end = round(self.at)

    def draw(self, length: float, name: str, kind: str, category: str, **facts: Any) -> Slice:
        """A slice of a length, in nanoseconds."""
        start, self.at = self.at, self.at + length
        slice_ = Slice(name, kind, category, round(start), round(self.at), facts)
        self._open[-1].append(slice_)
        return slice_


def changes(values: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Values at moments without those that repeat the one before; of one moment the largest."""
    largest: dict[int, int] = {}
    for at, value in values:
        largest[at] = max(value, largest.get(at, value))
    changed: list[tuple[int, int]] = []
    for at, value in largest.items():
        if not changed or changed[-1][1] != value:
            changed.append((at, value))
    return tuple(changed)
