"""Ring: over many devices, keys and values go round instead of being gathered, a device's part in every turn."""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.loop import repeats
from learncost.ir.table import Table
from learncost.passes.flash import scores
from learncost.passes.rematerialization import recomputed


def ring(table: Table) -> Table:
    """The step that asks a placement for it (sharding/ring.py), its scores made again in the backward pass.

    Nobody has a whole row of scores there, so that none can be kept. Over one device it is that alone.
    """
    pairs = scores(table)
    if pairs.keys() & {name for repeat in repeats(table.lines) for name, _ in repeat.keep}:
        table = recomputed(table, lambda line: not pairs.keys().isdisjoint(line.makes))
    return replace(table, ring=True)
