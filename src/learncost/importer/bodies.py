"""Replace lines that spell out the body of an op by the op itself (idiom recognition).

This is done for ops that PyTorch has no function for, which a program has to write out. The op has a gradient, which
computes less than that of the lines. An op that PyTorch has a function for is read
only as a call of that function: a module that writes it out runs the lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import TypeAlias

from learncost.importer.equations import DimensionCondition, Equation, NamedView, NumberOperand, Operand
from learncost.importer.text import through
from learncost.importer.views import AxisIndex, Index, IndexedAxis, StoredValue, ViewAxis
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.term import Literal, Term
from learncost.ops import entries
from learncost.ops.op_def import OpDef

Loop: TypeAlias = tuple[Hashable, int]
"""An index over which a line loops: one of its letters and an axis with this letter."""

COMMUTATIVE = ("maximum", "minimum")
"""Commutative ops of two operands."""


@lru_cache(maxsize=1)
def ops() -> tuple[OpDef, ...]:
    """Return the ops that PyTorch has no function for and that act along axes."""
    return tuple(
        op for op in entries() if op.gradient and len(op.body) > 1 and not op.pointwise and "torch" not in op.spelled
    )


def with_ops(equations: Sequence[Equation], outputs: Iterable[StoredValue]) -> list[Equation]:
    """Return the lines with an op in place of the last line of its body; the other lines of the body are left there.

    outputs  values that must remain
    """
    makers: dict[StoredValue, list[Equation]] = {}
    readers: dict[StoredValue, set[Equation]] = {}
    for equation in equations:
        for read in equation.left:
            makers.setdefault(read.view.stored, []).append(equation)
        for stored in equation.reads:
            readers.setdefault(stored, set()).add(equation)
    alone = {stored: each[0] for stored, each in makers.items() if len(each) == 1}
    kept = set(outputs)

    def as_word(last: Equation) -> Equation:
        for op in ops():
            body = _Body(op, alone)
            if not body.ends_with(last):
                continue
            before = {line.stored for line in body.lines[1:]}
            if before.isdisjoint(kept) and all(readers[stored] <= {*body.lines} for stored in before):
                return body.said() or last
        return last

    return [as_word(equation) for equation in equations]


@dataclass
class _ReadValue:
    """A read of a value by a line: its loops by slot, and the loops of the last line that they correspond to, where
    known.
    """

    read: NamedView
    loops: dict[Loop, Loop]
    of_slot: Mapping[ViewAxis, Loop] = field(init=False)

    def __post_init__(self) -> None:
        self.read = NamedView(self.read.view.fresh(), self.read.letters)
        self.of_slot = _of_slot(self.read)

    @property
    def own(self) -> set[Loop | None]:
        """Return the loops of the last line along which the value varies; None for an unknown one."""
        return {self.loops.get(self.of_slot[slot]) for slot in self.of_slot if slot not in self.read.view.spread}

    def meets(self, other: _ReadValue) -> bool:
        """Return whether both read the same numbers, and unify their loops if they do."""
        mine, theirs = self.read.view, other.read.view
        return mine.stored is theirs.stored and all(
            self._same(here, there, other) for here, there in zip(mine.index, theirs.index, strict=True)
        )

    def _same(self, here: Index, there: Index, other: _ReadValue) -> bool:
        if isinstance(here, ViewAxis) and isinstance(there, ViewAxis):
            loop = other.loops[other.of_slot[there]]
            return self.loops.setdefault(self.of_slot[here], loop) == loop
        if isinstance(here, AxisIndex) and isinstance(there, AxisIndex):
            parts = zip(here.parts, there.parts, strict=False)
            identical = len(here.parts) == len(there.parts) and bool(here.start == there.start)
            return identical and all(a == b and self._same(mine, its, other) for (a, mine), (b, its) in parts)
        if isinstance(here, IndexedAxis) and isinstance(there, IndexedAxis):
            mine, theirs = here.view.fresh(), there.view.fresh()
            pairs = zip(mine.index, theirs.index, strict=True)
            return mine.stored is theirs.stored and all(self._same(one, two, other) for one, two in pairs)
        return False

    def as_the_last(self) -> NamedView | None:
        """Return the read in the letters of the last line; None if they name different axes."""
        letters: list[Hashable] = []
        for number, (letter, row) in enumerate(zip(self.read.letters, self.read.view.dims, strict=True)):
            loops = [self.loops.get((letter, place)) for place in range(len(row))]
            called = loops[0][0] if loops and loops[0] is not None else ("one place", number)
            if loops != [(called, place) for place in range(len(row))]:
                return None
            letters.append(called)
        return NamedView(self.read.view, tuple(letters))


@dataclass
class _Body:
    """The body of an op, matched line by line from the last one backwards.

    makers  the line that makes a value, where it is one
    along   the loops of the last line that match `n`
    values  the matched value of each name of the body, as the first matched line reads it
    lines   the lines matched so far
    """

    op: OpDef
    makers: Mapping[StoredValue, Equation]
    along: set[Loop] = field(default_factory=set)
    values: dict[str, _ReadValue | NumberOperand] = field(default_factory=dict)
    lines: list[Equation] = field(default_factory=list)

    def ends_with(self, last: Equation) -> bool:
        """Return whether a line matches the last one of the body, and earlier lines match the others."""
        if not last.left[0].view.is_plain:
            return False
        loops = {loop: loop for loop in _of_slot(last.left[0]).values()}
        if not self._is(self.op.body[-1], last, loops):
            return False
        first = self.values[self.op.inputs[0]]
        return isinstance(first, _ReadValue) and first.own == {*loops}

    def _is(self, rule: Line, equation: Equation, loops: Mapping[Loop, Loop]) -> bool:
        """Return whether an equation matches a line of the body, and the makers of its operands match earlier lines.

        loops  the known correspondence of the equation's loops
        """
        if not _has_same_kind(rule, equation):
            return False
        before = {*self.along}, {**self.values}, [*self.lines]
        for operands in _orders(rule, equation):
            known = dict(loops)
            self.lines.append(equation)
            pairs = zip(rule.right, operands, strict=True)
            if all(self._takes(term, operand, known) for term, operand in pairs) and self._acts(rule, equation, known):
                return True
            self.along, self.values, self.lines = {*before[0]}, {**before[1]}, [*before[2]]
        return False

    def _takes(self, rule: Term | Literal, operand: Operand, loops: dict[Loop, Loop]) -> bool:
        """Return whether an operand matches the operand of a line of the body."""
        if isinstance(rule, Literal):
            return (
                isinstance(operand, NumberOperand) and operand.value == rule.value and not (operand.axes or rule.sizes)
            )
        is_given = rule.name in self.op.inputs
        if isinstance(operand, NumberOperand):
            return is_given and "n" not in rule.declared and self.values.setdefault(rule.name, operand) == operand
        here, there = _ReadValue(operand, loops), self.values.get(rule.name)
        if there is not None:
            return isinstance(there, _ReadValue) and here.meets(there)
        unknown = [loop for loop in here.of_slot.values() if loop not in loops]
        if len(unknown) == len(self.along) == 1 and "n" in rule.declared:
            loops[unknown[0]] = next(iter(self.along))
        if None in here.own:
            return False
        self.values[rule.name] = here
        return self._learns(rule.name) if is_given else self._is_made(rule.name, here)

    def _learns(self, name: str) -> bool:
        """Return whether an operand may have a gradient."""
        return any(term.name == f"d{name}" for line in self.op.gradient for term in line.left)

    def _is_made(self, name: str, here: _ReadValue) -> bool:
        """Return whether a value is made by the lines that match the maker of this name."""
        source = self.makers.get(here.read.view.stored)
        (rule,) = (line for line in self.op.body if line.name == name)
        if source is None or not source.left[0].view.is_plain:
            return False
        left = _ReadValue(source.left[0], {})
        return left.meets(here) and self._is(rule, source, left.loops)

    def _acts(self, rule: Line, equation: Equation, loops: Mapping[Loop, Loop]) -> bool:
        """Return whether a line reduces along the axes of the op, or along none, as the body does."""
        left = {*_of_slot(equation.left[0]).values()}
        reads = [each for each in (*equation.left, *equation.operands) if isinstance(each, NamedView)]
        acts = {loops.get(loop) for read in reads for loop in _of_slot(read).values() if loop not in left}
        if len({*loops.values()}) < len(loops) or None in acts:
            return False
        if "n" in rule.left[0].declared or not any("n" in term.declared for term in rule.right):
            return not acts
        self.along = self.along or {loop for loop in acts if loop is not None}
        return bool(acts) and acts == self.along

    def said(self) -> Equation | None:
        """Return the op that replaces the last line; None if the op cannot be written there."""
        last = self.lines[0]
        letters = tuple(dict.fromkeys(letter for letter, _ in sorted(self.along, key=str)))
        if {loop for loop in _of_slot(last.left[0]).values() if loop[0] in letters} != self.along:
            return None
        values = [self.values[name] for name in self.op.inputs]
        operands = [value if isinstance(value, NumberOperand) else value.as_the_last() for value in values]
        given = [operand for operand in operands if operand is not None]
        if len(given) < len(operands):
            return None
        return replace(last, kind="op", operands=tuple(given), signs=(), op=self.op.name, acts=letters)


def before_masks(equations: Sequence[Equation]) -> list[Equation]:
    """Return the lines with softmaxes of scores under a causal mask as those of all scores, under a condition."""
    makers = {each.stored: each for each in equations if each.hides is not None}
    return [_before_mask(each, makers) for each in equations]


def _before_mask(equation: Equation, makers: Mapping[StoredValue, Equation]) -> Equation:
    first = equation.operands[0] if equation.op in _softmaxes() else None
    line = makers.get(first.view.stored) if isinstance(first, NamedView) else None
    if line is None or line.hides is None or not isinstance(first, NamedView) or len(first.letters) < 2:
        return equation
    (place, mask), view, made = line.hides, first.view.fresh(), line.left[0].view.fresh()
    source, (row, column) = line.operands[place], first.letters[-2:]
    at = [[n for n, each in enumerate(of.index) if each in of.dims[dim]] for of in (view, made) for dim in (-2, -1)]
    if not view.is_plain or at[:2] != at[2:] or any(len(each) != 1 for each in at) or equation.acts != (column,):
        return equation
    assert isinstance(source, NamedView)
    scores = through(view, line, source)
    if any(slot in scores.spread for slots in scores.dims[-2:] for slot in slots):
        return equation
    where = DimensionCondition(column, "<=", row, mask.window)
    return replace(equation, operands=(NamedView(scores, first.letters), *equation.operands[1:]), where=(where,))


@lru_cache(maxsize=1)
def _softmaxes() -> frozenset[str]:
    """Return the ops that may read scores before a mask."""
    return frozenset(("softmax", *(op.name for op in ops() if op.outside is not None and op.outside < 0)))


def _has_same_kind(rule: Line, equation: Equation) -> bool:
    """Return whether an equation has the kind, op and number of operands of a line."""
    if len(equation.left) > 1 or equation.where or equation.cost is not None:
        return False
    if len(_operands(equation)) != len(rule.right):
        return False
    if isinstance(rule, Sum):
        return equation.kind == "sum" and equation.signs == rule.signs
    if isinstance(rule, Op):
        return equation.kind == "op" and equation.op == rule.op
    return equation.kind == "product"


def _operands(equation: Equation) -> tuple[Operand, ...]:
    """Return the operands, without a factor of one in a product."""
    if equation.kind != "product":
        return equation.operands
    return tuple(each for each in equation.operands if each != NumberOperand(1.0))


def _orders(rule: Line, equation: Equation) -> list[tuple[Operand, ...]]:
    """Return the operands of an equation in every equivalent order."""
    operands = _operands(equation)
    free = isinstance(rule, Product) or (isinstance(rule, Sum) and set(rule.signs) == {1})
    if isinstance(rule, Op):
        free = rule.op in COMMUTATIVE
    return list(permutations(operands)) if free else [operands]


def _of_slot(read: NamedView) -> dict[ViewAxis, Loop]:
    """Return the letter and axis of each slot of a read."""
    rows = zip(read.letters, read.view.fresh().dims, strict=True)
    return {slot: (letter, place) for letter, row in rows for place, slot in enumerate(row)}
