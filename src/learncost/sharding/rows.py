"""Rows that are sent: where lines read weights at a choice, each row goes to the device that has what it reads.

Lines over the same rows stay there, and what is over other axes comes back. A row is a point of the index: of
`moe.chosen[B M t]` the t-th choice of a token.
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
    """An index by which rows are sent over an axis of the mesh.

    index      its name
    mesh_axis  over which
    read       the axis that is read at it, as it is cut down to the mesh axis, `e/tp/ep`: so rows find their owners
    axes       the axes of the index, as it is declared
    """

    index: str
    mesh_axis: str
    read: str
    axes: tuple[str, ...]

    @property
    def key(self) -> str:
        """What layouts call it."""
        return f"{self.index} over {self.mesh_axis} by {self.read}"

    def reads(self, axis: str, names: tuple[str, ...]) -> RowChoice:
        """The same for an axis that these axes of the mesh cut where it is read, the outermost first."""
        return replace(self, read=down_to(cut(axis, names), self.mesh_axis))

    def is_over(self, other: RowChoice) -> bool:
        """Whether another one is by the same index over the same axis of the mesh."""
        return (self.index, self.mesh_axis) == (other.index, other.mesh_axis)


@dataclass(frozen=True)
class RoutedRows:
    """The rows of a line: by which choice they are sent, and what the line calls its axes.

    sent  the layout of an operand that is among them already
    """

    choice: RowChoice
    axes: tuple[str, ...]
    first: str  # the axis that the mesh cuts where rows are at home
    sent: ShardLayout | None = None
    cut: tuple[tuple[str, ...], ...] = ()  # of what is sent already: the mesh axes that cut each axis of the rows
    at: str = ""  # the axis that the line reads or writes at the choice


def rows_of(scope: ShardingScope, line: Line) -> RoutedRows | None:
    """The rows that a line runs over where they are sent to, or None."""
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
    """The rows of a line that reads or writes a cut axis at an index whose own axes the same mesh axis cuts."""
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
                    continue  # rows stay, and what they read is gathered
                choice = RowChoice(index.name, mesh_axis, cut(axis.axis, (mesh_axis,)), declared)
                loops = tuple(str(axis) for axis in index.axes)
                is_sum_or_op = not isinstance(line, Product)
                if is_sum_or_op and any(not {*loops} <= {*left.axes} for left in line.left):
                    continue
                return RoutedRows(choice, loops, loops[first], at=axis.axis)
    return None


def _among(scope: ShardingScope, line: Line) -> RoutedRows | None:
    """The rows of a line of which an operand is where it was sent to, and nowhere else."""
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
    """Whether an operand is of no rows, as weights are, or is of rows that can be sent."""
    inside = {axis for axis in term.axes if isinstance(axis, str)} & {*rows.axes}
    if term.indexed:
        at = [axis.at for axis in term.axes if isinstance(axis, Read)]
        return not inside and all(isinstance(index, Term) and index.name == rows.choice.index for index in at)
    return not inside or rows.first in inside
