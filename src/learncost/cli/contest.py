"""`learncost contest DATA`: learning procedures trained with equal budgets, and what came of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learncost.ir.errors import InputError, named_one, shown
from learncost.models.sizes import check_size
from learncost.models.storage import write_json
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import several
from learncost.reports.question import question
from learncost.training.contest.contest import Contest, ContestReporter
from learncost.training.contest.contest import contest as compete
from learncost.training.contest.entrant import BOOKS, DTYPES, Setting, entrants
from learncost.training.contest.entrant import budget as read_budget
from learncost.training.contest.problem import Problem
from learncost.training.contest.workers import workers as who_trains
from learncost.training.interrupt import asked_to_stop

PROCEDURES = "bp,recompute,pepita:paper,pepita:stable,mempepita:stable,head-only"


@question()
def contest(
    *data: str,
    procedures: str = PROCEDURES,
    budget: str = "steps:300",
    model: str | None = None,
    mode: str = "stable",
    seeds: str = "0, 1, 2",
    rates: str | None = None,
    batch_size: int | str | None = None,
    steps: int | str | None = None,
    seq_len: int | str | None = None,
    widths: str | None = None,
    optimizer: str | None = None,
    dtype: str = "fp32",
    price_book: str = "run",
    out: str | None = None,
    workers: str | None = None,
    **sizes: Any,
) -> Contest:
    """Train by several learning procedures with equal budgets: loss, accuracy, counts, time and memory of each.

    All have the same data in the same order, the same initial weights and optimizer, each the best learning rate of one
    grid, chosen on training data that its trials did not learn from. NumPy runs the programs that `emit` writes.

    Parameters
    ----------
    data
        digits (of scikit-learn), or text: files in UTF-8 and folders. A file of that name is ./digits.
    procedures
        Who takes part, with commas between: {choices}; pepita:paper and pepita:stable name a mode.
    budget
        What each may use: steps:300, flops:2e10 (as priced), seconds:60 (as a few steps are timed before), or
        memory:5MB, which chooses the largest batch whose predicted peak fits.
    model
        For digits mlp (the default) or vit. For text a preset or a config.json; the default is two Llama-like blocks of
        width 64.
    mode
        How pepita and mempepita update where `procedure` names no mode: stable or paper.
    seeds
        The seeds of weights and order, with commas between: one training for each.
    rates
        The learning rates to try, such as 0.01,0.1. A single one is used as it is.
    batch_size
        How many examples are in a step. The default is 64 images, or 8 sequences.
    steps
        With `budget` memory, how many steps are run. The default is 300.
    seq_len
        How many bytes are in a sequence of text. The default is 64.
    widths
        How wide the hidden layers of the mlp are. The default is 64,32.
    optimizer
        What updates the weights: sgd, momentum (the default of the mlp), adamw (that of the others) or rmsprop. With
        several, as momentum,adamw, every procedure takes part with each.
    dtype
        The type of the numbers: fp32 or fp64.
    price_book
        How a budget in FLOPs is counted: run, or matmul for matrix products alone.
    out
        The file for everything, as JSON, with the loss of every step of every training; written again after each of
        them, so that learncost serve `run` shows how it goes.
    workers
        How many processes of this machine train side by side, by Dask (extra workers), or the address of a Dask
        scheduler, such as tcp://HOST:8786, whose workers have this package and whom you trust. The default is this
        process alone.
    sizes
        Any size or setting of the vit or of the text's model, such as `hidden_size` 32.

    Commands
    --------
    learncost contest digits --budget steps:100 --seeds 0
        A short contest on images of digits.
    learncost contest my-texts/ --procedure bp,pepita --budget flops:2e10
        Two procedures on text, with equal FLOPs.
    learncost contest digits --budget steps:100 --workers 2
        Two trainings at a time.
    """
    all_sizes = {"seq_len": seq_len, "widths": widths} | sizes
    optimizers = several(optimizer)
    for name in optimizers:
        find_optimizer(name)
    if len(set(optimizers)) < len(optimizers):
        raise InputError(f"optimizers must be different names with commas between them, not {shown(optimizer)}")
    entrants_named = entrants(procedures, mode, optimizers if len(optimizers) > 1 else ("",))
    limit = read_budget(budget)
    numbers = {"batch_size": batch_size, "steps": steps}
    checked = {name: check_size(name, value) for name, value in numbers.items() if value is not None}
    if (unused := {"memory": "batch_size"}.get(limit.kind, "steps")) in checked:
        raise InputError(f"--{unused.replace('_', '-')} does not go with --budget {limit.kind}, which says it itself")
    if workers is not None and limit.kind == "seconds":
        raise InputError("seconds of trainings side by side tell nothing: leave --workers out, or change --budget")
    tried, all_seeds = _rates(rates), _seeds(seeds)
    named_one("type", dtype, DTYPES)
    if price_book not in BOOKS:
        raise InputError(
            f"price-book must be one of {', '.join(BOOKS)}, which count what runs, not {shown(price_book)}"
        )
    if out is not None and not Path(out).parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {Path(out).parent}")

    def write(contest_run: Contest) -> None:
        if out is not None:
            write_json(Path(out), contest_run.to_dict())

    try:
        problem = _problem(data, model, {name: value for name, value in all_sizes.items() if value is not None})
        setting = Setting(problem, optimizers[0] if optimizers else problem.optimizer, dtype, price_book)
        with reporter() as report, asked_to_stop() as stop, who_trains(workers, stop) as trainers:
            told: dict[str, Any] = {"report": report, "stop": stop, "finished": write}
            arguments: dict[str, Any] = {**checked, **told, "workers": trainers}
            result = compete(setting, entrants_named, limit, all_seeds, tried, **arguments)
    except MemoryError:
        raise InputError("there is not enough memory for that: give smaller sizes or a smaller --batch-size") from None
    write(result)
    return result


def _problem(data: Sequence[str], model: str | None, sizes: Mapping[str, Any]) -> Problem:
    if not data:
        raise InputError("contest needs DATA: digits, or text files, or folders with text files in them")
    model_sizes = {name: value for name, value in sizes.items() if name not in ("seq_len", "widths")}
    if "digits" in data:
        from learncost.training.contest.images import WIDTHS, mlp, vit

        if len(data) > 1:
            raise InputError("digits are data of their own: leave the other paths out; a file of that name is ./digits")
        kind = model or "mlp"
        if kind not in ("mlp", "vit"):
            raise InputError(f"the models for digits are mlp and vit, not {shown(kind)}")
        strange = {"mlp": ["seq_len", *model_sizes], "vit": ["seq_len", "widths"]}[kind]
        if unused := next((name for name in strange if name in sizes), None):
            raise InputError(f"--{unused.replace('_', '-')} is nothing that {kind} has")
        if kind == "vit":
            return vit(model_sizes)
        return mlp(tuple(check_size("widths", width) for width in sizes["widths"].split(",")) if sizes else WIDTHS)
    from learncost.training.contest.text import DECODER, text

    if "widths" in sizes:
        raise InputError("--widths are those of the mlp, which learns digits")
    for path in data:
        if not Path(path).exists():
            raise InputError(f"no such file or folder: {path}; or DATA is digits")
    return text(data, model or DECODER, model_sizes, check_size("seq_len", sizes.get("seq_len", "64")))


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        rates = tuple(sorted({float(item) for item in text.split(",")}))
    except ValueError:
        rates = ()
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise InputError(f"rates must be numbers above 0 with commas between them, not {shown(text)}")
    return rates


def _seeds(text: str) -> tuple[int, ...]:
    items = [item.strip() for item in text.split(",")]
    if not all(item.isascii() and item.isdigit() and len(item) < 10 for item in items) or len({*items}) < len(items):
        raise InputError(f"seeds must be different whole numbers with commas between them, not {shown(text)}")
    return tuple(map(int, items))


@contextmanager
def reporter() -> Iterator[ContestReporter]:
    """Who is told, on standard error: a bar on a terminal, a line for each training elsewhere."""
    if not sys.stderr.isatty():
        yield ContestLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as progress:
        yield ContestBar(progress)


class ContestLines:
    """For files and pipes."""

    def begin(self, steps: int) -> None:
        self.say(f"{steps:,} steps at most")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def stepped(self, done: int) -> None:
        """A line for each step would be too many."""


class ContestBar:
    """For a terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, steps: int) -> None:
        self._progress.update(self._task, total=steps)

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def stepped(self, done: int) -> None:
        self._progress.update(self._task, completed=done)
