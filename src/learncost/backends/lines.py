"""The printer of lines in normal form as statements: products, moves, sums, primitives, operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import ascii_letters

from learncost.backends.collected import collected
from learncost.backends.expression import PRODUCT, SUM, WIDTH, Code, binary, call, shape
from learncost.backends.helpers import is_along, primitive
from learncost.backends.indices import gathered, is_taken, scatter, take
from learncost.backends.precision import contraction
from learncost.backends.scope import FunctionScope, Layout
from learncost.ir.line import Line, Op, Product, Sum, alias
from learncost.ir.polynomial import base
from learncost.ir.term import Literal, Operand, Term
from learncost.ops import entry
from learncost.ops.collectives import KIND
from learncost.program.calls import CallLoop, Item


def write(scope: FunctionScope, line: Line, heading: str = "") -> None:
    """Add the statements of a line to a function."""
    if isinstance(line, Op) and _is_whole(line):
        _whole(scope, line, heading)
        return
    left = line.left[0]
    if isinstance(line, Op) and line.op == "send":  # which makes nothing here
        scope.put(collected(scope, line).text, (), comment(line), heading)
        return
    if left.indexed:
        scatter(scope, line, comment(line), heading)
        return
    if is_taken(line):
        take(scope, line, comment(line), heading)
        return
    scope.layouts.pop(left.name, None)
    if isinstance(line, Sum) and alias(line) and scope.is_alias(left, line.right[0]):
        return
    scope.product = contraction(line) and {left.name, *line.reads} <= scope.low
    code = _product(scope, line) if isinstance(line, Product) else _other(scope, line)
    code = scope.rounded(left.name, code)
    scope.product = False
    if left.name in scope.once:
        scope.wait(left.name, code)
        return
    scope.put(f"{scope.identifiers.of(left.name)} = {code.text}", (left.name,), comment(line), heading)


def heading_of(line: Line) -> str:
    """Return the comment above lines of one layer and phase."""
    name = line.meta.layer.replace("_", " ")
    return f"{name}, backward" if name and line.meta.phase in ("backward", "weight_update") else name


def headed(items: Iterable[Item]) -> Iterator[tuple[Item, str | None]]:
    """Yield the items of a scope with their headings; None for the same heading, and for loops."""
    before = ""
    for item in items:
        heading = "" if isinstance(item, CallLoop) else heading_of(item.lines[0])
        yield item, None if isinstance(item, CallLoop) or heading == before else heading
        before = heading


def comment(line: Line) -> str:
    """Return the comment of a line: axes of results, condition, and equation numbers."""
    axes = ", ".join(dict.fromkeys(f"[{' '.join(term.declared)}]" for term in line.left))
    where = "".join(f" where {condition}" for condition in line.where)
    return axes + where + (f"  ({line.meta.equation})" if line.meta.equation else "")


def _other(scope: FunctionScope, line: Line) -> Code:
    if isinstance(line, Sum):
        return _sum(scope, line)
    assert isinstance(line, Op)
    return _primitive(scope, line)


# Products.


def _product(scope: FunctionScope, line: Line) -> Code:
    left = line.left[0]
    want = left.loops
    if len(line.right) == 1:
        return _move(scope, line, line.right[0])
    first, second = line.right
    if _is_truth(scope, first, second) and {*first.loops, *second.loops} <= set(want):
        scope.conditional.add(left.name)  # both hold
    if {*first.loops, *second.loops} <= set(want):
        if isinstance(second, Literal) and second.sizes and second.power == -1 and second.value == 1:
            divisor = Literal(1.0, second.sizes)
            return binary(scope.operand(first, want), "/", scope.operand(divisor, want), PRODUCT)
        if isinstance(second, Literal) and second.value == -1 and not second.sizes:
            return Code(f"-{_number(scope, first, want).atom}", PRODUCT)
        return binary(scope.operand(first, want), "*", scope.operand(second, want), PRODUCT)
    assert isinstance(first, Term)
    assert isinstance(second, Term)
    (a, a_axes), (b, b_axes) = scope.squeezed(first), scope.squeezed(second)
    if _is_truth(scope, first, second):
        a, b = (scope.backend.typed(each, scope.like) for each in (a, b))
    if set(a_axes) == set(b_axes):
        # No axis is in only one factor: elementwise product, then the sum.
        return _summed(scope, binary(a, "*", scope.spread(b, b_axes, a_axes), PRODUCT), a_axes, want)
    product = _matrix(a, a_axes, b, b_axes, want) or _matrix(b, b_axes, a, a_axes, want)
    return product or _einsum(scope, a, a_axes, b, b_axes, want)


def _matrix(a: Code, a_axes: tuple[str, ...], b: Code, b_axes: tuple[str, ...], want: tuple[str, ...]) -> Code | None:
    """Return the product as `a @ b` if the axes are laid out as matrices; the right one may be transposed."""
    if not a_axes or a_axes[-1] in want or a_axes[-1] not in b_axes:
        return None
    summed, rows = a_axes[-1], a_axes[:-1]
    if b_axes == (summed,) and want == rows:
        return binary(a, "@", b, PRODUCT)
    if len(b_axes) == 2 and not set(b_axes) & set(rows):
        (column,) = (axis for axis in b_axes if axis != summed)
        if want == (*rows, column):
            return binary(a, "@", b if b_axes[0] == summed else Code(f"{b.atom}.T"), PRODUCT)
    batch = rows[:-1]
    if len(b_axes) > 2 and b_axes[:-1] == (*batch, summed) and want == (*rows, b_axes[-1]) and b_axes[-1] not in rows:
        return binary(a, "@", b, PRODUCT)
    return None


def _einsum(
    scope: FunctionScope, a: Code, a_axes: tuple[str, ...], b: Code, b_axes: tuple[str, ...], want: tuple[str, ...]
) -> Code:
    letters = _letters((*a_axes, *b_axes))
    equation = ",".join("".join(letters[axis] for axis in axes) for axes in (a_axes, b_axes))
    scope.helpers.library("einsum")
    return scope.backend.einsum(f"{equation}->{''.join(letters[axis] for axis in want)}", a.text, b.text)


def _letters(axes: tuple[str, ...]) -> dict[str, str]:
    """Return a letter for each axis: its own, or its other case, or the next free one."""
    every = dict.fromkeys(axes)
    letters = {axis: axis for axis in every if axis in ascii_letters and len(axis) == 1}
    for axis in every:
        if axis not in letters:
            first = base(axis)[0]
            wishes = (first, first.swapcase(), *ascii_letters)
            letters[axis] = next(x for x in wishes if x in ascii_letters and x not in letters.values())
    return letters


# Moves.


def _move(scope: FunctionScope, line: Line, term: Operand) -> Code:
    """Return a line of one factor: a gather, reduction, transposition or broadcast."""
    want = line.left[0].loops
    if isinstance(term, Literal):
        return scope.full(scope.shape(want), scope.literal(term).text)
    if term.indexed:
        code = gathered(scope, term, want)
        return scope.backend.cast(code, "fp32") if term.name in scope.low else code
    code, have = scope.squeezed(term)
    if _is_truth(scope, term) and set(have) <= set(want):
        scope.conditional.add(line.left[0].name)
    code = _summed(scope, code, have, want, "count" if _is_truth(scope, term) else "sum")
    return scope.backend.broadcast(code, scope.shape(want)) if set(want) - set(have) else code


def _summed(scope: FunctionScope, code: Code, have: tuple[str, ...], want: tuple[str, ...], kind: str = "sum") -> Code:
    """Return the sum over the axes that are not required."""
    remaining = [axis for axis in have if axis in want]
    if len(remaining) < len(have):
        places = [str(place) for place, axis in enumerate(have) if axis not in want]
        code = scope.backend.reduce(
            kind, code, "" if not remaining else places[0] if len(places) == 1 else shape(places)
        )
    return scope.spread(code, remaining, want)


# Sums and words.


def _sum(scope: FunctionScope, line: Sum) -> Code:
    want = line.left[0].loops
    operand = _number if _is_truth(scope, *line.right) else scope.__class__.operand
    first = operand(scope, line.right[0], want)
    if len(line.right) == 1:
        return first
    return binary(first, "+" if line.signs[1] > 0 else "-", operand(scope, line.right[1], want), SUM)


def _is_truth(scope: FunctionScope, *operands: Operand) -> bool:
    """Return whether all operands hold truth values."""
    return all(isinstance(term, Term) and term.name in scope.conditional for term in operands)


def _number(scope: FunctionScope, term: Operand, want: tuple[str, ...]) -> Code:
    """Return an operand as numbers: libraries do not negate, subtract or add truth values."""
    code = scope.operand(term, want)
    return scope.backend.typed(code, scope.like) if _is_truth(scope, term) else code


def _operands(scope: FunctionScope, line: Op, want: tuple[str, ...]) -> list[Code]:
    """Return the operands of an operator, truth values as numbers but for its conditions."""
    op = entry(line.op)
    names = op.inputs[-len(line.right) :] if line.part == "body" else op.gradient_reads(line.gives)
    return [
        scope.operand(term, want) if name in op.conditions else _number(scope, term, want)
        for name, term in zip(names, line.right, strict=True)
    ]


def _is_whole(line: Op) -> bool:
    return line.op != "inside" and (line.part == "gradient" or bool(entry(line.op).body))


def _primitive(scope: FunctionScope, line: Op) -> Code:
    left = line.left[0]
    want = left.loops
    if line.op == "inside":
        return scope.backend.typed(scope.inside(line.where, want), scope.like)
    row = entry(line.op)
    if row.kind == KIND:
        return collected(scope, line)
    if row.fill is not None:
        return scope.full(scope.shape(want), repr(row.fill)) if row.fill else scope.zeros(left.name)
    if line.op == "eye":
        half = scope.shape(want[: len(want) // 2])
        code = scope.backend.eye(" * ".join(half) or "1", scope.like)
        return code if len(half) == 1 else Code(f"{code.text}.reshape{shape((*half, *half))}")
    if line.op in ("append", "join"):
        parts = [scope.wide(term.name).text for term in line.right]
        return scope.backend.joined(parts, want.index(line.axes[0]))
    if row.kind == "reduction":
        (term,) = line.right
        assert isinstance(term, Term)
        code, have = scope.squeezed(term)
        places = [str(place) for place, axis in enumerate(have) if axis not in want]
        remaining = [axis for axis in have if axis in want]
        axis = places[0] if len(places) == 1 else shape(places)
        return scope.spread(scope.backend.reduce(row.name, code, axis), remaining, want)
    if row.kind in ("scan", "choice"):
        (term,) = line.right
        others = tuple(axis for axis in term.loops if axis not in line.axes)
        free = tuple(axis for axis in want if axis not in others)
        operand = scope.operand(term, want if row.kind == "scan" else (*others, *line.axes))
        along = {"axis": str(want.index(line.axes[0]))} if row.kind == "scan" else {}
        along |= {"k": scope.size(free[0])} if row.chooses == "some" else {}
        code = primitive(scope.backend, row.name, [operand], [False], **along)
        return code if row.kind == "scan" else scope.spread(code, (*others, *free), want)
    if row.truth:
        scope.conditional.add(left.name)
    operands = _operands(scope, line, want)
    numbers = [isinstance(term, Literal) for term in line.right]
    if len(operands) < len(row.inputs):
        operands.insert(0, scope.inside(line.where, want))
    scope.helpers.library(line.op)
    return primitive(scope.backend, line.op, operands, numbers)


def _whole(scope: FunctionScope, line: Op, heading: str) -> None:
    """Return an operator as a call; reduced axes stay in the result with length 1."""
    op = entry(line.op)
    terms = [term for term in (*line.left, *line.right) if isinstance(term, Term)]
    every = set(line.loops)
    want = next((term.loops for term in terms if set(term.loops) == every), line.loops)
    acted = line.axes if is_along(op) else ()
    places = [str(want.index(axis) - len(want)) for axis in acted]
    axis = places[0] if len(places) == 1 else shape(places) if places else ""
    operands = [operand.text for operand in _operands(scope, line, want)]
    text = scope.helpers.call(line.op, line.part, line.gives, operands, axis)
    wrong = []
    for term in line.left:
        axes = term.declared
        layout: Layout = tuple(axes.index(axis) if axis in axes else None for axis in want)
        scope.layouts[term.name] = layout
        if [place for place in layout if place is not None] != list(range(len(term.declared))):
            wrong.append(term.name)
    names = [term.name for term in line.left]
    if len(names) == 1 and names[0] in scope.once and not wrong:
        scope.wait(names[0], scope.rounded(names[0], Code(text)))
        return
    if len(names) == 1:
        text = scope.rounded(names[0], Code(text)).text
    targets = ", ".join(map(scope.identifiers.of, names))
    function, _, arguments = text.partition("(")
    text = f"{targets} = {text}"
    if len(text) > WIDTH and "(" not in arguments:
        text = call(function, arguments.rstrip(")").split(", "), f"{targets} = ")
    scope.put(text, names, comment(line), heading)
    for name in names:
        low = len(names) > 1 and name in scope.low
        if not low and name not in wrong:
            continue
        code = scope.settled(name)
        code = scope.rounded(name, code) if low else code
        scope.layouts.pop(name)
        scope.put(f"{scope.identifiers.of(name)} = {code.text}", (name,), f"[{' '.join(scope.axes[name])}]")
