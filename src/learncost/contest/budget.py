"""Budgets: an equal number of steps, of FLOPs, or of bytes at the worst moment, and what each entrant gets for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from learncost.contest.entrant import Cost
from learncost.equation.errors import InputError
from learncost.ledger.memory_runner import largest_batch
from learncost.models.wording import BYTES, COUNTS, shown, whole_number

KINDS = ("steps", "flops", "memory")

MOST_STEPS = 10**6  # of one training; what is more is a slip of the keyboard


@dataclass(frozen=True)
class Budget:
    """So much of something, for every entrant."""

    kind: str
    amount: int

    def __str__(self) -> str:
        unit = {"steps": "steps", "flops": "FLOPs", "memory": "bytes of predicted memory"}[self.kind]
        return f"{self.amount:,} {unit}"


@dataclass(frozen=True)
class Share:
    """What an entrant gets for a budget: so many steps on so many examples, each at this cost."""

    steps: int
    batch_size: int
    cost: Cost


def budget(text: str) -> Budget:
    """A budget as it is written: steps:300, flops:2e10, memory:5MB. Raises `InputError`."""
    kind, _, amount = text.partition(":")
    number = whole_number(amount.strip(), BYTES if kind == "memory" else COUNTS)
    if kind not in KINDS or not number:
        raise InputError(f"budget must be such as steps:300, flops:2e10 or memory:5MB, not {shown(text)}")
    return Budget(kind, number)


def share(
    budget: Budget, name: str, cost_of: Callable[[int], Cost], batch_size: int, steps: int, examples: int
) -> Share:
    """What the entrant of that name gets.

    cost_of     what one step costs it on so many examples
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
        return Share(steps, batch_size, cost_of(batch_size))
    cost = cost_of(batch_size)
    steps = budget.amount if budget.kind == "steps" else budget.amount // cost.flops
    if not steps:
        raise InputError(f"budget: one step of {name} takes {cost.flops:,} FLOPs, more than {budget.amount:,}")
    if steps > MOST_STEPS:
        raise InputError(f"budget: {steps:,} steps of {name} are too many; at most {MOST_STEPS:,}")
    return Share(steps, batch_size, cost)
