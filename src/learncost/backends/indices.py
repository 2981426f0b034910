"""The printer of indexed reads and writes: slices, rows of an array, or points of several indices."""

from __future__ import annotations

from learncost.backends.expression import Code, number, shape
from learncost.backends.scope import FunctionScope
from learncost.ir.affine import Affine
from learncost.ir.line import Line, Product
from learncost.ir.polynomial import sharded_over
from learncost.ir.term import Read, Term


class IndexPlace:
    """The kind of access of an indexed term or result."""

    def __init__(self, term: Term) -> None:
        reads = [(place, axis) for place, axis in enumerate(term.axes) if isinstance(axis, Read)]
        plain = tuple(axis for axis in term.axes if isinstance(axis, str))
        self.first, self.read = reads[0]
        index_axes = self.read.at.loops
        alone = len(reads) == 1 and (isinstance(self.read.at, Term) or self.read.at.fixed)
        self.count = len(index_axes)
        # One index for all other axes: wte[v=tokens[B M] d] takes rows, X[B M=0[] d] a slice.
        self.slices = alone and not set(index_axes) & set(plain)
        # Into the last axis of every row: one place, P[B M v=targets[B M]], or several, L[B M e=chosen[B M t]].
        last = self.first == len(term.axes) - 1
        rows = alone and last and not self.slices and index_axes[: len(plain)] == plain
        self.one_a_row = rows and len(index_axes) == len(plain)
        self.some_a_row = rows and len(index_axes) == len(plain) + 1
        self.before = ["..."] if last and self.first > 1 else [":"] * self.first
        self.fixed = isinstance(self.read.at, Affine) and self.read.at.fixed
        # Affine indices whose axes do not occur elsewhere in the term.
        loops = [loop for _, axis in reads for loop in axis.at.loops]
        self.affine = all(isinstance(axis.at, Affine) for _, axis in reads) and not alone
        self.affine = self.affine and len({*loops, *plain}) == len(loops) + len(plain)

    def index(self, scope: FunctionScope) -> str:
        """Return the text in the brackets of a slice."""
        return ", ".join((*self.before, scope.positions(self.read).text))


def gathered(scope: FunctionScope, term: Term, want: tuple[str, ...]) -> Code:
    """Return a value read at indices."""
    place, array = IndexPlace(term), scope.settled(term.name).atom
    if place.slices:
        code, have = Code(f"{array}[{place.index(scope)}]"), term.loops
    elif place.one_a_row:
        index = f"{scope.positions(place.read).atom}[..., None]"
        code, have = Code(f"{scope.backend.along(array, index).text}[..., 0]"), place.read.at.loops
    elif place.some_a_row:
        code, have = scope.backend.along(array, scope.positions(place.read).text), place.read.at.loops
    else:
        code, have = Code(f"{array}[{scope.index(term, term.loops, scope.axes[term.name])}]"), term.loops
        for at, affine in term.beyond:
            inside = scope.within(affine, scope.size(scope.axes[term.name][at]), term.loops)
            code = scope.backend.where(inside, code, number(affine.outside).text)
    for axis in _parts(term):  # what other devices have is theirs to add
        code = scope.backend.where(scope.on_device(axis, have), code, "0.0")
    return scope.spread(code, have, want)


def _parts(term: Term) -> list[Read]:
    """Return the indexed axes that are sharded."""
    return [axis for axis in term.indexed_axes if sharded_over(axis.axis)]


def is_taken(line: Line) -> bool:
    """Return whether a line reads one value at affine indices, each along a single axis."""
    if not isinstance(line, Product) or len(line.right) != 1 or line.left[0].indexed:
        return False
    (term,) = line.right
    return isinstance(term, Term) and term.indexed and IndexPlace(term).affine


def take(scope: FunctionScope, line: Line, remark: str, heading: str) -> None:
    """Return a value read at affine indices, by a statement for each axis, the last one first."""
    left, (term,) = line.left[0], line.right
    assert isinstance(term, Term)
    scope.layouts.pop(left.name, None)
    code, name = scope.settled(term.name), scope.identifiers.of(left.name)
    if term.name in scope.low and left.name not in scope.low:  # a step of a line, which computes in fp32
        code = scope.backend.cast(code, "fp32")
    steps = []
    beyond = dict(term.beyond)
    for place, axis in reversed([*enumerate(term.axes)]):
        if place in beyond:
            scope.helpers.library("taken")
            outside = f", {number(beyond[place].outside).text}" if beyond[place].outside else ""
            steps.append(f"taken({code.text}, {place}, {scope.steps(beyond[place])}{outside})")
            code = Code(name)
        elif isinstance(axis, Read):
            code = Code(f"{code.atom}[{', '.join((*[':'] * place, scope.positions(axis).text))}]")
    last = scope.spread(code, term.loops, left.loops).text
    steps += [last] if last != name else []
    for step, text in enumerate(steps):
        comment = remark if step == len(steps) - 1 else ""
        scope.put(f"{name} = {text}", () if step else (left.name,), comment, "" if step else heading)
        scope.read.append(left.name)
    scope.read.pop()


