"""Lower tables to primitives, which is the form that is executed.

In a lowered table, index reads are separate lines, products have two factors, axes of only one factor are summed first,
sums have two terms, and ops are replaced by their bodies. A `where` becomes a select only if a masked value could reach
a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from math import prod
from typing import Any

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base, whole
from learncost.ir.table import Table
from learncost.ir.term import Axis, Literal, Operand, Read, Term
from learncost.ir.value import IdentityKey, Value
from learncost.layers.layer import table_of
from learncost.layers.spelling import spell
from learncost.ops import entry
from learncost.passes.normal_forms import (
    MaskCondition,
    OutsideValues,
    bounds,
    join_of,
    moved,
    narrowest,
    pair,
    read_back,
    within,
)


def lower(table: Table, whole: bool = False, joins: bool = True) -> Table:
    """Lower a table to primitives.

    Ops are replaced by their bodies, products have two factors, sums two terms.

    Parameters
    ----------
    table
        The table.
    whole
        Whether an op remains unexpanded if its result is the same.
    joins
        Whether sums that concatenate arrays become the op `join`, which adds nothing.

    Returns
    -------
    Table
        The lowered table. The metadata of every line names the line it comes from.

    Examples
    --------
    >>> table = lc.layer('''act(X) -> Y
    ...   Y[B M d] = silu(X[B M d])
    ... ''').table
    >>> len(table.lines), len(lc.lower(table).lines)
    (1, 5)
    """
    return _lowered(IdentityKey(table_of(table)), whole, joins)


@lru_cache(maxsize=32)
def _lowered(same: IdentityKey[Table], whole: bool, joins: bool) -> Table:
    """Return a lowered table, cached since verification and the predictions of engines lower one table several
    times."""
    table = same.content
    work = _Lowering(dict(table.values), frozenset(table.outputs) | _handed(table.lines), whole=whole, joins=joins)
    return replace(table, lines=work.statements(table.lines), values=work.values)


def lower_line(line: Line) -> tuple[Line, ...]:
    """Return the lowered lines of one line, without knowledge of other lines."""
    return _lowered_line(IdentityKey(line))


@lru_cache(maxsize=4096)
def _lowered_line(same: IdentityKey[Line]) -> tuple[Line, ...]:
    """Return the lowered lines of a line, cached since the steps of several procedures share lines."""
    work = _Lowering({}, frozenset())
    work.line(same.content)
    return tuple(work.out)


def expanded(line: Line, values: Mapping[str, Value]) -> tuple[tuple[Line, ...], dict[str, Value]]:
    """Return the lowered lines of a line in a scope, and the values of intermediates."""
    work = _Lowering(dict(values), frozenset())
    work.line(line)
    return tuple(work.out), {name: value for name, value in work.values.items() if name not in values}


def _is_normal(line: Line) -> bool:
    """Return whether a product or a sum without a `where` is already lowered."""
    left = line.left[0]
    if line.where or left.indexed or len(line.right) > 2 or any(term.indexed for term in line.right):
        return False
    if isinstance(line, Sum):
        return line.signs[0] > 0
    if not isinstance(line, Product) or isinstance(line.right[0], Literal):
        return False
    first, second, target = set(line.right[0].loops), set(line.right[-1].loops), set(left.loops)
    if len(line.right) == 1:
        return target <= first
    return target <= first | second and first ^ second <= target


def _handed(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the initial values of loop-carried names, which must be zero outside of a `where`."""
    return frozenset(carry.initial for line in lines if isinstance(line, Loop) for carry in line.carry)


