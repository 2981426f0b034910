"""Backpropagation, and backpropagation with every block's forward run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.equation.table import Repeat, Statement, Table
from learncost.equation.value import Value
from learncost.layers.derive import Derived, derive
from learncost.models.model import Model


def backpropagation(model: Model, jacobian: bool = False) -> Derived:
    """Forward, backward and weight update of the weights that learn: nothing is derived that none of them needs."""
    return derive(model.table, wanted=model.learning, jacobian=jacobian)


def backwards(line: Repeat, reverse: Iterable[Statement], known: Mapping[str, Value]) -> Repeat | None:
    """The backward repeat of a forward one, among the lines backwards of its scope; None where it needs none.

    What comes out of the last turn is whose gradient goes into the first turn backwards.
    """
    finals = {carry.final for carry in line.carry}
    for back in reverse:
        if isinstance(back, Repeat):
            into = [known[carry.initial] for carry in back.carry]
            if any(value.role == "gradient" and value.of in finals for value in into):
                return back
    return None


def recomputed(step: Table) -> Table:
    """The step in which every block keeps only its input, and the backward pass runs every line of the block again."""
    from learncost.layers.recompute import recomputed as run_again  # only where it is asked for

    return run_again(step, chosen=lambda line: True, whole=True)
