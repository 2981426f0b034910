"""A contest: every entrant has the same data in the same order, the same initial weights, optimizer and budget.

An entrant's learning rate is chosen before, by the first seed, on training examples that its trials did not learn from.
What the search costs is in no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from learncost.contest.budget import Budget, Share, share
from learncost.contest.entrant import Entrant, Setting, Training, costs
from learncost.contest.problem import RATES
from learncost.contest.trial import CHOOSING, Outcome, Search, StoppedError, outcome, search
from learncost.equation.errors import InputError
from learncost.ledger.run import possible
from learncost.ledger.sheet import Drawn


class Report(Protocol):
    """Who is told how a contest goes."""

    def begin(self, steps: int) -> None:
        """So many steps are to be done, of all trainings together, at most."""

    def say(self, text: str) -> None:
        """What is done now."""

    def stepped(self, done: int) -> None:
        """So many steps are done."""


@dataclass(eq=False)
class Result:
    """What is known of an entrant; what is not known yet is None or missing."""

    entrant: Entrant
    share: Share
    parameters: int
    measured_peak: int | None = None
    search: Search | None = None
    outcomes: tuple[Outcome, ...] = ()

    @property
    def maccs(self) -> int:
        """Those of a whole training."""
        return self.share.steps * self.share.cost.maccs

    @property
    def flops(self) -> int:
        """Those of a whole training."""
        return self.share.steps * self.share.cost.flops


@dataclass(repr=False)
class Contest(Drawn):
    """What was asked for, and a result for each entrant; `stopped` before the end.

    left_out  entrants by whose procedure the problem's model cannot learn, with the reason
    """

    figures = ("contest",)

    room = "learncost.contest.show"

    setting: Setting
    budget: Budget
    seeds: tuple[int, ...]
    results: tuple[Result, ...]
    stopped: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 130 if self.stopped else 0

    def to_dict(self) -> dict[str, Any]:
        """Everything as data (schema 1)."""
        from learncost.contest.show import as_dict

        return as_dict(self)


def contest(
    setting: Setting,
    entrants: Sequence[Entrant],
    budget: Budget,
    seeds: Sequence[int] = (0, 1, 2),
    rates: Sequence[float] = (),
    batch_size: int | None = None,
    steps: int = 300,
    report: Report | None = None,
    stop: Callable[[], bool] = lambda: False,
    trained: Callable[[Contest], None] = lambda contest_run: None,
) -> Contest:
    """Train every entrant once for each seed, with equal budgets.

    rates       the learning rates to try; without them decades that suit the optimizer, and finer ones around the best
    batch_size  where the budget is not memory; by default the problem's
    steps       where the budget is memory
    stop        asked after every step; where it says yes, what is known by then is the result
    trained     told what is known after every training
    Raises `InputError` for a budget that is too small for one step of an entrant, a batch of more than there is, and
    where the model can learn by none of the procedures.
    """
    problem = setting.problem
    size, most = batch_size or problem.batch_size, len(problem.training)
    if size > most:
        raise InputError(f"a batch of {size:,} is more than the {most:,} examples to learn from")
    parameters = sum(array.size for array in problem.begin(0).values())
    named = {entrant.name: entrant for entrant in entrants}
    priced, refused = possible(lambda name: costs(setting, named[name]), named)
    results = []
    for name, cost_of in priced.items():
        entrant = named[name]
        seconds_of = partial(_seconds, setting, entrant)
        entrant_share = share(budget, name, cost_of, seconds_of, size, steps, most)
        results.append(Result(entrant, entrant_share, parameters))
    contest_run = Contest(setting, budget, tuple(seeds), tuple(results), left_out=refused)
    run = _Run(contest_run, tuple(rates), report, stop, trained)
    try:
        run.all()
    except StoppedError:
        contest_run.stopped = True
    return contest_run


def _seconds(setting: Setting, entrant: Entrant, batch_size: int) -> float:
    """How long a step on so many examples takes here; what it learns is thrown away."""
    return Training(setting, entrant).seconds(setting.problem.training, np.arange(batch_size))


class _Run:
    """A contest on its way."""

    def __init__(
        self,
        contest_run: Contest,
        rates: tuple[float, ...],
        report: Report | None,
        stop: Callable[[], bool],
        trained: Callable[[Contest], None],
    ) -> None:
        self.contest, self.report, self.stop, self.trained = contest_run, report, stop, trained
        self.rates, self.finer = rates, not rates
        self.done = 0

    def rates_of(self, result: Result) -> tuple[float, ...]:
        """Those that were given, or those that suit its optimizer."""
        return self.rates or RATES[result.entrant.optimizer or self.contest.setting.optimizer]

    def all(self) -> None:
        if self.report is not None:
            tried = {result: len(self.rates_of(result)) for result in self.contest.results}
            trainings = {r: len(self.contest.seeds) + (n + 2 * self.finer if n > 1 else 0) for r, n in tried.items()}
            self.report.begin(sum(several * result.share.steps for result, several in trainings.items()))
        for result in self.contest.results:
            self._measure(result)
            self._choose(result)
        for seed in self.contest.seeds:  # the entrants by turns, so that what disturbs the machine disturbs all of them
            for result in self.contest.results:
                self._train(result, seed)

    def _measure(self, result: Result) -> None:
        training = Training(self.contest.setting, result.entrant)
        result.measured_peak = training.peak(self.contest.setting.problem.training, np.arange(result.share.batch_size))

    def _choose(self, result: Result) -> None:
        """On the last of the training examples, which the trials do not learn from."""
        rates = self.rates_of(result)
        if len(rates) == 1:
            result.search = Search((), rates[0])
            return
        training = self.contest.setting.problem.training
        border = len(training) - max(1, len(training) // CHOOSING)
        last = min(len(training), border + len(self.contest.setting.problem.validation))
        parts = training.part(0, border), training.part(border, last)

        def trial(rate: float) -> Outcome:
            self._say(f"{result.entrant.name}: trying the learning rate {rate:.3g}")
            seed = self.contest.seeds[0]
            return self._outcome(result, rate, seed, parts)

        result.search = search(rates, trial, self.finer)

    def _train(self, result: Result, seed: int) -> None:
        assert result.search is not None
        self._say(f"{result.entrant.name}: seed {seed}, learning rate {result.search.best:.3g}")
        problem = self.contest.setting.problem
        parts = problem.training, problem.validation
        result.outcomes += (self._outcome(result, result.search.best, seed, parts),)
        self.trained(self.contest)

    def _outcome(self, result: Result, rate: float, seed: int, parts: Any) -> Outcome:
        before = self.done
        trained = outcome(self.contest.setting, result.entrant, result.share, rate, seed, parts, self._stepped)
        self.done = before + result.share.steps  # the steps after a divergence are not done, but over
        return trained

    def _stepped(self) -> bool:
        self.done += 1
        if self.report is not None:
            self.report.stepped(self.done)
        return self.stop()

    def _say(self, text: str) -> None:
        if self.report is not None:
            self.report.say(text)
