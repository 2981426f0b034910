"""The account of a program's bytes: how many are taken, the most that were, and who took them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from learncost.program.log import AllocationHistory

FILE = "<a program without values>"


def line_that_runs() -> int:
    """The line of the program that runs; 0 before it runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


class AllocationLog:
    """Bytes that are taken now, and the most that were; `line` says where, as `where` does when it is asked.

    `allocations` are the bytes of each allocation at the first moment at which `stop_at` were taken and its line; they
    are shown to `look` then, by the rooms' identities. With `stop_at` everything that is taken and given is in `log`.
    """

    def __init__(
        self,
        stop_at: int | None = None,
        where: Callable[[], int | str] = line_that_runs,
        look: Callable[[Mapping[int, tuple[int, int | str]]], None] | None = None,
    ) -> None:
        self.now = self.peak = 0
        self.line: int | str = 0
        self.stop_at, self.where, self._look = stop_at, where, look
        self.allocations: tuple[tuple[int, int | str], ...] = ()
        self.log = AllocationHistory()
        self._taken: dict[int, tuple[int, int | str]] = {}

    def take(self, allocation: int, size: int) -> None:
        self.now += size
        if self.now > self.peak:
            self.peak, self.line = self.now, self.where()
        if self.stop_at is not None:
            self._taken[allocation] = size, self.where()
            self.log.take(allocation, size, str(self.where()), self.now)
            if self.now == self.stop_at and not self.allocations:
                self.allocations = tuple(self._taken.values())
                if self._look:
                    self._look(self._taken)

    def give(self, allocation: int, size: int) -> None:
        self.now -= size
        if self.stop_at is not None:
            self._taken.pop(allocation, None)
            self.log.give(allocation, str(self.where()), self.now)

    def buffer(self, size: int) -> None:
        """What is taken for the time of one operation."""
        self.take(-1, size)
        self.give(-1, size)


class Allocation:
    """The bytes of an array, taken as long as anything refers to it."""

    __slots__ = ("account", "bytes")

    def __init__(self, account: AllocationLog, size: int) -> None:
        self.account, self.bytes = account, size
        account.take(id(self), size)

    def __del__(self) -> None:
        self.account.give(id(self), self.bytes)


class TensorStorage(Allocation):
    """Bytes that are taken and given back while what lies there stays known, as by PyTorch's `resize_`."""

    __slots__ = ()

    def __init__(self, account: AllocationLog) -> None:
        self.account, self.bytes = account, 0

    def resize(self, size: int) -> None:
        """Give back what is taken, and take so many bytes."""
        if self.bytes:
            self.account.give(id(self), self.bytes)
        self.bytes = size
        if size:
            self.account.take(id(self), size)

    def __del__(self) -> None:
        self.resize(0)
