"""Print a collective as a call of its helper; the two terms determine the array's axis."""

from __future__ import annotations

from learncost.backends.between import MESH, SENT
from learncost.backends.expression import Code, shape
from learncost.backends.scope import FunctionScope
from learncost.ir.errors import InputError
from learncost.ir.line import Op
from learncost.ir.polynomial import base, place_cut, sharded_over
from learncost.ir.term import Term
from learncost.ops.collectives import place_changed

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
    way = f'"{"forth" if line.meta.phase == "forward" else "back"}"'
    if name == "send":
        source, sent = line.right[0].name, line.left[0].name
        code = scope.settled(source)
        if (source in scope.low) != (sent in scope.low):  # who receives it knows it by its name there
            code = scope.backend.cast(code, "bf16" if sent in scope.low else "fp32")
        return Code(f"send({code.text}, {over}, {way}, {SENT})")
    left = line.left[0]
    asked = [shape(scope.shape(left.declared))]
    if scope.low:
        asked.append(f"dtype=torch.{'bfloat16' if left.name in scope.low else 'float32'}")
    return Code(f"receive({scope.like}.new_empty({', '.join(asked)}), {over}, {way})")


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
    place = (
        f"{chosen.atom} % {scope.size(around)}" if sharded_over(around) else chosen.text
    )  # within what other axes cut
    arguments = [array.text, place, MESH, f'"{mesh_axis}"', scope.size(read)]
    code = Code(f"{line.op}({', '.join(arguments)})")
    if order == after.loops:
        return code
    return scope.backend.transpose(code, [order.index(axis) for axis in after.loops])
