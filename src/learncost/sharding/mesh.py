"""Represent a mesh of devices by named axes, such as dp=2,tp=4; the last axis is innermost, with the fastest links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from math import prod

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.polynomial import here

_AXIS = re.compile(r"([A-Za-z]\w*)\s*=\s*(\d+|\*)")


@dataclass(frozen=True)
class Mesh:
    """A grid of devices; `axes` are the names of its axes in order, with their numbers of devices."""

    axes: tuple[tuple[str, int], ...]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the number of devices along each axis."""
        return dict(self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return prod(size for _, size in self.axes)

    def places(self) -> Iterator[dict[str, int]]:
        """Yield the coordinates of every device, in rank order: the last axis varies fastest."""
        for place in product(*(range(size) for _, size in self.axes)):
            yield dict(zip(self.names, place, strict=True))

    def group(self, place: Mapping[str, int], axis: str) -> tuple[int, ...]:
        """Return the ranks of the devices with the same coordinates except on one axis, in order."""
        return tuple(self.rank({**place, axis: number}) for number in range(self.sizes[axis]))

    def rank(self, place: Mapping[str, int]) -> int:
        """Return the rank of a device, from 0."""
        number = 0
        for name, size in self.axes:
            number = number * size + place[name]
        return number

    def sizes_at(self, place: Mapping[str, int]) -> dict[str, int]:
        """Return the additional sizes of a device's table: those of the mesh, and the device's coordinate on each
        axis."""
        return self.sizes | {here(name): place[name] for name in self.names}

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


def mesh(text: str, devices: int | None = None) -> Mesh:
    """Return the mesh that a text such as `dp=2,tp=4` describes; given a number of devices, `*` in `dp=*,tp=4` is the
    remaining factor.

    Raises `InputError`.
    """
    axes: dict[str, int] = {}
    rest: str | None = None
    for item in filter(None, (item.strip() for item in re.split(r"[,\s]+", re.sub(r"\s*=\s*", "=", text)))):
        match = _AXIS.fullmatch(item)
        if match is None or match[2] == "0" * len(match[2]):
            raise InputError(f"{item!r} is not a mesh axis with its number of devices: write dp=2,tp=4")
        if match[1] in axes:
            raise InputError(f"the mesh {text!r} has {match[1]} twice")
        if match[2] == "*":
            if rest is not None or devices is None:
                why = "two axes use *" if rest is not None else "the number of devices is unknown"
                raise InputError(f"the mesh {text!r}: {item} cannot be inferred, as {why}: give a number")
            rest = match[1]
        axes[match[1]] = 1 if match[2] == "*" else int(match[2])
    if not axes:
        raise InputError("a mesh needs at least one axis, such as dp=2")
    if rest is not None and devices is not None:
        axes[rest] = max(1, devices // prod(axes.values()))
    return Mesh(tuple(axes.items()))
