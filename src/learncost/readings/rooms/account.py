"""The account of a program's bytes: how many are taken, the most that were, and by which lines."""

from __future__ import annotations

import sys

FILE = "<a program without values>"


class Account:
    """Bytes that are taken now, and the most that were, at which line of the program.

    `rooms` are the bytes of each room of the first moment at which `stop_at` were taken, with the line that took it.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        self.now = self.peak = self.line = 0
        self.stop_at = stop_at
        self.rooms: tuple[tuple[int, int], ...] = ()
        self._taken: dict[int, tuple[int, int]] = {}

    def take(self, room: int, size: int) -> None:
        self.now += size
        if self.now > self.peak:
            self.peak, self.line = self.now, _line()
        if self.stop_at is not None:
            self._taken[room] = size, _line()
            if self.now == self.stop_at and not self.rooms:
                self.rooms = tuple(self._taken.values())

    def give(self, room: int, size: int) -> None:
        self.now -= size
        self._taken.pop(room, None)

    def buffer(self, size: int) -> None:
        """What is taken for the time of one operation."""
        self.take(-1, size)
        self.give(-1, size)


def _line() -> int:
    """The line of the program that runs; 0 before it runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0
