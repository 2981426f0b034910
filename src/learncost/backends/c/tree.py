"""The syntax tree of a kernel: numbers, stores and loops, nested as in the printed text."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from math import prod

from learncost.ir.dataclass import dataclass, field


class CNode:
    """Any part of a kernel."""


class Expression(CNode):
    """An expression."""


class CStatement(CNode):
    """A statement."""


@dataclass(frozen=True)
class NameExpression(Expression):
    """A name, or a number as C writes it."""

    text: str


ITERATION = "iteration"
ZERO, ONE = NameExpression("0"), NameExpression("1")


@dataclass(frozen=True)
class SizeExpression(Expression):
    """The number of positions along an axis of the table."""

    text: str
    axis: str


@dataclass(frozen=True)
class LoopCounter(Expression):
    """The counter of a loop."""

    text: str


@dataclass(frozen=True)
class ArrayMemory(CNode):
    """Memory.

    role    read, made: it is a parameter; scratch: of one iteration; sums: of a thread, to which all iterations add
    of      its name in the table; points: how many elements scratch has
    """

    name: str
    type: str
    role: str
    of: str = ""
    points: Expression = ONE


@dataclass(frozen=True)
class Element(Expression):
    """An element of an array: an index for every axis, the last one contiguous."""

    array: ArrayMemory
    extents: tuple[Expression, ...]
    operands: tuple[Expression, ...]

    @property
    def offset(self) -> Expression:
        total: Expression = ZERO
        for extent, index in zip(self.extents, self.operands, strict=True):
            total = index if total == ZERO else plus(times(total, extent), index)
        return total


@dataclass(frozen=True)
class OperationExpression(Expression):
    """A sign before one operand, among several (`? :` as "?")."""

    sign: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class CallExpression(Expression):
    """The call of a function or of a preprocessor macro."""

    function: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class HoistedValue(Expression):
    """A number computed once, in the outermost loop with its operands, not outside of `within`.

    key     equal for equal numbers
    name    that it gets unless another has it
    """

    key: Hashable
    name: str = field(compare=False)
    type: str = field(compare=False)
    value: Expression = field(compare=False)
    within: str = field(compare=False, default="")


@dataclass(frozen=True)
class Let(CStatement):
    """A variable; with a key, later `HoistedValue` of this key refer to it."""

    name: str
    type: str
    value: Expression
    key: Hashable = None
    changes: bool = False


@dataclass(frozen=True)
class Store(CStatement):
    """Store a value (=) or add it (+=)."""

    to: Expression
    value: Expression
    sign: str = "="


@dataclass(frozen=True)
class SimultaneousStores(CStatement):
    """Stores whose values are all read before the first store."""

    stores: tuple[Store, ...]


@dataclass(frozen=True)
class ForLoop(CStatement):
    """A loop over positions; with a step, over blocks.

    over         counters that do not change inside of it; none: its own
    independent  whether no iteration reads what another writes
    """

    counter: str
    first: Expression
    last: Expression
    body: tuple[CStatement, ...]
    step: Expression = ONE
    over: tuple[str, ...] = ()
    independent: bool = False

    @property
    def still(self) -> tuple[str, ...]:
        return self.over or (self.counter,)


@dataclass(frozen=True)
class Hoisted(CStatement):
    """Statements that run once before, in the innermost loop in which the counter `within` is invariant."""

    within: str
    statement: CStatement


@dataclass(frozen=True)
class MatrixBlock(CNode):
    """A matrix that two axes of an array span: its first element and the strides of the axes."""

    first: Element
    strides: tuple[Expression, Expression]

    @property
    def transposed(self) -> MatrixBlock:
        return MatrixBlock(self.first, (self.strides[1], self.strides[0]))

    @property
    def is_transposed(self) -> bool:
        return self.strides[1] != ONE

    @property
    def stride(self) -> Expression:
        return self.strides[0 if self.strides[1] == ONE else 1]


@dataclass(frozen=True)
class Packed(CNode):
    """A factor packed in rows or strips of cells: its start and the length of its summed axis."""

    form: str
    array: ArrayMemory
    length: Expression
    first: tuple[Expression, Expression]


@dataclass(frozen=True)
class Pack(CStatement):
    """Put a matrix of two extents into rows or strips."""

    form: str
    source: MatrixBlock
    to: ArrayMemory
    extents: tuple[Expression, Expression]


@dataclass(frozen=True)
class Dot(CStatement):
    """The matrix product C = A B, or C += A B; `extents` are its rows, its columns, its summed places."""

    line: str
    extents: tuple[Expression, Expression, Expression]
    left: MatrixBlock | Packed
    right: MatrixBlock | Packed
    to: MatrixBlock
    add: bool


@dataclass(frozen=True)
class ThreadSum(CNode):
    """The sums over iterations: one per thread, then added up; their `sum` as an array stores it."""

    sums: ArrayMemory
    to: ArrayMemory
    value: Expression


@dataclass(frozen=True)
class Routine(CNode):
    """A whole kernel.

    before    what is known before all iterations
    iterations the loop whose iterations any thread may take
    work      elements that it goes over; nothing where there is a single iteration
    after     what is done when all iterations are over
    """

    before: tuple[CStatement, ...]
    iterations: ForLoop
    totals: tuple[ThreadSum, ...]
    work: Expression | None
    after: tuple[CStatement, ...] = ()

    @cached_property
    def parts(self) -> tuple[CNode, ...]:
        return tuple(walk(self.before, self.iterations, self.totals, self.work, self.after))

    def arrays(self, role: str) -> tuple[ArrayMemory, ...]:
        """Return the arrays of a role, in order."""
        of_role = (part for part in self.parts if isinstance(part, ArrayMemory) and part.role == role)
        return tuple({array.name: array for array in of_role}.values())

    @cached_property
    def sizes(self) -> dict[str, str]:
        """Return the C names of all needed sizes."""
        return {part.axis: part.text for part in self.parts if isinstance(part, SizeExpression)}


def walk(*parts: object) -> Iterator[CNode]:
    """Yield all parts recursively, in order."""
    waiting = [*reversed(parts)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Element):  # how long its first axis is, no offset says
            yield part
            waiting += (part.operands, part.extents[1:], part.array)
        elif isinstance(part, CNode):
            yield part
            waiting += reversed(vars(part).values())
        elif isinstance(part, tuple):
            waiting += reversed(part)


def times(*factors: Expression) -> Expression:
    """Return the product of all factors."""
    flat: list[Expression] = []
    for factor in factors:
        flat += factor.operands if isinstance(factor, OperationExpression) and factor.sign == "*" else (factor,)
    flat = [factor for factor in flat if factor != ONE]
    return joined("*", flat) if flat else ONE


def plus(left: Expression, right: Expression) -> Expression:
    """Return the sum without zero terms."""
    return left if right == ZERO else right if left == ZERO else OperationExpression("+", (left, right))


def minus(left: Expression, right: Expression) -> Expression:
    """Return the difference of two indices."""
    return ZERO if left == right else left if right == ZERO else OperationExpression("-", (left, right))


def evaluated(expression: Expression, known: Mapping[str, int]) -> int:
    """Return a product of sizes as a number; `known` has the values of sizes."""
    if isinstance(expression, SizeExpression):
        return known[expression.text]
    if isinstance(expression, NameExpression):
        return int(expression.text)
    assert isinstance(expression, OperationExpression), expression
    assert expression.sign == "*", expression
    return prod(evaluated(operand, known) for operand in expression.operands)


def joined(sign: str, operands: list[Expression]) -> Expression:
    """Return operands joined by an operator; a single one is returned as it is."""
    return operands[0] if len(operands) == 1 else OperationExpression(sign, tuple(operands))


def chosen(condition: Expression, left: Expression, right: Expression) -> Expression:
    """Return a conditional expression."""
    return OperationExpression("?", (condition, left, right))


def larger(left: Expression, right: Expression) -> Expression:
    """Return the larger of two."""
    return chosen(OperationExpression(">", (left, right)), left, right)


def smaller(left: Expression, right: Expression) -> Expression:
    """Return the smaller of two."""
    return chosen(OperationExpression("<", (left, right)), left, right)
