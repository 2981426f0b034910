"""Every learning procedure on digits and on text: the contests of docs/learned.md, one file for each entrant.

    python benchmarks/procedures.py FOLDER                           all that is not there yet, one after another
    python benchmarks/procedures.py FOLDER --only digits-2,text-2    these problems alone
    python benchmarks/procedures.py FOLDER --procedure bp,skip       these procedures alone
    python benchmarks/procedures.py FOLDER --table                   what is there, as the tables of the page

What is there is not run again: a run that was stopped goes on with the next entrant. It takes hours: nice -n 19.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from learncost.models.storage import write_json
from learncost.training.contest.contest import ContestDesign, contest
from learncost.training.contest.entrant import Budget, Setting, entrants
from learncost.training.contest.problem import DECODER, Problem, text, vit

PROCEDURES = (
    "bp",
    "head-only",
    "sign-symmetric",
    "kolen-pollack",
    "fa",
    "local",
    "local-shared",
    "skip",
    "skip-blocks",
    "skip-branches",
    "skip-out",
    "dfa",
    "dfa-linear",
    "forward-gradient",
    "mezo",
    "evolution",
)

PROBLEMS: Mapping[str, tuple[int, int]] = {
    "digits-2": (2, 300),
    "digits-4": (4, 300),
    "digits-8": (8, 300),
    "text-2": (2, 300),
    "text-6": (6, 300),
    "digits-2-long": (2, 1500),
    "text-2-long": (2, 900),
    "text-2-longer": (2, 2700),
}
"""How many blocks, and how many steps."""

SEEDS = (0, 1, 2, 3, 4)


def problem(name: str) -> Problem:
    """Digits for a small vision transformer, or bytes of the library of this Python for a small decoder."""
    kind, _, _ = name.partition("-")
    blocks = {"num_hidden_layers": str(PROBLEMS[name][0])}
    return vit(blocks) if kind == "digits" else text([os.path.dirname(os.__file__)], DECODER, blocks, 64)


def run(folder: Path, name: str, optimizer: str, procedure: str) -> None:
    """One entrant of one problem, into a file of its own."""
    file = folder / f"{name}.{optimizer}.{procedure}.json"
    if file.exists():
        return
    setting = Setting(problem(name), optimizer)
    steps = PROBLEMS[name][1]
    result = contest(setting, ContestDesign(entrants(procedure, "stable"), Budget("steps", steps), SEEDS))
    write_json(file, result.to_dict())
    print(row(result.to_dict()), flush=True)


def row(contest_run: Mapping[str, Any]) -> str:
    """One entrant as a line of a table."""
    (entrant,) = contest_run["results"]
    ends = [outcome["after"] for outcome in entrant["trainings"] if outcome["after"] is not None]
    lost = len(entrant["trainings"]) - len(ends)
    cells = [entrant["procedure"]]
    for key, factor, places in (("loss", 1, 3), ("accuracy", 100, 1)):
        numbers = [end[key] * factor for end in ends]
        spread = stdev(numbers) if len(numbers) > 1 else 0.0
        cells.append(f"{mean(numbers):.{places}f} ± {spread:.{places}f}" if numbers else "-")
    cells.append(f"{lost} of {len(entrant['outcomes'])}" if lost else "")
    cells.append(f"{entrant['learning_rate']:.3g}")
    cells.append(f"{entrant['flops'] / 1e9:.2f}")
    cells.append(f"{entrant['predicted_peak_bytes'] / 1e6:.2f}")
    return f"| {' | '.join(cells)} |"


def tables(folder: Path) -> Iterator[str]:
    """What is there, a table for every problem and optimizer."""
    for name in PROBLEMS:
        for optimizer in ("adamw", "momentum"):
            files = [folder / f"{name}.{optimizer}.{procedure}.json" for procedure in PROCEDURES]
            there = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
            if there:
                yield f"\n{name}, {optimizer}\n"
                yield "| | loss | accuracy, % | diverged | rate | 10^9 FLOPs | MB |"
                yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
                yield from map(row, there)


def main() -> int:
    """What the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(PROBLEMS), help="problems, with commas between")
    parser.add_argument("--procedure", default=",".join(PROCEDURES), help="procedures, with commas between")
    parser.add_argument("--optimizer", default="adamw,momentum", help="optimizers, with commas between")
    parser.add_argument("--table", action="store_true", help="print what is there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.table:
        print(*tables(given.folder), sep="\n")
        return 0
    for name in given.only.split(","):
        for optimizer in given.optimizer.split(","):
            for procedure in given.procedure.split(","):
                run(given.folder, name, optimizer, procedure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
