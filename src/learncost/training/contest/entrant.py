"""An entrant: a learning procedure with an optimizer, the cost of its step on a problem, and its training.

Its budget is a number of steps, FLOPs or seconds, or of bytes at the peak.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from learncost.backends.executed import executed
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.engines.emitted import Programs
from learncost.engines.layer_training import LayerTraining
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import BYTES, COUNTS, InputError, named_one, shown, whole_number
from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.procedure import LEARNING, MODES, PAPER, procedure
from learncost.reports.memory.largest import largest_batch
from learncost.training.contest.problem import Problem
from learncost.training.data.examples import Examples
from learncost.training.data.task import predicted

DTYPES: Mapping[str, str] = {"fp32": "float32", "fp64": "float64"}

BOOKS = ("run", "matmul")
"""The price books that count what is executed."""

EVALUATION_BATCH = 256  # examples of a pass that only looks

TIMED = 5  # steps whose median is how long one takes


@dataclass(frozen=True)
class Entrant:
    """A procedure with its mode, if any, and its optimizer, if it differs from the others'."""

    procedure: str
    mode: str = ""
    optimizer: str = ""

    @property
    def name(self) -> str:
        name = f"{self.procedure}:{self.mode}" if self.mode else self.procedure
        return f"{name} {self.optimizer}" if self.optimizer else name


def entrants(text: str, mode: str, optimizers: Sequence[str] = ("",)) -> tuple[Entrant, ...]:
    """Return the entrants of a comma-separated list such as `bp,pepita:paper`; `mode` is the default mode.

    optimizers  each procedure takes part with every one of them
    """
    named_one("mode", mode, MODES)
    entrants_named = []
    for item in text.split(","):
        name, colon, named_mode = (part.strip() for part in item.partition(":"))
        chosen = procedure(name)
        if colon and named_mode not in chosen.modes:
            having = " and ".join(procedure.name for procedure in LEARNING.values() if procedure.modes)
            raise InputError(f"only {having} have modes, {' and '.join(MODES)}: not {shown(item)}")
        entrants_named.append(Entrant(chosen.name, (named_mode or mode) if chosen.modes else ""))
    if len(set(entrants_named)) < len(entrants_named):
        raise InputError(f"procedures must be a comma-separated list of different names, not {shown(text)}")
    return tuple(replace(entrant, optimizer=name) for entrant in entrants_named for name in optimizers)


@dataclass(frozen=True)
class Setting:
    """The settings of all entrants; `optimizer` is the default, and `book` prices their steps."""

    problem: Problem
    optimizer: str
    dtype: str = "fp32"
    book: str = "run"


@dataclass(frozen=True)
class StepCost:
    """The cost of one step: MACCs and FLOPs of its table, and the peak bytes of its program."""

    maccs: int
    flops: int
    peak: int


