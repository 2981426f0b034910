"""Refinements: rewrites of one value of a layer before it is read, as templates in the notation.

A refinement is a layer whose output replaces the value and whose first input is the layer's original value. In

    softcap(X.uncapped) -> X
      X.small[_] = X.uncapped[_] inverse[]
      X.bent[_] = tanh(X.small[_])
      X[_] = X.bent[_] cap[]

S.uncapped is the original S of the layer, and S is the result of these lines. The first input shows the value's axes: a
letter stands for one of them, `_` for all that no letter has, `n` for those that the rewrite names. Other inputs and
weights of the header are added to the layer, a name of the layer is read as it is, and a name without axes that the
header does not have is a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op
from learncost.ir.parse import parse_header, parse_lines
from learncost.ir.parsed import Header
from learncost.ir.roles import role
from learncost.ir.term import Axis, Literal, Operand, Read, Term, terms_of
from learncost.ir.value import Role, Value
from learncost.layers.layer import Layer
from learncost.layers.rewrite import rewritten
from learncost.ops import entry


@dataclass(frozen=True)
class Refinement:
    """A parsed refinement; `constants` are inputs without a gradient."""

    header: Header
    lines: tuple[Line, ...]
    constants: tuple[str, ...]


@cache
def refinement(name: str) -> Refinement:
    """Return the refinement in the file of that name."""
    text = (files("learncost.layers") / "refinements" / f"{name}.table").read_text(encoding="utf-8")
    head, *lines = (line for line in text.splitlines() if not line.startswith("%"))
    constants = [name for line in lines for name in role(line)]
    body = parse_lines([line for line in lines if line.startswith(" ")])
    return Refinement(parse_header(head), tuple(line for line in body if isinstance(line, Line)), tuple(constants))


def refined(
    layer: Layer,
    name: str,
    value: str,
    numbers: Mapping[str, float] = {},
    names: Mapping[str, str] = {},
    along: tuple[str, ...] = (),
) -> Layer:
    """Return the layer with a value rewritten by the refinement of a name.

    numbers  the values of names without axes
    names    other names for inputs and weights; a line that reads a name that is "" is left out
    along    the axes that `n` stands for
    Raises `InputError` for a value that no line defines.
    """
    replacement = refinement(name)
    hole: _Hole | None = None

    def change(line: Line) -> Iterable[Line]:
        nonlocal hole
        if len(line.left) != 1 or line.name != value:
            return (line,)
        hole = _Hole(replacement, line, numbers, names, along)
        raw = hole.outer_name(replacement.header.inputs[0])
        return (replace(line, left=(Term(raw, line.left[0].axes),), meta=replace(line.meta, local=raw)), *hole.lines)

    changed, table = rewritten(layer, change), layer.table
    if hole is None:
        raise InputError(f"{layer.name} has no line that defines {value}")
    inputs = {
        name: value for name, value in hole.values_of(replacement.header.inputs[1:]).items() if name not in table.inputs
    }
    weights = {
        name: value for name, value in hole.values_of(replacement.header.weights).items() if name not in table.weights
    }
    values = {**hole.values, **table.values, **inputs, **weights}
    more = replace(changed.table, values=values, inputs=(*table.inputs, *inputs), weights=(*table.weights, *weights))
    return replace(changed, table=more)


class _Hole:
    """The lines of a refinement that replace one line of a layer, with its `where` and in its layer."""

    def __init__(
        self,
        replacement: Refinement,
        line: Line,
        numbers: Mapping[str, float],
        names: Mapping[str, str],
        along: tuple[str, ...],
    ) -> None:
        self.replacement, self.line, self.numbers = replacement, line, numbers
        self.names = {replacement.header.outputs[0]: line.name, **names}
        first, axes = replacement.header.inputs[0], line.left[0].declared
        (first_read, *_) = (term for line in replacement.lines for term in line.right if term.name == first)
        fixed_axes = [axis for axis in first_read.declared if axis not in ("_", "n")]
        rest = iter(axis for axis in axes if axis not in along)
        free = len(axes) - len(along) - len(fixed_axes)
        self.axes = {
            axis: along if axis == "n" else tuple(next(rest) for _ in range(free if axis == "_" else 1))
            for axis in first_read.declared
        }
        self.lines = tuple(
            self.placed(line) for line in replacement.lines if all(names.get(name) != "" for name in line.reads)
        )

    @property
    def values(self) -> dict[str, Value]:
        """The values that the lines define, and the original value of the line that they replace."""
        places = {line.name for line in self.lines if isinstance(line, Op) and entry(line.op).kind == "choice"}
        inner_values = {
            term.name: Value(term.declared, "index" if term.name in places else "value")
            for line in self.lines
            for term in line.left
        }
        return {self.outer_name(self.replacement.header.inputs[0]): Value(self.line.left[0].declared), **inner_values}

    def values_of(self, names: Iterable[str]) -> dict[str, Value]:
        """Return inputs or weights of the header, under the layer's names."""
        terms = [term for line in self.lines for right in line.right for term in terms_of(right)]
        axes, indices = (
            {term.name: term.declared for term in terms},
            {name for term in terms for name in term.names[1:]},
        )
        roles: dict[str, Role] = {self.outer_name(name): "constant" for name in self.replacement.constants}
        roles |= dict.fromkeys(indices, "index")
        return {new: Value(axes[new], roles.get(new, "value")) for new in map(self.outer_name, names)}

    def outer_name(self, name: str) -> str:
        """Return a name in the layer: that of the value or of an argument, and its suffix after a dot."""
        stem = next((stem for stem in self.names if name == stem or name.startswith(f"{stem}.")), None)
        return name if stem is None else self.names[stem] + name.removeprefix(stem)

    def operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Literal):
            sizes = (outer_axis for size in operand.sizes for outer_axis in self.axes.get(size, (size,)))
            return replace(operand, sizes=tuple(sizes))
        return Literal(self.numbers[operand.name]) if operand.name in self.numbers else self.term(operand)

    def term(self, term: Term) -> Term:
        axes: list[Axis] = []
        for axis in term.axes:
            if isinstance(axis, str):
                axes += self.axes.get(axis, (axis,))
            else:
                at = self.term(axis.at) if isinstance(axis.at, Term) else axis.at
                (read,) = self.axes.get(axis.axis, (axis.axis,))
                axes.append(Read(read, at))
        return Term(self.outer_name(term.name), tuple(axes))

    def placed(self, line: Line) -> Line:
        """Return a line of the refinement in terms of the layer."""
        left, right = tuple(map(self.term, line.left)), tuple(map(self.operand, line.right))
        loops = {axis for term in (*left, *right) for axis in term.loops}
        where = tuple(condition for condition in self.line.where if condition.axes <= loops)
        locals_ = tuple(term.name for term in right)
        outer = self.line.meta
        meta = Meta(outer.layer, local=left[0].name, locals=locals_, binding=outer.binding, module=outer.module)
        line = replace(line, left=left, right=right, where=where, meta=meta)
        if not isinstance(line, Op):
            return line
        op, axes = (
            entry(line.op),
            tuple(outer_axis for axis in line.axes for outer_axis in self.axes.get(axis, (axis,))),
        )
        return replace(line, axes=axes, op=op.name, given=op.inputs, gives=op.outputs)
