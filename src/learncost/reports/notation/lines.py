"""Lines as trees, in index form: Q_bmhk = sum over d of X^Q_bmd W^Q_dhk; dX is a derivative of the loss."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction as Ratio

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, visit
from learncost.ir.polynomial import base, factors, summands
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.layers.layer import Layer
from learncost.reports.notation.counts import powered, size_node
from learncost.reports.notation.tree import (
    Fenced,
    Fraction,
    MathMark,
    MathName,
    MathNumber,
    MathRow,
    Node,
    Root,
    Script,
    between,
    latex,
    row,
)

_LABELLED = re.compile(r"^([^\W\d_])([A-Z]+|\d+)$")  # XQ, W1: a letter with a label
_MARKED = re.compile(r"^([^+~:*]*)(.*)$")  # dX+2, R~1, Z:g, X*: a name and what derivation or lowering put after it
_EQUAL, _COMMA, _THIN = MathMark("="), MathMark(","), MathMark("thin")


def equation(line: Line) -> str:
    """Return the number of the printed equation in parentheses, or ""."""
    return f"({line.meta.equation})" if line.meta.equation else ""


def line_node(line: Line, known: Collection[str] | None = None) -> Node:
    """Return the tree of a line."""
    left, right = sides(line, known)
    return MathRow((*left.parts, *right.parts))


def sides(line: Line, known: Collection[str] | None = None) -> tuple[MathRow, MathRow]:
    """Return the left side of a line, and its relation with the right side."""
    context = _AxisContext(_letters(line), known)
    left: Node
    if len(line.left) == 1:
        left = context.term(line.left[0])
    else:
        left = Fenced(between(_COMMA, [context.term(term) for term in line.left]))
    relation = MathMark("+=") if any(term.indexed for term in line.left) else _EQUAL
    if isinstance(line, Product):
        right = _product(line, context)
    elif isinstance(line, Sum):
        right = _sum(line, context)
    else:
        assert isinstance(line, Op)
        right = _op_nodes(line, context)
    return row(left), row(relation, *right)


def _letters(line: Line) -> Mapping[str, str]:
    """Return axes as indices: lower case, unless two axes of the line would then be equal."""
    axes = {base(axis) for term in (*line.left, *line.right) for axis in (*term.loops, *term.declared)}
    lowered = [axis.lower() for axis in axes]
    return {axis: axis.lower() if lowered.count(axis.lower()) == 1 else axis for axis in axes}


@dataclass(frozen=True)
class _AxisContext:
    """The notation of a line's axes, and the names that can have a gradient."""

    letters: Mapping[str, str]
    names_known: Collection[str] | None

    def axis(self, axis: str) -> Node:
        letter = MathName(self.letters.get(base(axis), base(axis)))
        primes = len(axis) - len(base(axis))
        return Script(letter, None, MathRow((MathMark("'"),) * primes)) if primes else letter

    def indices(self, axes: Iterable[str | Read]) -> Node | None:
        parts: list[Node] = []
        alone = True
        for axis in axes:
            if isinstance(axis, Read):
                parts.append(self.term(axis.at) if isinstance(axis.at, Term) else self.place(axis.at))
                alone = False
            else:
                parts.append(self.axis(axis))
                alone = alone and len(self.letters.get(base(axis), base(axis))) == 1
        if not parts:
            return None
        return MathRow(tuple(parts)) if alone else between(_COMMA, parts)

    def place(self, at: Affine) -> Node:
        """Return the tree of an index such as `2i + u - 1`, with the usual symbols of sizes."""
        parts: list[Node] = []
        for part in at.parts:
            if parts or part.factor < 0:
                parts.append(MathMark("-" if part.factor < 0 else "+"))
            if abs(part.factor) != 1 or not (part.sizes or part.axis):
                parts.append(literal(Literal(float(abs(part.factor)))))
            sizes = [literal(Literal(1.0, (size,))) for size in part.sizes]
            divisor = Literal(float(part.over))
            parts += (
                [MathMark("⌊"), Fraction(MathRow(tuple(sizes)), literal(divisor)), MathMark("⌋")]
                if part.over != 1
                else sizes
            )
            parts += [self.axis(part.axis)] if part.axis else []
        return MathRow(tuple(parts))

    def term(self, term: Operand) -> Node:
        if isinstance(term, Literal):
            return literal(term)
        core, marks = _parts(term.name)
        inner = core[1:]
        if core.startswith("d") and self.gradient(inner):
            letter_name, version = (inner.removesuffix(".total"), "total") if inner.endswith(".total") else (inner, "")
            below = row(MathMark("∂"), _scripted(letter_name, "", self.indices(term.axes)))
            ratio = Fraction(row(MathMark("∂"), MathMark("ℒ")), below)
            note = marks.lstrip("+:") + version
            return Script(Fenced(ratio, bar=True), _label(note)) if note else ratio
        return _scripted(core, marks, self.indices(term.axes))

    def gradient(self, inner: str) -> bool:
        if not inner:
            return False
        if self.names_known is None:
            return inner[0].isupper() or "." in inner
        return inner in self.names_known or inner.removesuffix(".total") in self.names_known


