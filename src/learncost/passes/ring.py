"""Apply the plan ring (ring attention): keys and values move around a ring of devices instead of being all-gathered."""

from __future__ import annotations

from learncost.ir.loop import repeats
from learncost.ir.table import Table
from learncost.passes.flash import scores
from learncost.passes.rematerialization import recomputed


def ring(table: Table) -> Table:
    """Return the step with scores recomputed; sharding makes the rings (sharding/ring.py).

    Scores are not saved, as no device has complete rows. On one device, the plan only recomputes scores.
    """
    pairs = scores(table)
    if pairs.keys() & {name for repeat in repeats(table.lines) for name, _ in repeat.keep}:
        return recomputed(table, lambda line: not pairs.keys().isdisjoint(line.makes))
    return table
