"""A contest of entrants with equal data order, initial weights, optimizer and budget.

An entrant's learning rate is chosen before, by the first seed, on training examples that its trials did not learn from.
What the search costs is in no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.reports.run import possible
from learncost.reports.sheet import FigureAnswer
from learncost.training.contest.entrant import Budget, BudgetShare, Entrant, EntrantTraining, Setting, costs, share
from learncost.training.contest.problem import RATES
from learncost.training.contest.trial import (
    LearningRateSearch,
    StoppedError,
    TrialOutcome,
    TrialReporter,
    readied,
    trained,
)
from learncost.training.contest.workers import Workers, in_iteration


class ContestReporter:
    """The callbacks of a contest's progress, which do nothing by default."""

    def begin(self, steps: int) -> None:
        """Report the largest number of steps of all trainings."""

    def say(self, text: str) -> None:
        """Report the current action."""

    def stepped(self, done: int) -> None:
        """Report completed steps."""


@dataclass(eq=False)
class EntrantResult:
    """The results of an entrant so far; unknown ones are None or missing."""

    entrant: Entrant
    share: BudgetShare
    parameters: int
    measured_peak: int | None = None
    search: LearningRateSearch | None = None
    outcomes: tuple[TrialOutcome, ...] = ()

    @property
    def maccs(self) -> int:
        """Those of a whole training."""
        return self.share.steps * self.share.cost.maccs

    @property
    def flops(self) -> int:
        """Those of a whole training."""
        return self.share.steps * self.share.cost.flops


@dataclass(repr=False)
class Contest(FigureAnswer):
    """The settings of a contest, and a result for each entrant; `stopped` if it ended early.

    left_out  entrants by whose procedure the problem's model cannot learn, with the reason
    """

    _figures = ("contest",)

    _sheets_module = "learncost.training.contest.show"

    setting: Setting
    budget: Budget
    seeds: tuple[int, ...]
    results: tuple[EntrantResult, ...]
    stopped: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 130 if self.stopped else 0

    def to_dict(self) -> dict[str, Any]:
        """Return all results as data (schema 1)."""
        from learncost.training.contest.show import as_dict

        return as_dict(self)


@dataclass(frozen=True)
class ContestDesign:
    """The design of a contest: every entrant is trained once for each seed, with equal budgets.

    rates       the learning rates to try; without them decades that suit the optimizer, and finer ones around the best
    batch_size  where the budget is not memory; by default the problem's
    steps       where the budget is memory
    """

    entrants: Sequence[Entrant]
    budget: Budget
    seeds: Sequence[int] = (0, 1, 2)
    rates: Sequence[float] = ()
    batch_size: int | None = None
    steps: int = 300


def contest(
    setting: Setting,
    design: ContestDesign,
    report: ContestReporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    finished: Callable[[Contest], None] = lambda contest_run: None,
    workers: Workers = in_iteration,
) -> Contest:
    """Train every entrant once for each seed, with equal budgets.

    stop      asked after every step; where it says yes, what is known by then is the result
    finished  receives the results after every training
    workers   who does the trainings
    Raises `InputError` for a budget that is too small for one step of an entrant, a batch of more than there is, and
    where the model can learn by none of the procedures.
    """
    problem = setting.problem
    size, most = design.batch_size or problem.batch_size, len(problem.training)
    if size > most:
        raise InputError(f"a batch of {size:,} exceeds the {most:,} training examples")
    parameters = sum(array.size for array in problem.begin(0).values())
    named = {entrant.name: entrant for entrant in design.entrants}
    priced, refused = possible(lambda name: costs(setting, named[name]), named)
    results = []
    for name, cost_of in priced.items():
        entrant = named[name]
        seconds_of = partial(_seconds, setting, entrant)
        entrant_share = share(design.budget, name, cost_of, seconds_of, size, design.steps, most)
        results.append(EntrantResult(entrant, entrant_share, parameters))
    contest_run = Contest(setting, design.budget, tuple(design.seeds), tuple(results), left_out=refused)
    run = _ContestRun(contest_run, tuple(design.rates), report or ContestReporter(), stop, workers)
    try:
        run.all(finished)
    except StoppedError:
        contest_run.stopped = True
    return contest_run


def _seconds(setting: Setting, entrant: Entrant, batch_size: int) -> float:
    """Measure the time of a step on a number of examples; its training is discarded."""
    return EntrantTraining(setting, entrant).seconds(setting.problem.training, np.arange(batch_size))


class _ContestRun(TrialReporter):
    """A running contest, which counts the steps of this process."""

    def __init__(
        self,
        contest_run: Contest,
        rates: tuple[float, ...],
        report: ContestReporter,
        stop: Callable[[], bool],
        workers: Workers,
    ) -> None:
        self.contest, self.report, self.stop, self.workers = contest_run, report, stop, workers
        self.rates, self.finer = rates, not rates
        self.done = self.over = 0  # steps: done or passed, of tasks that are over

    def rates_of(self, result: EntrantResult) -> tuple[float, ...]:
        """Return the given learning rates, or those of the entrant's optimizer."""
        return self.rates or RATES[result.entrant.optimizer or self.contest.setting.optimizer]

    def trials(self, result: EntrantResult) -> int:
        """Return the number of learning rates that are tried."""
        rates = len(self.rates_of(result))
        return rates + 2 * self.finer if rates > 1 else 0

    def all(self, finished: Callable[[Contest], None]) -> None:
        setting, results, seeds = self.contest.setting, self.contest.results, self.contest.seeds
        self.report.begin(sum((len(seeds) + self.trials(result)) * result.share.steps for result in results))
        before = [(r.entrant, r.share, self.rates_of(r), self.finer, seeds[0]) for r in results]
        for place, (peak, chosen) in self.workers(readied, setting, before, self):
            result = results[place]
            result.measured_peak, result.search = peak, chosen
            self._advance(self.trials(result) * result.share.steps)
        # The entrants alternately, so that what disturbs the machine disturbs all of them.
        iterations = [(result, seed) for seed in seeds for result in results]
        trainings = [(r.entrant, r.share, r.search.best, seed) for r, seed in iterations if r.search is not None]
        for place, result_of_seed in self.workers(trained, setting, trainings, self):
            result, _ = iterations[place]
            result.outcomes = tuple(
                sorted((*result.outcomes, result_of_seed), key=lambda outcome: seeds.index(outcome.seed))
            )
            self._advance(result.share.steps)
            finished(self.contest)

    def say(self, text: str) -> None:
        self.report.say(text)

    def stepped(self) -> bool:
        self._at(self.done + 1)
        return self.stop()

    def passed(self, steps: int) -> None:
        self._at(self.done + steps)

    def _advance(self, steps: int) -> None:
        """Count the steps of a finished task that were not reported in this process."""
        self.over += steps
        self._at(max(self.done, self.over))

    def _at(self, done: int) -> None:
        self.done = done
        self.report.stepped(done)
