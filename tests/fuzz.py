"""Everything that is fuzzed, by one command: nothing that is typed or read ends in a traceback.

    python -m tests.fuzz --tables 100000 --configurations 5000 --commands 5000 --calibrations 2000

Each of the files fuzz_*.py has a function `fuzz(count, seed)`, which returns a line for each thing that went wrong.
They run in pieces, on two processors. What is not named is not run; with nothing named all of the above are. Exit code
1 where anything went wrong. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from importlib import import_module
from multiprocessing import Pool
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

FUZZED = {
    "tables": ("fuzz_tables", 100_000),
    "configurations": ("fuzz_configuration", 5_000),
    "commands": ("fuzz_commands", 5_000),
    "calibrations": ("fuzz_calibration", 2_000),
}
"""What is fuzzed: the file, and how often where nothing is named."""

SHOWN = 20
"""Faults of each kind that are printed."""

PIECE = 200
"""Inputs that one process tries at a time; the seeds of pieces follow each other."""


def tried(piece: tuple[str, int, int]) -> list[str]:
    """What went wrong in one piece, with the seed that gives it again."""
    module, count, seed = piece
    return [f"seed {seed}: {fault}" for fault in import_module(module).fuzz(count, seed)]


def _worker() -> None:
    """A process of the pool leaves Ctrl-C to the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.insert(0, str(Path(__file__).parent))  # these files import each other as pytest lets them


def fuzz(name: str, count: int, seed: int) -> list[str]:
    """What went wrong with so many of one kind."""
    module = FUZZED[name][0]
    pieces = [(module, min(PIECE, count - done), seed + done // PIECE) for done in range(0, count, PIECE)]
    console = Console(stderr=True)
    faults: list[str] = []
    with Pool(2, _worker) as pool, Progress(console=console, disable=not console.is_terminal) as bar:
        for faults_found in bar.track(pool.imap_unordered(tried, pieces), total=len(pieces), description=name):
            faults += faults_found
    return faults


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in FUZZED:
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    chosen = {name: options[name] for name in FUZZED if options[name] is not None}
    wrong = 0
    for name, count in (chosen or {name: count for name, (_, count) in FUZZED.items()}).items():
        start = time.monotonic()
        faults = fuzz(name, count, options["seed"])
        print(f"{name}: {count:,} tried in {time.monotonic() - start:.0f} seconds, {len(faults):,} wrong", flush=True)
        print(*(f"    {line[:600]}\n" for line in faults[:SHOWN]), sep="", end="")
        wrong += len(faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
