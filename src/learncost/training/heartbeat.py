"""How the processes of a training see that one of them is gone: killed, stopped, or cut off from the others.

Every process writes a number that grows into the store where they met, and reads that of the next one. A collective
alone would wait for as long as the slowest of them may take.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

BEAT = 1.0
"""Seconds from one sign of life to the next."""

SILENCE = 20.0
"""Seconds without one after which a process is gone; with those that all need to hear of it, it stays within 30.

They are counted by who hears, a beat at a time: where the whole machine is starved its beats are longer, too."""

LONGEST = 24.0
"""Seconds of a clock after which it is gone however long beats are."""

DONE = b"done"

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""What torchrun's processes have in their environment: they end with it, however it ended."""


class Heartbeat:
    """Two threads: one says that this process is alive and hears the next one, one calls `gone` where it hears nothing.

    They are two as whoever keeps the store may be the one that is gone, and then does not answer at all.

    store  a client of its own: the main thread may wait with another one
    """

    def __init__(self, store: Any, rank: int, number: int, gone: Callable[[], None]) -> None:
        self._store, self._mine, self._next = store, f"alive/{rank}", f"alive/{(rank + 1) % number}"
        self._gone, self._ended, self._lost, self._silent = gone, threading.Event(), False, 0
        self._since = monotonic()
        self._parent = os.getppid() if LAUNCHED in os.environ else None
        store.set_timeout(timedelta(seconds=SILENCE))
        self._talks = threading.Thread(target=self._talk, daemon=True, name="heartbeat")
        self._talks.start()
        threading.Thread(target=self._watch, daemon=True, name="heartbeat's watch").start()

    @property
    def orphan(self) -> bool:
        """Whether torchrun, which started this process, is gone."""
        return self._parent is not None and os.getppid() != self._parent

    def end(self) -> None:
        """This process has ended as it should."""
        self._ended.set()
        self._talks.join(SILENCE)
        self._store.set(self._mine, DONE)

    def _talk(self) -> None:
        beats, heard = 0, b""
        with suppress(RuntimeError):  # the store is gone: the watch will see that nothing was heard
            while not self._ended.is_set():
                beats += 1
                self._store.set(self._mine, str(beats))
                said = self._store.get(self._next) if heard or self._store.check([self._next]) else b""
                if said in (b"", DONE) or said != heard:  # it has not come yet, or has ended, or lives
                    heard, self._silent, self._since = said, 0, monotonic()
                self._lost = self._store.check([LOST])
                self._ended.wait(BEAT)

    def _watch(self) -> None:
        while not self._ended.wait(BEAT):
            self._silent += 1
            silent = self._silent * BEAT > SILENCE or monotonic() - self._since > LONGEST
            if self._lost or self.orphan or silent:
                self._gone()


LOST = "lost"
"""What is in the store once somebody has noticed."""
