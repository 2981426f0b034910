"""Budgets: as many steps, FLOPs or seconds, or as many bytes at the worst moment, and what each entrant gets for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from learncost.ir.errors import InputError
from learncost.models.wording import BYTES, COUNTS, shown, whole_number
from learncost.reports.memory.largest import largest_batch
from learncost.training.contest.entrant import StepCost

UNITS = {
    "steps": "steps",
    "flops": "FLOPs",
    "memory": "bytes of predicted memory",
    "seconds": "seconds of steps",
}
"""What a budget is of."""

MOST_STEPS = 10**6  # of one training; what is more is a slip of the keyboard


@dataclass(frozen=True)
class Budget:
    """So much of something, for every entrant."""

    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.amount:,} {UNITS[self.kind]}"


@dataclass(frozen=True)
class BudgetShare:
    """What an entrant gets for a budget: so many steps on so many examples, each at this cost."""

    steps: int
    batch_size: int
    cost: StepCost


def budget(text: str) -> Budget:
    """A budget as it is written: steps:300, flops:2e10, memory:5MB, seconds:60. Raises `InputError`."""
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
    """What the entrant of that name gets.

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
        raise InputError(f"budget: one step of {name} takes {needs}, more than {budget.amount:,}")
    if steps > MOST_STEPS:
        raise InputError(f"budget: {steps:,} steps of {name} are too many; at most {MOST_STEPS:,}")
    return BudgetShare(steps, batch_size, cost)
