"""What the benchmarks share: the machine in one line, repeated timings, a table."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def machine() -> str:
    """The machine and the versions that the numbers belong to."""
    import numpy

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = f"Python {platform.python_version()}, NumPy {numpy.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, {versions}{load}"


def seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.process_time) -> list[float]:
    """The times of several runs; CPU seconds unless another clock is given."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return times


def show(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table under the description of the machine; the first column is text."""
    cells = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    print(f"{title}\n{machine()}\n")
    for row in cells:
        first, *others = zip(row, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip())


def milliseconds(times: Sequence[float]) -> tuple[str, str]:
    """The median and the best, in milliseconds."""
    return f"{statistics.median(times) * 1e3:.2f}", f"{min(times) * 1e3:.2f}"
