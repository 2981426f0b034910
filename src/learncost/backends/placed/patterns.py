"""Find lines that differ only in names and sizes, so that one kernel computes them all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.affine import Affine
from learncost.ir.line import FusedKernel, Line, Meta, Op
from learncost.ir.polynomial import base, names_of_sizes
from learncost.ir.term import Literal, Read, Term, terms_of

Axes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Pattern:
    """A computation without names: its arrays and sizes are numbered in order of appearance.

    arrays  of each array its axes, its type, and whether it is made here and read by others
    """

    lines: tuple[Line, ...]
    arrays: tuple[tuple[tuple[str, ...], str | None, bool], ...]


@dataclass(frozen=True)
class NamedPattern:
    """A pattern, with the lines' names for its arrays and sizes in its order."""

    pattern: Pattern
    arrays: tuple[str, ...]
    sizes: tuple[str, ...]


def identical(lines: Sequence[Line], axes: Axes, outputs: Collection[str], dtypes: Mapping[str, str]) -> NamedPattern:
    """Return the pattern of the lines of one kernel.

    axes     the declared axes of every name
    outputs  the names, of those that the lines make, that others read
    """
    terms = [term for line in lines for operand in (*line.right, *line.left) for term in terms_of(operand)]
    arrays = tuple(dict.fromkeys(term.name for term in terms))
    used = [axis for name in arrays for axis in axes.get(name, ())]
    used += [axis for term in terms for axis in (*term.loops, *term.declared)]
    places_read = [axis.at for term in terms for axis in term.axes if isinstance(axis, Read)]
    used += [size for place in places_read if isinstance(place, Affine) for size in place.sizes]
    used += [axis for line in lines for axis in _others(line)]
    used = [axis for axis in used if not base(axis).isdigit()]
    sizes = tuple(dict.fromkeys(map(base, used)))
    numbered = {size: f"size {number}" for number, size in enumerate(sizes)}
    places = {axis: numbered[base(axis)] + axis[len(base(axis)) :] for axis in used}
    names = {name: f"array {number}" for number, name in enumerate(arrays)}
    handed = {name for line in lines for name in line.makes} & {*outputs}
    pattern = Pattern(
        tuple(_plain(line.renamed(names, places), _kernel(line.meta.kernel, places)) for line in lines),
        tuple(
            (tuple(places.get(axis, axis) for axis in axes.get(name, ())), dtypes.get(name), name in handed)
            for name in arrays
        ),
    )
    return NamedPattern(pattern, arrays, sizes)


def flat(lines: Sequence[Line], axes: Axes) -> tuple[Sequence[Line], Axes]:
    """Return elementwise lines over equal axes as lines over one axis, named as their concatenation."""
    terms = [term for line in lines for term in (*line.left, *line.right)]
    (axes_together, *others) = {term.axes for term in terms if term.axes} or {()}
    declared = {axes[term.name] for term in terms if isinstance(term, Term) and term.axes}
    if (
        others
        or len(axes_together) < 2
        or declared != {axes_together}
        or not all(isinstance(axis, str) for axis in axes_together)
    ):
        return lines, axes
    together = " ".join(base(str(axis)) for axis in axes_together)
    if any(line.where or getattr(line, "axes", ()) or _places(line) for line in lines) or len({*axes_together}) < len(
        axes_together
    ):
        return lines, axes

    def over_one(term: Term) -> Term:
        return replace(term, axes=(together,)) if term.axes else term

    def changed(line: Line) -> Line:
        left = tuple(map(over_one, line.left))
        right = tuple(over_one(term) if isinstance(term, Term) else term for term in line.right)
        kernel = line.meta.kernel and replace(line.meta.kernel, axes=(), blocks=None)
        return replace(line, left=left, right=right, meta=replace(line.meta, kernel=kernel))

    names = {term.name for term in terms if term.axes}
    return [changed(line) for line in lines], {**axes, **dict.fromkeys(names, (together,))}


def _places(line: Line) -> bool:
    """Return whether a line depends on indices although it has no operand, as an identity does."""
    return isinstance(line, Op) and line.op == "eye"


def named_by_op(lines: Sequence[Line]) -> Mapping[str, str]:
    """Return the arrays of a kernel of one operator by the operator's names; else none."""
    (line, *more) = lines
    if more or not isinstance(line, Op):
        return {}
    pairs = [(term.name, name) for term, name in zip(line.right, line.given, strict=True) if isinstance(term, Term)]
    pairs += [(term.name, name) for term, name in zip(line.left, line.gives, strict=True)]
    names = dict(pairs)
    return names if len(names) == len(pairs) == len({*names.values()}) else {}


def _plain(line: Line, kernel: FusedKernel | None) -> Line:
    """Return the line without its purpose, but with its grouping."""
    return replace(line, meta=Meta(kernel=kernel))


def _kernel(kernel: FusedKernel | None, places: Mapping[str, str]) -> FusedKernel | None:
    if kernel is None:
        return None
    blocks = kernel.blocks and (places.get(kernel.blocks[0], kernel.blocks[0]), kernel.blocks[1])
    return FusedKernel("", tuple(places.get(axis, axis) for axis in kernel.axes), blocks)


def _others(line: Line) -> Iterator[str]:
    """Return the axes and sizes of a line that are not in its terms."""
    yield from line.loops
    for condition in line.where:
        yield from (condition.lower, condition.upper, *([condition.window] if condition.window else []))
    for operand in (*line.right, *line.left):
        if isinstance(operand, Literal):
            yield from (name for size in operand.sizes for name in names_of_sizes(size))
    if line.meta.kernel:
        yield from line.meta.kernel.axes
        yield from [line.meta.kernel.blocks[0]] if line.meta.kernel.blocks else []
    yield from getattr(line, "axes", ())