def _laid(scope: FunctionScope, left: Term, value: Code) -> Code:
    """Return a value over all axes of a term, added at affine indices, axis by axis."""
    for place, at in left.beyond:
        scope.helpers.library("laid")
        size = scope.size(scope.axes[left.name][place])
        value = Code(f"laid({value.text}, {place}, {scope.steps(at)}, {size})")
    return value


def scatter(scope: FunctionScope, line: Line, remark: str, heading: str) -> None:
    """Return a value scattered to indices, with a sum at repeated ones."""
    left, (term,) = line.left[0], line.right
    assert isinstance(term, Term)
    scope.layouts.pop(left.name, None)
    name, place = scope.identifiers.of(left.name), IndexPlace(left)
    code, have = scope.squeezed(term)
    value = scope.spread(code, have, left.loops)
    if place.affine and len(left.beyond) == len(left.indexed_axes):
        code = _laid(scope, left, value)
        scope.put(f"{name} = {code.text}", (left.name,), remark, heading)
        return
    zeros = scope.zeros(left.name).text
    for at, affine in left.beyond:  # what is beyond the ends is nothing, wherever it is put
        inside = scope.within(affine, scope.size(scope.axes[left.name][at]), left.loops)
        value = scope.backend.where(inside, value, "0.0")
    for axis in _parts(left):
        value = scope.backend.where(scope.on_device(axis, left.loops), value, "0.0")
    if scope.backend.like == "torch":
        # PyTorch adds in place to arrays of the same type alone, and under autocast not all have that of the weights.
        if value.text.isidentifier():
            zeros = scope.backend.zeros(scope.shape(scope.axes[left.name]), value.text).text
        elif ".to(" not in value.text:
            value = Code(f"{value.atom}.to({scope.like}.dtype)")
    if scope.backend.like == "numpy":
        fill = _into(scope, left, place, name, value)
        scope.put_two(f"{name} = {zeros}", (left.name,), fill, remark, heading)
        return
    write = _added if scope.backend.like == "jax" else _added_in_place
    scope.put(f"{name} = {zeros}{write(scope, left, place, value)}", (left.name,), remark, heading)


def _points(scope: FunctionScope, left: Term) -> str:
    return scope.index(left, left.loops, scope.axes[left.name])


def _into(scope: FunctionScope, left: Term, place: IndexPlace, name: str, value: Code) -> str:
    """Add NumPy's statement, which fills an array of zeros."""
    if place.slices and place.fixed:
        return f"{name}[{place.index(scope)}] = {value.text}"
    if place.one_a_row:  # so that nothing meets
        index = f"{scope.positions(place.read).atom}[..., None]"
        return f"{scope.backend.module}.put_along_axis({name}, {index}, {value.atom}[..., None], -1)"
    if place.slices:
        positions = scope.positions(place.read).text
        slices = [before.replace(":", "slice(None)") for before in place.before]
        index = shape((*slices, positions)) if slices else positions
    else:
        index = f"({_points(scope, left)})"
    return f"{scope.backend.module}.add.at({name}, {index}, {value.text})"


def _added(scope: FunctionScope, left: Term, place: IndexPlace, value: Code) -> str:
    """Return JAX's method call."""
    index = place.index(scope) if place.slices else _points(scope, left)
    return f".at[{index}].{'set' if left.apart else 'add'}({value.text})"


def _added_in_place(scope: FunctionScope, left: Term, place: IndexPlace, value: Code) -> str:
    """Return PyTorch's method call, the fastest of the equivalent ones."""
    if place.slices and place.count:
        positions, at = scope.positions(place.read).atom, place.first
        if place.count > 1:
            return f".index_add_({at}, {positions}.flatten(), {value.atom}.flatten({at}, {at + place.count - 1}))"
        return f".index_add_({at}, {positions}, {value.text})"
    if place.one_a_row:
        return f".scatter_add_(-1, {scope.positions(place.read).atom}[..., None], {value.atom}[..., None])"
    if place.some_a_row:
        return f".scatter_add_(-1, {scope.positions(place.read).text}, {value.text})"
    if place.slices and place.fixed:
        return f".select_scatter({value.text}, {place.first}, {scope.positions(place.read).text})"
    return f".index_put_(({_points(scope, left)},), {value.text}, accumulate=True)"
