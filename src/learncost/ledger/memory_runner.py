"""Who runs a step, what it takes then, and what fits: one question with one answer, whoever asks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from learncost.equation.errors import InputError, named_one
from learncost.ledger.memory import Memory, measured
from learncost.ledger.memory_engine import ENGINES, executed_by, refuse
from learncost.ledger.memory_step import Step
from learncost.models.model import run_sizes

TABLE = "table"
USUAL = "autograd"
"""Who runs a step where nobody is named and it can."""

PLANS = 16
"""Plans that a planner is asked for at most, each for longer sequences than the one before."""

_AS_WRITTEN = (
    "As the table says, line by line: new weights and states take the place of the old ones, nothing else is in place, "
    "and what stays inside of a kernel takes nothing. Not in it: the library's workspace, the allocator's."
)


@dataclass(frozen=True)
class Runner:
    """Who runs a step; `why` the usual one does not, where another was not asked for."""

    name: str
    why: str = ""

    def peak(self, step: Step, sizes: Mapping[str, int]) -> int:
        """The most bytes, at the sizes of a microbatch."""
        return step.peak(sizes) if self.name == TABLE else ENGINES[self.name].takes(step, sizes, False).bytes


def runner_of(step: Step, named: str = "") -> Runner:
    """The runner of that name; by default PyTorch's autograd, and the table where that has no answer.

    Raises `InputError` for one that is not known, and for what the one that is named does not execute.
    """
    if named:
        named_one("engine", named, {TABLE: None, **ENGINES})
        if named != TABLE:
            refuse(named, step)
        return Runner(named)
    usual = Runner(USUAL)
    try:
        refuse(USUAL, step)
        usual.peak(step, step.sizes(step.accumulate))
    except InputError as error:
        return Runner(TABLE, str(error).removeprefix(f"--engine {USUAL} "))
    return usual


def answered(step: Step, engine: str = "", budget: int | None = None) -> Memory:
    """What a step takes as its runner executes it; with a budget what fits it: 0 where nothing does.

    Raises `InputError` as `runner_of`.
    """
    found = told(step, runner := runner_of(step, engine))
    if budget is None:
        return found
    fits = {"batch_size": largest(step, runner, budget), "seq_len": longest(step, runner, budget)}
    return replace(found, budget=budget, fits=fits)


def told(step: Step, runner: Runner) -> Memory:
    """What a step takes as a runner executes it."""
    found = measured(step) if runner.name == TABLE else executed_by(runner.name, step)
    if runner.name == TABLE:
        why = f" PyTorch's autograd, told by default, has no answer here: it {runner.why}." if runner.why else ""
        return replace(found, engine=TABLE, convention=_AS_WRITTEN + why)
    return found


def largest(step: Step, runner: Runner, budget: int) -> int:
    """The largest batch that fits; 0 where one sequence does not.

    A planner that chooses for every batch is asked again for a batch of one more than what fits under its last plan.
    """
    if step.run.plan != "auto":
        return _largest(step, runner, budget)
    found, more = 0, _largest(step.at(step.accumulate), runner, budget)
    while more > found:
        found = more
        more = _largest(step.at(found + step.accumulate), runner, budget)
    return found


def _largest(step: Step, runner: Runner, budget: int) -> int:
    if runner.name == TABLE:
        return step.largest(budget)
    return largest_batch(lambda batch: runner.peak(step, step.sizes(batch)), budget)


def largest_batch(peak: Callable[[int], int], room: int) -> int:
    """The largest batch whose peak fits, 0 where one sample does not.

    peak    the bytes of a batch: lines that bend where another moment becomes the worst. A step of Newton's method
            from a batch goes to where its own line meets the room.
    """
    batch = 1
    for _ in range(64):
        here, more = peak(batch), peak(batch + 1)
        if here <= room < more:
            return batch
        if batch == 1 and here > room:
            return 0
        batch = max(1, batch + int((room - here) // max(1, more - here)))
    raise InputError("the largest batch was not found: the peak does not grow with the batch")


def longest(step: Step, runner: Runner, budget: int) -> int | None:
    """The longest sequence that fits the batch, 0 where none does, at most what the model has positions for.

    None where there is one length, or two; and of engines whose program is written anew for every length. A planner
    that chooses for every length is asked again for one more than what fits under its last plan.
    """
    found = _longest(step, runner, budget)
    if step.run.plan != "auto" or found is None:
        return found
    for _ in range(PLANS):
        try:
            more = _longest(step.at(step.run.axes["B"], found + 1), runner, budget)
        except InputError:
            break
        if more is None or more <= found:
            break
        found = more
    return found


def _longest(step: Step, runner: Runner, budget: int) -> int | None:
    if step.model.two_sided or runner.name not in (TABLE, USUAL, f"{USUAL}-foreach", f"{USUAL}-for-loop"):
        return None
    batch = step.run.axes["B"]

    def fits(length: int) -> bool:
        sizes = {**run_sizes(step.model, batch, length, None), "B": batch // step.accumulate}
        return runner.peak(step, sizes) <= budget

    try:
        if not fits(1):
            return 0
    except InputError:  # an image has all its patches
        return None
    return longest_where(fits)


def longest_where(fits: Callable[[int], bool], most: int = 2**24) -> int:
    """The largest length at which something holds that holds at 1 and, from some length on, no more.

    A length for which the model has no positions is refused by `InputError`, and does not fit.
    """

    def does(length: int) -> bool:
        try:
            return fits(length)
        except InputError:
            return False

    low, high = 1, 2
    while high < most and does(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if does(middle) else (low, middle)
    return low
