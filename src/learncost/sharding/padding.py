"""Pad sizes that the mesh does not divide, such as a vocabulary, to the next multiple, and check statically that
padding is 0 wherever a line sums over it.

Weights without a divisible axis have equal shards with padding, as in PyTorch's FSDP2; the last shards have fewer
elements of the weight, or none. The padding is 0 in inputs and results of collectives, and is removed when shards are
concatenated. Results of lines must have zero padding, too, if another line sums over it, or if they are new weights and
states, which the next step reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from learncost.interpreter.operation import function_of
from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, map_lines, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Read, Term
from learncost.ir.value import Value
from learncost.models.model import Model
from learncost.ops import entry, is_log_softmax
from learncost.ops.collectives import is_collective
from learncost.passes.lower import expanded
from learncost.sharding.clauses import Clause, parts_of
from learncost.sharding.mesh import Mesh


def with_padded(table: Table, axis: str, size: int) -> Table:
    """Return the forward table with an axis masked to its first `size` positions."""
    inside = Condition(axis, str(size), "<")

    def change(line: Line) -> tuple[Line]:
        return (line.with_changed(where=(*line.where, inside)) if axis in line.loops else line,)

    return replace(table, lines=map_lines(table.lines, change))


def paddable(table: Table) -> frozenset[str]:
    """Return the axes that may be padded: axes of weights that lines read at an index or that a log-softmax acts on.

    These are the vocabulary of a language model and the classes of a classifier. A softmax masks the padding, and no
    index points to it; an operator that selects the largest, reads at affine indices or divides by the size would
    include it.
    """
    lines = [line for line, _ in walk(table.lines)]
    acted = {axis for line in lines if is_log_softmax(line) for axis in line.axes}
    read = {axis for line in lines for axis in _read(line)}
    of_weights = {axis for name in table.weights for axis in table.axes[name]}
    axes_used = (acted | read) & of_weights
    return frozenset(axes_used - {axis for line in lines for axis in _counted(line)})


def _read(line: Line) -> Iterator[str]:
    """Yield the axes that a line reads at an index array."""
    yield from (axis.axis for term in line.right for axis in term.indexed_axes if isinstance(axis.at, Term))


def _counted(line: Line) -> Iterator[str]:
    """Yield the axes whose size affects a line's result, or whose padding would unbalance a choice."""
    if isinstance(line, Op) and not entry(line.op).pointwise:
        yield from line.axes if entry(line.op).outside is None or entry(line.op).kind == "choice" else ()
    for operand in (*line.left, *line.right):
        if isinstance(operand, Literal):
            yield from map(base, operand.sizes)
        for axis in operand.axes if isinstance(operand, Term) else ():
            if isinstance(axis, Read) and isinstance(axis.at, Affine):
                yield axis.axis
            elif isinstance(axis, str) and base(axis) != axis:
                yield base(axis)


@dataclass(frozen=True)
class Padded:
    """A padded axis: its size, and the next divisible size."""

    axis: str
    size: int
    filled: int

    def __str__(self) -> str:
        return (
            f"{self.axis} is {self.size:,} and padded to {self.filled:,}, which is divisible by the mesh: the "
            f"padding is computed, but excluded from the softmax"
        )


def filled_up(
    model: Model, table: Table, mesh: Mesh, chosen: Iterable[Clause], sizes: Mapping[str, int]
) -> tuple[Model, dict[str, int], tuple[Padded, ...]]:
    """Return the model and the sizes with padding, where it is allowed and needed, and the padded axes.

    table  the step of the model, whose values the clauses shard
    """
    axes = {axis for clause in chosen for axis in clause.axes} & paddable(model.table)
    parts = parts_of(table, mesh, chosen, sizes) if axes else {}
    padded = padded_of((axis, sizes[axis], parts[axis]) for axis in sorted(axes & parts.keys()))
    return with_filled(model, padded), {**sizes, **sizes_of(padded)}, padded


