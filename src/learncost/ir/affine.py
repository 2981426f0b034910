"""Affine index expressions: `X[B c y=2 i + u - 1]` reads axis y at 2 i + u - 1."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base, size_of


@dataclass(frozen=True, slots=True)
class AffineTerm:
    """A summand of an affine index: an integer, times sizes, times the index on an axis if there is one.

    `over` divides the product of the sizes, rounded down: `#c/2` is 1 for c = 3.
    """

    factor: int = 1
    sizes: tuple[str, ...] = ()
    axis: str = ""
    over: int = 1

    def times(self, sizes: Mapping[str, Any]) -> Any:
        """Return the coefficient of the axis, given the sizes.

        Raises `InputError` where the division by `over` makes it 0, so that every index is the same.
        """
        result = 1
        for size in self.sizes:
            result *= size_of(size, sizes)
        if self.axis and self.over > 1 and result < self.over:
            raise InputError(f"{self} is the same place everywhere: #{'#'.join(self.sizes)} is {result}")
        return self.factor * (result // self.over)

    def __str__(self) -> str:
        ops = [str(abs(self.factor))] if abs(self.factor) != 1 or not (self.sizes or self.axis) else []
        sizes = "".join(f"#{size}" for size in self.sizes) + (f"/{self.over}" if self.over != 1 else "")
        return " ".join((*ops, *((sizes,) if sizes else ()), *((self.axis,) if self.axis else ())))


@dataclass(frozen=True, slots=True)
class Affine:
    """An index on an axis as a sum of `AffineTerm`s. One without axes, `0[]`, is fixed, and must be within the axis.

    A read beyond the ends of the axis returns `outside`; a write there is dropped.
    """

    parts: tuple[AffineTerm, ...]
    outside: float = 0.0

    # The attributes that a Term has too, so that an index may be either.
    name = ""
    indexed = False

    @property
    def loops(self) -> tuple[str, ...]:
        """The axes whose indices the expression reads, each once."""
        return tuple(dict.fromkeys(part.axis for part in self.parts if part.axis))

    @property
    def axes(self) -> tuple[str, ...]:
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that the expression names."""
        return tuple(dict.fromkeys(size for part in self.parts for size in part.sizes))

    @property
    def fixed(self) -> bool:
        return not self.loops

    def determines(self, known: Collection[str]) -> bool:
        """Return whether the value determines all indices, given those on known axes: 2 i + u does, given u."""
        unknown = [part for part in self.parts if part.axis and part.axis not in known]
        return not unknown or (len(unknown) == 1 and unknown[0].over == 1 and unknown[0].factor != 0)

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Affine:
        def part(old: AffineTerm) -> AffineTerm:
            sizes = tuple(base(axes.get(size, size)) for size in old.sizes)
            return AffineTerm(old.factor, sizes, axes.get(old.axis, old.axis), old.over)

        return replace(self, parts=tuple(map(part, self.parts))) if axes else self

    def number(self, sizes: Mapping[str, int], at: Mapping[str, Any] = {}) -> Any:
        """Return the value, given sizes and indices on the axes (numbers, or arrays that broadcast to each other)."""
        total: Any = 0
        for part in self.parts:
            total = total + part.times(sizes) * (at[part.axis] if part.axis else 1)
        return total

    def over(self, sizes: Mapping[str, int], arange: Callable[[int], Any]) -> Any:
        """Return the values for all indices on its axes, as an array with the dimensions of `loops`."""
        loops = self.loops
        at = {}
        for place, axis in enumerate(loops):
            form = [1] * len(loops)
            form[place] = -1
            at[axis] = arange(size_of(axis, sizes)).reshape(form)
        return self.number(sizes, at)

    def solved(self, axis: str, place: str) -> Affine | None:
        """Return the index on one of its axes, given the value as the index on another axis: y = i + u - 1 for i is y -
        u + 1.

        Return None where not every value has one, as with y = 2 i.
        """
        on_axis = [part for part in self.parts if part.axis == axis]
        if len(on_axis) != 1 or on_axis[0].sizes or abs(on_axis[0].factor) != 1:
            return None
        sign = on_axis[0].factor
        rest = (replace(part, factor=-sign * part.factor) for part in self.parts if part is not on_axis[0])
        return Affine((AffineTerm(sign, (), place), *rest), self.outside)

    def __str__(self) -> str:
        if self.fixed and len(self.parts) == 1 and not self.sizes:
            return f"{self.parts[0].factor}[]"
        text = " ".join(f"{'-' if part.factor < 0 else '+'} {part}" for part in self.parts)
        return text.removeprefix("+ ")

    @property
    def ends_open(self) -> bool:
        """Return whether a following axis would be read as a summand: `i + 1` before d would be `i + 1 d`."""
        return not self.parts[-1].axis and not str(self).endswith("]")


def total(parts: Sequence[AffineTerm]) -> tuple[AffineTerm, ...]:
    """Add summands of the same axis and sizes, and drop those that are 0; return a single 0 where none is left."""
    sums: dict[tuple[tuple[str, ...], str, int], int] = {}
    for part in parts:
        key = tuple(sorted(part.sizes)), part.axis, part.over
        sums[key] = sums.get(key, 0) + part.factor
    return tuple(AffineTerm(factor, *key) for key, factor in sums.items() if factor) or (AffineTerm(0),)
