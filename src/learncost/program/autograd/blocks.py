"""The blocks of a repeat: its body, or where layers of several kinds follow each other in one, each of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from learncost.ir.loop import Loop, Statement

Block: TypeAlias = "tuple[Sequence[Statement], list[str], list[str]]"
"""Lines, what they start from, and what they end with."""


def whole_block(repeat: Loop) -> Block:
    """The body as one block; behind what it hands on stands what it keeps."""
    ends = [*(carry.end for carry in repeat.carry), *(inside for inside, _ in repeat.keep)]
    return repeat.lines, [carry.start for carry in repeat.carry], ends


def blocks_of(repeat: Loop, sharded_over: int) -> list[Block]:
    """The body in blocks of so many places each; as one where that does not come out even."""
    cuts_possible = places(repeat)
    if not sharded_over or len(cuts_possible) % sharded_over or len(repeat.carry) != 1 or repeat.keep:
        return [whole_block(repeat)]
    ends = cuts_possible[sharded_over - 1 :: sharded_over]
    starts = [(0, repeat.carry[0].start), *ends[:-1]]
    return [(repeat.lines[a:b], [start], [end]) for (a, start), (b, end) in zip(starts, ends, strict=True)]


def places(repeat: Loop) -> list[tuple[int, str]]:
    """Where one value of the body alone is alive: after how many lines, and which; the end is the last of them."""
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
