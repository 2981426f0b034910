"""What stands where parts are filled up: a static check that it is 0 wherever a line sums over it.

Weights that no axis of theirs lets cut equally lie in equal parts all the same, as those of PyTorch's FSDP2 do: as
many places as the first device has, of which the last ones have fewer, or none, of their own. The rest is 0 in what is
given and in what collectives make, and it is left out again where parts are put together. What lines make of zeros has
to be 0, too, where another line sums over it, and in new weights and states, which the next step is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from learncost.interpreter.operation import function_of
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.ops import entry
from learncost.ops.collectives import is_collective
from learncost.passes.lower import expanded

_NUMBERS = (-2.0, 0.5, 1.0, 3.0)
"""What stands for numbers that are not known to be 0."""


def check_filled(table: Table, filled: Mapping[str, int]) -> None:
    """Refuse a placed table that would sum what is not 0 where parts are filled up. Raises `InputError`.

    filled  the axes of such parts, `d/dp`, with their sizes
    """
    check = _PaddingCheck(filled, {**table.values})
    zero = {name for name in (*table.inputs, *table.weights) if check.has(table.axes[name])}
    check.lines(table.lines, zero)
    for name in table.renewed.values():
        if check.has(table.axes[name]) and name not in zero:
            axis = check.said(table.axes[name])
            raise InputError(f"{axis} is filled up, and it cannot be shown that {name} is 0 there")


def stays_zero(line: Line, axis: str, values: Mapping[str, Value]) -> bool:
    """Whether a line makes 0 where parts of an axis are filled up, if all that it reads along it is 0 there."""
    zero = {o.name for o in line.right if isinstance(o, Term) and axis in o.axes}
    return _PaddingCheck({base(axis): 0}, dict(values)).is_zero(line, [axis], zero)


class _PaddingCheck:
    """Goes through lines; `zero` are names of arrays in filled parts, which have 0 where these are filled up."""

    def __init__(self, filled: Mapping[str, int], values: dict[str, Value]) -> None:
        self.filled, self.values = filled, values

    def has(self, axes: Iterable[str]) -> bool:
        """Whether one of some axes is filled up."""
        return any(base(axis) in self.filled for axis in axes)

    def said(self, axes: Iterable[str]) -> str:
        """The first axis that is."""
        return next(base(axis) for axis in axes if base(axis) in self.filled)

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
        while True:  # what turns hand on is 0 if every turn leaves it so
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
        """A line that sums over an axis needs one factor that is 0 there."""
        if not isinstance(line, Product) or not self._has_zero(line, axis, zero):
            text = str(line).partition("\n")[0]
            raise InputError(f"{axis} is filled up, and what stands there cannot be shown to be 0: {text}")

    def is_zero(self, line: Line, axes: Iterable[str], zero: set[str]) -> bool:
        """Whether what a line makes is 0 where axes are filled up."""
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
        with np.errstate(all="ignore"):  # 0/0 is no number, and not 0
            return not np.any(function_of(op)(*numbers))

    def _has_zero(self, line: Product, axis: str, zero: set[str]) -> bool:
        """Whether a factor that has all of an axis is 0 where that is filled up."""
        return any(isinstance(each, Term) and axis in each.axes and each.name in zero for each in line.right)