def _parts(name: str) -> tuple[str, str]:
    match = _MARKED.match(name)
    assert match
    return match.group(1), match.group(2)


def _scripted(core: str, marks: str, below: Node | None) -> Node:
    """Return a name with its labels above and its indices below: attn.WQ becomes W with Q and attn above."""
    *prefixes, core_name = core.split(".")
    above: list[Node] = []
    version = ""
    if core_name.isdigit() and prefixes:
        version, core_name = core_name, prefixes.pop()
    letter: Node
    if labelled := _LABELLED.match(core_name):
        letter = MathName(labelled.group(1))
        label = labelled.group(2)
        above.append(Fenced(MathNumber(label)) if label.isdigit() else _label(label))
    else:
        letter = MathName(core_name)
    above += [MathName(prefix) for prefix in prefixes]
    if version:
        above.append(Fenced(row(MathName("version"), _THIN, MathNumber(version))))
    if marks:
        above.append(_label(marks.lstrip(":")))
    return Script(letter, below, between(_COMMA, above) if above else None) if above or below else letter


def _label(text: str) -> Node:
    return MathNumber(text) if text.isdigit() else MathName(text)


def literal(term: Literal) -> Node:
    """Return a number or a size to a power as a tree."""
    if not term.sizes:
        return _number(term.value)
    power = Ratio(term.power).limit_denominator(1000)
    sizes: list[Node] = []
    for size in term.sizes:
        if sizes:
            sizes.append(_THIN)
        inner = power if abs(power) not in (Ratio(1, 2), Ratio(1)) else Ratio(1)
        sizes.append(_size(size, inner))
    body: Node = row(*sizes) if len(sizes) > 1 else sizes[0]
    if abs(power) == Ratio(1, 2):
        body = Root(body)
    if power < 0:
        return Fraction(_number(term.value), body)
    return body if term.value == 1 else row(_number(term.value), _THIN, body)


def _size(size: str, power: Ratio) -> Node:
    """Return a size to a power, with a sum of sizes in parentheses."""
    (_, first), *more = summands(size)
    if not more and len(product := factors(first)) > 1:
        return row(*[node for factor in product for node in (_THIN, _size(factor, Ratio(1)))][1:])
    if not more:
        return _number(float(size)) if size.isdigit() else powered(base(size), abs(power))
    parts = [_size(first, Ratio(1))]
    for sign, summand in more:
        parts += [MathMark("+" if sign > 0 else "-"), _size(summand, Ratio(1))]
    body = Fenced(row(*parts))
    return body if abs(power) == 1 else Script(body, None, _number(float(abs(power))))


def _number(value: float) -> Node:
    if value == float("inf") or value == -float("inf"):
        return MathRow((MathMark("-"), MathName("∞"))) if value < 0 else MathName("∞")
    digits, _, exponent = f"{value:g}".partition("e")
    if not exponent:
        return MathNumber(digits)
    power = Script(MathNumber("10"), None, MathNumber(str(int(exponent))))
    return power if digits == "1" else row(MathNumber(digits), MathMark("times"), power)


def _conditions(where: Iterable[Condition], context: _AxisContext) -> list[Node]:
    return [_condition(condition, context) for condition in where]


