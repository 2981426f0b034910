"""Interruption of a training: Ctrl-C, SIGTERM or SIGHUP saves and stops it, a second one ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATION_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that `kill`, a job scheduler and a closed terminal send to end a process."""


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or an equivalent signal was received while the block runs."""
    heard = list[int]()

    def handle(number: int, frame: FrameType | None) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    with _handled((signal.SIGINT, *TERMINATION_SIGNALS), handle):
        yield lambda: bool(heard)


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt while the block runs, so that they save as Ctrl-C does."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(TERMINATION_SIGNALS, handle):
        yield


@contextmanager
def _handled(numbers: tuple[int, ...], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals by a function, except outside the main thread, and SIGHUP if nohup ignores it."""
    kept = {number: signal.getsignal(number) for number in numbers}
    caught = [
        number for number in numbers if number not in TERMINATION_SIGNALS[1:] or kept[number] is not signal.SIG_IGN
    ]
    try:
        for number in caught:
            signal.signal(number, handle)
    except ValueError:  # outside the main thread
        caught = []
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, kept[number] or signal.SIG_DFL)  # None: it was not Python's
