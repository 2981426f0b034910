"""A timeline of nested slices and counters in integer nanoseconds."""

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
