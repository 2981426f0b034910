"""The plan fused: consecutive lines over the same rows run as one kernel, row by row.

Matrix products are excluded: a library computes them. The lines between two of them - biases, activations, residual
sums, normalizations, their gradients - then read and write every row once instead of once per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.line import FusedKernel, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, in_kernel, map_scopes, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table, features
from learncost.ir.term import Term
from learncost.layers.names import KernelNames, named_once

_APART = ("zeros", "eye", "append", "join", "inside")


@dataclass(frozen=True)
class _Axes:
    """The axes of a table.

    features  those of weights
    order     all, in the order of its inputs and lines, so that equal sets of rows have one order
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
    """Return the table with every line that is not a matrix product in a kernel; kernels of other plans remain."""
    table = named_once(table)
    axes, names = _Axes.of(table), KernelNames(table)
    return replace(table, lines=map_scopes(table.lines, lambda lines: _fused(lines, axes, names)))


def _multiplies(line: Line) -> bool:
    """Return whether the line is a product of two matrices, in any layout."""
    return isinstance(line, Product) and len(line.right) == 2 and line.sides.are_of_matrices


def _does(lines: Sequence[Line]) -> str:
    """Return a name for the lines: their layers, and whether they are backward."""
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
        """Results that are complete only after all rows: sums over rows."""
        return {name for line in self.lines if not {*self.rows} <= {*line.left[0].loops} for name in line.makes}

    def takes(self, line: Line) -> bool:
        """Return whether a line with the same rows reads only its own row of the group's results, and no total.

        An elementwise group without rows continues with a line that reads its last result.
        """
        if not self.rows:
            last = self.lines[-1]
            return last.left[0].loops == line.left[0].loops and not set(last.makes).isdisjoint(line.reads)
        made = {name for other in self.lines for name in other.makes}
        of_others = (term for term in line.right if isinstance(term, Term) and term.name in made)
        return self.totals.isdisjoint(line.reads) and all({*self.rows} <= {*term.axes} for term in of_others)


def _fused(lines: Sequence[Statement], axes: _Axes, names: KernelNames) -> tuple[Statement, ...]:
    """Return the statements of one scope, with groups of lines as kernels."""
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
    """Return the axes that a kernel of this line is tiled over: those of no weight. None: the line is not fused."""
    if _multiplies(line) or (isinstance(line, Op) and line.op in _APART):
        return None
    if line.meta.phase == "optimizer_step":
        return () if isinstance(line, Op) else None  # elementwise
    acted = {*line.axes, *line.chosen} if isinstance(line, Op) else set()
    rows = tuple(axis for axis in line.loops if base(axis) not in axes.features and axis not in acted)
    if len({base(axis) for axis in rows}) < len(rows):
        return None
    if not rows:
        return None
    # The gradient of a table that is read at an index is scattered: rows may collide.
    scattered = any(term.indexed and not set(rows) <= set(term.axes) for term in line.left)
    if scattered and _is_table(line.left[0], axes):
        return None
    rows = tuple(axis for axis in rows if axis in line.left[0].axes) if scattered else rows
    return tuple(sorted(rows, key=axes.place)) or None


def _is_table(term: Term, axes: _Axes) -> bool:
    return all(base(axis) in axes.features for axis in term.declared)


def _sums_early(lines: Sequence[Statement], axes: _Axes) -> list[Statement]:
    """Move sums over all rows, such as biases' gradients, right after the line that computes their operand."""
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
    """Delay lines until after the next group of other lines, or until their results are read.

    These are weights' gradients that are matrix products, accumulators of loops, the optimizer's lines and
    recomputation.
    """
    result: list[Statement] = []
    late: list[Line] = []
    updated = _updated(lines)
    passed = False  # whether other lines are between the first of `late` and here

    def flush(names: set[str] | None = None) -> None:
        """Emit the lines that compute these names, with those they need; None: all."""
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
    """Return, by kernel of another plan with lines of an optimizer, the arrays that these read and may overwrite."""
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
    """Return whether a statement is a matrix product outside of any kernel."""
    return isinstance(line, Line) and _multiplies(line) and line.meta.kernel is None
