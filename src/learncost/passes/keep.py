"""Keep: what collectives make forward is kept for the backward pass, in place of being moved again there."""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.ops import entry
from learncost.ops.collectives import KIND, SENDS_NOTHING


def keep(table: Table, ops: tuple[str, ...]) -> Table:
    """The step that says which collectives' results a placement keeps (sharding/keeping.py); over one device none.

    Raises `InputError` for a word that moves nothing between devices.
    """
    for op in ops:
        if entry(op).kind != KIND or op in SENDS_NOTHING:
            raise InputError(f"keep names collectives, such as all_gather or dispatch, and {op} is none")
    return replace(table, keeps=ops)
