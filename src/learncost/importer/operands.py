"""Kinds of operands other than views: outside values, selected positions, integers, complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learncost.importer.axes import Size
from learncost.importer.nodes import shape_of
from learncost.importer.views import View


@dataclass(frozen=True)
class GivenTensor:
    """A tensor that depends on no weight and no float input, or is of integers: an input of the table.

    source, look   if it is a view: the viewed tensor, and the viewing operation
    """

    node: Any
    source: GivenTensor | None = None
    look: Callable[[View], Any] | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        return shape_of(self.node)


@dataclass(frozen=True)
class ChosenPlaces:
    """Positions that an op selects: an index of the table if it is indexed with, otherwise an outside tensor."""

    view: View
    node: Any


@dataclass(frozen=True)
class IntegerValue:
    """Integers computed from values of the table: lines if they are used in arithmetic, otherwise outside indices."""

    view: View
    node: Any


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers: views of their real and imaginary parts, or numbers."""

    real: Any
    imaginary: Any


def is_inside(value: Any) -> bool:
    """Return whether an argument contains values of the table."""
    if isinstance(value, list | tuple):
        return any(map(is_inside, value))
    return isinstance(value, View | ChosenPlaces | IntegerValue | Complex)


def learns(value: Any) -> bool:
    """Return whether an argument contains values that may have a gradient."""
    if isinstance(value, list | tuple):
        return any(map(learns, value))
    return isinstance(value, View | IntegerValue | Complex)


def is_complex(value: Any) -> bool:
    """Return whether an argument contains complex numbers."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    if isinstance(value, GivenTensor):
        return bool(getattr(value.node.meta.get("val"), "is_complex", bool)())
    return isinstance(value, Complex | complex)
