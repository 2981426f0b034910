"""The printer of ops as calls: of the library's function if it has one, else of a helper from the op's body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from learncost.backends.backend import Backend
from learncost.backends.expression import COMPARISON, POWER, PRODUCT, SUM, Code, binary, number, shape
from learncost.ir.dataclass import dataclass, field
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.term import Literal, Operand
from learncost.ops import entry
from learncost.ops.op_def import OpDef

SHAPE = "{shape}"
"""In the call of a function: the sizes of the axes that it acts along, which are the last ones."""

LONGEST = 60
"""The length above which a part of a formula has a separate line."""


def primitive(backend: Backend, op: str, operands: Sequence[Code], numbers: Sequence[bool], **along: str) -> Code:
    """Return a primitive; `numbers` are the operands that are Python numbers, `along` the axes and sizes."""
    row = entry(op)
    if row.truth:
        return Code(f"{operands[0].at(SUM)} {row.sign} {operands[1].at(SUM)}", COMPARISON)
    if row.sign:
        return binary(operands[0], row.sign, operands[1], PRODUCT)
    if row.bound and backend.like == "torch" and any(numbers):
        tensor, bound = operands if numbers[1] else reversed(operands)
        return Code(f"{tensor.atom}.clamp({row.bound}={bound.text})")
    spelled = backend.spelled(row)
    if spelled is None:
        return backend.function(row.called or row.name, *(operand.text for operand in operands))
    if spelled == "{X}":
        return operands[0]
    texts = {
        name: operand.atom if f"{{{name}}}." in spelled or f"-{{{name}}}" in spelled else operand.text
        for name, operand in zip(row.inputs, operands, strict=True)
    }
    return Code(spelled.format(**texts, **along))


def _at_the_end(spelled: str, operand_of: dict[str, str], axis: str) -> str:
    """Return the call of a function along the last axes, with their sizes; other axes are moved there and back."""
    first, *rest = operand_of
    x, axes = operand_of[first], [int(place) for place in re.findall(r"-\d+", axis)]
    last = [*range(-len(axes), 0)]
    if axes == last:
        return spelled.format(**operand_of, shape=f"{x}.shape[{last[0]}:]")
    sizes = shape([f"{x}.shape[{place}]" for place in axes])
    to = str(last[0]) if len(last) == 1 else shape(map(str, last))
    moved = {first: f"{x}.movedim({axis}, {to})", **{name: operand_of[name] for name in rest}}
    return f"{spelled.format(**moved, shape=sizes)}.movedim({to}, {axis})"


def is_along(op: OpDef) -> bool:
    """Return whether the operator has axes, which are parameters of its helper."""
    return not op.pointwise and bool(op.body or op.kind in ("reduction", "scan"))


@dataclass
class Helpers:
    """The helpers at the top of a program, each printed once, in order of use."""

    backend: Backend
    texts: dict[str, str] = field(default_factory=dict)

    def library(self, name: str) -> None:
        """Mark a helper of the backend as used, such as NumPy's einsum."""
        if name in self.backend.helpers:
            self.texts.setdefault(name, self.backend.helpers[name])

    def call(self, op: str, part: str, gives: tuple[str, ...], operands: Sequence[str], axis: str) -> str:
        """Return the call of an operator: its operands, and `axis` if it has axes."""
        def_of_op = entry(op)
        spelled = self.backend.spelled(def_of_op) if part == "body" and gives == def_of_op.outputs else None
        if spelled is not None and self._fits(op, spelled, operands, axis):
            operand_of = dict(zip(def_of_op.inputs, operands, strict=True))
            return (
                _at_the_end(spelled, operand_of, axis) if SHAPE in spelled else spelled.format(**operand_of, axis=axis)
            )
        name = self._name(def_of_op, part, gives)
        if name not in self.texts:
            # the helpers that it calls come before it
            text = _HelperWriter(self, def_of_op, part, gives).function(name)
            self.texts[name] = text
        return f"{name}({', '.join((*operands, axis) if is_along(def_of_op) else operands)})"

    def _fits(self, op: str, spelled: str, operands: Sequence[str], axis: str) -> bool:
        """Return whether the library's function applies: PyTorch's softmax has one axis, its norms have given sizes."""
        if SHAPE in spelled:
            return operands[0].isidentifier()
        return self.backend.like != "torch" or "softmax" not in op or not axis.startswith("(")

    def _name(self, op: OpDef, part: str, gives: tuple[str, ...]) -> str:
        if part == "body":
            more = [name for name in gives if name not in op.outputs]
            return "_with_".join((op.name, "_".join(more))) if more else op.name
        every = tuple(t.name for line in op.gradient for t in line.left if t.name[1:] in op.inputs and t.name[0] == "d")
        return f"{op.name}_gradient" + ("" if set(gives) == set(every) else "_" + "_".join(gives))


