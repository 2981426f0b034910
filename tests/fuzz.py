"""Everything that is fuzzed, by one command: nothing that is typed or read ends in a traceback.

    python -m tests.fuzz
    python -m tests.fuzz --seed 1 2 3 --tables 100000 --configurations 5000 --commands 5000
    python -m tests.fuzz --mutations 2000 --damaged 500 --calibrations 2000 --processes 1

Each of the files fuzz_*.py has a function `fuzz(count, seed)`, which returns a line for each thing that went wrong.
They run in pieces, on two processors. What is not named is not run; with nothing named all of the above are. Without a
seed there are three new ones, which are printed: each has its share of the inputs, and given again it gives the same
ones. Exit code 1 where anything went wrong. Ctrl-C and SIGTERM end it, with what was found until then.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing import Pool, active_children
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

FUZZED = {
    "tables": ("fuzz_tables", 100_000),
    "configurations": ("fuzz_configuration", 5_000),
    "commands": ("fuzz_commands", 5_000),
    "mutations": ("fuzz_mutations", 2_000),
    "damaged": ("fuzz_damaged", 500),
    "calibrations": ("fuzz_calibration", 2_000),
}
"""What is fuzzed: the file, and how often where nothing is named."""

SHOWN = 20
"""Faults of each kind that are printed."""

PIECE = 100
"""Inputs that one process tries at a time; the seeds of pieces follow each other."""

NEW = 3
"""Seeds that are drawn where none is given."""

LASTING = 50
"""Pieces after which a process makes room for a new one."""


def tried(piece: tuple[str, int, int]) -> tuple[int, list[str]]:
    """How many inputs one piece has, and what went wrong in it, with the seed that gives it again."""
    module, count, seed = piece
    return count, [f"piece {seed}: {fault}" for fault in import_module(module).fuzz(count, seed)]


def _worker() -> None:
    """A process of the pool leaves Ctrl-C to the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path.insert(0, str(Path(__file__).parent))  # these files import each other as pytest lets them


def pieces(name: str, count: int, seeds: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Work for one process at a time: file, how many inputs, the seed of the first; seeds have equal shares."""
    module = FUZZED[name][0]
    for place, seed in enumerate(seeds):
        share = count // len(seeds) + (place < count % len(seeds))
        yield from ((module, min(PIECE, share - done), seed + done // PIECE) for done in range(0, share, PIECE))


def fuzz(name: str, count: int, seeds: Sequence[int], processes: int) -> Iterator[tuple[int, list[str]]]:
    """Try so many of one kind: of every piece how many inputs it has, and what went wrong."""
    todo, console = [*pieces(name, count, seeds)], Console(stderr=True)
    hidden = not console.is_terminal
    pool = Pool(processes, _worker, maxtasksperchild=LASTING)
    try:
        with Progress(console=console, disable=hidden) as bar:
            yield from bar.track(pool.imap_unordered(tried, todo), total=len(todo), description=name)
        pool.close()  # processes end by themselves: one that has just begun may not hear a signal
        pool.join()
    finally:
        for process in active_children():
            process.kill()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in FUZZED:
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--seed", type=int, nargs="+", help=f"without it {NEW} new ones")
    parser.add_argument("--processes", type=int, default=2)
    options = vars(parser.parse_args())
    seeds = options["seed"] or random.SystemRandom().sample(range(10**6, 10**9), NEW)
    chosen = {name: options[name] for name in FUZZED if options[name] is not None}
    chosen = chosen or {name: count for name, (_, count) in FUZZED.items()}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"--seed {' '.join(map(str, seeds))}, {options['processes']} processes", flush=True)
    inputs, wrong, begin, ended = 0, 0, time.monotonic(), False
    for name, count in chosen.items():
        start, done, faults = time.monotonic(), 0, list[str]()
        try:
            for number, faults_found in fuzz(name, count, seeds, options["processes"]):
                done, faults = done + number, faults + faults_found
        except KeyboardInterrupt:
            ended = True
        seconds = time.monotonic() - start
        print(f"{name}: {done:,} of {count:,} tried in {seconds:.0f} seconds, {len(faults):,} wrong", flush=True)
        print(*(f"    {line[:600]}\n" for line in faults[:SHOWN]), sep="", end="", flush=True)
        inputs, wrong = inputs + done, wrong + len(faults)
        if ended:
            break
    minutes = (time.monotonic() - begin) / 60
    print(f"{inputs:,} inputs in {minutes:.1f} minutes, {wrong:,} wrong")
    return 130 if ended else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
