"""The operands of a line: values with their axes, `Q[B M h k]`, read at an index, and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import TypeAlias

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.polynomial import factors, size_of, summands


@dataclass(frozen=True, slots=True)
class Read:
    """An axis read at an index array, `v=T[B M]`, or at an affine index, `y=i + 1`, not along all of it."""

    axis: str
    at: Term | Affine

    def __str__(self) -> str:
        return f"{self.axis}={self.at}"


Axis: TypeAlias = str | Read


@dataclass(frozen=True, slots=True)
class Term:
    """A named value with its axes as this line reads them, `Q[B M h k]`."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def loops(self) -> tuple[str, ...]:
        """The axes that are looped over: plain axes, and the axes of the indices, each once, in order."""
        return _loops(self.axes)

    @property
    def declared(self) -> tuple[str, ...]:
        """The axes of the value itself, without those of indices: wte[v=tokens[B M] d] has (v, d)."""
        return _declared(self.axes)

    @property
    def indexed_axes(self) -> tuple[Read, ...]:
        """The axes that are read, or written, at an index."""
        return _indexed(self.axes)

    @property
    def indexed(self) -> bool:
        return bool(_indexed(self.axes))

    @property
    def apart(self) -> bool:
        """Return whether every element is written at most once.

        It is where there is no index, or the indices determine the positions, as in `Y[B M=0[] d]` or `Y[M=i + 1 d]`.
        With an index array, several writes may collide.
        """
        return _apart(self.axes)

    @property
    def beyond(self) -> tuple[tuple[int, Affine], ...]:
        """The axes that may be read beyond their ends, with their affine indices."""
        reads = ((number, axis.at) for number, axis in enumerate(self.axes) if isinstance(axis, Read))
        return tuple((number, at) for number, at in reads if isinstance(at, Affine) and not at.fixed)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and those of its indices."""
        inner = (name for axis in self.indexed_axes for name in axis.at.names)
        return (self.name, *inner)

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Term:
        """Return the term with values and axes renamed; the same object where nothing changes."""
        name, new_axes = names.get(self.name, self.name), self.axes
        if axes or self.indexed:
            new_axes = tuple(
                axes.get(a, a) if isinstance(a, str) else Read(axes.get(a.axis, a.axis), a.at.renamed(names, axes))
                for a in self.axes
            )
        return self if name == self.name and new_axes == self.axes else Term(name, new_axes)

    def __str__(self) -> str:
        return f"{self.name}[{' '.join(_spelt(self.axes))}]"


def _spelt(axes: tuple[Axis, ...]) -> Iterator[str]:
    """Yield the axes as text; an index is in parentheses where the next axis would be read as a part of it."""
    for axis, following in zip_longest(axes, axes[1:]):
        at = axis.at if isinstance(axis, Read) else None
        in_brackets = isinstance(at, Affine) and at.ends_open and isinstance(following, str)
        yield f"{axis.axis}=({at})" if in_brackets and isinstance(axis, Read) else str(axis)


@lru_cache(maxsize=4096)
def _loops(axes: tuple[Axis, ...]) -> tuple[str, ...]:
    loops: list[str] = []
    for axis in axes:
        loops.extend((axis,) if isinstance(axis, str) else axis.at.loops)
    return tuple(dict.fromkeys(loops))


@lru_cache(maxsize=4096)
def _declared(axes: tuple[Axis, ...]) -> tuple[str, ...]:
    return tuple(axis if isinstance(axis, str) else axis.axis for axis in axes)


@lru_cache(maxsize=4096)
def _indexed(axes: tuple[Axis, ...]) -> tuple[Read, ...]:
    return tuple(axis for axis in axes if isinstance(axis, Read))


@lru_cache(maxsize=4096)
def _apart(axes: tuple[Axis, ...]) -> bool:
    known = {axis for axis in axes if isinstance(axis, str)}
    places = [axis.at for axis in _indexed(axes)]
    while determined := [at for at in places if isinstance(at, Affine) and at.determines(known)]:
        known.update(*(at.loops for at in determined))
        places = [at for at in places if at not in determined]
    return not places


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, `0.5[]`, or a size to a power, `#k^-0.5[]`: value times the product of the sizes to the power."""

    value: float = 1.0
    sizes: tuple[str, ...] = ()
    power: float = 1.0

    name = ""
    axes: tuple[Axis, ...] = ()
    loops: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    indexed_axes: tuple[Read, ...] = ()
    indexed = False
    names: tuple[str, ...] = ()

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Literal:
        def renamed(size: str) -> str:
            parts = summands(size)
            named = ((sign, "*".join(axes.get(name, name) for name in factors(summand))) for sign, summand in parts)
            text = "".join(f"{'-' if sign < 0 else '+'}{summand}" for sign, summand in named)
            return text if parts[0][0] < 0 else text[1:]

        sizes = tuple(map(renamed, self.sizes))
        return self if sizes == self.sizes else replace(self, sizes=sizes)

    def number(self, sizes: Mapping[str, int]) -> float:
        """Return the number, given the sizes."""
        points = 1
        for size in self.sizes:
            points *= size_of(size, sizes)
        if points <= 0 and self.power < 0:
            raise InputError(f"{self} divides by {points}: use other sizes")
        if points < 0 and not self.power.is_integer():
            raise InputError(f"{self} is a root of {points}: use other sizes")
        try:
            return float(self.value * float(points) ** self.power)
        except OverflowError:
            raise InputError(f"{self} is larger than the largest floating-point number") from None

    def __str__(self) -> str:
        if not self.sizes:
            return f"{self.value:g}[]"
        text = "".join(f"#({size})" if len(summands(size)) > 1 else f"#{size}" for size in self.sizes).replace("*", " ")
        text += f"^{self.power:g}" if self.power != 1 else ""
        return text + "[]"


Operand: TypeAlias = Term | Literal


def terms_of(operand: Operand | Affine) -> Iterator[Term]:
    """Yield a term and those inside its indices; nothing for a number."""
    if not isinstance(operand, Term):
        return
    yield operand
    for axis in operand.indexed_axes:
        yield from terms_of(axis.at)
