"""The CPU of this machine, from Linux's /proc/cpuinfo (proc(5)) or Python's platform."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


def cpu_field(key: str) -> str:
    """Return the value of a field of the first core, such as vendor_id; empty if it is absent."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def name() -> str:
    """Return the model name of the CPU."""
    return cpu_field("model name") or platform.processor() or platform.machine()


THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with the user's number of threads."""

_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
"""The names of OpenBLAS's two functions: in NumPy's wheels, and elsewhere (openblas_config.h)."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenBLAS, which NumPy uses, to one thread inside a `with` block, unless the user has set a number of
    threads.

    Threads that share a small product wait for each other longer than they compute, especially on a busy CPU: products
    of 128 x 32 x 128 on two cores took eight times as long.
    """
    functions = None if any(name in os.environ for name in THREAD_VARIABLES) else _openblas()
    if functions is None:
        yield
        return
    get, put = functions
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


def _openblas() -> tuple[Any, Any] | None:
    """Return the functions that get and set the number of threads; None with another library."""
    try:
        library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    except (ImportError, OSError):
        return None
    for name in _NAMES:
        try:
            return getattr(library, name.format("get")), getattr(library, name.format("set"))
        except AttributeError:
            continue
    return None
