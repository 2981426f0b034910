"""Check the plan keep: results of forward collectives are saved for the backward pass instead of being sent again."""

from __future__ import annotations

from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.ops import entry
from learncost.ops.collectives import KIND, SENDS_NOTHING


def keep(table: Table, ops: tuple[str, ...]) -> Table:
    """Return the step itself: sharding saves the results of the collectives (sharding/place.py).

    Raises `InputError` for an operator that sends nothing.
    """
    for op in ops:
        if entry(op).kind != KIND or op in SENDS_NOTHING:
            raise InputError(f"keep takes collectives, such as all_gather or dispatch: {op} is not one")
    return table
