"""One training, until its end or divergence, and the search for its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from time import perf_counter

import numpy as np

from learncost.ir.dataclass import dataclass
from learncost.training.contest.entrant import BudgetShare, Entrant, EntrantTraining, Setting
from learncost.training.data.examples import Examples

GRID_REFINEMENT = 3.0  # after the rates that are given, the best of them times and over this

SELECTION_INTERVAL = 5  # one of so many training examples chooses the learning rate


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a training. `losses` are those before each step.

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
    """The contest was asked to stop."""


class TrialReporter:
    """The callbacks of an entrant's trainings, which do nothing by default."""

    def say(self, text: str) -> None:
        """Report the start of a trial."""

    def stepped(self) -> bool:
        """Report a completed step; return whether to stop."""
        return False

    def passed(self, steps: int) -> None:
        """Report skipped steps of a diverged training."""


def readied(
    setting: Setting,
    entrant: Entrant,
    share: BudgetShare,
    rates: tuple[float, ...],
    finer: bool,
    seed: int,
    reporter: TrialReporter,
) -> tuple[int, LearningRateSearch]:
    """Report the measured bytes of a step and the learning rate before an entrant is trained.

    The rate is chosen on the last of the training examples, which the trials do not learn from.
    """
    training = setting.problem.training
    peak = EntrantTraining(setting, entrant).peak(training, np.arange(share.batch_size))
    if len(rates) == 1:
        return peak, LearningRateSearch((), rates[0])
    border = len(training) - max(1, len(training) // SELECTION_INTERVAL)
    last = min(len(training), border + len(setting.problem.validation))
    parts = training.part(0, border), training.part(border, last)

    def trial(rate: float) -> TrialOutcome:
        reporter.say(f"{entrant.name}: trying the learning rate {rate:.3g}")
        return outcome(setting, entrant, share, rate, seed, parts, reporter)

    return peak, search(rates, trial, finer)


def trained(
    setting: Setting, entrant: Entrant, share: BudgetShare, rate: float, seed: int, reporter: TrialReporter
) -> TrialOutcome:
    """Run one training on all training examples, and validate it."""
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
    """Train on the first examples and evaluate on the second. Raises `StoppedError` if the reporter stops."""
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
    """The tried learning rates in order, and the best one.

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
    """Return the rate of the lowest loss; if all diverge, the one that did so last, or the lowest of several.

    finer   try a third and three times the best of the rates too
    """
    tried = [trial(rate) for rate in rates]
    if finer:
        best = min(tried, key=_rank).learning_rate
        tried += [trial(rate) for rate in (best / GRID_REFINEMENT, best * GRID_REFINEMENT)]
    tried.sort(key=lambda outcome: outcome.learning_rate)
    return LearningRateSearch(tuple(tried), min(tried, key=_rank).learning_rate)


def _rank(outcome: TrialOutcome) -> tuple[bool, float, float]:
    """Return the sort key of an outcome; lower is better."""
    if outcome.after is None:
        return True, -float(outcome.diverged or 0), outcome.learning_rate
    return False, outcome.after[0], outcome.learning_rate
