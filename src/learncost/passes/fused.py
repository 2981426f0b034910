"""Apply the plan fused: consecutive lines over the same rows run as one kernel, row by row.

Matrix products are excluded, since a library computes them. The lines between two products (biases, activations,
residual sums, normalizations, their gradients) then read and write every row once instead of once per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import FusedKernel, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, in_kernel, map_scopes, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table, features
from learncost.ir.term import Term
from learncost.layers.names import KernelNames, propagate_copies
from learncost.layers.spelling import ONE

_NOT_FUSED = ("zeros", "eye", "append", "join", "inside")


@dataclass(frozen=True)
class _Axes:
    """The axes of a table.

    features  the axes of weights
    order     the position of each axis in inputs and lines, by which the axes of rows are sorted
    """

    features: frozenset[str]
    order: Mapping[str, int]

    @staticmethod
    def of(table: Table) -> _Axes:
        axes = [axis for name in table.inputs for axis in table.axes[name]]
        read = [axis for line, _ in walk(table.lines) for axis in line.loops]
        return _Axes(features(table), {axis: n for n, axis in enumerate(dict.fromkeys(map(base, (*axes, *read))))})

    def place(self, axis: str) -> int:
        return self.order[base(axis)]


def fused(table: Table) -> Table:
    """Return the table with all lines in kernels except matrix products; kernels of other plans remain."""
    table = propagate_copies(table)
    axes, names = _Axes.of(table), KernelNames(table)
    return replace(table, lines=map_scopes(table.lines, lambda lines: _fused(lines, axes, names)))


def _multiplies(line: Line) -> bool:
    """Return whether the line is a product of two matrices, in any layout."""
    return isinstance(line, Product) and len(line.right) == 2 and line.sides.are_of_matrices


def _does(lines: Sequence[Line]) -> str:
    """Return a name for a kernel: the layers of its lines, and whether these are backward."""
    layers = list(dict.fromkeys(line.meta.layer for line in lines if line.meta.layer)) or ["sums"]
    ops = [line.op for line in lines if isinstance(line, Op)]
    if len(layers) == 1 and ops and ops[0] != layers[0] and len(set(ops)) == 1:
        layers.append(ops[0])
    if any(line.meta.phase in ("backward", "weight_update") for line in lines):
        layers.append("backward")
    return "_".join(dict.fromkeys(layers))


@dataclass
class _FusionGroup:
    rows: tuple[str, ...]
    lines: list[Line]

    @property
    def totals(self) -> set[str]:
        """The results that are complete only after all rows, which are sums over rows."""
        return {name for line in self.lines if not {*self.rows} <= {*line.left[0].loops} for name in line.makes}

    def takes(self, line: Line) -> bool:
        """Return whether a line with the same rows may join the group: it reads only its own row of results, and no
        totals.

        A line may join an elementwise group without rows if it reads the group's last result.
        """
        if not self.rows:
            last = self.lines[-1]
            return last.left[0].loops == line.left[0].loops and not set(last.makes).isdisjoint(line.reads)
        made = {name for other in self.lines for name in other.makes}
        of_others = (term for term in line.right if isinstance(term, Term) and term.name in made)
        return self.totals.isdisjoint(line.reads) and all({*self.rows} <= {*term.axes} for term in of_others)


def _fused(lines: Sequence[Statement], axes: _Axes, names: KernelNames) -> tuple[Statement, ...]:
    """Return the statements of one scope, in which groups of lines are kernels."""
    parts: list[_FusionGroup | Statement] = []
    for line in _updates_late(_sums_early(lines, axes), axes):
        if isinstance(line, Loop):
            parts.append(line)
            continue
        rows = _rows(line, axes)
        last = parts[-1] if parts else None
        if rows is None or line.meta.kernel:
            parts.append(line)
        elif isinstance(last, _FusionGroup) and last.rows == rows and last.takes(line):
            last.lines.append(line)
        else:
            parts.append(_FusionGroup(rows, [line]))
    result: list[Statement] = []
    for part in parts:
        if isinstance(part, _FusionGroup):
            kernel = FusedKernel(names.of(_does(part.lines)), part.rows)
            result += [replace(line, meta=replace(line.meta, kernel=kernel)) for line in part.lines]
        else:
            result.append(part)
    return tuple(result)


def _rows(line: Line, axes: _Axes) -> tuple[str, ...] | None:
    """Return the axes of rows of a kernel with this line, which are no feature axes; None if the line is not fused."""
    if _multiplies(line) or (isinstance(line, Op) and line.op in _NOT_FUSED):
        return None
    if line.meta.phase == "optimizer_step":
        return () if isinstance(line, Op) else None  # elementwise
    if ONE in line.loops:  # a part of a gradient that others are joined to: the sum of its rows, spread along this axis
        return None
    acted = {*line.axes, *line.chosen} if isinstance(line, Op) else set()
    rows = tuple(axis for axis in line.loops if base(axis) not in axes.features and axis not in acted)
    if len({base(axis) for axis in rows}) < len(rows):
        return None
    if not rows:
        return None
    # The gradient of a table that is read at an index is scattered: rows may collide.
    scattered = any(term.indexed and not set(rows) <= set(term.axes) for term in line.left)
    if scattered and all(base(axis) in axes.features for axis in line.left[0].declared):
        return None
    rows = tuple(axis for axis in rows if axis in line.left[0].axes) if scattered else rows
    return tuple(sorted(rows, key=axes.place)) or None


def _sums_early(lines: Sequence[Statement], axes: _Axes) -> list[Statement]:
    """Return the lines with sums over all rows, such as biases' gradients, moved right after the lines of their
    operands."""
    result: list[Statement] = []
    for line in lines:
        place = len(result)
        if isinstance(line, Product) and not _multiplies(line) and not line.meta.kernel:
            rows = _rows(line, axes)
            if rows and not set(rows) & set(line.left[0].loops):
                while place and set(line.reads).isdisjoint(result[place - 1].makes):
                    place -= 1
                while place < len(result) and in_kernel([result[place - 1]], result[place]):
                    place += 1
                if not place or _is_separate_product(result[place - 1]):
                    place = len(result)
        result.insert(place, line)
    return result


def _updates_late(lines: Sequence[Statement], axes: _Axes) -> list[Statement]:
    """Return the lines with some of them delayed until after the next group of other lines, or until their results are
    read.

    Delayed are matrix products of weights' gradients, accumulators of loops, the optimizer's lines and recomputation.
    """
    result: list[Statement] = []
    late: list[Line] = []
    updated = _updated(lines)
    passed = False  # whether a line that is no product follows the first delayed line

    def flush(names: set[str] | None = None) -> None:
        """Emit the delayed lines that compute these names, with those that they need; all delayed lines for None."""
        chosen, waiting, needed = list[Line](), list[Line](), set(names or ())
        for statement in reversed(late):
            if names is None or not needed.isdisjoint(statement.makes):
                chosen.append(statement)
                needed |= set(statement.reads)
            else:
                waiting.append(statement)
        result.extend(reversed(chosen))
        late[:] = reversed(waiting)

    for line in lines:
        if isinstance(line, Line) and _waits(line, axes):
            late.append(line)
            continue
        if isinstance(line, Line) and line.meta.kernel in updated:  # readers of a weight must precede its update
            old = updated[line.meta.kernel]
            flush({name for waiting in late if not old.isdisjoint(waiting.reads) for name in waiting.makes})
        product = _is_separate_product(line)
        if isinstance(line, Loop) or (passed and product):
            flush()
            passed = False
        flush(set(line.reads))
        result.append(line)
        passed = passed or not product
    flush()
    return result


def _updated(lines: Sequence[Statement]) -> dict[FusedKernel | None, set[str]]:
    """Map the kernels with optimizer lines, which other plans made, to the arrays that these lines may overwrite."""
    arrays: dict[FusedKernel | None, set[str]] = {}
    for line in lines:
        if isinstance(line, Line) and line.meta.kernel and line.meta.phase == "optimizer_step":
            terms = (term for term in line.right if isinstance(term, Term) and term.axes)
            arrays.setdefault(line.meta.kernel, set()).update(term.name for term in terms)
    return arrays


def _waits(line: Line, axes: _Axes) -> bool:
    if line.meta.kernel:
        return False
    phase = line.meta.phase
    if isinstance(line, Sum) and _rows(line, axes) is None:
        return True
    return phase in ("optimizer_step", "recomputation") or (phase == "weight_update" and _multiplies(line))


def _is_separate_product(line: Statement) -> bool:
    """Return whether a statement is a matrix product outside of kernels."""
    return isinstance(line, Line) and _multiplies(line) and line.meta.kernel is None
