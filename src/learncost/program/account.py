"""The allocation log of a program: the bytes in use, their peak, and the lines that allocated them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from learncost.program.log import AllocationHistory

FILE = "<a program without values>"


def line_that_runs() -> int:
    """Return the number of the program's line that runs; 0 before it runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


class AllocationLog:
    """The bytes in use now, and their peak; `line` is the line of the peak, as `where` returns it.

    With `stop_at`, every allocation and deallocation is in `log`. `allocations` are then the bytes of each one at the
    first moment when `stop_at` bytes are in use, with the allocating line; `look` receives them by their ids.
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
        """Record an allocation that lasts for one operation."""
        self.take(-1, size)
        self.give(-1, size)


class Allocation:
    """The bytes of an array, allocated as long as anything refers to it."""

    __slots__ = ("account", "bytes")

    def __init__(self, account: AllocationLog, size: int) -> None:
        self.account, self.bytes = account, size
        account.take(id(self), size)

    def __del__(self) -> None:
        self.account.give(id(self), self.bytes)


class TensorStorage(Allocation):
    """A storage that is freed and allocated again while tensors refer to it, as by PyTorch's `resize_`."""

    __slots__ = ()

    def __init__(self, account: AllocationLog) -> None:
        self.account, self.bytes = account, 0

    def resize(self, size: int) -> None:
        """Free the storage, and allocate it with a new size."""
        if self.bytes:
            self.account.give(id(self), self.bytes)
        self.bytes = size
        if size:
            self.account.take(id(self), size)

    def __del__(self) -> None:
        self.resize(0)
