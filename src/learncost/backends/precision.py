"""The types of a step's arrays: one for all, or bf16 where matrix products read and write, fp32 elsewhere.

In mixed precision the weights that are stored, the optimizer's state, the streams that blocks add to and all arithmetic
of a kernel are fp32. Other activations are stored in bf16; weights and streams that a matrix product reads are rounded
before it, by a line that copies, and what it makes is bf16. PyTorch's autocast rounds at the same places.
Where weights are bf16 themselves, without masters, so is all else but the loss, states and scales that are fp32, and
single numbers; arithmetic is fp32, and what has a name is rounded.
What counts as a matrix product, and which lines keep what they make in fp32, is the program's to say (`Rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, visit, walk
from learncost.ir.polynomial import base
from learncost.ir.precision import Precision, check_trained, precision_of
from learncost.ir.table import Table, features
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.layers.active import of_part
from learncost.layers.names import scores, written_once
from learncost.layers.spelling import condition_names
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.rewrite_quantized import makes_scales

COMPUTED = ("fp32", "fp64", "bf16")
"""The types that programs have."""

LOW = ":low"
"""The suffix of a rounded copy's name."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a bf16 program.

    product   whether a line is a matrix product that a library computes, which reads and makes bf16
    keeps     whether a line's result stays in fp32 though it is an activation
    """

    product: Callable[[Line], bool]
    keeps: Callable[[Line], bool]


def contraction(line: Line) -> bool:
    """Return a product of two arrays that each have a separate axis and are summed over a common one."""
    if not isinstance(line, Product) or len(line.right) != 2:
        return False
    if any(isinstance(term, Literal) or term.indexed for term in (*line.right, line.left[0])):
        return False
    return bool(line.sides.summed) and bool(line.sides.rows or line.sides.columns or line.sides.lone)


OPERATORS = Rounding(contraction, lambda line: isinstance(line, Op) and bool(line.axes))
"""Of a program of a library's operators: softmax and norms give fp32, as they do under PyTorch's autocast."""


def typed(table: Table, dtype: str, rounding: Rounding = OPERATORS) -> tuple[Table, Mapping[str, str]]:
    """Return the table with casts, and the type of every name in it.

    dtype   a precision: fp32 or fp64 for all; bf16-masters: products in bf16, weights and sums in fp32; bf16-true: all
            in bf16
    Indices are int64, codes of weights uint8, conditions bool. Every name is given once, since types go by names.
    """
    kind = precision_of(dtype)
    check_runs(kind)
    table = written_once(table)
    if kind.values != "bf16":
        return table, _types(table, kind.values)
    low = set[str]() if kind.masters else _pure(table, kind)
    mixed = _Mixed(rounding, _streams(table), features(table), low)
    lines = mixed.scope(table.lines, table.values)
    result = replace(table, lines=lines, values={**table.values, **mixed.copies})
    return result, _types(result, "fp32", mixed.low)


def check_runs(kind: Precision) -> None:
    """Raise `InputError` for a precision with types that programs do not support."""
    check_trained(kind)
    types = (kind.weights, kind.gradients, kind.values, kind.states, kind.masters, kind.loss)
    if not kind.is_whole and (wrong := next((name for name in types if name and name not in COMPUTED), None)):
        known = "memory, fit and cost" if kind.is_stored else "cost"
        raise InputError(f"programs have {', '.join(COMPUTED)}, and no {wrong}: {kind.name} works only with {known}")
    if kind.autocast:
        raise InputError(f"programs do not have autocast: {kind.name} works only with memory, fit and cost")
    if kind.gradients != kind.weights:
        raise InputError(
            f"programs have gradients in the type of weights: {kind.name} works only with memory, fit and cost"
        )


def _pure(table: Table, kind: Precision) -> set[str]:
    """Return the values that are in bf16 if weights are: not scalars, constants, logits and the lines of the loss."""
    states = table.renewed.keys() & {*table.inputs}
    wide = scores(table) | (table.constants - states)
    if kind.states != "bf16":
        wide |= states | {table.renewed[name] for name in states}
    elif rounds_states(table):  # to 8 bits, from fp32
        rounded = {name for name in states if table.values[name].role == "state"}
        wide |= rounded | {table.renewed[name] for name in rounded}
    for line, _ in walk(table.lines):
        if of_part(line, "loss") or makes_scales(line):
            wide |= {*line.makes}
    return {name for name, value in table.known.items() if value.axes and name not in wide}


def rounds_states(table: Table) -> bool:
    """Return whether the optimizer's states are rounded between steps to a type of the optimizer."""
    operators = {line.meta.operator for line, _ in walk(table.lines) if isinstance(line, Op)}
    return any(optimizer.states and name in operators for name, optimizer in OPTIMIZERS.items())


def _types(table: Table, dtype: str, low: Iterable[str] = ()) -> dict[str, str]:
    """Return the type of every name of every scope."""
    names = {*table.known, *table.inputs, *table.weights}
    conditions = condition_names(table.lines)
    indices = {*table.indices, *(name for name, value in table.known.items() if value.role == "index")}
    for line, _ in walk(table.lines):
        names |= {*line.makes, *line.reads}
    types = dict.fromkeys(names, dtype)
    types |= dict.fromkeys(low, "bf16") | dict.fromkeys(conditions, "bool") | dict.fromkeys(indices, "int64")
    types |= dict.fromkeys(table.codes, "uint8")
    types |= {name: value.dtype for name, value in table.known.items() if value.dtype}
    _of_stacks(table.lines, types)
    return types


