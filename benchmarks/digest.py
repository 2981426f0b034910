"""A digest of every number and formula that the commands print: for all presets, price books and procedures.

    python benchmarks/digest.py                      says which answers differ from the digest that is kept
    python benchmarks/digest.py --write              keeps today's
    python benchmarks/digest.py --presets gpt2,t5-small      names and aliases
    python benchmarks/digest.py --lines formulas,"memory graph"
    python benchmarks/digest.py --answers FOLDER     writes every answer there, for --against
    python benchmarks/digest.py --against FOLDER     says of every answer that differs which numbers, before and after

It holds a change that should move no number to that. The digest is `benchmarks/digest.txt`: a line for some questions
of one kind, with a checksum of all numbers and formulas in the answers' JSON, and the totals of the first for the eye.
To see which numbers differ, write the answers of the commit before (`--answers`), and compare (`--against`). Of presets
of one family that have one table, at other sizes, the first is asked everything, and the others what depends on sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from multiprocessing import Pool
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("digest.txt")
LEARNING = ("bp", "recompute", "pepita", "mempepita", "head-only")
PLAIN = ("--batch-size", "1", "--optimizer", "sgd", "--dtype", "fp32")
HEAD = ("parameters", "peak", "total", "maccs", "flops", "bytes", "seconds")
"""What is shown of the first answer beside the checksum."""
WRITTEN = frozenset(("formula", "cheaper", "at_1"))
"""Fields whose text is an answer: a formula, and who is cheaper. Others have names and sentences."""
NAMED = "/rules/"
"""Where a formula is no answer, but what a rule says."""
TOGETHER = 40
"""Models that a process answers for before another takes its place: it remembers all their tables."""

Question = tuple[str, tuple[str, ...]]
"""Its line of the digest, and the command line."""


def of_tables(preset: str) -> Iterator[Question]:
    """What is asked of a preset whose table no other one has; all that a default could change is said."""
    from learncost.cost_models.books import BOOKS
    from learncost.cost_models.formula import formulas
    from learncost.models.configuration import configure
    from learncost.models.model import build
    from learncost.passes.plan import applies
    from learncost.procedures.step import step

    # Images and sounds have one length.
    length = () if configure(preset).family in ("vit", "whisper") else ("--seq-len", "64")
    short = (*length, "--batch-size", "2")

    def cost(group: str, *given: str) -> Question:
        return f"{preset} cost {group}", ("cost", preset, *given, "--json")

    equation = ("--by", "equation")
    for procedure in LEARNING:
        yield cost("by equation", "--procedure", procedure, *equation, *PLAIN)
    for book in BOOKS:
        for procedure in LEARNING:
            yield cost(book, "--procedure", procedure, "--price-book", book, *PLAIN)
    for formula in formulas():
        yield cost("formulas of publications", "--price-book", formula, "--batch-size", "1")
    for procedure in ("prefill", "decode"):
        yield cost("inference", "--procedure", procedure, "--dtype", "bf16", *equation)
    yield cost("lora", "--lora", "all-linear", *equation, *PLAIN)
    yield cost("head", "--train", "head", *PLAIN)
    table = step(build(configure(preset)), "bp")
    plan = ",".join(part for part in ("flash", "chunked-loss", "recompute=gelu+norm") if applies(table, part))
    yield cost("plan", "--plan", plan, *equation, *PLAIN)
    yield cost("on", "--on", "A100-SXM-80GB", *equation, *PLAIN)
    for command in ("conventions", "rules", "formulas"):
        yield f"{preset} {command}", (command, preset, "--json")
    yield f"{preset} compare", ("compare", preset, "--optimizer", "sgd", "--json")

    def memory(engine: str, *given: str) -> Question:
        return f"{preset} memory {engine}", ("memory", preset, "--engine", engine, *given, "--json")

    for procedure in LEARNING:
        yield memory("graph", "--procedure", procedure, *PLAIN)
        yield memory("graph", "--procedure", procedure, *short, "--dtype", "bf16-masters")
    for procedure in LEARNING[:2]:
        yield memory("eager", "--procedure", procedure, *short)
    for engine in ("torch", "numpy"):
        yield memory(engine, *short, "--num-hidden-layers", "2")
    yield f"{preset} fit", ("fit", preset, "--budget", "24GB", "--optimizer", "adamw", *length, "--json")


def of_sizes(preset: str) -> Iterator[Question]:
    """What is asked of a preset whose table another one has at other sizes."""
    short = {f"{preset} {line}" for line in ("cost by equation", "cost run", "conventions", "rules", "memory graph")}
    return ((line, asked) for line, asked in of_tables(preset) if line in short)


def of_images(preset: str) -> Iterator[Question]:
    """What is asked of a preset that is a table."""
    yield f"{preset} cost run", ("cost", preset, *PLAIN, "--json")
    yield f"{preset} cost matmul", ("cost", preset, "--price-book", "matmul", *PLAIN, "--json")
    yield f"{preset} memory graph", ("memory", preset, "--engine", "graph", *PLAIN, "--json")


def of_layers(layer: str) -> Iterator[Question]:
    """What is asked of a layer."""
    from learncost.cost_models.books import BOOKS

    for book in BOOKS:
        yield f"{layer} formulas", ("formulas", layer, "--price-book", book, "--json")


def answer(asked: tuple[str, ...]) -> Any:
    """The command's JSON, or the line with which it refuses."""
    from learncost.cli.command import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(asked)
        except Exception as error:  # a traceback is an answer too, and one to be seen
            return f"{type(error).__name__}: {error}"
    return json.loads(out.getvalue()) if not code else err.getvalue().strip()


