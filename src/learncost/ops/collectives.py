"""Define the collectives: operators on an axis of the mesh, between devices that run the same lines.

In `Y[B M/tp d] = reduce_scatter[tp](Z[B M d])`, the two terms determine the axis that is sharded. Collectives have no
body and no gradient, since tables are sharded after differentiation. Coordinates after the mesh axis name the devices
that take part, if not all do: `all_reduce[pp 0 3]`.
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


_collective("all_reduce", "the sum of the arrays of all devices, on every device")
_collective("all_reduce_max", "the elementwise maximum of the arrays of all devices, on every device")
_collective("all_reduce_min", "the elementwise minimum of the arrays of all devices, on every device")
_collective("all_gather", "the concatenation of the shards of all devices, on every device")
_collective("reduce_scatter", "the sum of the arrays of all devices, one shard on each device")
_collective("all_to_all", "an array sharded on one axis becomes sharded on another: every device sends to every other")
_collective("shard", "a device's own shard of an array that it has in full: nothing is sent")
_collective("part", "the received shard, or the device's own, of an array that it has in full: nothing is sent")
_collective("dispatch", "rows are sent to the device that owns the entry at their index")
_collective("combine", "rows are returned from the device that owns the entry at their index")

_collective("send", "an array is sent to the device at a coordinate of the axis: `send[pp 1](X)`")
_collective("pass_on", "an array is sent to the next device on the axis, and one is received from the previous device")
define(
    OpDef("receive", (), ("Y",), kind=KIND, source="the array that the device at a coordinate sends: `receive[pp 0]()`")
)

REDUCES: Mapping[str, str] = {"all_reduce": "sum", "all_reduce_max": "max", "all_reduce_min": "min"}
"""The collectives whose result is equal on every device, with the libraries' names of their reductions."""

JOINED: frozenset[str] = frozenset({*REDUCES, "all_gather", "reduce_scatter"})
"""The collectives that may be sent together in one bucket."""

SENDS_NOTHING: frozenset[str] = frozenset({"shard", "part", "receive"})
"""The collectives that send nothing: the device has the array already, or another device sends it."""


def place_changed(line: Op) -> int:
    """Return the number of the array axis whose sharding over the mesh axis a collective changes."""
    before, after = line.right[0].declared, line.left[0].declared
    return next(place for place, axis in enumerate(after) if axis != before[place])


def is_collective(line: object) -> TypeGuard[Op]:
    """Return whether a line is a collective."""
    return isinstance(line, Op) and _is_between(line.op)


@lru_cache(maxsize=4096)
def _is_between(op: str) -> bool:
    return entry(op).kind == KIND  # cached, since it is called for every line that runs


def sends(line: object) -> TypeGuard[Op]:
    """Return whether a line is a collective that sends data."""
    return is_collective(line) and line.op not in SENDS_NOTHING
