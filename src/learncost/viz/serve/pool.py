"""Parallel workers with a time limit per request, and a cache of their answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from learncost.viz.serve.replies import Answer, Pairs, refusal
from learncost.viz.serve.worker import CAPACITY

SECONDS = 20.0
"""The limit of processor time per answer, in seconds."""

WALL_CLOCK_FACTOR = 6
"""The factor of wall-clock time over processor time that is allowed on a busy machine."""

QUEUE_LIMIT = 32
"""Requests that wait for a worker at most; later requests are asked to retry."""

CACHE_BYTES = 64 * 2**20
"""Bytes of answers that are kept."""

OVERHEAD = 1024
"""The overhead in bytes of a cached answer: the key, the entry, Python's objects."""

CACHED_STATUSES = (200, 400)
"""Statuses that the same question has again: an answer, and a refusal of what is asked; others pass."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The environment variables that limit a worker to one thread."""

ANSWERS_PER_WORKER = 20_000
"""The number of answers after which a worker is replaced."""


class AnswerCache:
    """A cache of the latest answers within a number of bytes."""

    def __init__(self, others: ProcessPool, most: int = CACHE_BYTES) -> None:
        self.others, self.most = others, most
        self.bytes = 0
        self._known: OrderedDict[bytes, Answer] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Answer]] = {}

    def __len__(self) -> int:
        return len(self._known)

    async def answer(self, route: str, pairs: Pairs, config: str = "") -> Answer:
        """Return the cached or new answer to a request; concurrent equal requests share one."""
        key = blake2b(json.dumps([route, sorted(pairs), config]).encode(), digest_size=16).digest()
        if (answer := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return answer
        if (pending := self._pending.get(key)) is None:
            pending = self._pending[key] = asyncio.create_task(self.others.answer(route, pairs, config))
            pending.add_done_callback(lambda _: self._pending.pop(key, None))
        answer = await asyncio.shield(pending)  # who asked may go, others may wait for it
        size = len(answer.content) + OVERHEAD
        if answer.status in CACHED_STATUSES and size <= self.most and key not in self._known:
            self._known[key] = answer
            self.bytes += size
            while self.bytes > self.most:
                _, old = self._known.popitem(last=False)
                self.bytes -= len(old.content) + OVERHEAD
        return answer

    async def close(self) -> None:
        """Close the cached processor."""
        for pending in [*self._pending.values()]:
            pending.cancel()
        await self.others.close()


class ProcessPool:
    """Parallel worker processes with limits of seconds and bytes per answer."""

    def __init__(self, several: int = 2, seconds: float = SECONDS, capacity: int = CAPACITY) -> None:
        self.seconds = seconds
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers = [_Worker(capacity) for _ in range(several)]
        for worker in self._workers:
            self._free.put_nowait(worker)
        self._waiting = 0

    async def start(self) -> None:
        """Start the processes."""
        await asyncio.gather(*(worker.start() for worker in self._workers))

    async def answer(self, route: str, pairs: Pairs, config: str = "") -> Answer:
        """Return the answer to a request, or a refusal after a timeout or if too many wait."""
        if self._waiting >= QUEUE_LIMIT:
            return refusal(503, "too many requests at once: ask again in a moment")
        self._waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._waiting -= 1
        try:
            return await self._within(worker, worker.ask(route, pairs, config))
        except TimeoutError:
            await worker.end()
            return refusal(422, f"this takes more than {self.seconds:g} seconds to count: take smaller sizes")
        except (OSError, EOFError, asyncio.IncompleteReadError):
            await worker.end()
            return refusal(422, "this takes more memory than an answer may: take smaller sizes")
        except asyncio.CancelledError:
            await worker.end()  # whoever asked has gone, and half an answer is on its way
            raise
        finally:
            self._free.put_nowait(worker)

    async def _within(self, worker: _Worker, answer: Coroutine[None, None, Answer]) -> Answer:
        """Return the answer within the limit of processor time. Raises `TimeoutError`."""
        task = asyncio.create_task(answer)
        began, before = time.monotonic(), worker.worked
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=min(0.25, self.seconds))
                waited = time.monotonic() - began
                worked = waited if worker.worked is None else worker.worked - (before or 0.0)
                if not task.done() and (worked > self.seconds or waited > WALL_CLOCK_FACTOR * self.seconds):
                    raise TimeoutError
            return task.result()
        finally:
            task.cancel()

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(worker.end() for worker in self._workers))


class _Worker:
    """A process that answers requests sequentially, and is restarted if it ended."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._process: asyncio.subprocess.Process | None = None
        self._answered = 0

    @property
    def worked(self) -> float | None:
        """Return its processor seconds (proc(5), stat: fields 14 and 15); None if unknown."""
        if self._process is None:
            return 0.0
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    async def start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            command = sys.executable, "-m", "learncost.viz.serve.worker", str(self._capacity)
            pipe, nobody = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL  # libraries that find no room print it
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=nobody, env=os.environ | ONE_THREAD
            )
            self._answered = 0
        return self._process

    async def ask(self, route: str, pairs: Pairs, config: str) -> Answer:
        if self._answered >= ANSWERS_PER_WORKER:
            await self.end()
        process = await self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([route, list(pairs), config]).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise EOFError
        head = json.loads(line)
        content = await process.stdout.readexactly(head.pop("length"))
        self._answered += 1
        return Answer(content=content, **head)

    async def end(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
