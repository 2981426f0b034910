"""Represent how the devices of a mesh hold a value, and derive the collectives from one layout to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from learncost.ir.polynomial import base
from learncost.sharding.clauses import Split


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The layout of a value: the mesh axes that shard each axis, and those over which its arrays must still be reduced.

    partial  the pending reductions: pairs of a mesh axis and sum, max or min
    sent     the key of the index by which rows were dispatched to the devices of their experts; "" for other values
    """

    split: Split
    partial: frozenset[tuple[str, str]] = frozenset()
    sent: str = ""

    @property
    def over(self) -> frozenset[str]:
        """Return the mesh axes that shard some axis."""
        return frozenset(name for names in self.split for name in names)

    @property
    def joined_over(self) -> frozenset[str]:
        """Return the mesh axes over which it is partial."""
        return frozenset(name for name, _ in self.partial)

    def whole(self) -> ShardLayout:
        """Return the layout without partial sums."""
        return replace(self, partial=frozenset())

    def cut(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes in the notation of a device's table, such as `f/tp`."""
        return tuple(cut(axis, names) for axis, names in zip(axes, self.split, strict=True))


def cut(axis: str, mesh_axes: tuple[str, ...]) -> str:
    """Return the name of a sharded axis, such as `M/cp'` for `M'`."""
    if not mesh_axes:
        return axis
    size = base(axis)
    return "/".join((size, *mesh_axes)) + axis[len(size) :]


@dataclass(frozen=True, slots=True)
class LayoutMove:
    """A collective over a mesh axis, and the layout of its result."""

    op: str
    mesh_axis: str
    layout: ShardLayout


def moves(start: ShardLayout, goal: ShardLayout) -> Iterator[LayoutMove]:
    """Yield the collectives from one layout to another, the cheapest first: scatters and free ones.

    A mesh axis that has to shard another axis is exchanged; inner axes are gathered before outer ones.
    """
    now = start
    # Ties are broken by name, as all devices, which are separate processes, must send in the same order.
    for mesh_axis, how in sorted(
        start.partial - goal.partial, key=lambda pair: (_scatters(start, goal, pair[0]) is None, *pair)
    ):
        place = _scatters(now, goal, mesh_axis) if how == "sum" else None
        left = now.partial - {(mesh_axis, how)}
        if place is None:
            now = replace(now, partial=left)
            yield LayoutMove("all_reduce" if how == "sum" else f"all_reduce_{how}", mesh_axis, now)
        else:
            now = replace(_with(now, place, (*now.split[place], mesh_axis)), partial=left)
            yield LayoutMove("reduce_scatter", mesh_axis, now)
    while now.split != goal.split:
        move = _shard(now, goal) or _exchange(now, goal) or _gather(now, goal)
        now = move.layout
        yield move


def _with(layout: ShardLayout, place: int, names: tuple[str, ...]) -> ShardLayout:
    return replace(layout, split=(*layout.split[:place], names, *layout.split[place + 1 :]))


def _wanted(now: ShardLayout, goal: ShardLayout, mesh_axis: str) -> int | None:
    """Return the position of the axis that a mesh axis may shard next on the way to the goal; None if there is none."""
    for place, (names, wanted) in enumerate(zip(now.split, goal.split, strict=True)):
        if wanted[: len(names) + 1] == (*names, mesh_axis):
            return place
    return None


def _scatters(now: ShardLayout, goal: ShardLayout, mesh_axis: str) -> int | None:
    return None if mesh_axis in now.over else _wanted(now, goal, mesh_axis)


def _shard(now: ShardLayout, goal: ShardLayout) -> LayoutMove | None:
    for names, wanted in zip(now.split, goal.split, strict=True):
        following = wanted[len(names)] if wanted[: len(names)] == names and len(wanted) > len(names) else None
        if following is not None and following not in now.over:
            place = _wanted(now, goal, following)
            assert place is not None
            return LayoutMove("shard", following, _with(now, place, wanted[: len(names) + 1]))
    return None


def _surplus(now: ShardLayout, goal: ShardLayout) -> Iterator[tuple[int, str]]:
    """Yield the axes that are sharded differently in the goal, each with its innermost mesh axis."""
    for place, (names, wanted) in enumerate(zip(now.split, goal.split, strict=True)):
        if names and wanted[: len(names)] != names:
            yield place, names[-1]


def _exchange(now: ShardLayout, goal: ShardLayout) -> LayoutMove | None:
    for place, mesh_axis in _surplus(now, goal):
        to = _wanted(now, goal, mesh_axis)
        if to is not None and to != place:
            shorter = _with(now, place, now.split[place][:-1])
            return LayoutMove("all_to_all", mesh_axis, _with(shorter, to, (*now.split[to], mesh_axis)))
    return None


def _gather(now: ShardLayout, goal: ShardLayout) -> LayoutMove:
    place, mesh_axis = next(_surplus(now, goal))
    return LayoutMove("all_gather", mesh_axis, _with(now, place, now.split[place][:-1]))
