"""What an operand of a node is where it is no view of values: outside, chosen, whole, complex, or masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learncost.importer.axes import Size
from learncost.importer.constants import Mask
from learncost.importer.nodes import shape_of
from learncost.importer.views import View


@dataclass(frozen=True)
class GivenTensor:
    """A tensor that depends on no weight and no float input, or is of integers: it is given to the table.

    source, look   where it is a view of another: that, and what looks at it
    """

    node: Any
    source: GivenTensor | None = None
    look: Callable[[View], Any] | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        return shape_of(self.node)


@dataclass(frozen=True)
class ChosenPlaces:
    """Places that a word chooses: an index of the table where it is read at, else a tensor outside."""

    view: View
    node: Any


@dataclass(frozen=True)
class IntegerValue:
    """Whole numbers that are made of values of the table: lines where they are computed with, places from outside."""

    view: View
    node: Any


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers: views of their real and their imaginary parts, or numbers."""

    real: Any
    imaginary: Any


@dataclass(frozen=True)
class Masked:
    """Scores of which a causal mask hides those behind each place: a softmax reads them under a `where`.

    value   the number in the place of what is hidden; None where the mask is added
    hides   whether what is true in the mask is hidden
    """

    view: View
    by: GivenTensor
    value: float | None
    mask: Mask
    hides: bool


def is_inside(value: Any) -> bool:
    """Whether anything of an argument is in the table."""
    if isinstance(value, list | tuple):
        return any(map(is_inside, value))
    return isinstance(value, View | ChosenPlaces | IntegerValue | Masked | Complex)


def learns(value: Any) -> bool:
    """Whether anything of an argument is a value of the table."""
    if isinstance(value, list | tuple):
        return any(map(learns, value))
    return isinstance(value, View | IntegerValue | Masked | Complex)


def is_complex(value: Any) -> bool:
    """Whether anything of an argument is of complex numbers."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    if isinstance(value, GivenTensor):
        return bool(getattr(value.node.meta.get("val"), "is_complex", bool)())
    return isinstance(value, Complex | complex)
