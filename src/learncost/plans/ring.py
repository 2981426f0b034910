"""Ring: over many devices, keys and values go round instead of being gathered, a device's part in every turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from learncost.equation.repeat import Repeat, Statement
from learncost.equation.table import Table
from learncost.layers.recompute import recomputed
from learncost.plans.flash import scores


def ring(table: Table) -> Table:
    """The step that asks a placement for it (placement/ring.py), its scores made again in the backward pass.

    Nobody has a whole row of scores there, so that none can be kept. Over one device it is that alone.
    """
    pairs = scores(table)
    if pairs.keys() & {*_kept(table.lines)}:
        table = recomputed(table, lambda line: not pairs.keys().isdisjoint(line.makes))
    return replace(table, ring=True)


def _kept(lines: Iterable[Statement]) -> Iterator[str]:
    """What the turns of repeats keep, those within repeats as well."""
    for line in lines:
        if isinstance(line, Repeat):
            yield from (name for name, _ in line.keep)
            yield from _kept(line.lines)
