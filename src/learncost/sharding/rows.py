"""Dispatch rows to experts: if lines read weights at an index, each row is sent to the device that has its weights.

Lines over the same rows run there, and the results that other lines read are sent back. A row is a point of the index:
for `moe.chosen[B M t]`, the t-th choice of a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from learncost.ir.affine import Affine
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.polynomial import down_to
from learncost.ir.term import Read, Term
from learncost.ops import entry
from learncost.sharding.layout import ShardLayout, cut

if TYPE_CHECKING:
    from learncost.sharding.scope import ShardingScope


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
        return replace(self, read=down_to(cut(axis, names), self.mesh_axis))

    def is_over(self, other: RowChoice) -> bool:
        """Return whether another choice has the same index and mesh axis."""
        return (self.index, self.mesh_axis) == (other.index, other.mesh_axis)


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
    elif among is not None and among.choice.is_over(rows.choice):
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
        at = [axis.at for axis in term.axes if isinstance(axis, Read)]
        return not inside and all(isinstance(index, Term) and index.name == rows.choice.index for index in at)
    return not inside or rows.first in inside
