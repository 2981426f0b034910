"""The printer of lines in normal form as statements: products, moves, sums, primitives, operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import ascii_letters

from learncost.backends.between import MESH, SENT
from learncost.backends.expression import PRODUCT, SUM, WIDTH, Code, binary, call, shape
from learncost.backends.helpers import is_along, primitive
from learncost.backends.indices import gathered, is_taken, scatter, take
from learncost.backends.precision import contraction
from learncost.backends.scope import FunctionScope, Layout
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum, alias
from learncost.ir.polynomial import base, place_cut, sharded_over
from learncost.ir.term import Literal, Operand, Term
from learncost.ops import entry
from learncost.ops.collectives import KIND, place_changed
from learncost.program.calls import CallLoop, Item

_ROWS = ("dispatch", "combine")
_ENDS = ("send", "receive")


def collected(scope: FunctionScope, line: Op) -> Code:
    """Return the call of a collective. Raises `InputError` for a library or an op without one."""
    name = f"{line.op}_among" if line.op not in _ENDS and len(line.axes) > 1 + (line.op in _ROWS) else line.op
    if name not in scope.backend.helpers:
        raise InputError(
            f"{line.op} is a collective, which {scope.backend.name} programs do not support yet: use torch"
        )
    scope.meets = True
    if name != line.op or line.op in _ENDS:
        return _stages(scope, line, name)
    scope.helpers.library(line.op)
    if line.op in _ROWS:
        return _rows(scope, line)
    if line.op == "part":
        return _part(scope, line)
    (mesh_axis,), (before,), after = line.axes, line.right, line.left[0]
    assert isinstance(before, Term)
    source, target = (_place_moved(term, other, mesh_axis) for term, other in ((before, after), (after, before)))
    text, over = scope.settled(before.name).text, f'{MESH}, "{mesh_axis}"'
    if target is not None and base(after.declared[target]) in scope.filled:
        scope.helpers.library("filled")
        text = f"filled({text}, {over}, {target})"
    text = f"{line.op}({', '.join((text, over, *(str(place) for place in (source, target) if place is not None)))})"
    if source is not None and base(before.declared[source]) in scope.filled:
        scope.helpers.library("trimmed")
        text = f"trimmed({text}, {scope.size(after.declared[source])}, {source})"
    return Code(text)


def _place_moved(term: Term, other: Term, mesh_axis: str) -> int | None:
    """Return the axis of a term that a mesh axis shards only in this term."""
    place = place_cut(term.declared, mesh_axis)
    return None if term.declared == other.declared else place


def _stages(scope: FunctionScope, line: Op, name: str) -> Code:
    """Return the call of a send between pipeline stages, or of a sum over some of them."""
    for helper in ("along", name):
        scope.helpers.library(helper)
    mesh_axis, *places = line.axes
    over = f'{MESH}, "{mesh_axis}", {", ".join(places)}'
    if name not in _ENDS:
        return Code(f"{name}({scope.settled(line.right[0].name).text}, {over})")
    direction = f'"{"forward" if line.meta.phase == "forward" else "backward"}"'
    if name == "send":
        source, sent = line.right[0].name, line.left[0].name
        code = scope.settled(source)
        if (source in scope.low) != (sent in scope.low):  # who receives it knows it by its name there
            code = scope.backend.cast(code, "bf16" if sent in scope.low else "fp32")
        return Code(f"send({code.text}, {over}, {direction}, {SENT})")
    left = line.left[0]
    asked = [shape(scope.shape(left.declared))]
    if scope.low:
        asked.append(f"dtype=torch.{'bfloat16' if left.name in scope.low else 'float32'}")
    return Code(f"receive({scope.like}.new_empty({', '.join(asked)}), {over}, {direction})")


def _part(scope: FunctionScope, line: Op) -> Code:
    """Return the positions of an axis in a shard."""
    place = place_changed(line)
    axis, (before,) = line.left[0].declared[place], line.right
    around = before.declared[place]  # cut over other axes of the mesh, it begins where these say
    first = f"{scope.first(axis)} - {scope.first(around)}" if sharded_over(around) else scope.first(axis)
    arguments = [scope.settled(before.name).text, first, scope.size(axis), str(place)]
    return Code(f"{line.op}({', '.join(arguments)})")


def _rows(scope: FunctionScope, line: Op) -> Code:
    """Return rows dispatched to the owner of their index; their axes come first, in the order of the index."""
    (mesh_axis, read), (before, index), after = line.axes, line.right, line.left[0]
    assert isinstance(before, Term)
    assert isinstance(index, Term)
    order = (*index.loops, *(axis for axis in after.loops if axis not in index.loops))
    chosen = scope.operand(index, index.loops)
    array = scope.operand(before, order)
    around = read.rpartition("/")[0]
    # within what other axes cut
    place = f"{chosen.atom} % {scope.size(around)}" if sharded_over(around) else chosen.text
    arguments = [array.text, place, MESH, f'"{mesh_axis}"', scope.size(read)]
    code = Code(f"{line.op}({', '.join(arguments)})")
    if order == after.loops:
        return code
    return scope.backend.transpose(code, [order.index(axis) for axis in after.loops])


def write(scope: FunctionScope, line: Line, heading: str = "") -> None:
    """Add the statements of a line to a function."""
    if isinstance(line, Op) and line.op != "inside" and (line.part == "gradient" or entry(line.op).body):
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


# Sums and ops.


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
    names = line.makes
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