def costs(setting: Setting, entrant: Entrant) -> Callable[[int], StepCost]:
    """Return the cost of an entrant's step by the number of its examples: where steps differ, the mean of a round."""
    tables, chosen = EntrantTraining(setting, entrant).tables(), book(setting.book)

    @cache
    def of(batch_size: int) -> StepCost:
        sizes = setting.problem.sizes(batch_size)
        priced = [(price(table, sizes, chosen), steps) for table, steps in tables]
        maccs, flops = (sum(getattr(step, kind) * steps for step, steps in priced) for kind in ("maccs", "flops"))
        peak, steps = max(executed(table, sizes, setting.dtype).peak for table, _ in tables), sum(n for _, n in tables)
        return StepCost(-(-maccs // steps), -(-flops // steps), peak)

    return of


class EntrantTraining(LayerTraining):
    """The training of an entrant: `LayerTraining` whose step runs as its table's emitted program."""

    def __init__(self, setting: Setting, entrant: Entrant, learning_rate: float = 0.0, seed: int = 0) -> None:
        self.problem = problem = setting.problem
        super().__init__(
            problem.model,
            problem.begin(seed),
            entrant.procedure,
            entrant.optimizer or setting.optimizer,
            learning_rate=learning_rate,
            mode=entrant.mode or PAPER,
            seed=seed,
            dtype=DTYPES[setting.dtype],
        )
        self.runner = Programs(self)

    def learn(self, examples: Examples, rows: Any) -> float:
        """Run one step on some examples; return the loss before it."""
        return self.step(**examples.rows(rows), **self.problem.fixed)

    def check(self, examples: Examples) -> tuple[float, float]:
        """Return the mean loss of examples and the share of right answers, without an update."""
        losses, rights, weights = [], [], []
        for start in range(0, len(examples), EVALUATION_BATCH):
            batch = examples.rows(slice(start, start + EVALUATION_BATCH))
            loss, scores = self.look(**batch, **self.problem.fixed)
            right = batch[self.problem.answers]
            losses.append(loss)
            rights.append(float((predicted(scores) == right).mean()))
            weights.append(len(right))
        return float(np.average(losses, weights=weights)), float(np.average(rights, weights=weights))

    def peak(self, examples: Examples, rows: Any) -> int:
        """Return the peak bytes of a step's arrays, as NumPy reports them to tracemalloc.

        What the step reads counts, as in the prediction: weights, state, batch. Nothing is learned.
        """
        prepared = self.prepare(**examples.rows(rows), **self.problem.fixed)
        self._run(prepared)  # makes the program
        tracemalloc.start()
        try:
            read = {*prepared.table.weights, *prepared.table.inputs}
            values = {name: np.array(array) for name, array in prepared.values.items() if name in read}
            self._run(replace(prepared, values=values))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def seconds(self, examples: Examples, rows: Any) -> float:
        """Measure the time of a step: the median of several, after one that compiles."""
        self.learn(examples, rows)
        took = []
        for _ in range(TIMED):
            began = perf_counter()
            self.learn(examples, rows)
            took.append(perf_counter() - began)
        return median(took)

    def _step_table(self, model: Model, iteration: int | None = None) -> Table:
        """Return the step with the outputs that a training requires, without gradients."""
        return without_gradients(super()._step_table(model, iteration))


UNITS = {"steps": "steps", "flops": "FLOPs", "memory": "bytes of predicted memory", "seconds": "seconds of steps"}
"""The kinds of budget, with their units."""

MOST_STEPS = 10**6  # of one training; what is more is a slip of the keyboard


@dataclass(frozen=True)
class Budget:
    """An amount of a resource for every entrant."""

    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.amount:,} {UNITS[self.kind]}"


@dataclass(frozen=True)
class BudgetShare:
    """An entrant's steps within a budget: their number, examples and cost."""

    steps: int
    batch_size: int
    cost: StepCost


def budget(text: str) -> Budget:
    """Return the budget of a text: steps:300, flops:2e10, memory:5MB or seconds:60. Raises `InputError`."""
    kind, _, amount = text.partition(":")
    number = whole_number(amount.strip(), BYTES if kind == "memory" else COUNTS)
    if kind not in UNITS or not number:
        raise InputError(f"budget must be such as steps:300, flops:2e10, memory:5MB or seconds:60, not {shown(text)}")
    return Budget(kind, number)


def share(
    budget: Budget,
    name: str,
    cost_of: Callable[[int], StepCost],
    seconds_of: Callable[[int], float],
    batch_size: int,
    steps: int,
    examples: int,
) -> BudgetShare:
    """Return the share of the named entrant.

    cost_of     what one step costs it on so many examples
    seconds_of  how long one takes it here
    batch_size  where the budget is not memory; there it is the largest that fits, and at most all `examples`
    steps       where the budget is memory
    Raises `InputError` for a budget that is not enough for one step, or for very many.
    """
    if budget.kind == "memory":

        def peak(size: int) -> int:
            return cost_of(size).peak

        batch_size = examples if peak(examples) <= budget.amount else largest_batch(peak, budget.amount)
        if not batch_size:
            least = peak(1)
            raise InputError(f"budget: one step of {name} on one example needs {least:,} bytes, over {budget.amount:,}")
        return BudgetShare(steps, batch_size, cost_of(batch_size))
    cost = cost_of(batch_size)
    if budget.kind == "seconds":
        took = seconds_of(batch_size)
        steps, needs = int(budget.amount / took), f"{took:,.2f} seconds"
    else:
        steps, needs = budget.amount // (1 if budget.kind == "steps" else cost.flops), f"{cost.flops:,} FLOPs"
    if not steps:
        raise InputError(f"budget: one step of {name} needs {needs}, more than {budget.amount:,}")
    if steps > MOST_STEPS:
        raise InputError(f"budget: {steps:,} steps of {name} are too many; the limit is {MOST_STEPS:,}")
    return BudgetShare(steps, batch_size, cost)