def _condition(condition: Condition, context: _AxisContext) -> Node:
    lower, upper = (
        MathNumber(side) if side.isdigit() else context.axis(side) for side in (condition.lower, condition.upper)
    )
    inside = row(lower, MathMark(condition.relation), upper)
    if condition.window is None:
        return inside
    window = MathNumber(condition.window) if condition.window.isdigit() else size_node(condition.window)
    return row(*inside.parts, MathMark("<"), lower, MathMark("+"), window)


def _product(line: Product, context: _AxisContext) -> tuple[Node, ...]:
    left = set(line.left[0].loops)
    summed = [a for a in dict.fromkeys(a for term in line.right for a in term.loops) if a not in left]
    under = [c for c in line.where if c.axes & set(summed)]
    conditions = [c for c in line.where if c not in under]
    parts: list[Node] = []
    if summed:
        bound = {axis for c in under for axis in c.axes}
        below = [context.axis(axis) for axis in summed if axis not in bound] + _conditions(under, context)
        parts.append(Script(MathMark("∑"), between(_COMMA, below)))
    # Numbers come first, as in print.
    factors = sorted(line.right, key=lambda term: isinstance(term, Term))
    for factor in factors:
        if parts:
            parts.append(_THIN)
        parts.append(context.term(factor))
    return (*parts, *_aside(conditions, context))


def _sum(line: Sum, context: _AxisContext) -> tuple[Node, ...]:
    parts: list[Node] = []
    for sign, term in zip(line.signs, line.right, strict=True):
        if parts or sign < 0:
            parts.append(MathMark("-" if sign < 0 else "+"))
        parts.append(context.term(term))
    return (*parts, *_aside(line.where, context))


def _op_nodes(line: Op, context: _AxisContext) -> tuple[Node, ...]:
    above = MathMark("'") if line.part == "gradient" else None
    op: Node = Script(MathName(line.op), context.indices(line.axes), above)
    if not line.axes and above is None:
        op = MathName(line.op)
    if line.part == "jacobian":
        op = row(MathName("Jacobian"), _THIN, op)
    inside = between(_COMMA, [context.term(term) for term in line.right])
    return (op, Fenced(inside), *_aside(line.where, context))


def _aside(where: Iterable[Condition], context: _AxisContext) -> tuple[Node, ...]:
    conditions = _conditions(where, context)
    return (MathMark(" "), Fenced(between(_COMMA, conditions))) if conditions else ()


Equation = tuple[Node, Node, str]  # left side, relation and right side, number


def rows_of(what: Table | Layer | Loop, known: Collection[str] | None = None) -> list[Equation]:
    """Return the equations of a table, of a layer's forward table, or of a loop."""
    if isinstance(what, Layer):
        what = what.table
    if isinstance(what, Loop):
        return list(_rows((what,), known if known is not None else what.axes))
    names = known if known is not None else {**(what.within.axes if what.within else {}), **what.axes}
    return list(_rows(what.lines, names))


def _rows(lines: Iterable[Statement], known: Collection[str]) -> Iterator[Equation]:
    for line, nest in visit(lines):
        indent = (MathMark(" "),) * len(nest.loops)
        if isinstance(line, Loop):
            order = " backwards" if line.reverse else ""
            carried = ", ".join(f"{c.start} to {c.end}" for c in line.carry)
            heading = f"repeat {line.count} times{order}{', carrying ' + carried if carried else ''}:"
            yield MathRow((*indent, MathName(heading))), row(), ""
        else:
            left, right = sides(line, {*known, *nest.axes})
            yield MathRow((*indent, *left.parts)), right, equation(line)


def aligned(rows: Iterable[Equation]) -> str:
    r"""Return rows as LaTeX's `aligned`, with numbers in a separate column."""
    lines = []
    for left, right, number in rows:
        if not latex(right):
            lines.append(rf"& {_heading(latex(left))}")
            continue
        aside = rf" &\quad& \text{{{number}}}" if number else ""
        lines.append(f"{latex(left)} &{latex(right)}{aside}")
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


def _heading(text: str) -> str:
    return text.replace(r"\mathrm{", r"\text{")
