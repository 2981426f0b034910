"""Every placement of every family under every plan and optimizer, on NumPy, a thread for each device.

    python benchmarks/placements.py                            all, some hours on one processor
    python benchmarks/placements.py --log FILE                 keeps what is done, and goes on with it
    python benchmarks/placements.py --pairs                    few cases with every two of their parts together
    python benchmarks/placements.py --part 3/20                every 20th case, from the third on
    python benchmarks/placements.py --only gpt2,mixtral        these families
    python benchmarks/placements.py --placement ulysses        the placements with this in them
    python benchmarks/placements.py --plan flash --optimizer sgd --devices 8

Loss, gradients, new weights and states of the placed step are held to those of one device in float64, bytes that are
sent to those that are priced (`learncost verify --mesh`). Exit code 1 where anything fails. A case is a family, a
placement with its mesh, a plan and an optimizer. The placements of a family under a plan and an optimizer are held to
one step, so they run one after another; these groups come in an order of chance, so that one that is ended early has
met some of everything. Ctrl-C ends it, and what is in the log is not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from multiprocessing import Pool
from pathlib import Path

from learncost.models.families import FAMILIES
from learncost.sharding.mesh import mesh
from learncost.verification.placements import CASES, OPTIMIZERS, PLANS, small_model, verify_placements
from learncost.verification.report import Check

PROGRESS = 30.0
"""Seconds after which it says again how far it is."""


@dataclass(frozen=True)
class Case:
    """A family under a placement over a mesh, with a plan and an optimizer."""

    family: str
    placement: str
    mesh: str
    plan: str
    optimizer: str

    def __str__(self) -> str:
        return f"{self.family} {self.placement} {self.mesh} {self.plan or 'no plan'} {self.optimizer}"

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """Every two of its parts."""
        parts = (f"{self.placement} {self.mesh}", f"plan {self.plan}", self.family, self.optimizer)
        return frozenset(combinations(parts, 2))

    def checks(self) -> list[Check]:
        """What comes of it."""
        model = small_model(self.family)
        return [*verify_placements(model, self.mesh, None, self.placement, self.plan, optimizer=self.optimizer)]


def cases(given: argparse.Namespace) -> list[Case]:
    """Those that the flags leave, the pairs first."""
    families, devices = [name for name in given.only.split(",") if name], {int(n) for n in given.devices.split(",")}
    every = [
        Case(family, names, grid, plan, optimizer)
        for family in families or FAMILIES
        for names, grid in CASES
        if given.placement in names.split(",") or not given.placement
        if mesh(grid).devices in devices
        for plan in PLANS
        if given.plan in (None, plan)
        for optimizer in OPTIMIZERS
        if given.optimizer in ("", optimizer)
    ]
    chosen = covering(every) if given.pairs else every
    part, parts = (int(number) for number in given.part.split("/"))
    return chosen[part % parts :: parts]


def groups(todo: list[Case]) -> list[list[Case]]:
    """Those that are held to the same step together, in an order of chance, and the same one every time."""
    together: dict[tuple[str, str, str], list[Case]] = {}
    for case in todo:
        together.setdefault((case.family, case.plan, case.optimizer), []).append(case)
    return random.Random(0).sample([*together.values()], len(together))


def covering(every: list[Case]) -> list[Case]:
    """Few cases in which all pairs of parts occur that occur in any: those first that have the most new ones."""
    left = {pair for case in every for pair in case.pairs}
    most, chosen = max((len(case.pairs) for case in every), default=0), []
    mixed = random.Random(0).sample(every, len(every))
    for wanted in range(most, 0, -1):
        for case in mixed:
            if len(new := case.pairs & left) >= wanted:
                chosen.append(case)
                left -= new
    return chosen


def done(case: Case) -> tuple[str, list[Check], float]:
    """What comes of a case, with its seconds."""
    begin = time.monotonic()
    return str(case), case.checks(), time.monotonic() - begin


def alone() -> None:
    """A worker leaves Ctrl-C to the process that started it, and collects cycles seldom: most of what it has stays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def group_done(group: list[Case]) -> list[tuple[str, list[Check], float]]:
    """What comes of the cases of a group."""
    return [done(case) for case in group]


def run(todo: list[Case], log: Path | None, workers: int) -> Iterator[tuple[str, list[Check]]]:
    """What comes of every case; what is in the log comes first, and is not run again."""
    before: dict[str, list[Check]] = {}
    if log is not None and log.exists():
        for name, checks, _ in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
            before[name] = [Check(**check) for check in checks]
    yield from ((name, before[name]) for name in map(str, todo) if name in before)
    left = [case for case in todo if str(case) not in before]
    with Pool(workers, alone, maxtasksperchild=20) as pool:
        for group in pool.imap_unordered(group_done, groups(left)):
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    for name, checks, seconds in group:
                        print(json.dumps([name, [asdict(check) for check in checks], round(seconds, 2)]), file=file)
            yield from ((name, checks) for name, checks, _ in group)


def main() -> int:
    """What the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="families, with commas between")
    parser.add_argument("--placement", default="", help="a placement by name")
    parser.add_argument("--plan", help="one of the plans; an empty one is none")
    parser.add_argument("--optimizer", default="", help="sgd or adamw")
    parser.add_argument("--devices", default="2,4,8", help="meshes of so many devices, with commas between")
    parser.add_argument("--pairs", action="store_true", help="as few as have every two of their parts together")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth case, from the Kth on")
    parser.add_argument("--log", type=Path, help="a file that keeps what is done")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    given = parser.parse_args()
    begin, counts, refused, failed = time.monotonic(), Counter[bool | None](), Counter[str](), 0
    todo, ended, reported_at = cases(given), 0, time.monotonic()
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        for ended, (name, checks) in enumerate(run(todo, given.log, given.workers), 1):
            counts.update(check.passed for check in checks)
            refused.update(check.found for check in checks if check.passed is None)
            for check in checks:
                if check.passed is False:
                    failed += 1
                    print(f"{name}\n    {check.compared}: {check.found[:300]}", flush=True)
            if time.monotonic() > reported_at + PROGRESS:
                reported_at = time.monotonic()
                print(f"{ended:,} of {len(todo):,} cases, {failed:,} failures", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        kept = f"; {given.log} has them, and the same command goes on from there" if given.log else ""
        print(f"ended after {ended:,} of {len(todo):,} cases{kept}", file=sys.stderr)
    for why, number in refused.most_common():
        print(f"{number:6,} not made: {why}")
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e3
    minutes = (time.monotonic() - begin) / 60
    print(f"{counts[True]:,} comparisons passed, {failed:,} failed; {minutes:.1f} minutes, at most {peak:,.0f} MB")
    return int(failed > 0) if ended == len(todo) else 130


if __name__ == "__main__":
    sys.exit(main())
