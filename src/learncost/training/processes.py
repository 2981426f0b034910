"""Several processes that train one model: who reports and writes, what they agree on, and how one that is gone is seen.

Each was started by torchrun. The first alone writes and tells; all take the same steps in the same order.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, NoReturn

from learncost.ir.errors import InputError, imported
from learncost.sharding.mesh import Mesh
from learncost.training.rendezvous import LOST_KEY, REFUSAL_EXIT_CODE, Heartbeat, meet

LONG = timedelta(days=30)
"""The time that processes wait for what the first does alone, such as reading all texts."""

REFUSAL_GRACE = 5.0
"""Seconds that the first waits for others where something was refused: they are to hear of it, and may be gone."""

LOST_PROCESS_EXIT_CODE = 1
"""The exit code where another process is gone."""


class Processes:
    """A process that trains alone."""

    rank = 0
    number = 1

    @property
    def first(self) -> bool:
        """Return whether this process writes files and prints."""
        return self.rank == 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return each flag, true if it is true for any process."""
        return flags

    def of_first(self, action: Callable[[], Any]) -> Any:
        """Broadcast the result of the first process, as JSON. Its `InputError` is raised by all."""
        return action()

    def each(self, action: Callable[[], Any], *flags: bool) -> tuple[bool, ...]:
        """Run an action in every process, then reduce flags as `any` does. The `InputError` of one is raised by all."""
        action()
        return flags

    def gathered(self, value: Any) -> list[Any]:
        """Return a value of every process, in their order."""
        return [value]


ONE_PROCESS = Processes()


class ProcessGroup(Processes):
    """A process among others, which meet in torch.distributed."""

    def __init__(self, store: Any, rank: int, number: int) -> None:
        import torch.distributed as distributed

        self._distributed, self._store, self._asked = distributed, store, 0
        self.rank, self.number = rank, number
        self._ends = threading.Lock()
        self._second_store = store.clone()  # which the main thread does not wait with
        self._heartbeat = Heartbeat(store.clone(), self.rank, self.number, self.lost)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        import torch

        raised = torch.tensor(flags, dtype=torch.uint8)
        self._distributed.all_reduce(raised, self._distributed.ReduceOp.MAX)
        return tuple(map(bool, raised.tolist()))

    def of_first(self, action: Callable[[], Any]) -> Any:
        self._asked += 1
        key = f"first/{self._asked}"
        if self.first:
            try:
                answer = {"is": action()}
            except InputError as error:
                self._store.set(key, json.dumps({"error": str(error)}))
                raise
            self._store.set(key, json.dumps(answer))
            return answer["is"]
        self._store.wait([key], LONG)
        answer = json.loads(self._store.get(key))
        if "error" in answer:
            raise InputError(answer["error"])
        return answer["is"]

    def each(self, action: Callable[[], Any], *flags: bool) -> tuple[bool, ...]:
        self._asked += 1
        error: InputError | None = None
        try:
            action()
        except InputError as refusal:
            error = refusal
            self._store.set(f"each/{self._asked}", str(refusal))
        refused, *raised = self.any(error is not None, *flags)
        if refused:
            raise error or InputError(self._store.get(f"each/{self._asked}").decode())
        return tuple(raised)

    def gathered(self, value: Any) -> list[Any]:
        values = [None] * self.number
        self._distributed.all_gather_object(values, value)
        return values

    def reports_first(self, lost: bool = False) -> bool:
        """Return whether this process is the first to report why they end, or cannot ask; a loss is announced to all.

        With torchrun the store is gone that could be asked: then the first of its processes reports.
        """
        reported: list[int] = []

        def ask() -> None:
            with suppress(RuntimeError):
                if lost:
                    self._second_store.set(LOST_KEY, "")
                reported.append(self._second_store.add("reported", 1))

        asks = threading.Thread(target=ask, daemon=True)
        asks.start()
        asks.join(REFUSAL_GRACE)
        if not reported and self._heartbeat.is_orphaned:
            return os.environ.get("LOCAL_RANK") == "0"
        return reported in ([], [1])

    def end(self, seconds: float) -> None:
        """Leave the others. The first, which may keep the store, is the last: it waits for them, so long at most."""
        with suppress(RuntimeError):
            self._heartbeat.end()
            ended, until = self._store.add("ended", 1), monotonic() + seconds
            while self.first and ended < self.number and monotonic() < until:
                sleep(0.01)
                ended = self._store.add("ended", 0)

    def lost(self) -> NoReturn:
        """Say that another process is gone, once for all that are left, and end without waiting for it."""
        self._ends.acquire()  # for good: the main thread and the heartbeat may both come here
        if self.reports_first(lost=True):
            print(
                f"learncost: another of the {self.number} processes is gone: the last checkpoint is kept, and "
                "learncost train --resume with the folder continues from it",
                file=sys.stderr,
            )
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(LOST_PROCESS_EXIT_CODE)


