"""The kernels of a step: lines that differ only in names and sizes share one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from learncost.backends.c import KernelFunction, KernelLines, SizeNeededError, kernel
from learncost.backends.expression import Identifiers
from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import FusedKernel, Line, Meta, Op, Sum
from learncost.ir.polynomial import base, names_of_sizes, size_of
from learncost.ir.term import Literal, Term, terms_of
from learncost.program.calls import Axes


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
    places_read = [axis.at for term in terms for axis in term.indexed_axes]
    used += [size for place in places_read if isinstance(place, Affine) for size in place.sizes]
    used += [axis for line in lines for axis in _others(line)]
    used = [axis for axis in used if not base(axis).isdigit()]
    sizes = tuple(dict.fromkeys(map(base, used)))
    numbered = {size: f"size {number}" for number, size in enumerate(sizes)}
    places = {axis: numbered[base(axis)] + axis[len(base(axis)) :] for axis in used}
    names = {name: f"array {number}" for number, name in enumerate(arrays)}
    handed = {name for line in lines for name in line.makes} & {*outputs}
    pattern = Pattern(
        tuple(  # a line without its purpose, but with its grouping
            replace(line.renamed(names, places), meta=Meta(kernel=_kernel(line.meta.kernel, places))) for line in lines
        ),
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
    # An identity depends on indices although it has no operand.
    if any(line.where or getattr(line, "axes", ()) or getattr(line, "op", "") == "eye" for line in lines):
        return lines, axes
    if len({*axes_together}) < len(axes_together):
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


def named_by_op(lines: Sequence[Line]) -> Mapping[str, str]:
    """Return the arrays of a kernel of one operator, with a copy of its result, by the operator's names; else none."""
    (line, *copies) = lines
    if not isinstance(line, Op) or any(not isinstance(copy, Sum) or copy.reads != (line.name,) for copy in copies):
        return {}
    pairs = [(term.name, name) for term, name in zip(line.right, line.given, strict=True) if isinstance(term, Term)]
    pairs += [(term.name, name) for term, name in zip(line.left, line.gives, strict=True)]
    pairs += [(copy.name, f"{line.gives[0]}.copy") for copy in copies]
    names = dict(pairs)
    return names if len(names) == len(pairs) == len({*names.values()}) else {}


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


KernelWriter: TypeAlias = Callable[[KernelLines], KernelFunction]
"""The printer of kernels in a language."""


@dataclass(frozen=True)
class _WrittenKernel:
    """A kernel, the lines for which it was printed, and the sizes that are constants in it."""

    like: NamedPattern
    constants: tuple[int | None, ...]
    function: KernelFunction

    def fits(self, numbers: Sequence[int]) -> bool:
        """Return whether the kernel computes identical lines at these sizes."""
        return all(constant in (None, number) for constant, number in zip(self.constants, numbers, strict=True))


class KernelTable:
    """Functions in a language, which `write` prints at their first call; several steps can share them.

    Before any is written, the calls of a step are noted: sizes in which calls of a kernel differ are its parameters.
    In a dialect that allocates no memory, calls that need some, or constants of their sizes, have separate kernels.
    """

    def __init__(self, sizes: Mapping[str, int], write: KernelWriter = kernel, reserved: Iterable[str] = ()) -> None:
        self.write = write
        self.functions: list[KernelFunction] = []
        self._sizes = sizes
        self._named, self._wishes = Identifiers(reserved), set[str]()
        self._sizes_of: dict[Pattern, set[tuple[int, ...]]] = {}
        self._written: dict[Pattern, list[_WrittenKernel]] = {}

    def note(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], dtypes: Mapping[str, str]) -> None:
        """Record the sizes of a computation."""
        like = identical(*flat(lines, axes), others, dtypes)
        self._sizes_of.setdefault(like.pattern, set()).add(self._numbers(like.sizes))

    def written(
        self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str, dtypes: Mapping[str, str]
    ) -> KernelFunction:
        """Return the kernel of lines, with the lines' names for its arrays and sizes."""
        lines, axes = flat(lines, axes)
        like = identical(lines, axes, others, dtypes)
        numbers = self._numbers(like.sizes)
        several = self._written.setdefault(like.pattern, [])
        fitting = next((kernel for kernel in several if kernel.fits(numbers)), None)
        if fitting is None:
            name = self._named.of(f"{wish}.{len(self.functions) + 1}" if wish in self._wishes else wish)
            ops_names = named_by_op(lines)
            renamed = {ops_names.get(array, array): array for array in like.arrays}

            def function_with(fixed: Mapping[str, int]) -> KernelFunction:
                given = KernelLines(
                    [line.renamed(ops_names) for line in lines],
                    {array: axes[name] for array, name in renamed.items() if name in axes},
                    frozenset(ops_names.get(array, array) for array in others & {*like.arrays}),
                    {array: dtypes[name] for array, name in renamed.items() if name in dtypes},
                    fixed,
                    name,
                )
                return self.write(given)

            fixed = self._fixed(like)
            try:
                function = function_with(fixed)
            except SizeNeededError:
                fixed = dict(zip(like.sizes, numbers, strict=True))
                function = function_with(fixed)
            self._wishes.add(wish)
            self.functions.append(function)
            constants = tuple(fixed.get(size) for size in like.sizes)
            fitting = _WrittenKernel(replace(like, arrays=tuple(renamed)), constants, function)
            several.append(fitting)
        first, function = fitting.like, fitting.function
        arrays = dict(zip(first.arrays, like.arrays, strict=True))
        sizes = dict(zip(first.sizes, like.sizes, strict=True))
        return replace(
            function,
            reads=tuple(arrays[name] for name in function.reads),
            writes=tuple(arrays[name] for name in function.writes),
            sizes=tuple(sizes[size] for size in function.sizes),
            shares=tuple((arrays[read], arrays[written]) for read, written in function.shares),
        )

    def number(self, size: str) -> int:
        """Return the value of a size; of one that `flat` made, the product of its axes."""
        return prod(int(size_of(axis, self._sizes)) for axis in size.split())

    def _numbers(self, sizes: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.number, sizes))

    def _fixed(self, like: NamedPattern) -> dict[str, int]:
        """Return the sizes that are equal in all calls."""
        several = zip(*self._sizes_of[like.pattern], strict=True)
        return {size: numbers[0] for size, numbers in zip(like.sizes, several, strict=True) if len({*numbers}) == 1}
