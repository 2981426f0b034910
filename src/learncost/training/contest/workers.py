"""Workers for the tasks of a contest: this process sequentially, or Dask's processes in parallel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from learncost.ir.errors import InputError, shown, to_install
from learncost.training.contest.trial import StoppedError, TrialReporter

SCHEDULER_TIMEOUT = 10
"""Seconds within which a scheduler has to answer."""

POLL_INTERVAL = 0.2
"""Seconds after which somebody looks whether to stop."""

Task = Callable[..., Any]


class Workers(Protocol):
    """Runs a task for each of several arguments, and yields the index and result of each completed one.

    shared  what every task reads first, the same for all
    reporter  the reporter of its steps, if tasks run in this process
    """

    def __call__(
        self, task: Task, shared: object, of: Sequence[tuple[Any, ...]], reporter: TrialReporter
    ) -> Iterator[tuple[int, Any]]: ...


def in_iteration(
    task: Task, shared: object, of: Sequence[tuple[Any, ...]], reporter: TrialReporter
) -> Iterator[tuple[int, Any]]:
    """Run the tasks sequentially in this process."""
    return ((place, task(shared, *arguments, reporter)) for place, arguments in enumerate(of))


@contextmanager
def workers(named: str | None, stop: Callable[[], bool]) -> Iterator[Workers]:
    """Yield the workers of `named`: a number of processes on this machine, or the address of a Dask scheduler.

    stop  asked while tasks run elsewhere; where it says yes, those that are not done are given up
    Raises `InputError` for what is neither, where Dask is missing, and where no scheduler answers.
    """
    if named is None:
        yield in_iteration
        return
    is_number = named.isascii() and named.isdigit()
    if not (is_number and 0 < int(named) < 1000) and not named.startswith(("tcp://", "tls://")):
        raise InputError(
            f"workers must be a number of processes from 1 to 999, or the address of a Dask scheduler such as "
            f"tcp://HOST:8786, not {shown(named)}"
        )
    try:
        import distributed

        if is_number:
            import cryptography  # noqa: F401  # the key of a cluster that only this process may give tasks to
    except ImportError:
        raise InputError(f"--workers needs Dask: {to_install('workers')}") from None
    dask: Any = distributed  # its functions have no types
    cluster: Any = named
    if is_number:
        cluster = dask.LocalCluster(
            n_workers=int(named),
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tls://",
            security=dask.Security.temporary(),
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )
    try:
        client = dask.Client(cluster, timeout=SCHEDULER_TIMEOUT)
    except OSError:
        raise InputError(f"no scheduler of Dask answers at {named} within {SCHEDULER_TIMEOUT} s") from None

    def on_dask(
        task: Task, shared: object, of: Sequence[tuple[Any, ...]], reporter: TrialReporter
    ) -> Iterator[tuple[int, Any]]:
        reporter.say(f"{len(of):,} tasks for the workers")
        everywhere = client.scatter(shared, broadcast=True)
        silent = TrialReporter()  # another process is stopped by ending it
        waiting = {
            client.submit(task, everywhere, *arguments, silent, pure=False): place for place, arguments in enumerate(of)
        }
        while waiting:
            done, gone = set[Any](), False
            try:
                done = dask.wait([*waiting], timeout=POLL_INTERVAL, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                pass  # nothing is done yet
            except CancelledError:
                gone = True
            if stop():  # who is asked by Ctrl-C asks the processes of a terminal too
                raise StoppedError
            gone = gone or any(isinstance(future.exception(), dask.KilledWorker) for future in done)
            if gone:
                raise InputError(
                    "training processes ended early: if they ran out of memory, give fewer --workers or a smaller "
                    "--batch-size"
                )
            for future in done:
                yield waiting.pop(future), future.result()

    try:
        yield on_dask
    finally:
        with suppress(TimeoutError, CancelledError):  # of processes that are gone already
            client.close()
            if is_number:
                cluster.close()
