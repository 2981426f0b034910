"""Backpropagation, and backpropagation with every block's forward run again."""

from __future__ import annotations

from learncost.equation.table import Repeat, Table
from learncost.layers.derive import Derived, derive
from learncost.models.model import Model


def backpropagation(model: Model, jacobian: bool = False) -> Derived:
    """Forward, backward and weight update of the weights that learn: nothing is derived that none of them needs."""
    return derive(model.table, wanted=model.learning, jacobian=jacobian)


def repeats(derived: Derived) -> list[tuple[Repeat, Repeat]]:
    """Every repeat of the forward table with its backward one; one that needs no backward pass is left out."""
    known = derived.reverse.values
    reverse = {
        known[carry.initial].of: line
        for line in derived.reverse.lines
        if isinstance(line, Repeat)
        for carry in line.carry
        if known[carry.initial].role == "gradient"
    }
    found = []
    for line in derived.forward.lines:
        if isinstance(line, Repeat):
            # What comes out of the last turn is whose gradient goes into the first turn backwards.
            back = [reverse[carry.final] for carry in line.carry if carry.final in reverse]
            found += [(line, back[0])] if back else []
    return found


def recomputed(step: Table) -> Table:
    """The step in which every block keeps only its input, and the backward pass runs every line of the block again."""
    from learncost.layers.recompute import recomputed as run_again  # only where it is asked for

    return run_again(step, chosen=lambda line: True, whole=True)