def started() -> int:
    """Return the number of processes that torchrun or its substitute has started; 1 where none did."""
    number = os.environ.get("WORLD_SIZE", "1")
    return int(number) if number.isdigit() else 1


def is_first() -> bool:
    """Return whether this process prints, according to its environment."""
    return os.environ.get("RANK", "0") == "0"


def has_master_address() -> bool:
    """Return whether the environment has the address of the store."""
    return "MASTER_ADDR" in os.environ


def check_started(mesh: Mesh | None) -> None:
    """Refuse a mesh that is not of the processes that were started. Raises InputError."""
    number = started()
    if mesh is None and number > 1:
        raise InputError(
            f"{number} processes were started without --mesh: give --mesh, for example --mesh dp={number}, or "
            f"start one process"
        )
    if mesh is not None and mesh.devices != number:
        raise InputError(
            f"the mesh {mesh} needs {mesh.devices} processes, and {number} {'was' if number == 1 else 'were'} started: "
            f"torchrun --nproc-per-node {mesh.devices} -m learncost train ... --mesh {mesh}"
        )


@contextmanager
def reported_once() -> Iterator[None]:
    """Let all processes fail with an `InputError` before the rendezvous, and only the first report it."""
    try:
        yield
    except InputError:
        if is_first():
            raise
        raise SystemExit(REFUSAL_EXIT_CODE) from None


@contextmanager
def joined(mesh: Mesh | None, device: str = "cpu") -> Iterator[Processes]:
    """Return the processes of this run, which have met. Raises InputError before anything else is done.

    Where another process is gone, this one ends with a line and exit code 1.
    """
    check_started(mesh)
    if mesh is None or not has_master_address():
        yield ONE_PROCESS
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # whose warnings tell a loss at length, before our line
    distributed = imported("torch.distributed", "--mesh needs PyTorch", "torch")
    store, rank, number, name = meet(distributed)
    backend, rendezvous = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", f"learncost/{name}"
    groups = distributed.PrefixStore(f"{rendezvous}/groups", store)
    processes = ProcessGroup(distributed.PrefixStore(f"{rendezvous}/words", store), rank, number)
    try:
        distributed.init_process_group(backend, store=groups, rank=rank, world_size=number)
        yield processes
    except InputError:
        reports_first = processes.reports_first()
        processes.end(REFUSAL_GRACE)
        if reports_first:
            raise
        raise SystemExit(REFUSAL_EXIT_CODE) from None
    except RuntimeError as error:
        if not is_of_peers(error):
            raise
        processes.lost()
    processes.end(math.inf)
    distributed.destroy_process_group()


_PEERS = ("peer", "gloo", "timed out", "timeout", "connection", "nccl", "socket")
"""Words of PyTorch's messages when another process does not respond."""


def is_of_peers(error: RuntimeError) -> bool:
    """Return whether the error means that another process does not respond."""
    text = str(error).lower()
    return any(word in text for word in _PEERS)