@dataclass
class _Lowering:
    """The lowering of one scope.

    The result of a line with a `where` is zero outside of it. The zeros are written only if they matter: before that,
    an array may have any value there, and `outside` records the value if it is known, otherwise None.
    """

    values: dict[str, Value]
    outputs: frozenset[str]
    out: list[Line] = field(default_factory=list)
    steps: int = 0
    outside: OutsideValues = field(default_factory=OutsideValues)
    selected: dict[tuple[str, MaskCondition, float], str] = field(default_factory=dict)
    whole: bool = False
    joins: bool = True
    places: Iterator[int] = field(default_factory=count)  # of the lines, over all scopes

    def statements(self, lines: Iterable[Statement]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Loop):
                result.append(self.repeat(line))
                continue
            self.line(replace(line, meta=replace(line.meta, origin=next(self.places))))
            result.extend(self.out)
            self.out = []
        return tuple(result)

    def repeat(self, line: Loop) -> Loop:
        """Return a loop with its body lowered; slices have the outside values of their stacks."""
        read_in_slices = {name for name, value in self.values.items() if value.role == "saved"}
        ends = {carry.end for carry in line.carry} | {name for name, stack in line.keep if stack not in read_in_slices}
        inside = line.inside
        outside = OutsideValues({name: numbers for name, numbers in self.outside.items() if name not in inside})
        for name, stack in line.each:
            if stack in self.outside:
                iterations = 0 if line.part(name, self.axes(stack)) else -1  # a slice lacks the iteration axis
                outside[name] = moved(self.outside[stack], iterations)
        # Lines of the same name in two scopes have intermediates of the same name, with different axes.
        outer_values = {name: value for name, value in self.values.items() if value.role != "step"}
        handed = _handed(line.lines) | ends
        inner = _Lowering(
            {**outer_values, **line.values},
            handed,
            outside=outside,
            whole=self.whole,
            joins=self.joins,
            places=self.places,
        )
        body = inner.statements(line.lines)
        for name, stack in line.keep:
            if name in inner.outside:
                iterations = 0 if line.part(name, self.axes(stack)) else 1
                self.outside[stack] = moved(inner.outside[name], iterations)
        own_values = {
            name: value for name, value in inner.values.items() if name not in outer_values or name in line.values
        }
        return replace(line, lines=body, values=own_values)

    def axes(self, name: str) -> tuple[str, ...]:
        return self.values[name].axes if name in self.values else ()

    def line(self, line: Line) -> None:
        if len(line.where) > 1:
            line = line.with_changed(where=narrowest(line.where))
        line = line.with_changed(left=self.at_names(line, line.left), right=self.at_names(line, line.right))
        if self.outside:
            line = line.with_changed(right=tuple(self.settled(line, term) for term in line.right))
            for term in line.left:
                self.outside.pop(term.name, None)
                self.selected = {key: name for key, name in self.selected.items() if key[0] != term.name}
        if _is_normal(line):
            self.emit(line)
            return
        line = self.unindexed(line)
        if line.where and any(term.name in self.outputs for term in line.left) and not line.left[0].indexed:
            self.whole_output(line)
        elif isinstance(line, Product):
            self.product(line)
        elif isinstance(line, Sum):
            self.sum(line)
        elif isinstance(line, Op):
            self.op(line)

    def emit(self, line: Line) -> None:
        for term in line.left:
            self.values.setdefault(term.name, Value(term.declared))
        numbers = {}
        for condition in line.where:
            at = pair(line.left[0], condition)
            if at:
                numbers[at] = self.outside.beyond(line, condition)
        if numbers:
            self.outside[line.name] = numbers
        self.out.append(line)

    def fresh(self, line: Line, axes: Iterable[str]) -> Term:
        self.steps += 1
        return self.step(f"{line.name}~{self.steps}", line, axes)

    def step(self, name: str, line: Line, axes: Iterable[str]) -> Term:
        """Return the term of an intermediate value of a line."""
        term = Term(name, tuple(axes))
        self.values.setdefault(name, Value(term.declared, "step", line.name))
        return term

    # Index reads are separate lines.

    def unindexed(self, line: Line) -> Line:
        if isinstance(line, Product) and len(line.right) == 1 and line.right[0].indexed and not line.left[0].indexed:
            term = line.right[0]
            if set(term.loops) == set(line.left[0].loops):
                return line
        if not any(term.indexed for term in line.right) or isinstance(line, Sum):
            return line
        if isinstance(line, Op) and line.op != "inside" and (beyond := entry(line.op).outside):
            line = replace(line, right=tuple(_with_outside(term, beyond) for term in line.right))
        right = tuple(self.gathered(line, t) if isinstance(t, Term) and t.indexed else t for t in line.right)
        return replace(line, right=right)

    def gathered(self, line: Line, term: Term) -> Term:
        left = self.fresh(line, term.loops)
        self.emit(Product((left,), (term,), (), line.meta))
        return left

    def at_names(self, line: Line, terms: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the terms after computing every index that is itself read at an index."""
        return tuple(
            Term(term.name, tuple(self._at_name(line, axis) for axis in term.axes))
            if isinstance(term, Term) and term.indexed
            else term
            for term in terms
        )

    def _at_name(self, line: Line, axis: str | Read) -> str | Read:
        if isinstance(axis, Read) and isinstance(axis.at, Term) and axis.at.indexed:
            (index,) = self.at_names(line, (axis.at,))
            return Read(axis.axis, self.gathered(line, index))
        return axis

    # Products.

    def product(self, line: Product) -> None:
        left = line.left[0]
        target = left
        if left.indexed:
            plain = left.loops
            if len(line.right) == 1 and set(line.right[0].loops) == set(plain) and not line.where:
                self.emit(read_back(left, line.right[0], line.meta) or line)
                return
            target = self.fresh(line, plain)
        line_where = tuple(c for c in line.where)
        factors: list[Operand] = list(self.guarded(line, target))
        factors.sort(key=lambda term: isinstance(term, Literal))  # numbers last; the sort is stable
        if len(factors) == 2 and factors[1] == Literal() and {*factors[0].loops} != {*target.loops}:
            factors.pop()  # a factor of one only marks a sum
        factors = [self.reduced(line, i, factors, target) for i in range(len(factors))]
        while len(factors) > 2:
            first, second, *rest = factors
            needed = set(target.loops) | {axis for term in rest for axis in term.loops}
            axes = [a for a in dict.fromkeys((*first.loops, *second.loops)) if a in needed]
            middle = self.fresh(line, axes)
            self.emit(
                Product((middle,), (first, second), _inside(line_where, (*first.loops, *second.loops)), line.meta)
            )
            factors = [middle, *rest]
        right = tuple(factors)
        missing = [a for a in target.loops if all(a not in term.loops for term in right)]
        if missing and len(right) > 1:
            middle = self.fresh(line, [a for a in target.loops if a not in missing])
            self.emit(Product((middle,), right, _inside(line_where, middle.loops), line.meta))
            right = (middle,)
        within = tuple(dict.fromkeys(axis for term in (target, *right) for axis in term.loops))
        self.emit(Product((target,), right, _inside(line_where, within), line.meta))
        if left.indexed:
            self.emit(read_back(left, target, line.meta) or Product((left,), (target,), (), line.meta))

    def reduced(self, line: Product, i: int, factors: list[Operand], target: Term) -> Operand:
        """Return a factor after summing its axes that no other term has."""
        term = factors[i]
        if len(factors) == 1 and not (target.loops and set(target.loops) - set(term.loops)):
            return term
        others = {a for j, other in enumerate(factors) if j != i for a in other.loops} | set(target.loops)
        axes = [a for a in term.loops if a in others]
        if len(axes) == len(term.loops):
            return term
        left = self.fresh(line, axes)
        self.emit(Product((left,), (term,), _inside(line.where, term.loops), line.meta))
        return left

    def guarded(self, line: Product, target: Term) -> tuple[Operand, ...]:
        """Return the factors of a product, one of them masked if a masked value would be summed otherwise."""
        factors = line.right
        for condition in line.where:
            if condition.axes <= set(target.loops) and not line.left[0].indexed:
                continue
            both = [i for i, t in enumerate(factors) if isinstance(t, Term) and condition.axes <= set(t.loops)]
            if any(self.outside.number_beyond(factors[i], condition) == 0.0 for i in both):
                continue
            if both:
                chosen = self.selected_term(line, factors[both[0]], condition, 0.0)
                factors = (*factors[: both[0]], chosen, *factors[both[0] + 1 :])
            else:
                mask = self.fresh(line, sorted(condition.axes))
                self.emit(Op((mask,), (), (condition,), line.meta, op="inside", gives=("Y",)))
                factors = (mask, *factors)
        return factors

    # Sums.

    def sum(self, line: Sum) -> None:
        if self.joins and (op := join_of(line)) is not None:
            self.emit(op)
            return
        line = line.with_changed(
            right=tuple(self.gathered(line, t) if isinstance(t, Term) and t.indexed else t for t in line.right)
        )
        terms = sorted(zip(line.signs, line.right, strict=True), key=lambda item: -item[0])
        if terms[0][0] < 0:
            last = len(terms) == 1
            left = line.left[0] if last else self.fresh(line, terms[0][1].loops)
            self.emit(Product((left,), (terms[0][1], Literal(-1.0)), line.where if last else (), line.meta))
            if last:
                return
            terms[0] = (1, left)
        acc = terms[0][1]
        for sign, term in terms[1:-1]:
            axes = dict.fromkeys((*acc.loops, *term.loops))
            middle = self.fresh(line, [a for a in line.left[0].loops if a in axes])
            where = _inside(line.where, middle.loops)
            self.emit(Sum((middle,), (acc, term), where, line.meta, (1, sign)))
            acc = middle
        if len(terms) == 1:
            self.emit(Sum(line.left, (acc,), line.where, line.meta, (1,)))
        else:
            self.emit(Sum(line.left, (acc, terms[-1][1]), line.where, line.meta, (1, terms[-1][0])))

    # Ops.

    def op(self, line: Op) -> None:
        if line.opaque:
            self.emit(line)
            return
        op = entry(line.op) if line.op != "inside" else None
        if op and op.empty and line.part == "body" and _may_be_empty(line):
            op, line = entry(op.empty), replace(line, op=op.empty)
        if op and line.part == "body" and op.outside is not None:
            line = self.guarded_op(line, op.outside)
        if op is None or (not op.body and line.part == "body"):
            self.emit(line)
            return
        numbers = any(isinstance(term, Literal) for term in line.right)
        written = line.part == "jacobian" or (not op.body and (numbers or op.kind == "scan"))
        if written or not (self.whole and self.stays_whole(line)):
            self.through_body(line)

    def stays_whole(self, line: Op) -> bool:
        """Emit the op unexpanded unless its body needs masks, with the outside values of the body; return whether it
        was emitted."""
        tried = replace(
            self,
            values=dict(self.values),
            out=[],
            outside=OutsideValues({name: dict(numbers) for name, numbers in self.outside.items()}),
            selected=dict(self.selected),
            whole=False,
        )
        tried.through_body(line)
        masks = (mask for mask in tried.out if isinstance(mask, Op) and mask.where)
        if any(mask.op == "inside" or (mask.op == "select" and len(mask.right) == 2) for mask in masks):
            return False
        self.emit(line)
        for term in line.left:
            self.values.setdefault(term.name, Value(term.declared))
            self.outside.pop(term.name, None)
            if term.name in tried.outside:
                self.outside[term.name] = tried.outside[term.name]
        return True

    def through_body(self, line: Op) -> None:
        op = entry(line.op)
        bindings: dict[str, Operand] = dict(zip(line.given, line.right, strict=True))
        bindings.update(zip(line.gives, line.left, strict=True))
        second: dict[str, str] = {}
        if line.part == "jacobian":
            full = line.left[0].declared
            second = dict(zip(line.axes, full[len(full) - len(line.axes) :], strict=True))
        for body in op.lines(line.part, line.gives):
            placed = self.placed(line, body, bindings, second)
            number = None if body.name in line.gives else _number(placed)
            if number is None:
                self.line(placed)
            else:
                bindings[body.name] = number

    def placed(self, line: Op, body: Line, bindings: Mapping[str, Operand], second: Mapping[str, str]) -> Line:
        """Return a line of an op's table with the operands, results and axes of this use."""

        def place(term: Operand) -> Operand:
            if isinstance(term, Literal):
                return replace(term, sizes=spell(term.sizes, line, second)) if term.sizes else term
            actual = bindings.get(term.name)
            if actual is None:
                # The mark makes the name unique, as dZ.K may be the gradient of another value Z.K.
                return self.step(f"{line.name}!{term.name}", line, spell(term.declared, line, second))
            if isinstance(actual, Term) and "n'" in term.axes and "n" not in term.axes:
                return actual.renamed({}, second)
            return actual

        right = tuple(place(term) for term in body.right)
        left = tuple(term for term in map(place, body.left) if isinstance(term, Term))
        where = line.where and _inside(line.where, {a for term in (*left, *right) for a in term.loops})
        if isinstance(body, Product):
            return Product(left, right, where, line.meta)
        if isinstance(body, Sum):
            return Sum(left, right, where, line.meta, body.signs)
        assert isinstance(body, Op)
        op = entry(body.op)
        defaults = op.defaults[len(right) - len(op.inputs) :] if len(right) < len(op.inputs) else ()
        axes = spell(body.axes, line, second)
        return Op(left, (*right, *defaults), where, line.meta, body.op, axes, body.part, op.inputs, op.outputs)

    def guarded_op(self, line: Op, value: float) -> Op:
        """Return the op with operands that have the op's outside value outside of its `where`."""
        right = line.right
        for condition in line.where:
            if not condition.axes & set(line.axes):
                continue
            right = tuple(
                self.selected_term(line, term, condition, value)
                if isinstance(term, Term)
                and condition.axes <= set(term.loops)
                and self.outside.number_beyond(term, condition) != value
                else term
                for term in right
            )
        return replace(line, right=right)

    # Outside values.

    def settled(self, line: Line, term: Operand) -> Operand:
        """Return an operand with zeros outside of its conditions, unless the line has the same conditions."""
        for at, value in list(self.outside.get(term.name, {}).items()):
            if value == 0.0 or any(within(bounds(c), at.read(term)) for c in line.where):
                continue
            if isinstance(line, Product) and self.outside.vanishes(line, term, at.read(term)):
                continue
            assert isinstance(term, Term)
            plain = self.values[term.name].axes
            term = Term(self.selected_term(line, Term(term.name, plain), at.on(plain), 0.0).name, term.axes)
        return term

    def selected_term(self, line: Line, term: Operand, condition: Condition, value: float) -> Term:
        assert isinstance(term, Term)
        at = pair(term, condition)
        assert at is not None
        key = (term.name, at, value)
        if key not in self.selected:
            numbers = self.outside.get(term.name, {})
            left = self.fresh(line, term.loops)
            select = Op(
                (left,), (term, Literal(value)), (condition,), line.meta, op="select", given=("X", "Z"), gives=("Y",)
            )
            self.emit(select)
            self.outside[left.name] = {p: v for p, v in numbers.items() if v is None or v == value} | {at: value}
            self.selected[key] = left.name
        return Term(self.selected[key], term.axes)

    def whole_output(self, line: Line) -> None:
        """Emit a line with zeros outside of its conditions."""
        raw = {term.name: self.fresh(line, term.loops) for term in line.left}
        moved = replace(line, left=tuple(raw.values()))
        if isinstance(moved, Product):
            self.product(moved)
        elif isinstance(moved, Sum):
            self.sum(moved)
        elif isinstance(moved, Op):
            self.op(moved)
        for left in line.left:
            term = raw[left.name]
            for condition in line.where:
                if condition.axes <= set(term.loops) and self.outside.number_beyond(term, condition) != 0.0:
                    term = self.selected_term(line, term, condition, 0.0)
            self.emit(Sum((left,), (term,), (), line.meta, (1,)))


def _with_outside(term: Operand, number: float) -> Operand:
    """Return an operand that has this number where its affine indices are out of bounds."""
    if not isinstance(term, Term) or not term.indexed:
        return term
    return Term(term.name, tuple(_at_with_outside(axis, number) for axis in term.axes))


def _at_with_outside(axis: Axis, number: float) -> Axis:
    if isinstance(axis, Read) and isinstance(axis.at, Affine):
        return Read(axis.axis, replace(axis.at, outside=number))
    return axis


def _may_be_empty(line: Op) -> bool:
    """Return whether the conditions may mask out all elements that an op acts on. A single condition that keeps the
    first position or the diagonal does not.
    """
    relevant = [condition for condition in line.where if condition.axes & {*line.axes}]
    if len(relevant) != 1:
        return bool(relevant)
    (condition,) = relevant
    same = base(whole(condition.lower)) == base(whole(condition.upper))
    first = condition.lower in line.axes and condition.window is None
    if condition.relation == "<":
        return not (first and condition.upper.isdigit() and int(condition.upper) > 0)
    return not (same or first) if condition.relation == "<=" else not (condition.relation == "=" and same)


def _number(line: Line) -> Operand | None:
    """Return the number that a line of numbers computes, or the operand that a number selects; None for any other
    line."""
    numbers = [term.value for term in line.right if isinstance(term, Literal) and not term.sizes]
    if isinstance(line, Op) and line.op == "select" and isinstance(line.right[0], Literal):
        return line.right[1 if numbers[0] else 2]
    if len(numbers) < len(line.right) or not numbers:
        return None
    if isinstance(line, Sum):
        return Literal(sum(sign * number for sign, number in zip(line.signs, numbers, strict=True)))
    value = entry(line.op).value(*numbers) if isinstance(line, Op) else prod(numbers)
    return None if value is None else Literal(value)


def _inside(where: Iterable[Condition], loops: Iterable[str]) -> tuple[Condition, ...]:
    loops = set(loops)
    return tuple(condition for condition in where if condition.axes <= loops)
