"""Interruption of a training: Ctrl-C, SIGTERM or SIGHUP saves and stops it, a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

OTHERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that `kill`, a job scheduler and a closed terminal send to end a process."""


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or an equivalent signal was received while the block runs."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handled((signal.SIGINT, *OTHERS), handle):
        yield stop.is_set


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt while the block runs, so that they save as Ctrl-C does."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(OTHERS, handle):
        yield


@contextmanager
def _handled(numbers: tuple[int, ...], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals by a function, except outside the main thread, and SIGHUP if nohup ignores it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in numbers}
    unheard = {number for number in OTHERS[1:] if kept[number] is signal.SIG_IGN}
    caught = [number for number in numbers if number not in unheard]
    for number in caught:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, kept[number] or signal.SIG_DFL)  # None: it was not Python's
