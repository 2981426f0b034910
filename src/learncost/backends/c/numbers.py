"""Build the expressions of a kernel: operands and right sides of lines at a position."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isinf

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays, Positions
from learncost.backends.c.schedule import KINDS, LoopNode, ScheduledValue
from learncost.backends.c.tree import ZERO, chosen, joined, times
from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, field
from learncost.ir.line import Condition, Op, Product, Sum
from learncost.ir.polynomial import factors, summands
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ops import OpDef, entry

_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.Gt: ">", ast.Eq: "==", ast.And: "&&",
    ast.USub: "-",
}  # fmt: skip


_SUFFIXES = {"float": "f", "real": "_real"}
"""The type suffixes of function names."""


@dataclass(frozen=True)
class Numbers:
    """The values that a loop of the schedule reads and computes."""

    arrays: Arrays
    node: LoopNode
    computed: dict[tuple[object, ...], tree.HoistedValue] = field(default_factory=dict)

    def number(self, operand: Operand, at: Positions) -> tree.Expression:
        """Return an operand at a position."""
        if isinstance(operand, Literal):
            return self._literal(operand)
        value = self.arrays.values.get(operand.name)
        number: tree.Expression = (
            self._given(operand, at) if value is None else self.value_at(value, self.inside(value, operand, at))
        )
        for place, size in self._beyond(operand):
            number = chosen(self._on_axis(place, size, at), number, self._literal(Literal(place.outside)))
        return number

    def written(self, left: Term, number: tree.Expression, at: Positions) -> tree.Expression:
        """Return the value added at a written position: zero beyond the ends of an axis."""
        for place, size in self._beyond(left):
            number = chosen(self._on_axis(place, size, at), number, ZERO)
        return number

    def _beyond(self, term: Term) -> Iterator[tuple[Affine, tree.Expression]]:
        """Return the positions that may be out of bounds, with the sizes of their axes."""
        value = self.arrays.values.get(term.name)
        sizes = self.arrays.read_array(term).extents if value is None else tuple(map(self.arrays.size, value.axes))
        yield from ((place, sizes[number]) for number, place in term.beyond)

    def _on_axis(self, affine: Affine, size: tree.Expression, at: Positions) -> tree.Expression:
        place = self._affine(affine, at)
        return joined(
            "&&", [tree.OperationExpression("<=", (ZERO, place)), tree.OperationExpression("<", (place, size))]
        )

    def _affine(self, place: Affine, at: Positions) -> tree.Expression:
        """Return the position that an index expression gives."""
        total: tree.Expression | None = None
        for part in place.parts:
            factors = [tree.NameExpression(str(abs(part.factor)))] if abs(part.factor) != 1 else []
            sizes = times(*(self.arrays.size(size) for size in part.sizes))
            if part.over != 1:
                sizes = tree.OperationExpression("/", (sizes, tree.NameExpression(str(part.over))))
            number = times(*factors, sizes, *([at[part.axis]] if part.axis else []))
            if total is None:
                total = number if part.factor >= 0 else tree.OperationExpression("-", (number,))
            else:
                total = tree.OperationExpression("+" if part.factor >= 0 else "-", (total, number))
        return total or ZERO

    def _place(self, axis: str | Read, at: Positions, size: tree.Expression) -> tree.Expression:
        """Return an index for an axis; an out-of-bounds index becomes 0, and its value is unused."""
        if isinstance(axis, str):
            return at[axis]
        if isinstance(axis.at, Affine):
            place = self._affine(axis.at, at)
            return place if axis.at.fixed else chosen(self._on_axis(axis.at, size, at), place, ZERO)
        index = self.number(axis.at, at)
        is_place = isinstance(index, tree.HoistedValue) and index.type == "place"
        return index if is_place else tree.OperationExpression("(place)", (index,))

    def _index(self, axis: Read, at: Positions) -> tree.Expression:
        return self.number(axis.at, at) if isinstance(axis.at, Term) else self._affine(axis.at, at)

    def inside(self, value: ScheduledValue, term: Term, at: Positions) -> Positions:
        """Return the indices of a value's axes when a term reads it."""
        return {
            axis: self._place(read, at, self.arrays.size(axis))
            for axis, read in zip(value.axes, term.axes, strict=True)
        }

    def _type(self, kind: str) -> str:
        return {"real": self.arrays.real, "index": "place", "bool": "int"}[kind]

    def _literal(self, literal: Literal) -> tree.Expression:
        real, sizes = self.arrays.real, self.arrays.sizes
        if literal.sizes and self.arrays.alone:
            return self._literal(Literal(literal.number(sizes)))
        if literal.sizes:
            points = times(*(tree.OperationExpression("(double)", (self._total(size),)) for size in literal.sizes))
            value, power = (tree.NameExpression(repr(number)) for number in (literal.value, literal.power))
            number = tree.OperationExpression(f"({real})", (times(value, tree.CallExpression("pow", (points, power))),))
            return tree.HoistedValue(("literal", literal), "number", real, number)
        if isinf(literal.value):
            return tree.NameExpression("LOWEST" if literal.value < 0 else "(-LOWEST)")
        if self.arrays.alone:
            return tree.NameExpression(f"({real}){float(literal.value)!r}")
        text = f"{float(literal.value)!r}{'f' if real == 'float' else ''}"
        return tree.NameExpression(text if literal.value >= 0 else f"({text})")

    def _total(self, size: str) -> tree.Expression:
        """Return a size, or a sum of sizes."""
        (_, first), *more = summands(size)
        total = self.arrays.count(factors(first))
        for sign, summand in more:
            total = tree.OperationExpression("+" if sign > 0 else "-", (total, self.arrays.count(factors(summand))))
        return total

    def _given(self, term: Term, at: Positions) -> tree.HoistedValue:
        """Return an element of an array that the kernel reads."""
        store = self.arrays.read_array(term)
        places = [self._place(axis, at, size) for axis, size in zip(term.axes, store.extents, strict=True)]
        kind = KINDS.get(self.arrays.dtypes[term.name], "real")
        number = self.arrays.widened(self.arrays.element(store, places), store.array.type)
        key = ("given", term.name, *places)
        return tree.HoistedValue(key, f"{store.array.name}_i", self._type(kind), number)

    def value_at(self, value: ScheduledValue, at: Positions) -> tree.HoistedValue:
        """Return a value of the kernel at a position: loaded or computed inline."""
        key = ("made", value.name, *(at[axis] for axis in value.axes))
        if key not in self.computed:
            loaded = value.kind != "pointwise" or (
                value.stored and value.reread and self.arrays.schedule.moment(self.node, value)
            )
            name = self.arrays.names.of(value.name) + ("_i" if value.stored or loaded else "")
            within = self.arrays.base(self.node.place.phase) if loaded else ""
            number = self.arrays.loaded(value, at) if loaded else self._computed(value, at)
            self.computed[key] = tree.HoistedValue(key, name, self._type(value.type), number, within)
        return self.computed[key]

    def _computed(self, value: ScheduledValue, at: Positions) -> tree.Expression:
        """Return the right side of a pointwise line at a position."""
        line, left = value.line, value.line.left[0]
        numbers = [self.number(operand, at) for operand in line.right]
        if left.indexed:  # one number in a row of zeros
            reads = left.indexed_axes
            tests = [_equal(at[axis.axis], self._index(axis, at)) for axis in reads]
            return chosen(joined("&&", tests), numbers[0], ZERO)
        if isinstance(line, Product):
            return times(*numbers)
        if isinstance(line, Sum):
            return _signed(line.signs, numbers)
        assert isinstance(line, Op)
        if line.op in ("inside", "select") and len(numbers) in (0, 2):
            holds = joined("&&", [test for condition in line.where for test in self._holds(condition, at)])
            return chosen(holds, numbers[0], numbers[1]) if numbers else holds
        row = entry(line.op)
        if row.fill is not None:
            return self._literal(Literal(row.fill)) if row.fill else ZERO
        if row.name == "eye":
            half = len(left.axes) // 2
            pairs = zip(left.axes[:half], left.axes[half:], strict=True)
            return joined("&&", [_equal(at[str(a)], at[str(b)]) for a, b in pairs])
        return primitive(row, numbers, self.arrays.real)

    def _holds(self, condition: Condition, at: Positions) -> list[tree.Expression]:
        """Return the bounds check of a position, in 32 bits, which vectorizes like fp32."""
        low, up = (
            tree.NameExpression(side) if side.isdigit() else tree.OperationExpression("(int)", (at[side],))
            for side in (condition.lower, condition.upper)
        )
        sign = "==" if condition.relation == "=" else condition.relation
        tests: list[tree.Expression] = [tree.OperationExpression(sign, (low, up))]
        if condition.window is not None:
            window = tree.OperationExpression("(int)", (self.arrays.size(condition.window),))
            tests.append(tree.OperationExpression("<", (up, tree.OperationExpression("+", (low, window)))))
        return tests


