"""Collectives of a turn brought together, so that they are sent as one message: weights before it, gradients after it.

As FSDP does with a block's parameters. A turn then has all of its weights at once, and all of its gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from learncost.ir.loop import Loop, Statement, defined
from learncost.ir.table import Table
from learncost.ops.collectives import REDUCES, is_collective

_JOINS = ("reduce_scatter", *REDUCES)


def bucketed(table: Table) -> Table:
    """A placed table that means the same, with the collectives of every repeat's turn next to each other.

    Those outside of repeats are brought together as far as the next repeat: nothing is held over one.
    """
    stretches = groupby(map(_statement, table.lines), key=lambda line: isinstance(line, Loop))
    lines = (each for is_repeat, stretch in stretches for each in (stretch if is_repeat else _iteration([*stretch])))
    return replace(table, lines=tuple(lines))


def _statement(line: Statement) -> Statement:
    return replace(line, lines=tuple(_iteration([*map(_statement, line.lines)]))) if isinstance(line, Loop) else line


def _iteration(lines: Sequence[Statement]) -> list[Statement]:
    """What is gathered of what a turn is given goes first; what only the optimizer reads, and the optimizer, last."""
    makes = Counter(name for line in lines for name in line.makes)
    if max(makes.values(), default=0) > 1:  # lines that make a value again have their order
        return [*lines]
    sent = [line for line in lines if is_collective(line)]
    first = [line for line in sent if line.op == "all_gather" and makes.keys().isdisjoint(line.reads)]
    updates = [line for line in lines if line not in sent and _updates(line)]
    passes = [line for line in lines if line not in first and line not in updates]
    needed = {name for line in passes for name in line.reads}
    if needed & defined(updates):
        return [*first, *(line for line in lines if line not in first)]
    joins = [line for line in sent if line.op in _JOINS and not needed & {*line.makes}]
    return [*first, *(line for line in passes if line not in joins), *joins, *updates]


def _updates(line: Statement) -> bool:
    return not isinstance(line, Loop) and line.meta.phase == "optimizer_step"