Subject = tuple[str, Callable[[str], Iterator[Question]]]


def subjects() -> Iterator[Subject]:
    """Every preset and layer, and what is asked of it."""
    from learncost.ir.loop import walk
    from learncost.layers.layer import shipped
    from learncost.models.argument import presets, table_presets
    from learncost.models.configuration import configure
    from learncost.models.model import build

    tables = set[object]()  # the lines without the numbers in them
    for preset in presets():
        lines = walk(build(configure(preset.name)).table.lines)
        table = preset.family, *((line.name, line.loops, nest.counts) for line, nest in lines)
        yield preset.name, of_sizes if table in tables else of_tables
        tables.add(table)
    yield from ((preset.name, of_images) for preset in table_presets())
    yield from ((layer, of_layers) for layer in shipped())


def answers(asked: list[Question]) -> list[tuple[Question, Any]]:
    """Of a preset, or a layer, in a process of the pool."""
    return [(question, answer(question[1])) for question in asked]


def numbers(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and formula of an answer and where it stands."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from numbers(value, f"{path}/{key}")
    elif isinstance(found, list):
        for place, value in enumerate(found):
            yield from numbers(value, f"{path}/{_name(value, place)}")
    elif not isinstance(found, str) or not path or (path.rpartition("/")[2] in WRITTEN and not path.startswith(NAMED)):
        yield path, found


def _name(value: Any, place: int) -> str:
    return str(place) + (":" + str(value.get("line") or value.get("name") or "") if isinstance(value, dict) else "")


def lines(asked: list[tuple[Question, Any]]) -> Iterator[str]:
    """The digest's lines of a subject's answers."""
    for group, own in groupby(asked, key=lambda pair: pair[0][0]):
        found = [answer for _, answer in own]
        checksum = hashlib.sha256(json.dumps([sorted(numbers(one)) for one in found], default=str).encode())
        first = found[0]
        summary = first if isinstance(first, str) else json.dumps({key: first[key] for key in HEAD if key in first})
        yield f"{group}\t{checksum.hexdigest()[:12]}\t{summary[:110]}"


def main() -> int:
    """Ask, and compare."""
    parser = argparse.ArgumentParser(
        "benchmarks/digest.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="keep today's numbers; those of --presets and --lines among the others"
    )
    parser.add_argument("--answers", type=Path, help="a folder for every answer")
    parser.add_argument("--against", type=Path, help="a folder of answers to compare with")
    parser.add_argument("--presets", default="", help="with commas between; all of them and all layers by default")
    parser.add_argument("--lines", default="", help="with commas between, such as formulas; all of them by default")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()

    from learncost.models.argument import preset

    every = {name: list(questions(name)) for name, questions in subjects()}
    asked_of = {name: preset(name) for name in given.presets.split(",") if name}
    if unknown := [name for name, known in asked_of.items() if known is None]:
        parser.error(f"no preset is called {unknown[0]}: learncost list models")
    names = [known.name for known in asked_of.values() if known] or list(every)
    lines_asked = set(filter(None, given.lines.split(",")))
    chosen = (
        [(line, command) for line, command in every[name] if not lines_asked or line.partition(" ")[2] in lines_asked]
        for name in names
    )
    kept = dict(row.split("\t", 1) for row in KEPT.read_text().splitlines()) if KEPT.exists() else {}
    digest: list[str] = []
    asked = differing = 0
    with Pool(given.processes, maxtasksperchild=TOGETHER) as pool:
        for found in pool.imap(answers, filter(None, chosen)):
            asked += len(found)
            own = list(lines(found))
            digest += own
            if given.answers:
                _keep(given.answers, found)
            if given.against:
                differing += sum(_differences(given.against, question, answer) for question, answer in found)
            elif not given.write:
                moved = [line for line in own if kept.get(line.split("\t")[0]) != line.split("\t", 1)[1]]
                differing += len(moved)
                for line in moved:
                    before = kept.get(line.split("\t")[0], "absent").partition("\t")[2]
                    print(line.replace("\t", "  "), f"    before: {before}", sep="\n")
    print(f"{asked:,} questions, {len(digest):,} lines, {differing:,} differ", file=sys.stderr)
    if given.write:
        digested = kept | dict(line.split("\t", 1) for line in digest)
        order = dict.fromkeys(line for questions in every.values() for line, _ in questions)
        KEPT.write_text("".join(f"{line}\t{digested[line]}\n" for line in order if line in digested))
    return int(bool(differing))


def _file(folder: Path, question: Question) -> Path:
    return folder / ("_".join(question[1]).replace("/", "-") + ".json.gz")


def _keep(folder: Path, found: list[tuple[Question, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for question, own in found:
        _file(folder, question).write_bytes(gzip.compress(json.dumps(own).encode(), 1, mtime=0))


def _differences(folder: Path, question: Question, after: Any) -> int:
    file = _file(folder, question)
    before = json.loads(gzip.decompress(file.read_bytes())) if file.exists() else None
    old, new = dict(numbers(before)), dict(numbers(after))
    moved = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    if moved:
        print(" ".join(question[1]))
        for path in moved[:6]:
            print(f"    {path}: {old.get(path)} -> {new.get(path)}"[:300])
        if len(moved) > 6:
            print(f"    and {len(moved) - 6} more")
    return int(bool(moved))


if __name__ == "__main__":
    sys.exit(main())
