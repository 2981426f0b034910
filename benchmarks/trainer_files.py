"""Read the public trainers' files of trainer_files.json from a folder, and print by framework what became of them.

python benchmarks/trainer_files.py FOLDER [--answer N --seed S] [--show WHAT] [--readings] [--peaks] [--draw N --seed S]

The folder has a folder OWNER/NAME for each repository of the list, with its files at the commit of the list. What
files ask for is given: eight devices on top of the axes of the file, 8 sequences, 512 tokens, a vocabulary of 50,304.
The outcomes:

- complete: every key that decides memory is counted
- complete but named: some keys are named as not counted, or not known
- asked: after what the file does not have was given
- another task, unknown model, refused
- not recognized: a file of no known trainer

--answer asks for the memory of N of them, drawn by the seed; --show prints the files with an outcome and its reason.
--readings compares the steps of files with those that were read by hand; --peaks compares the memory of files with the
peaks that their repositories publish of exactly these, which were listed before the first prediction; --draw names N
files to be read by hand that have not been, evenly over the repositories, by the seed.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import learncost as lc
from learncost.ir.errors import InputError
from learncost.reports.trainer_step import keywords_of, not_counted, read_step
from learncost.trainer_files.names import copied, named
from learncost.trainer_files.reading import AXES

READINGS = Path(__file__).with_name("trainer_files_readings.json")
"""Files of the list, drawn by the seeds that stand there and read by hand before they were compared."""

PEAKS = Path(__file__).with_name("trainer_files_peaks.json")
"""Published peaks: allocated ones of litgpt and fms-acceleration, reserved ones of torchtitan and axolotl, and
numbers of axolotl that do not say which memory they are. All are compared without a factor: reserved ones with what
the allocator reserves, with expandable segments where the trainer sets them, all others with the allocated peak.
Numbers with a `why` cannot be of their files, and those that do not say which memory they are are compared apart.

fms-acceleration's are all those of its table that PyTorch, transformers and bitsandbytes ran (no replaced kernels, no
GPTQ) with models that are presets; torchtitan's all those of bf16 in eager, of models from 8B, whose message or table
gives the TOML and what is changed. The files of a row with a commit lie in OWNER/NAME@COMMIT.

litgpt's with quantization are of bitsandbytes 0.42 (litgpt 2b195c7f, pyproject.toml), which kept the operands of all
products, those of the microbatch before too (fixed in bitsandbytes 9e753741); litgpt 26857050 requires 0.45.2.
"""

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
    if {"devices", *AXES} & {*reading.asks}:
        axes = {axis: 2 if axis in reading.asks else step.get(axis) for axis in ("pp", "cp", "tp")}
        given["mesh"] = ",".join(["dp=8", *(f"{axis}={size}" for axis, size in axes.items() if (size or 1) > 1)])
    if "the DeepSpeed file" in reading.asks:
        return name, "asks for the DeepSpeed file", ""
    try:
        keywords = {**keywords_of(reading, **given), **given}
        if answers:
            lc.memory(lc.request_of(path, **given))
    except InputError as error:
        return name, "unknown model" if any(text in str(error) for text in UNKNOWN) else "refused", str(error)
    named = [each.key for each in (*reading.unsupported, *not_counted(reading, keywords), *reading.unknown)]
    whole = "complete but named" if named else "complete"
    return name, f"{whole}, asked" if reading.asks else whole, ", ".join(named)


def differences(path: str, expected: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the fields in which a file is read otherwise than by hand, and how many were compared."""
    wrong = list[str]()
    _, what, why = outcome(path)
    what = "refused" if what == "not recognized" else what
    kind = expected.get("outcome", "")
    if kind != (what if what in ("another task", "unknown model", "refused") else ""):
        wrong.append(f"outcome: {kind or 'a step'} by hand, {what}: {why[:150]}")
    try:
        reading, _ = read_step([path])
    except InputError:
        return wrong, len(expected) - 1
    fields = {name: value for name, value in expected.items() if name not in ("file", "outcome", "asks", "sizes")}
    if kind != "another task":
        fields |= {f"sizes.{name}": value for name, value in expected.get("sizes", {}).items()}
    for name, value in fields.items():
        own = reading.step.get(name)
        own = (found := named(own) or copied(own)[0]) and found.name if name == "model" and own else own
        unset = {
            "optimizer": "adamw",
            "checkpointing": "none",
            "packed": False,
            "zero": 0,
            "dropout": 0,
            "devices": 1,
            "tp": 1,
        }
        if (unset.get(name) if own is None else own) != (unset.get(name) if value is None else value):
            wrong.append(f"{name}: {value} by hand, {own}")
    asks = [ask for ask in reading.asks if "asks" in expected or ask != "devices"]
    if "asks" in expected and sorted(asks) != sorted(expected["asks"]):
        wrong.append(f"asks: {expected['asks']} by hand, {asks}")
    return wrong, len(fields) + 1 + ("asks" in expected)


