"""The rendezvous of a training's processes: in a store of the first process or of torchrun, under a new name.

Who cannot meet says so itself, and ends: the others may never hear of it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from secrets import token_hex
from time import monotonic, sleep
from typing import Any, NoReturn

REFUSAL_EXIT_CODE = 2
"""The exit code of a command that refuses."""

CONNECT_TIMEOUT = 20.0
"""Seconds after which a machine that does not answer, or whose name nobody knows, is taken to be wrong."""

NOTICE_AFTER = 15.0
"""Seconds after which a process says what it waits for."""

JOIN_TIMEOUT = 300.0
"""Seconds that processes wait for one that has not begun: libraries are read from slow disks, too."""

PORTS = 65_535

AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that torchrun sets when it keeps the store."""


def meet(distributed: Any) -> tuple[Any, int, int, str]:
    """Return the store, the rank, the number of processes and a name of this rendezvous, or raise `SystemExit`."""
    words = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    if wrong := next((name for name, word in words.items() if not word.isdecimal()), None):
        _refuse(f"{wrong} is {words[wrong]!r}, and no number")
    rank, number, port = map(int, words.values())
    if port > PORTS:
        _refuse(f"MASTER_PORT must be a port up to {PORTS}, not {port}")
    keeps = rank == 0 and os.environ.get(AGENT) != "True"
    try:
        if not keeps:
            _check_reached(port)
        # PyTorch's rendezvous would wait here until all are there, without a word.
        store = distributed.TCPStore(
            os.environ["MASTER_ADDR"],
            port,
            number,
            keeps,
            timedelta(seconds=CONNECT_TIMEOUT),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store.set_timeout(timedelta(seconds=JOIN_TIMEOUT))
        return store, rank, number, _agreed(store, rank, number)
    except (RuntimeError, ValueError, OverflowError) as error:
        _refuse((str(error).partition("message: ")[2] or str(error)).splitlines()[0].rstrip(". "))


def _place() -> str:
    return f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}, MASTER_ADDR and MASTER_PORT"


def _refuse(why: str) -> NoReturn:
    print(f"learncost: processes cannot meet at {_place()}: {why}", file=sys.stderr)
    raise SystemExit(REFUSAL_EXIT_CODE)


def _check_reached(port: int) -> None:
    """Wait until somebody listens where processes meet."""
    began, notice = monotonic(), _notice("the first process, which has not connected yet")
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port), CONNECT_TIMEOUT / 4).close()
            return
        except OSError as error:
            waits = JOIN_TIMEOUT if isinstance(error, ConnectionRefusedError) else CONNECT_TIMEOUT
            if monotonic() - began > waits:
                _refuse(f"{getattr(error, 'strerror', None) or error}, for {waits:.0f} s")
        notice()
        sleep(0.1)


def _notice(whom: str) -> Callable[[], None]:
    """Return a function to call while a process waits, which says once for whom where that takes long."""
    began, noticed = monotonic(), list[bool]()

    def notice() -> None:
        if monotonic() - began > NOTICE_AFTER and not noticed:
            noticed.append(True)
            print(f"learncost: waiting at {_place()} for {whom}", file=sys.stderr, flush=True)

    return notice


def _agreed(store: Any, rank: int, number: int) -> str:
    """Return a name of this rendezvous; when torchrun restarts processes, its store has the keys of earlier ones.

    Every process sets a random word until rank 0 answers it; rank 0 answers until all have confirmed the answer.
    """
    word = token_hex(8)
    if rank:
        store.set(f"learncost/word/{rank}", word)
        store.wait([f"learncost/answer/{word}"], timedelta(seconds=JOIN_TIMEOUT))
        name = str(store.get(f"learncost/answer/{word}").decode())
        store.set(f"learncost/heard/{name}/{rank}", "")
        return name
    missing, began, notice = set(range(1, number)), monotonic(), _notice(f"others of the {number} processes")
    while missing:
        for other in sorted(missing):
            if store.check([f"learncost/word/{other}"]):
                store.set(f"learncost/answer/{store.get(f'learncost/word/{other}').decode()}", word)
            if store.check([f"learncost/heard/{word}/{other}"]):
                missing.discard(other)
        if missing and monotonic() - began > JOIN_TIMEOUT:
            _refuse(f"{len(missing)} of {number} processes did not come within {JOIN_TIMEOUT:.0f} s")
        notice()
        sleep(0.02)
    return word


HEARTBEAT_INTERVAL = 1.0
"""Seconds from one sign of life to the next."""

HEARTBEAT_TIMEOUT = 20.0
"""Seconds without one after which a process is gone; with those that all need to hear of it, it stays within 30.

They are counted by who hears, a beat at a time: where the whole machine is starved its beats are longer, too."""

LONGEST = 24.0
"""Seconds of a clock after which it is gone however long beats are."""

DONE = b"done"

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable in the environment of torchrun's processes, which end when torchrun ends."""


class Heartbeat:
    """Two threads: one says that this process is alive and hears the next one, one calls `gone` where it hears nothing.

    They are two as whoever keeps the store may be the one that is gone, and then does not answer at all.

    store  a separate client: the main thread may wait with another one
    """

    def __init__(self, store: Any, rank: int, number: int, gone: Callable[[], None]) -> None:
        self._store, self._mine, self._next = store, f"alive/{rank}", f"alive/{(rank + 1) % number}"
        self._gone, self._ended, self._lost, self._silent = gone, threading.Event(), False, 0
        self._since = monotonic()
        self._parent = os.getppid() if LAUNCHED in os.environ else None
        store.set_timeout(timedelta(seconds=HEARTBEAT_TIMEOUT))
        self._beating = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._beating.start()
        threading.Thread(target=self._watch, daemon=True, name="heartbeat's watch").start()

    @property
    def is_orphaned(self) -> bool:
        """Return whether torchrun, which started this process, has ended."""
        return self._parent is not None and os.getppid() != self._parent

    def end(self) -> None:
        """Mark this process as ended normally."""
        self._ended.set()
        self._beating.join(HEARTBEAT_TIMEOUT)
        self._store.set(self._mine, DONE)

    def _beat(self) -> None:
        beats, previous = 0, b""
        with suppress(RuntimeError):  # the store is gone: the watch will see that nothing was heard
            while not self._ended.is_set():
                beats += 1
                self._store.set(self._mine, str(beats))
                latest = self._store.get(self._next) if previous or self._store.check([self._next]) else b""
                if latest in (b"", DONE) or latest != previous:  # it has not come yet, or has ended, or lives
                    previous, self._silent, self._since = latest, 0, monotonic()
                self._lost = self._store.check([LOST_KEY])
                self._ended.wait(HEARTBEAT_INTERVAL)

    def _watch(self) -> None:
        while not self._ended.wait(HEARTBEAT_INTERVAL):
            self._silent += 1
            silent = self._silent * HEARTBEAT_INTERVAL > HEARTBEAT_TIMEOUT or monotonic() - self._since > LONGEST
            if self._lost or self.is_orphaned or silent:
                self._gone()


LOST_KEY = "lost"
"""The key in the store once a process has noticed a loss."""
