"""Progress of a training on standard error: a bar on a terminal, a line for each validation elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from learncost.reports.sheet import wrapped
from learncost.training.loop import TrainingReporter, TrainingStep


@contextmanager
def reporter(reports: bool = True) -> Iterator[TrainingReporter]:
    """Yield the reporter of a training; of several processes one reports."""
    if not reports:
        yield Nobody()
        return
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[facts]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as progress:
        yield ProgressBar(progress)


def _facts(step: TrainingStep) -> str:
    text = f"loss {step.loss:.3f}  "
    tokens = step.tokens_per_second is not None
    text += f"{step.tokens_per_second:,.0f} tokens/s" if tokens else f"{step.examples_per_second:,.0f} examples/s"
    text += f"  MFU {step.mfu:.1%}" if step.mfu is not None else ""
    return text


def _validation(step: TrainingStep) -> str:
    return f"step {step.step:,}: {_facts(step)}, validation {step.validated}"


class ProgressLines:
    """Progress for files and pipes."""

    def say(self, text: str) -> None:
        print(wrapped(text), file=sys.stderr, flush=True)

    def begin(self, step: int, steps: int) -> None:
        self.say(f"step {step:,} of {steps:,}")

    def stepped(self, step: TrainingStep) -> None:
        if step.validation_loss is not None:
            self.say(_validation(step))

    def sampled(self, step: int, text: str) -> None:
        """Do nothing: samples are in samples.txt."""


class Nobody:
    """The observer of a process that does not print."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def begin(self, step: int, steps: int) -> None:
        """Do nothing."""

    def stepped(self, step: TrainingStep) -> None:
        """Do nothing."""

    def sampled(self, step: int, text: str) -> None:
        """Do nothing."""


class ProgressBar:
    """Progress for a terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, facts="")

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def begin(self, step: int, steps: int) -> None:
        self._progress.update(self._task, description="training", completed=step, total=steps)

    def stepped(self, step: TrainingStep) -> None:
        self._progress.update(self._task, completed=step.step, facts=_facts(step))
        if step.validation_loss is not None:
            self._progress.console.print(_validation(step))

    def sampled(self, step: int, text: str) -> None:
        self._progress.console.print(text, markup=False, style="dim")
