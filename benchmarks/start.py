"""CPU seconds, user and system, of `learncost cost gpt2` as a whole process, beside Python alone and with NumPy.

python benchmarks/start.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from measure import show

REPEATS = 15
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
    "python -c 'import learncost'": [sys.executable, "-c", "import learncost"],
    "learncost --version": [sys.executable, "-m", "learncost.cli.command", "--version"],
    "learncost cost gpt2": [sys.executable, "-m", "learncost.cli.command", "cost", "gpt2"],
    "learncost cost gpt3-175b --json": [sys.executable, "-m", "learncost.cli.command", "cost", "gpt3-175b", "--json"],
}


def spent(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall


def main() -> None:
    """Print the medians; the commands take turns, so that the machine's moods meet all of them."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for iteration in range(REPEATS + 1):
        for name, command in COMMANDS.items():
            measured = spent(command)
            if iteration:  # the first turn fills the caches of files and bytecode
                times[name].append(measured)
    rows = []
    for name, own in times.items():
        processor, wall = zip(*own, strict=True)
        rows.append(
            (name, *(f"{v:.3f}" for v in (statistics.median(processor), min(processor), statistics.median(wall))))
        )
    show("Whole processes", ("", "CPU s, median", "best", "wall s, median"), rows)


if __name__ == "__main__":
    main()
