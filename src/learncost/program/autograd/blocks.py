"""The blocks of a loop: its body, or each of several consecutive layers of different kinds in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from learncost.ir.loop import Loop, Statement

Block: TypeAlias = "tuple[Sequence[Statement], list[str], list[str]]"
"""Lines, the names they start from, and the names they end with."""


def whole_block(repeat: Loop) -> Block:
    """Return the body as one block; its saved values follow its loop-carried ones."""
    ends = [*(carry.end for carry in repeat.carry), *(inside for inside, _ in repeat.keep)]
    return repeat.lines, [carry.start for carry in repeat.carry], ends


def blocks_of(repeat: Loop, sharded_over: int) -> list[Block]:
    """Return the body in blocks of `cuts` places each; as one where that does not divide."""
    cuts_possible = places(repeat)
    if not sharded_over or len(cuts_possible) % sharded_over or len(repeat.carry) != 1 or repeat.keep:
        return [whole_block(repeat)]
    ends = cuts_possible[sharded_over - 1 :: sharded_over]
    starts = [(0, repeat.carry[0].start), *ends[:-1]]
    return [(repeat.lines[a:b], [start], [end]) for (a, start), (b, end) in zip(starts, ends, strict=True)]


def places(repeat: Loop) -> list[tuple[int, str]]:
    """Return the places in the body where a single value is live: the number of lines before, and the value; the last
    is the end.
    """
    last = {name: len(repeat.lines) for name in (carry.end for carry in repeat.carry)}
    for at, line in reversed(list(enumerate(repeat.lines))):
        for name in line.reads:
            last.setdefault(name, at)
    alive = {carry.start for carry in repeat.carry}
    single_values = []
    for at, line in enumerate(repeat.lines):
        alive |= set(line.makes)
        alive = {name for name in alive if last.get(name, -1) > at}
        if len(alive) == 1:
            single_values.append((at + 1, next(iter(alive))))
    return single_values
