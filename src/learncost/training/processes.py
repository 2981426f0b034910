"""Several processes that train one model: who speaks and writes, what they agree on, and how one that is gone is seen.

Each was started by torchrun. The first alone writes and tells; all take the same steps in the same order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, NoReturn

from learncost.equation.errors import InputError
from learncost.placement.mesh import Mesh

LONG = timedelta(days=30)
"""How long the others wait for what the first does alone, such as reading all texts."""

LOST = 1
"""The exit code where another process is gone."""


class Processes:
    """A process that trains alone."""

    rank = 0
    number = 1

    @property
    def first(self) -> bool:
        """Whether it is the one that writes and tells."""
        return self.rank == 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, true where it is true for any process."""
        return flags

    def of_first(self, action: Callable[[], Any]) -> Any:
        """What the first finds, given to all, as JSON can hold it. Its `InputError` is raised by all."""
        return action()

    def each(self, action: Callable[[], None]) -> None:
        """What every process does for itself. The `InputError` of one is raised by all."""
        action()


ALONE = Processes()


class Several(Processes):
    """A process among others, which meet in torch.distributed."""

    def __init__(self, store: Any) -> None:
        import torch.distributed as distributed

        self._distributed, self._store, self._asked = distributed, store, 0
        self.rank, self.number = distributed.get_rank(), distributed.get_world_size()

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
                found = {"is": action()}
            except InputError as error:
                self._store.set(key, json.dumps({"error": str(error)}))
                raise
            self._store.set(key, json.dumps(found))
            return found["is"]
        self._store.wait([key], LONG)
        found = json.loads(self._store.get(key))
        if "error" in found:
            raise InputError(found["error"])
        return found["is"]

    def each(self, action: Callable[[], None]) -> None:
        self._asked += 1
        error: InputError | None = None
        try:
            action()
        except InputError as refusal:
            error = refusal
            self._store.set(f"each/{self._asked}", str(refusal))
        if self.any(error is not None)[0]:
            raise error or InputError(self._store.get(f"each/{self._asked}").decode())


def started() -> int:
    """How many processes torchrun, or what stands for it, has started; 1 where none did."""
    number = os.environ.get("WORLD_SIZE", "1")
    return int(number) if number.isdigit() else 1


def is_first() -> bool:
    """Whether this process is the one that tells, as its environment says."""
    return os.environ.get("RANK", "0") == "0"


def check_started(mesh: Mesh | None) -> None:
    """Refuse a mesh that is not of the processes that were started. Raises InputError."""
    number = started()
    if mesh is None and number > 1:
        raise InputError(
            f"{number} processes were started, and nothing says what each of them does: give --mesh, such as "
            f"--mesh dp={number}, or start one"
        )
    if mesh is not None and mesh.devices != number:
        raise InputError(
            f"the mesh {mesh} is of {mesh.devices} processes, and {number} {'was' if number == 1 else 'were'} started: "
            f"torchrun --nproc-per-node {mesh.devices} -m learncost train ... --mesh {mesh}"
        )


@contextmanager
def joined(mesh: Mesh | None, device: str = "cpu") -> Iterator[Processes]:
    """The processes of this run, which have met. Raises InputError before anything else is done.

    Where another process is gone, this one ends with a line and exit code 1.
    """
    check_started(mesh)
    if mesh is None or "MASTER_ADDR" not in os.environ:
        yield ALONE
        return
    try:
        distributed: Any = import_module("torch.distributed")
    except ImportError:
        raise InputError("--mesh needs PyTorch: pip install 'learncost[torch]'") from None
    store, rank, number = next(iter(distributed.rendezvous("env://")))
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(
        backend, store=distributed.PrefixStore("learncost/groups", store), rank=rank, world_size=number
    )
    processes = Several(distributed.PrefixStore("learncost/words", store))
    try:
        yield processes
    except RuntimeError as error:
        if not _is_of_peers(error):
            raise
        _lost(processes, store, error)
    distributed.destroy_process_group()


_PEERS = ("peer", "gloo", "timed out", "timeout", "connection", "nccl", "socket")
"""What PyTorch's messages say where another process does not answer."""


def _is_of_peers(error: RuntimeError) -> bool:
    text = str(error).lower()
    return any(word in text for word in _PEERS)


def _lost(processes: Processes, store: Any, error: RuntimeError) -> NoReturn:
    """Say that another process is gone, once for all that are left, and end without waiting for it."""
    try:
        speaks = store.add("learncost/lost", 1) == 1
    except RuntimeError:
        speaks = True
    if speaks:
        print(
            f"learncost: another of the {processes.number} processes is gone: the last checkpoint is kept, and "
            "learncost train --resume with the folder goes on from it",
            file=sys.stderr,
        )
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(LOST)
