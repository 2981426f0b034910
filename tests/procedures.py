"""Every procedure on a small model of every family, by every command that takes `--procedure`.

    python -m tests.procedures                         all of it: some hours of one processor
    python -m tests.procedures --families gpt2,t5      these families alone
    python -m tests.procedures --procedure skip,dfa    these procedures alone, files among them
    python -m tests.procedures --commands emit,verify  these commands alone
    python -m tests.procedures --pairs                 the first round alone, some twenty minutes of one processor
    python -m tests.procedures --part 3/20             every 20th command line, from the 3rd on
    python -m tests.procedures --log sweep.jsonl       keep what is done in a file, and go on from it when called again

A round asks a line of every procedure of every family, another line of each in turn: after the first round every
pair of family, procedure and line was there, and after all rounds all three together.

A line may be refused in one line of text. All refusals are printed at the end, each with how often it was said; what
ends otherwise, and a proof that does not hold, is printed as it happens, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.commands.called import call, ending

from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.models.model import lengths_open
from learncost.models.small import contents
from learncost.procedures.procedure import LEARNING

EXAMPLES = Path(__file__).parents[1] / "examples" / "procedures"
FILES = tuple(str(path) for path in sorted(EXAMPLES.glob("*.toml")))
BACKENDS = {"numpy": ".py", "torch": ".py", "jax": ".py", "c99": ".c"}
ENGINES = ("graph", "numpy", "torch", "c99")
BATCH, TRIED = "--seq-len 6 --batch-size 2", "--seeds 0 --rates 0.01"

LINES = {
    "cost": [f"cost {{model}} {{lengths}} {flags}" for flags in ("", "--by equation --json", "--plan chunked-loss")],
    "compare": ["compare {model} {lengths}"],
    "memory": [f"memory {{model}} {{lengths}} --engine {engine}" for engine in ENGINES],
    "fit": ["fit {model} {lengths} --budget 200kB"],
    "formulas": ["formulas {model}"],
    "emit": [f"emit {{model}} --backend {backend} --output {{folder}}/step{end}" for backend, end in BACKENDS.items()],
    "sweep": ["sweep {model} {lengths} --batch-size 1,2"],
    "run-cost": ["run-cost {model} {lengths} --tokens 1e6 --on A100-SXM-80GB"],
    "trace": ["trace {model} {lengths} --output {folder}/trace.json"],
    "report": ["report {model} {lengths} --output {folder}/report.html"],
    "explain": ["explain {model} attention"],
    "train": [
        f"train {{text}} --model {{model}} --steps 2 {BATCH} --out {{folder}}/run --engine {engine}"
        for engine in ("numpy", "torch")
    ],
    "contest": [f"contest {{text}} --model {{model}} --budget steps:2 {BATCH} {TRIED} --out {{folder}}/contest.json"],
    "verify": ["verify {model}"],
}
"""The lines of every command, to which the procedure is added."""


def lines(families: list[str], procedures: list[str], commands: list[str], folder: Path) -> Iterator[str]:
    """Every command line, in rounds: in each, every procedure of every family has a line, and in the next another."""
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    known = {family: written(family, folder) for family in families}
    asked = [line for command in commands for line in LINES[command]]
    for first in range(len(asked)):
        for row, family in enumerate(families):
            for column, procedure in enumerate(procedures):
                line = asked[(first + row + column) % len(asked)]
                names = f"bp,{procedure}" if command_of(line) == "compare" and procedure != "bp" else procedure
                yield f"{line.format(**known[family])} --procedure {shlex.quote(names)}"


def written(family: str, folder: Path) -> Mapping[str, str]:
    """A small model of a family as a file, and what lines say of it."""
    file = folder / f"{family}.json"
    config = contents(family, num_hidden_layers=4)  # which go in groups of two
    file.write_text(json.dumps(config), encoding="utf-8")
    flags = zip(("--seq-len", "--target-len"), lengths_open(configure(config), 6, 5), strict=True)
    lengths = " ".join(f"{flag} {length}" for flag, length in flags if length)
    return {"model": str(file), "lengths": lengths, "folder": str(folder), "text": str(folder / "text.txt")}


def command_of(line: str) -> str:
    """The command of a line."""
    return line.partition(" ")[0]


def outcome(line: str, run: Path) -> tuple[str, str, float]:
    """What is wrong with how a line ended, or the one line that refused it, and the seconds; its `run` is made anew."""
    shutil.rmtree(run, ignore_errors=True)
    called = call(line)
    if command_of(line) == "train" and called.code == 2:  # it has told how it goes: the last line refuses
        called = replace(called, err=called.err.splitlines(keepends=True)[-1])
    return ending(called), called.refusal, called.seconds


def main() -> int:
    """What the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES), help="with commas between")
    parser.add_argument("--procedure", default=",".join((*LEARNING, *FILES)), help="with commas between")
    parser.add_argument("--commands", default=",".join(LINES), help="with commas between")
    parser.add_argument("--pairs", action="store_true", help="the first round alone")
    parser.add_argument("--part", default="1/1", help="every n-th command line: 3/20")
    parser.add_argument("--log", type=Path, help="a file that keeps what is done")
    given = parser.parse_args()
    first, step = map(int, given.part.split("/"))
    logged = given.log.read_text(encoding="utf-8").splitlines() if given.log and given.log.exists() else []
    known = {line: (fault, refusal) for line, fault, refusal, _ in map(json.loads, logged)}
    refusals: Counter[str] = Counter()
    wrong = done = 0
    with TemporaryDirectory() as name:
        families, procedures = given.families.split(","), given.procedure.split(",")
        every = lines(families, procedures, given.commands.split(","), Path(name))
        if given.pairs:
            every = islice(every, len(families) * len(procedures))
        for at, line in enumerate(every):
            if at % step != first - 1:
                continue
            text = line.replace(name, "")
            if text not in known:
                fault, refusal, seconds = outcome(line, Path(name) / "run")
                known[text] = fault, refusal.replace(name, "")
                if given.log:
                    with given.log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([text, *known[text], round(seconds, 2)]) + "\n")
            fault, refusal = known[text]
            done += 1
            if fault:
                wrong += 1
                print(f"{text}\n    {fault}", flush=True)
            elif refusal:
                refusals[f"{command_of(line)}: {refusal}"] += 1
    for text, times in sorted(refusals.items()):
        print(f"{times} x {text}")
    print(f"{done:,} command lines, {sum(refusals.values()):,} refused, {wrong:,} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
