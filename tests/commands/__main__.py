"""Run every command line of designs.toml, and say what was refused and what went wrong.

    python -m tests.commands                 all of it, on two processors
    python -m tests.commands --only gpt2,t5  the presets and families named
    python -m tests.commands --usual         presets under their usual class alone
    python -m tests.commands --part 3/20     every 20th command line, from the 3rd on
    python -m tests.commands --log sweep.jsonl   keep what is done in a file, and go on from it when called again
    python -m tests.commands --write         list anew what answers (answers.json), and say what does no more
    python -m tests.commands --no-screens    without the check that a table fits 80 columns

Exit code 0: every line gave an answer that adds up, or one line on standard error for a reason of refusals.toml, and
what answers.json says of presets under their usual class holds. Otherwise 1, and what is wrong, grouped. Ctrl-C ends
it.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .answer import faults
from .called import call, ending
from .design import Subject, lines, others, subjects
from .expected import ANSWERS, reason, reasons, refused_as_listed, write_answers


@dataclass(frozen=True)
class Line:
    """What came of one command line: the refusal and its reason, or what is wrong with it."""

    row: str
    line: str
    name: str
    usual: bool
    seconds: float
    refusal: str = ""
    reason: str = ""
    faults: tuple[str, ...] = ()


def tried(row: str, line: str, name: str = "", usual: bool = True, screens: bool = True) -> Line:
    """Run a command line and judge it."""
    answer = call(line)
    command = line.split(maxsplit=1)[0]
    wrong = [ending(answer)] if ending(answer) else []
    if answer.code == 0:
        wrong += faults(line, answer.out, screens)
    why = reason(command, answer.refusal) if answer.refusal else ""
    if answer.refusal and not why:
        wrong.append(f"refused for a reason that is not listed: {answer.refusal}")
    return Line(row, line, name, usual, answer.seconds, answer.refusal, why, tuple(wrong))


@dataclass(frozen=True)
class Work:
    """One subject's command lines, or a part of them."""

    subject: Subject
    screens: bool
    part: tuple[int, int]

    @property
    def name(self) -> str:
        """By which a log knows it."""
        return f"{self.subject.name} {self.subject.architecture}".strip() or "no model"

    def lines(self) -> list[Line]:
        """All of them, one after the other: the model is read once."""
        every = enumerate(lines(self.subject) if self.subject.is_model else others(), self.subject.place * 7)
        pairs = [pair for at, pair in every if at % self.part[1] == self.part[0]]
        return [tried(row, line, self.subject.name, self.subject.usual, self.screens) for row, line in pairs]


def done(work: Work) -> tuple[str, list[Line]]:
    """What comes of it, in a process of the pool."""
    return work.name, work.lines()


def _quiet() -> None:
    """A process of the pool leaves Ctrl-C to the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def run(work: list[Work], log: Path | None, workers: int = 2) -> Iterator[list[Line]]:
    """What comes of every subject, as it is done; with a log what is in it already comes first."""
    before = {}
    if log is not None and log.exists():
        logged = [json.loads(text) for text in log.read_text(encoding="utf-8").splitlines()]
        before = {
            name: [Line(**{**line, "faults": tuple(line["faults"])}) for line in lines_done]
            for name, lines_done in logged
        }
    yield from before.values()
    with Pool(workers, _quiet) as pool:
        for name, lines_done in pool.imap_unordered(done, [task for task in work if task.name not in before]):
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    print(json.dumps([name, [asdict(line) for line in lines_done]]), file=file)
            yield lines_done


def report(found: list[Line]) -> int:
    """Print refusals by command and reason, then what is wrong by what it is; how many things are wrong."""
    refused: dict[tuple[str, str], list[Line]] = defaultdict(list)
    wrong: dict[str, list[str]] = defaultdict(list)
    for line in found:
        command = line.line.split(maxsplit=1)[0]
        if line.reason:
            refused[command, line.reason].append(line)
            if line.usual and line.name and not refused_as_listed(line.row, line.name):
                wrong[f"{command}: answered, and is refused now: {line.reason}"].append(line.line)
        for fault in line.faults:
            wrong[f"{command}: {re.sub(r'[0-9][0-9,.e+]*', 'N', fault)[:150]}"].append(f"{line.line}  -> {fault}")
    print("refusals by command and reason")
    for (command, why), lines_refused in sorted(refused.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"{len(lines_refused):7,}  {command:12} {why:32} {lines_refused[0].line[:120]}")
    unused = set(reasons()) - {why for _, why in refused}
    if unused:
        print("reasons that nothing was refused for:", ", ".join(sorted(unused)))
    for what, lines_refused in sorted(wrong.items(), key=lambda item: -len(item[1])):
        print(f"\nWRONG, {len(lines_refused):,} times: {what}")
        for text in lines_refused[:3]:
            print(f"    {text[:400]}")
    return len(wrong)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.commands", description=__doc__, formatter_class=_Raw)
    parser.add_argument("--only", default="", help="presets and families, with commas between")
    parser.add_argument("--usual", action="store_true", help="usual classes alone")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth command line, from the Kth on")
    parser.add_argument("--log", type=Path, help="a file that keeps what is done")
    parser.add_argument("--write", action="store_true", help="list anew what answers")
    parser.add_argument("--no-screens", dest="screens", action="store_false", help="tables may be wide")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    first, every = (int(number) for number in options.part.split("/"))
    part = (first % every, every)
    models = [subject for subject in subjects() if not only or {subject.name, subject.family} & only]
    work = [Work(model, options.screens, part) for model in models if model.usual or not options.usual]
    work += [] if only or options.usual else [Work(Subject(), options.screens, part)]
    signal.signal(signal.SIGTERM, _end)
    start = time.monotonic()
    lines: list[Line] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    try:
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("presets and their classes", total=len(work))
            for lines_of_task in run(work, options.log):
                lines += lines_of_task
                wrong = sum(bool(line.faults) for line in lines)
                bar.update(task, advance=1, description=f"{len(lines):,} command lines, {wrong:,} wrong")
    except KeyboardInterrupt:
        print(f"ended after {len(lines):,} command lines", file=sys.stderr)
        return 130
    if options.write:
        for lost in write_answers(
            (line.row, line.name, bool(line.refusal)) for line in lines if line.usual and line.name
        ):
            print(f"answered, and is refused now: {lost}")
        print(f"{ANSWERS.name} is written")
    wrong = report(lines)
    seconds, answers = sum(line.seconds for line in lines), sum(not line.refusal and not line.faults for line in lines)
    print(f"\n{len(lines):,} command lines: {answers:,} answers, {sum(bool(line.reason) for line in lines):,} refusals")
    print(
        f"{(time.monotonic() - start) / 60:.1f} minutes, {seconds / 60:.1f} of the processor; {wrong:,} kinds of fault"
    )
    slowest = sorted(lines, key=lambda line: -line.seconds)[:5]
    print("slowest:", *(f"{line.seconds:.1f} s {line.line[:110]}" for line in slowest), sep="\n    ")
    return 1 if wrong else 0


class _Raw(argparse.RawDescriptionHelpFormatter):
    """The docstring as it is."""


if __name__ == "__main__":
    sys.exit(main())
