"""One training from its beginning to its end, or to where it diverges, and the search for its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from learncost.training.contest.entrant import BudgetShare, Entrant, EntrantTraining, Setting
from learncost.training.data.examples import Examples

FINER = 3.0  # after the rates that are given, the best of them times and over this

CHOOSING = 5  # one of so many training examples chooses the learning rate


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a training. `losses` are those of its steps, each before the step.

    seconds   of the steps alone
    after     loss and accuracy on the examples that check; None where it diverged
    diverged  the step after which the loss was no number or beyond return; None where it was not
    """

    seed: int
    learning_rate: float
    losses: tuple[float, ...]
    seconds: float
    before: tuple[float, float]
    after: tuple[float, float] | None
    diverged: int | None


class StoppedError(Exception):
    """Somebody asked to stop."""


class TrialReporter(Protocol):
    """An observer of an entrant's trainings."""

    def say(self, text: str) -> None:
        """Report the trial that begins."""

    def stepped(self) -> bool:
        """A step is done: whether to stop."""

    def passed(self, steps: int) -> None:
        """So many steps are not done: those of a training after a divergence."""


def readied(
    setting: Setting,
    entrant: Entrant,
    share: BudgetShare,
    rates: tuple[float, ...],
    finer: bool,
    seed: int,
    reporter: TrialReporter,
) -> tuple[int, LearningRateSearch]:
    """The bytes of a step as they are measured, and the learning rate, before an entrant is trained.

    The rate is chosen on the last of the training examples, which the trials do not learn from.
    """
    training = setting.problem.training
    peak = EntrantTraining(setting, entrant).peak(training, np.arange(share.batch_size))
    if len(rates) == 1:
        return peak, LearningRateSearch((), rates[0])
    border = len(training) - max(1, len(training) // CHOOSING)
    last = min(len(training), border + len(setting.problem.validation))
    parts = training.part(0, border), training.part(border, last)

    def trial(rate: float) -> TrialOutcome:
        reporter.say(f"{entrant.name}: trying the learning rate {rate:.3g}")
        return outcome(setting, entrant, share, rate, seed, parts, reporter)

    return peak, search(rates, trial, finer)


def trained(
    setting: Setting, entrant: Entrant, share: BudgetShare, rate: float, seed: int, reporter: TrialReporter
) -> TrialOutcome:
    """One training on all training examples, checked on those that validate."""
    reporter.say(f"{entrant.name}: seed {seed}, learning rate {rate:.3g}")
    return outcome(
        setting, entrant, share, rate, seed, (setting.problem.training, setting.problem.validation), reporter
    )


def outcome(
    setting: Setting,
    entrant: Entrant,
    share: BudgetShare,
    rate: float,
    seed: int,
    examples: tuple[Examples, Examples],
    reporter: TrialReporter,
) -> TrialOutcome:
    """Train on the first examples, check on the second. Raises `StoppedError` if `reporter` says so."""
    learned, checked = examples
    training = EntrantTraining(setting, entrant, rate, seed)
    before = training.check(checked)
    losses: list[float] = []
    seconds = 0.0

    def lost(loss: float) -> bool:
        return not math.isfinite(loss) or loss > setting.problem.diverged

    for step in range(share.steps):
        rows = learned.stream(seed, step * share.batch_size, share.batch_size)
        began = perf_counter()
        losses.append(training.learn(learned, rows))
        seconds += perf_counter() - began
        if reporter.stepped():
            raise StoppedError
        if lost(losses[-1]):  # the loss before this step: the one before was too much
            reporter.passed(share.steps - step - 1)
            return TrialOutcome(seed, rate, tuple(losses), seconds, before, None, step)
    after = training.check(checked)
    if lost(after[0]):
        return TrialOutcome(seed, rate, tuple(losses), seconds, before, None, share.steps)
    return TrialOutcome(seed, rate, tuple(losses), seconds, before, after, None)


@dataclass(frozen=True)
class LearningRateSearch:
    """The learning rates that were tried, in their order, and the best one.

    edge   whether the best one is the first or the last of all, so that one beyond it may be better
    lost   whether all diverge
    """

    tried: tuple[TrialOutcome, ...]
    best: float

    @property
    def edge(self) -> bool:
        rates = [outcome.learning_rate for outcome in self.tried]
        return len(rates) > 1 and self.best in (min(rates), max(rates)) and not self.lost

    @property
    def lost(self) -> bool:
        return bool(self.tried) and all(outcome.after is None for outcome in self.tried)


def search(rates: Iterable[float], trial: Callable[[float], TrialOutcome], finer: bool) -> LearningRateSearch:
    """The rate of the lowest loss; where all diverge, the one that did so last, the lowest of several.

    finer   try a third and three times the best of the rates too
    """
    tried = [trial(rate) for rate in rates]
    if finer:
        best = min(tried, key=_rank).learning_rate
        tried += [trial(rate) for rate in (best / FINER, best * FINER)]
    tried.sort(key=lambda outcome: outcome.learning_rate)
    return LearningRateSearch(tuple(tried), min(tried, key=_rank).learning_rate)


def _rank(outcome: TrialOutcome) -> tuple[bool, float, float]:
    """The lower the better."""
    if outcome.after is None:
        return True, -float(outcome.diverged or 0), outcome.learning_rate
    return False, outcome.after[0], outcome.learning_rate
