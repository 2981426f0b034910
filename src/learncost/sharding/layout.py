"""Represent how the devices of a mesh hold a value, and derive the collectives from one layout to another.

Rows are dispatched to experts: if lines read weights at an index, each row is sent to the device that has its weights.
Lines over the same rows run there, and the results that other lines read are sent back. A row is a point of the index:
for `moe.chosen[B M t]`, the t-th choice of a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.polynomial import base, sharding_prefix
from learncost.ir.term import Read, Term
from learncost.ops import entry
from learncost.sharding.clauses import Split

if TYPE_CHECKING:
    from learncost.sharding.scope import ShardingScope


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


@dataclass(frozen=True)
class RowChoice:
    """An index by which rows are dispatched over a mesh axis.

    index      the name of the index
    mesh_axis  the mesh axis
    read       the indexed axis as it is sharded down to the mesh axis, such as `e/tp/ep`, which determines the owners
    axes       the declared axes of the index
    """

    index: str
    mesh_axis: str
    read: str
    axes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the key of the choice in layouts."""
        return f"{self.index} over {self.mesh_axis} by {self.read}"

    def reads(self, axis: str, names: tuple[str, ...]) -> RowChoice:
        """Return the choice for an indexed axis that these mesh axes shard, outermost first."""
        return replace(self, read=sharding_prefix(cut(axis, names), self.mesh_axis))


@dataclass(frozen=True)
class RoutedRows:
    """The rows of a line: the index by which they are dispatched, and the names of the index's axes in the line.

    sent  the layout of an operand that is already dispatched
    """

    choice: RowChoice
    axes: tuple[str, ...]
    first: str  # the axis of rows that the mesh axis shards at their source
    sent: ShardLayout | None = None
    cut: tuple[tuple[str, ...], ...] = ()  # for dispatched rows: the mesh axes that shard each of their axes
    at: str = ""  # the axis that the line reads or writes at the index


def rows_of(scope: ShardingScope, line: Line) -> RoutedRows | None:
    """Return the rows that a line runs over on the devices to which they are dispatched; None for lines without such
    rows."""
    if isinstance(line, Op) and (not entry(line.op).pointwise or line.opaque):
        return None
    if not isinstance(line, Product | Sum | Op) or line.where:
        return None
    rows = _reading(scope, line)
    among = _among(scope, line)
    if rows is None:
        rows = among
        if rows is None or any(not {*rows.axes} <= {*term.axes} for term in line.left):
            return None
    elif among and (among.choice.index, among.choice.mesh_axis) == (rows.choice.index, rows.choice.mesh_axis):
        rows = replace(rows, choice=among.choice, sent=among.sent, cut=among.cut)
    read = [term for term in line.right if isinstance(term, Term)]
    written = [term for term in line.left if term.indexed]
    return rows if all(_fits(term, rows) for term in (*read, *written)) else None


def _reading(scope: ShardingScope, line: Line) -> RoutedRows | None:
    """Return the rows of a line that reads or writes a sharded axis at an index that the same mesh axis shards; else
    None.
    """
    for term in (*line.right, *line.left):
        for place, axis in enumerate(term.axes):
            if not isinstance(axis, Read) or isinstance(axis.at, Affine) or axis.at.indexed:
                continue
            index = axis.at
            over = {*scope.spec(term.name).split[place]} - scope.busy
            spec = scope.spec(index.name)
            for mesh_axis in sorted(over & spec.over):
                first = next(i for i, names in enumerate(spec.split) if mesh_axis in names)
                declared, read = scope.value(index.name).axes, scope.value(term.name).axes[place]
                if scope.specs.rank(mesh_axis, read) >= scope.specs.rank(mesh_axis, declared[first]):
                    continue  # rows are not sent; the array that they read is gathered
                choice = RowChoice(index.name, mesh_axis, cut(axis.axis, (mesh_axis,)), declared)
                loops = tuple(str(axis) for axis in index.axes)
                is_sum_or_op = not isinstance(line, Product)
                if is_sum_or_op and any(not {*loops} <= {*left.axes} for left in line.left):
                    continue
                return RoutedRows(choice, loops, loops[first], at=axis.axis)
    return None


def _among(scope: ShardingScope, line: Line) -> RoutedRows | None:
    """Return the rows of a line with an operand whose only layout is dispatched; else None."""
    for term in line.right:
        if not isinstance(term, Term) or term.indexed:
            continue
        held = scope.held(term.name)
        if not held or any(not layout.sent for layout in held):
            continue
        layout = next(iter(held))
        choice = scope.choice(layout.sent)
        declared = scope.value(term.name).axes
        places = [declared.index(axis) for axis in choice.axes]
        axes = tuple(str(term.axes[place]) for place in places)
        sharded_over = tuple(layout.split[place] for place in places)
        first = next(axis for axis, names in zip(axes, sharded_over, strict=True) if choice.mesh_axis in names)
        return RoutedRows(choice, axes, first, layout, sharded_over)
    return None


def _fits(term: Term, rows: RoutedRows) -> bool:
    """Return whether an operand has no rows, as weights, or rows that can be dispatched."""
    inside = {axis for axis in term.axes if isinstance(axis, str)} & {*rows.axes}
    if term.indexed:
        at = [axis.at for axis in term.indexed_axes]
        return not inside and all(isinstance(index, Term) and index.name == rows.choice.index for index in at)
    return not inside or rows.first in inside