def primitive(row: OpDef, numbers: Sequence[tree.Expression], real: str) -> tree.Expression:
    """Return a primitive applied to numbers of a type."""
    text = (row.c or f"{row.name}({', '.join(row.inputs)})").format(real=real)
    return _expression(_parsed(text), dict(zip(row.inputs, numbers, strict=True)), real)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _expression(node: ast.expr, operands: Mapping[str, tree.Expression], real: str) -> tree.Expression:
    """Return an expression of the vocabulary; a function without a type in its name is from <math.h>."""

    def inner(operand: ast.expr) -> tree.Expression:
        return _expression(operand, operands, real)

    if isinstance(node, ast.Name):
        return operands[node.id]
    if isinstance(node, ast.IfExp):
        return chosen(inner(node.test), inner(node.body), inner(node.orelse))
    if isinstance(node, ast.Compare):
        return tree.OperationExpression(_SIGNS[type(node.ops[0])], (inner(node.left), inner(node.comparators[0])))
    if isinstance(node, ast.BinOp):
        return tree.OperationExpression(_SIGNS[type(node.op)], (inner(node.left), inner(node.right)))
    if isinstance(node, ast.UnaryOp):
        return tree.OperationExpression(_SIGNS[type(node.op)], (inner(node.operand),))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        suffix = "" if name.endswith(real) else _SUFFIXES.get(real, "")
        return tree.CallExpression(name + suffix, tuple(map(inner, node.args)))
    assert isinstance(node, ast.Constant), ast.dump(node)
    return tree.NameExpression(repr(node.value))


def _equal(left: tree.Expression, right: tree.Expression) -> tree.Expression:
    return tree.OperationExpression("==", (left, right))


def _signed(signs: Sequence[int], numbers: list[tree.Expression]) -> tree.Expression:
    total = numbers[0] if signs[0] > 0 else tree.OperationExpression("-", (numbers[0],))
    for sign, number in zip(signs[1:], numbers[1:], strict=True):
        total = tree.OperationExpression("+" if sign > 0 else "-", (total, number))
    return total
