"""Everything that is fuzzed, by one command: nothing that is typed or read ends in a traceback.

    python -m tests.fuzz --tables 100000 --configurations 5000 --commands 5000 --calibrations 2000

Each of the files fuzz_*.py has a function `fuzz(count, seed)`, which returns a line for each thing that went wrong.
What is not named is not run; with nothing named all of the above are. Exit code 1 where anything went wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

COUNTS = {"tables": 100_000, "configurations": 5_000, "commands": 5_000, "calibrations": 2_000}
MODULES = {name: f"fuzz_{name.removesuffix('s')}" for name in COUNTS} | {
    name: f"fuzz_{name}" for name in ("tables", "commands")
}
SHOWN = 20
"""Lines of each kind that are printed."""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    for name in COUNTS:
        parser.add_argument(f"--{name}", type=int, default=None, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    counts = {name: given[name] for name in COUNTS if given[name] is not None} or COUNTS
    sys.path.insert(0, str(Path(__file__).parent))  # these files import each other as pytest lets them
    wrong = 0
    for name, count in counts.items():
        start = time.monotonic()
        found = import_module(MODULES[name]).fuzz(count, given["seed"])
        print(f"{name}: {count:,} tried in {time.monotonic() - start:.0f} seconds, {len(found):,} wrong", flush=True)
        for line in found[:SHOWN]:
            print(f"    {line}")
        wrong += len(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
