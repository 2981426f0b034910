"""Read the public trainers' files of trainer_files.json from a folder, and print by framework what became of them.

python benchmarks/trainer_files.py FOLDER [--answer N --seed S] [--show WHAT]

The folder has a folder OWNER/NAME for each repository of the list, with its files at the commit of the list. What
files ask for is given: eight devices on top of the axes of the file, 8 sequences, 512 tokens, a vocabulary of 50,304.
The outcomes:

- complete: every key that decides memory is counted
- complete but named: some keys are named as not counted, or not known
- asked: after what the file does not have was given
- another task, unknown model, refused
- not recognized: a file of no known trainer

--answer asks for the memory of N of them, drawn by the seed; --show prints the files with an outcome and its reason.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, defaultdict
from pathlib import Path

import learncost as lc
from learncost.ir.errors import InputError
from learncost.reports.trainer_step import keywords_of, read_step

LIST = Path(__file__).with_name("trainer_files.json")

GIVEN = {"batch_size": 8, "seq_len": 512, "vocab_size": 50_304}
"""What is given in place of what files do not say; devices are eight times those of the file's axes."""

UNKNOWN = ("is no known preset", "describes a kind of model", "does not name its model")
"""Texts of the errors about unknown models."""


def outcome(path: str, answers: bool = False) -> tuple[str, str, str]:
    """Return the framework of a file, what became of it, and why.

    answers  whether the memory of the step is asked for too
    """
    try:
        reading, _ = read_step([path])
    except InputError as error:
        return "none", "not recognized" if "no known trainer" in str(error) else "refused", str(error)
    name, step = reading.frameworks[0].name, reading.step
    if reading.refused:
        return name, "another task", reading.refused
    given: dict[str, object] = {ask: GIVEN[ask] for ask in reading.asks if ask in GIVEN}
    if "devices" in reading.asks:
        axes = {"pp": step.pp, "cp": step.cp, "tp": step.tp}
        given["mesh"] = ",".join(["dp=8", *(f"{axis}={size}" for axis, size in axes.items() if (size or 1) > 1)])
    if "the DeepSpeed file" in reading.asks:
        return name, "asks for the DeepSpeed file", ""
    try:
        keywords = {**keywords_of(reading, **given), **given}
        if answers:
            lc.memory(**keywords)
    except InputError as error:
        return name, "unknown model" if any(text in str(error) for text in UNKNOWN) else "refused", str(error)
    named = [each.key for each in (*reading.unsupported, *reading.unknown)]
    whole = "complete but named" if named else "complete"
    return name, f"{whole}, asked" if reading.asks else whole, ", ".join(named)


def main() -> None:
    """Print the counts of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--answer", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", default="")
    options = parser.parse_args()
    listed = json.loads(LIST.read_text())
    paths = [f"{options.folder}/{name}/{path}" for name, entry in listed.items() for path in entry["files"]]
    present = [path for path in paths if Path(path).is_file()]
    print(f"{len(present):,} of {len(paths):,} files")
    if options.answer:
        print(f"seed {options.seed}")
        present = random.Random(options.seed).sample(present, options.answer)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in present:
        name, what, why = outcome(path, bool(options.answer))
        counts[name][what] += 1
        if options.show and what.startswith(options.show):
            print(f"{path.removeprefix(str(options.folder))}: {name}: {what}: {why}")
    for name, found in sorted(counts.items()):
        for what, count in sorted(found.items()):
            print(f"{name:16} {what:36} {count:6,}")
    every = sum(counts.values(), Counter[str]())
    known = sum(
        count for what, count in every.items() if what not in ("another task", "unknown model", "not recognized")
    )
    whole = every["complete"] + every["complete, asked"]
    print(f"complete after what was asked is given: {whole:,} of {known:,} whose model is known")


if __name__ == "__main__":
    main()
