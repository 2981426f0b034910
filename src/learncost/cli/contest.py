"""`learncost contest DATA`: training with several learning procedures under equal budgets."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learncost.interrupt import stop_requested
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, named_one, shown
from learncost.models.sizes import check_size
from learncost.models.storage import check_folder, write_json
from learncost.procedures.optimizer import check_renews
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import several
from learncost.reports.request import Request, takes_request
from learncost.training.contest.contest import Contest, ContestDesign, ContestReporter
from learncost.training.contest.contest import contest as compete
from learncost.training.contest.entrant import BOOKS, DTYPES, Setting, entrants
from learncost.training.contest.entrant import budget as read_budget
from learncost.training.contest.problem import Problem
from learncost.training.contest.workers import workers as who_trains

PROCEDURES = "bp,recompute,pepita:paper,pepita:stable,mempepita:stable,head-only"


@dataclass(frozen=True)
class ContestFlags:
    """The flags of a contest's design.

    Parameters
    ----------
    procedures
        The learning procedures, comma-separated: {choices}; pepita:paper and pepita:stable select a mode.
    budget
        The budget of each: steps:300, flops:2e10 (as priced), seconds:60 (from the time of a few steps), or memory:5MB,
        which selects the largest batch whose predicted peak fits.
    seeds
        The seeds of weights and data order, comma-separated: one training run for each.
    rates
        The learning rates to try, such as 0.01,0.1. A single one is used directly.
    steps
        With `budget` memory: the number of steps. The default is 300.
    """

    procedures: str = PROCEDURES
    budget: str = "steps:300"
    seeds: str = "0, 1, 2"
    rates: str | None = None
    steps: int | str | None = None

    def design(self, request: Request, optimizers: Sequence[str]) -> ContestDesign:
        """Return the design of the contest. Raises `InputError`."""
        named = entrants(self.procedures, request.mode, optimizers if len(optimizers) > 1 else ("",))
        limit = read_budget(self.budget)
        numbers = {"batch_size": request.batch_size, "steps": self.steps}
        checked = {name: check_size(name, value) for name, value in numbers.items() if value is not None}
        if (unused := {"memory": "batch_size"}.get(limit.kind, "steps")) in checked:
            raise InputError(
                f"--{unused.replace('_', '-')} cannot be combined with --budget {limit.kind}, which sets it"
            )
        return ContestDesign(named, limit, _seeds(self.seeds), _rates(self.rates), **checked)


@takes_request(
    "procedures budget model mode seeds rates batch_size steps seq_len widths optimizer dtype price_book out workers",
    ContestFlags,
    model=None,
    mode="stable",
    dtype="fp32",
)
def contest(
    request: Request,
    flags: ContestFlags,
    *data: str,
    widths: str | None = None,
    out: str | None = None,
    workers: str | None = None,
) -> Contest:
    """Train with several learning procedures under equal budgets: loss, accuracy, counts, time and memory of each.

    All use the same data in the same order, the same initial weights and optimizer, each with the best learning rate of
    one grid, chosen on held-out training data. NumPy runs the programs that `emit` writes.

    Parameters
    ----------
    data
        digits (of scikit-learn), or text: UTF-8 files and folders. For a file called digits write ./digits.
    model
        For digits mlp (the default) or vit. For text a preset or a config.json; the default is two Llama-like blocks of
        width 64.
    mode
        The update rule of pepita and mempepita if `procedure` names no mode: stable or paper.
    batch_size
        Examples in a step. The default is 64 images, or 8 sequences.
    seq_len
        Bytes in a sequence of text. The default is 64.
    widths
        The widths of the hidden layers of the mlp. The default is 64,32.
    optimizer
        The optimizer: sgd, momentum (default of the mlp), adamw (default of the others) or rmsprop. With several, as
        momentum,adamw, each procedure runs with each.
    dtype
        The type of the numbers: fp32 or fp64.
    price_book
        The price book of a budget in FLOPs: run, or matmul for matrix products only.
    out
        The file for everything, as JSON, with the loss of every step of every training run; updated after each of
        them, so that learncost serve `run` shows the progress.
    workers
        The number of parallel training processes on this machine, by Dask (extra workers), or the address of a Dask
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
        Two training runs at a time.
    """
    sizes: Mapping[str, Any] = {"seq_len": request.seq_len, "widths": widths, **request.sizes}
    optimizers = several(request.optimizer)
    for name in optimizers:
        find_optimizer(name)
        check_renews(name, "contest")
    if len(set(optimizers)) < len(optimizers):
        raise InputError(
            f"optimizers must be a comma-separated list of different names, not {shown(request.optimizer)}"
        )
    design, dtype = flags.design(request, optimizers), request.dtype or "fp32"
    if workers is not None and design.budget.kind == "seconds":
        raise InputError(
            "--workers cannot be combined with a budget in seconds: parallel training runs slow each other down"
        )
    named_one("type", dtype, DTYPES)
    if request.price_book not in BOOKS:
        book = shown(request.price_book)
        raise InputError(f"price-book must be one of {', '.join(BOOKS)}, which count executed operations, not {book}")
    if out is not None:
        check_folder(Path(out))

    def write(contest_run: Contest) -> None:
        if out is not None:
            write_json(Path(out), contest_run.to_dict())

    try:
        problem = _problem(data, request.model, {name: value for name, value in sizes.items() if value is not None})
        setting = Setting(problem, optimizers[0] if optimizers else problem.optimizer, dtype, request.price_book)
        with reporter() as report, stop_requested() as stop, who_trains(workers, stop) as trainers:
            result = compete(setting, design, report, stop, write, trainers)
    except MemoryError:
        raise InputError("there is not enough memory for that: give smaller sizes or a smaller --batch-size") from None
    write(result)
    return result


def _problem(data: Sequence[str], model: Any, sizes: Mapping[str, Any]) -> Problem:
    if not data:
        raise InputError("contest requires DATA: digits, or text files, or folders of text files")
    model_sizes = {name: value for name, value in sizes.items() if name not in ("seq_len", "widths")}
    if "digits" in data:
        from learncost.training.contest.problem import WIDTHS, mlp, vit

        if len(data) > 1:
            raise InputError("digits cannot be combined with other data; for a file of that name write ./digits")
        kind = model or "mlp"
        if kind not in ("mlp", "vit"):
            raise InputError(f"the models for digits are mlp and vit, not {shown(kind)}")
        strange = {"mlp": ["seq_len", *model_sizes], "vit": ["seq_len", "widths"]}[kind]
        if unused := next((name for name in strange if name in sizes), None):
            raise InputError(f"--{unused.replace('_', '-')} does not apply to {kind}")
        if kind == "vit":
            return vit(model_sizes)
        return mlp(tuple(check_size("widths", width) for width in sizes["widths"].split(",")) if sizes else WIDTHS)
    from learncost.training.contest.problem import DECODER, text

    if "widths" in sizes:
        raise InputError("--widths applies only to the mlp on digits")
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
        raise InputError(f"rates must be a comma-separated list of numbers above 0, not {shown(text)}")
    return rates


def _seeds(text: str) -> tuple[int, ...]:
    items = [item.strip() for item in text.split(",")]
    if not all(item.isascii() and item.isdigit() and len(item) < 10 for item in items) or len({*items}) < len(items):
        raise InputError(f"seeds must be a comma-separated list of different whole numbers, not {shown(text)}")
    return tuple(map(int, items))


@contextmanager
def reporter() -> Iterator[ContestReporter]:
    """Yield a reporter on standard error: a bar on a terminal, a line for each training elsewhere."""
    if not sys.stderr.isatty():
        yield ContestLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as progress:
        yield ContestBar(progress)


class ContestLines(ContestReporter):
    """Progress for files and pipes."""

    def begin(self, steps: int) -> None:
        self.say(f"{steps:,} steps at most")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class ContestBar(ContestReporter):
    """Progress for a terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, steps: int) -> None:
        self._progress.update(self._task, total=steps)

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def stepped(self, done: int) -> None:
        self._progress.update(self._task, completed=done)