def compare_peaks(folder: Path) -> None:
    """Print the predicted peaks of files next to the published ones, and the errors by what was published."""
    errors: dict[str, list[float]] = defaultdict(list)
    rows = json.loads(PEAKS.read_text())
    for row in rows:
        published = row["bytes"] if "bytes" in row else row["GB"] * 1e9 if "GB" in row else row["GiB"] * 2**30
        given = {"on": "cuda"} | ({"mesh": f"dp={row['devices']}"} if "devices" in row else {})
        owner, name, path = row["file"].split("/", 2)
        at = folder / owner / (f"{name}@{row['commit']}" if "commit" in row else name)
        scenario = f"{row['file']} {row.get('scenario', '')} {row.get('given', '')}".strip()
        try:
            if "scenario" in row:
                with chdir(at), TemporaryDirectory(dir=at) as place:
                    script = Path(place) / "command.sh"
                    script.write_text(command_of_scenario(Path(path), row["scenario"], row["given"]))
                    memory = lc.memory(lc.request_of(str(script), **given))
            else:
                memory = lc.memory(lc.request_of(str(at / path), **given, **row.get("given", {})))
            peak = memory.reserved("expandable_segments" in row) if row["kind"] == "reserved" else memory.peak
        except InputError as error:
            print(f"{scenario}: {str(error).removeprefix(f'{folder}/')[:150]}")
            continue
        error = peak / published - 1
        for kind in (row["kind"], *(["allocated and reserved"] if row["kind"] in ("allocated", "reserved") else ())):
            errors[kind].append(abs(error))
        print(f"{scenario}: {peak / 1e9:.2f} GB, {published / 1e9:.2f} {row['kind']}, {error:+.1%}")
    for kind, every in errors.items():
        near, listed = sum(error <= 0.1 for error in every), sum(row["kind"] in kind.split(" and ") for row in rows)
        print(f"{kind}: {median(every):.1%} in the median of {len(every)}; {near} of all {listed} within 10 %")


def command_of_scenario(path: Path, name: str, given: Mapping[str, Any]) -> str:
    """Return the command line that fms-acceleration's scripts/benchmarks/benchmark.py runs for a scenario.

    given  what the benchmark varies: the model, the microbatch, and the number of processes
    """
    scenario = next(each for each in yaml.safe_load(path.read_text())["scenarios"] if each["name"] == name)
    contents = yaml.safe_load(Path("sample-configurations/CONTENTS.yaml").read_text())["framework_configs"]
    files = {each["shortname"]: each["filename"] for each in contents}
    arguments = {**scenario["arguments"], **yaml.safe_load(path.with_name("defaults.yaml").read_text()), **given}
    processes, plugins = arguments.pop("num_processes"), scenario["framework_config"][0]
    if plugins:
        arguments["acceleration_framework_config_file"] = f"sample-configurations/{files[plugins]}"
    launcher = ["python"]
    if processes > 1:
        launcher = ["accelerate", "launch", "--config_file", f"{path.with_name('accelerate.yaml')}"]
        launcher += ["--num_processes", str(processes)]
    words = [*launcher, "-m", "tuning.sft_trainer", "--training_data_path", "data.json"]
    for key, value in arguments.items():
        words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return f"{shlex.join(words)}\n"


def drawn(number: int, seed: int) -> list[str]:
    """Return files of the list that nobody has read by hand, as evenly over the repositories as they have files."""
    read = {each["file"] for draw in json.loads(READINGS.read_text())["draws"] for each in draw["files"]}
    chance, listed = random.Random(seed), json.loads(LIST.read_text())
    left = {name: sorted({f"{name}/{path}" for path in entry["files"]} - read) for name, entry in listed.items()}
    for paths in left.values():
        chance.shuffle(paths)
    turns = [paths[turn] for turn in range(number) for _, paths in sorted(left.items()) if turn < len(paths)]
    return turns[:number]


def compare_readings(folder: Path) -> None:
    """Print the fields in which the files of each draw are read otherwise than by hand."""
    for draw in json.loads(READINGS.read_text())["draws"]:
        compared = right = 0
        for expected in draw["files"]:
            wrong, count = differences(f"{folder}/{expected['file']}", expected)
            compared, right = compared + count, right + count - len(wrong)
            print("\n    ".join((expected["file"], *wrong)) if wrong else f"{expected['file']}: equal")
        print(f"seed {draw['seed']}: {right} of {compared} fields of {len(draw['files'])} files as by hand")


def main() -> None:
    """Print the counts of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--answer", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", default="")
    parser.add_argument("--readings", action="store_true")
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--draw", type=int, default=0)
    options = parser.parse_args()
    if options.draw:
        print("\n".join(drawn(options.draw, options.seed)))
        return
    if options.readings or options.peaks:
        (compare_readings if options.readings else compare_peaks)(options.folder)
        return
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
