"""Mutations of central code: whether the tests notice a wrong sign, price, rounding, lifetime or index.

    python benchmarks/mutations.py --log FILE       keeps what is done, and goes on with it
    python benchmarks/mutations.py --only shift     the mutations whose name contains this

`mutations.toml` lists them: a file of the package, a text that occurs there once, what it becomes, and the tests that
are to fail. Each is applied to a copy of the package, and its tests run there until one fails, which is printed. The
tests run first without it, where they must pass. It ends with exit code 1 where a mutation survives, and with 2 where
a text no longer occurs once or tests fail without a mutation. Ctrl-C ends it, and what is in the log is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "learncost"
LIST = Path(__file__).with_suffix(".toml")

SECONDS = 900
"""The longest that one run of tests may take; a mutation that makes them take longer is noticed too."""


@dataclass(frozen=True)
class Mutation:
    """A change of one place of the package.

    file   of the package; `old` occurs in it once, and becomes `new`
    tests  files of tests, which run one after another until a test fails
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def key(self) -> str:
        """What the log knows it by: a mutation that was changed is another one."""
        text = json.dumps([self.file, self.old, self.new, *self.tests])
        return f"{self.name} {hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def text(self) -> str:
        """The file with the change. Raises `ValueError` where the old text does not occur once."""
        before = (PACKAGE / self.file).read_text(encoding="utf-8")
        if before.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} has {self.old!r} {before.count(self.old)} times, not once")
        return before.replace(self.old, self.new)


def mutations() -> list[Mutation]:
    """All that are listed. Raises `ValueError` for one whose text does not occur once in its file."""
    rows = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]
    listed = [Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    for mutation in listed:
        mutation.text()
    if len({mutation.name for mutation in listed}) < len(listed):
        raise ValueError("two mutations have one name")
    return listed


def failing(sources: Path, tests: Sequence[str]) -> str:
    """The first test that fails on these sources; empty where all pass."""
    environment = {**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *tests)
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"none ended in {SECONDS} seconds"
    if ran.returncode == 0:
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", ran.stdout, re.MULTILINE)
    if named is None:
        raise ValueError(f"pytest {' '.join(tests)} ran no tests:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return named[1]


def main() -> int:
    """Run the mutations that are asked for and not in the log; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of the mutations to run")
    parser.add_argument("--log", type=Path, help="a file that keeps what is done")
    given = parser.parse_args()
    lines = given.log.read_text(encoding="utf-8").splitlines() if given.log and given.log.exists() else []
    known: dict[str, str] = dict(map(json.loads, lines))
    survivors: list[str] = []

    def found(key: str, sources: Path, tests: Sequence[str]) -> str:
        if key not in known:
            known[key] = failing(sources, tests)
            if given.log:
                with given.log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, known[key]]) + "\n")
        return known[key]

    try:
        wanted = [mutation for mutation in mutations() if given.only in mutation.name]
        with tempfile.TemporaryDirectory() as name:
            sources = Path(name)
            shutil.copytree(PACKAGE, sources / "learncost", ignore=shutil.ignore_patterns("__pycache__"))
            for mutation in wanted:
                for tests in mutation.tests:
                    if failed := found(f"unchanged {tests}", sources, (tests,)):
                        raise ValueError(f"{failed} fails without a mutation")
                path = sources / "learncost" / mutation.file
                path.write_text(mutation.text(), encoding="utf-8")
                caught = found(mutation.key(), sources, mutation.tests)
                shutil.copyfile(PACKAGE / mutation.file, path)
                print(f"{mutation.name}: {caught or 'SURVIVED'}", flush=True)
                survivors += [] if caught else [mutation.name]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ended; the same command with --log goes on from there", file=sys.stderr)
        return 130
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} mutations were noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