class _HelperWriter:
    """Prints one helper: the lines of an operator's body or gradient, with single-use values inlined."""

    def __init__(self, helpers: Helpers, op: OpDef, part: str, gives: tuple[str, ...]) -> None:
        self.helpers, self.backend, self.op, self.part, self.gives = helpers, helpers.backend, op, part, gives
        self.lines = op.lines(part, gives)
        self.conditions = {line.name for line in self.lines if isinstance(line, Op) and entry(line.op).truth}
        self.inputs = op.inputs if part == "body" else op.gradient_reads(gives)
        self.values: dict[str, Code] = {name: Code(name) for name in self.inputs}
        self.summed: dict[str, Code] = {}  # of a sum along the axes: what is summed
        self.counts = False

    def function(self, name: str) -> str:
        uses = Counter(term.name for line in self.lines for term in line.right) + Counter(self.gives)
        statements = []
        for line in self.lines:
            code = self.code(line)
            if uses[line.name] > 1 or len(code.text) > LONGEST or (line.name in self.gives and len(self.gives) > 1):
                statements.append(f"    {line.name} = {code.text}")
                code = Code(line.name)
                self.summed.pop(line.name, None)
            self.values[line.name] = code
        results = ", ".join(self.values[gives].text for gives in self.gives)
        if self.counts:
            operand_name = next(
                t.name for line in self.lines for t in line.right if "n" in t.declared and t.name in self.inputs
            )
            axes = "((axis,) if isinstance(axis, int) else axis)"
            statements.insert(0, f"    n = math.prod({operand_name}.shape[i] for i in {axes})")
        parameters = (*self.inputs, "axis") if is_along(self.op) else self.inputs
        says = self.op.source if self.part == "body" else f"The gradient of {self.op.name}."
        says = says or f"The operator {self.op.name}."
        head = [f"def {name}({', '.join(parameters)}):", f'    """{says.rstrip(".")}."""']
        return "\n".join((*head, *statements, f"    return {results}"))

    def operand(self, term: Operand) -> Code:
        if isinstance(term, Literal):
            if not term.sizes:
                return number(term.value)
            self.counts = True
            return Code(f"n**{term.power}", POWER)
        return self.values[term.name]

    def code(self, line: Line) -> Code:
        operands = [self.operand(term) for term in line.right if not _is_count(term)]
        if isinstance(line, Product):
            return self.product(line, operands)
        if isinstance(line, Sum):
            return binary(operands[0], "+" if line.signs[1] > 0 else "-", operands[1], SUM)
        assert isinstance(line, Op)
        inner = entry(line.op)
        if inner.kind == "reduction":
            return self.backend.reduce(inner.name, operands[0], "axis", keep=True)
        if inner.body:
            return Code(
                self.helpers.call(inner.name, "body", inner.outputs, [operand.text for operand in operands], "axis")
            )
        self.helpers.library(inner.name)
        numbers = [isinstance(term, Literal) for term in line.right]
        return primitive(self.backend, inner.name, operands, numbers, axis="axis")

    def product(self, line: Product, operands: list[Code]) -> Code:
        counts = [term for term in line.right if _is_count(term)]
        if counts:
            (term,) = (term for term in line.right if not _is_count(term))
            if term.name in self.summed:
                return self.backend.reduce("mean", self.summed[term.name], "axis", keep=True)
            self.counts = True
            return binary(operands[0], "/", Code("n"), PRODUCT)
        code = operands[0]
        if len(operands) == 2:
            minus = isinstance(line.right[0], Literal) and line.right[0].value == -1
            first, second = operands
            code = Code(f"-{second.at(POWER)}", POWER) if minus else binary(first, "*", second, PRODUCT)
        if any("n" in term.axes for term in line.right) and "n" not in line.left[0].axes:
            self.summed[line.name] = code
            whether = "".join(term.name for term in line.right) in self.conditions
            code = self.backend.reduce("count" if whether else "sum", code, "axis", keep=True)
        return code


def _is_count(term: Operand) -> bool:
    """Return whether a term is one over the number of elements along the axes, which makes a sum a mean."""
    return isinstance(term, Literal) and term.sizes == ("n",) and term.power == -1 and term.value == 1
