"""Collectives, a row each: words that act on an axis of the mesh, between devices that run the same lines.

`Y[B M/tp d] = reduce_scatter[tp](Z[B M d])`: which axis moves is read off the two terms. They have no body and no
gradient: lines are placed after they are derived. Behind the mesh axis stand places on it, where not all devices meet:
`all_reduce[pp 0 3]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeGuard

from learncost.ir.line import Op
from learncost.ops.op_def import OpDef, define, entry

KIND = "collective"


def _collective(name: str, source: str) -> None:
    define(OpDef(name, ("X",), ("Y",), kind=KIND, source=source))


_collective("all_reduce", "the sum of all devices' arrays, on every one")
_collective("all_reduce_max", "the largest of all devices' numbers, element by element, on every one")
_collective("all_reduce_min", "the smallest of all devices' numbers, element by element, on every one")
_collective("all_gather", "the parts of all devices one behind another, on every one")
_collective("reduce_scatter", "the sum of all devices' arrays, of which each has a part")
_collective("all_to_all", "what was cut on one axis is cut on another: every device has a part for every other")
_collective("shard", "a device's own part of what it has whole: nothing is sent")
_collective("part", "of what a device has whole, the part that came round, or its own: nothing is sent")
_collective("dispatch", "rows go to the device that owns what they read at an index")
_collective("combine", "rows come back from the device that owns what they read at an index")

_collective("send", "an array goes to the device at a place on the axis, which receives it: `send[pp 1](X)`")
_collective("pass_on", "an array goes to the next device on the axis, and that of the device before it comes")
define(
    OpDef("receive", (), ("Y",), kind=KIND, source="what the device at a place on the axis sends: `receive[pp 0]()`")
)

REDUCES: Mapping[str, str] = {"all_reduce": "sum", "all_reduce_max": "max", "all_reduce_min": "min"}
"""Words that leave the same on every device, and what libraries call how they join."""

JOINED: frozenset[str] = frozenset({*REDUCES, "all_gather", "reduce_scatter"})
"""Words of which several may be sent as one message."""

SENDS_NOTHING: frozenset[str] = frozenset({"shard", "part", "receive"})
"""Collectives that every device answers from what it has, or that somebody else sends."""


def place_changed(line: Op) -> int:
    """Which axis of an array a collective cuts, where it reads and makes one that is cut otherwise."""
    before, after = line.right[0].declared, line.left[0].declared
    return next(place for place, axis in enumerate(after) if axis != before[place])


def is_collective(line: object) -> TypeGuard[Op]:
    """Whether a line is a word between devices."""
    return isinstance(line, Op) and _is_between(line.op)


@lru_cache(maxsize=4096)
def _is_between(op: str) -> bool:
    return entry(op).kind == KIND  # asked of every line that runs


def sends(line: object) -> TypeGuard[Op]:
    """Whether a line is one by which a device sends something."""
    return is_collective(line) and line.op not in SENDS_NOTHING