def padded_of(cut: Iterable[tuple[str, int, int]]) -> tuple[Padded, ...]:
    """Return the axes that need padding, given the sizes of axes and their numbers of shards."""
    return tuple(Padded(axis, size, -(-size // parts) * parts) for axis, size, parts in cut if size % parts)


def sizes_of(padded: Iterable[Padded]) -> dict[str, int]:
    """Return the sizes with those of padded axes replaced."""
    return {each.axis: each.filled for each in padded}


def with_filled(model: Model, padded: Iterable[Padded]) -> Model:
    """Return the model with padded positions masked."""
    table, sizes = model.table, sizes_of(padded := tuple(padded))
    for each in padded:
        table = with_padded(table, each.axis, each.size)
    return replace(model, table=table, sizes={**model.sizes, **sizes}) if padded else model


_NUMBERS = (-2.0, 0.5, 1.0, 3.0)
"""Values to evaluate an op at, for operands that are not known to be 0."""


def check_filled(table: Table, filled: Mapping[str, int]) -> None:
    """Refuse a sharded table that would sum padding other than 0. Raises `InputError`.

    filled  the padded axes, such as `d/dp`, with their sizes
    """
    check = _PaddingCheck(filled, {**table.values})
    zero = {name for name in (*table.inputs, *table.weights) if check.has(table.axes[name])}
    check.lines(table.lines, zero)
    for name in table.renewed.values():
        if check.has(table.axes[name]) and name not in zero:
            axis = next(base(each) for each in table.axes[name] if base(each) in check.filled)
            raise InputError(f"padded region of {axis} may be non-zero in {name}")


def stays_zero(line: Line, axis: str, values: Mapping[str, Value]) -> bool:
    """Return whether a line's result has 0 in the padding of an axis if all operands with the axis have."""
    zero = {o.name for o in line.right if isinstance(o, Term) and axis in o.axes}
    return _PaddingCheck({base(axis): 0}, dict(values)).is_zero(line, [axis], zero)


class _PaddingCheck:
    """A check of lines, in which `zero` has the names of padded arrays whose padding is 0."""

    def __init__(self, filled: Mapping[str, int], values: dict[str, Value]) -> None:
        self.filled, self.values = filled, values

    def has(self, axes: Iterable[str]) -> bool:
        """Return whether some of the axes are padded."""
        return any(base(axis) in self.filled for axis in axes)

    def lines(self, lines: Iterable[Statement], zero: set[str]) -> None:
        for line in lines:
            if isinstance(line, Loop):
                self.repeat(line, zero)
            else:
                self.line(line, zero)

    def repeat(self, line: Loop, zero: set[str]) -> None:
        inner = _PaddingCheck(self.filled, {**self.values, **line.values})
        begun = {carry.start for carry in line.carry if carry.initial in zero}
        given = {name for name, stack in line.each if stack in zero}
        while True:  # loop-carried values have zero padding if every iteration preserves it
            inside = zero | begun | given
            inner.lines(line.lines, inside)
            ended = {carry.start for carry in line.carry if carry.end in inside} & begun
            if ended == begun:
                break
            begun = ended
        zero |= {carry.final for carry in line.carry if carry.start in begun}
        zero |= {stack for name, stack in line.keep if name in inside}

    def line(self, line: Line, zero: set[str]) -> None:
        axes = [axis for axis in line.loops if base(axis) in self.filled]
        if is_collective(line):
            source = line.right[0] if line.right else None
            moved = isinstance(source, Term) and self.has(source.declared)
            self.note(line.left, not moved or source.name in zero, zero)  # type: ignore[union-attr]
            return
        if not axes:
            self.note(line.left, True, zero)
            return
        for axis in axes:
            if any(axis not in term.axes for term in line.left):
                self.summed(line, axis, zero)
        self.note(line.left, self.is_zero(line, axes, zero), zero)

    def note(self, left: Sequence[Term], is_zero: bool, zero: set[str]) -> None:
        for term in left:
            (zero.add if is_zero and self.has(term.declared) else zero.discard)(term.name)

    def summed(self, line: Line, axis: str, zero: set[str]) -> None:
        """Check that a line that sums over an axis has a factor with zero padding."""
        if not isinstance(line, Product) or not self._has_zero(line, axis, zero):
            text = str(line).partition("\n")[0]
            raise InputError(f"padded region of {axis} may be non-zero: {text}")

    def is_zero(self, line: Line, axes: Iterable[str], zero: set[str]) -> bool:
        """Return whether the padding of a line's result is 0."""
        if isinstance(line, Product):
            return all(self._has_zero(line, axis, zero) for axis in axes)
        is_plain = all(isinstance(o, Literal) or not o.indexed for o in line.right)
        zeros = [isinstance(o, Term) and o.name in zero and {*axes} <= {*o.axes} for o in line.right]
        if isinstance(line, Sum):
            return is_plain and all(zeros)
        assert isinstance(line, Op)
        op = entry(line.op)
        if op.fill is not None:
            return op.fill == 0
        if not op.pointwise or not is_plain:
            return False
        if op.body_text or line.part != "body":
            steps, more = expanded(line, self.values)
            inner = _PaddingCheck(self.filled, {**self.values, **more})
            inside = {*zero}
            inner.lines(steps, inside)
            zero |= {term.name for term in line.left if term.name in inside}
            return all(term.name in inside for term in line.left)
        if not any(zeros):
            return False
        numbers = [np.where(zero_there, 0.0, _NUMBERS) for zero_there in zeros]
        with np.errstate(all="ignore"):  # 0/0 is nan, and not 0
            return not np.any(function_of(op)(*numbers))

    def _has_zero(self, line: Product, axis: str, zero: set[str]) -> bool:
        """Return whether a factor with an axis has zero padding there."""
        return any(isinstance(each, Term) and axis in each.axes and each.name in zero for each in line.right)