def _of_stacks(lines: Iterable[Statement], types: dict[str, str]) -> None:
    """Give slices the types of their stacks, and stacks those of their slices."""
    for line in lines:
        if isinstance(line, Loop):
            types |= {inside: types[outer] for inside, outer in line.each}
            _of_stacks(line.lines, types)
            types |= {outer: types[inside] for inside, outer in line.keep}


def _streams(table: Table) -> set[str]:
    """Return the values that stay in fp32: loop-carried ones, rows scattered into those of a table, and sums of
    arrays that are as large as the sum."""
    names: set[str] = set()
    for line, _ in visit(table.lines):
        if isinstance(line, Loop):
            names.update(name for c in line.carry for name in (c.start, c.end, c.initial, c.final))
        elif line.left[0].indexed:
            names.update(line.reads)
        elif isinstance(line, Sum) and all(set(term.loops) == set(line.left[0].loops) for term in line.right):
            names.add(line.name)
    return names


@dataclass
class _Mixed:
    """Adds casts scope by scope; `low` are the names in bf16."""

    rounding: Rounding
    streams: set[str]
    features: frozenset[str]  # axes of weights
    low: set[str] = field(default_factory=set)
    copies: dict[str, Value] = field(default_factory=dict)

    def scope(
        self, lines: Sequence[Statement], values: Mapping[str, Value], around: Iterable[str] = ()
    ) -> tuple[Statement, ...]:
        """Return the lines of a scope; `around` are outer names with casts."""
        result: list[Statement] = []
        copied = set(around)
        for line in lines:
            if isinstance(line, Loop):
                for name in line.shared:
                    if name not in self.low and self._multiplies(line.lines, name) and name not in copied:
                        copied.add(name)
                        self._copy(result, name, values[name], next(inner for inner, _ in walk(line.lines)))
                slices = {inside: values[outer].along(values[outer].axes[1:]) for inside, outer in line.each}
                self.low |= {inside for inside, outer in line.each if outer in self.low}
                inner = _Mixed(self.rounding, self.streams, self.features, self.low)
                body = inner.scope(line.lines, {**values, **slices, **line.values}, copied & {*line.shared})
                self.low |= {outer for inside, outer in line.keep if inside in self.low}
                result.append(replace(line, lines=body, values={**line.values, **inner.copies}))
                continue
            # what meets at an index is added up in fp32
            keeps_width = line.left[0].indexed or self.rounding.keeps(line)
            if line.meta.phase != "optimizer_step" and not keeps_width:
                self.low |= {term.name for term in line.left if self._is_activation(term)}
            if not self.rounding.product(line):
                result.append(line)
                continue
            names = {}
            for term in line.right:
                name = term.name
                if name in self.low:
                    continue
                names[name] = f"{name}{LOW}"
                if name not in copied:
                    copied.add(name)
                    self._copy(result, name, values[name], line)
            line = replace(line, right=tuple(term.renamed(names) for term in line.right))
            if line.name not in self.streams:
                self.low.add(line.name)
                result.append(line)
                continue
            left = Term(f"{line.name}{LOW}", line.left[0].axes)  # a loop-carried value has one type
            self.copies[left.name] = replace(values[line.name], role="copy", of=line.name)
            self.low.add(left.name)
            result.append(replace(line, left=(left,)))
            result.append(Sum(line.left, (left,), line.where, replace(line.meta, kernel=None, equation=""), (1,)))
        return tuple(result)

    def _multiplies(self, lines: Iterable[Statement], name: str) -> bool:
        """Return whether a product reads a name, also inside of loops."""
        readers = ((line, nest) for line, nest in walk(lines) if name in line.reads)
        return any(
            self.rounding.product(line) and all(name not in loop.inside for loop in nest.loops)
            for line, nest in readers
        )

    def _is_activation(self, term: Term) -> bool:
        """Return whether a value is rows of features and no residual stream."""
        features = [axis for axis in term.declared if base(axis) in self.features]
        return term.name not in self.streams and bool(features) and len(features) < len(term.declared)

    def _copy(self, result: list[Statement], name: str, value: Value, line: Line) -> None:
        """Add the cast: in the kernel that defines the value, or before the product that reads it."""
        low, axes = f"{name}{LOW}", value.axes
        self.copies[low] = Value(axes, "copy", name)
        self.low.add(low)
        place, meta = len(result), replace(line.meta, kernel=None, equation="", phase=line.meta.phase)
        where: tuple[Condition, ...] = ()
        for at, maker in enumerate(result):
            if not isinstance(maker, Line) or all(term.name != name for term in maker.left):
                continue
            where = maker.where if maker.left[0].declared == axes else ()
            if maker.meta.kernel:
                place, meta = at + 1, replace(meta, kernel=maker.meta.kernel, phase=maker.meta.phase)
        result.insert(place, Sum((Term(low, axes),), (Term(name, axes),), where, meta, (1,)))
