"""A mesh of devices: axes with names, such as dp=2,tp=4, the last one between the nearest neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from learncost.ir.errors import InputError
from learncost.ir.polynomial import here

_AXIS = re.compile(r"([A-Za-z]\w*)\s*=\s*(\d+|\*)")


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid. `axes` are its names, in order, with how many devices lie along each."""

    axes: tuple[tuple[str, int], ...]

    @property
    def sizes(self) -> dict[str, int]:
        """How many devices lie along each axis."""
        return dict(self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def devices(self) -> int:
        """How many there are."""
        return prod(size for _, size in self.axes)

    def places(self) -> Iterator[dict[str, int]]:
        """The place of every device on every axis, in the order of their ranks: the last axis runs fastest."""
        for place in product(*(range(size) for _, size in self.axes)):
            yield dict(zip(self.names, place, strict=True))

    def group(self, place: Mapping[str, int], axis: str) -> tuple[int, ...]:
        """The ranks of the devices that share every place but that on one axis, in its order."""
        return tuple(self.rank({**place, axis: number}) for number in range(self.sizes[axis]))

    def rank(self, place: Mapping[str, int]) -> int:
        """The number of a device, from 0."""
        number = 0
        for name, size in self.axes:
            number = number * size + place[name]
        return number

    def sizes_at(self, place: Mapping[str, int]) -> dict[str, int]:
        """The sizes that a device adds to those of a table: those of the mesh, and where it stands on each axis."""
        return self.sizes | {here(name): place[name] for name in self.names}

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


def mesh(text: str, devices: int | None = None) -> Mesh:
    """The mesh that a text says, `dp=2,tp=4`; of so many devices the axis in `dp=*,tp=4` has those that are left.

    Raises `InputError`.
    """
    axes: dict[str, int] = {}
    rest: str | None = None
    for item in filter(None, (item.strip() for item in re.split(r"[,\s]+", re.sub(r"\s*=\s*", "=", text)))):
        match = _AXIS.fullmatch(item)
        if match is None or match[2] == "0" * len(match[2]):
            raise InputError(f"a mesh is written as dp=2,tp=4, each axis with how many devices; {item!r} is none")
        if match[1] in axes:
            raise InputError(f"the mesh {text!r} has {match[1]} twice")
        if match[2] == "*":
            if rest is not None or devices is None:
                why = "two axes have it" if rest is not None else "nobody says how many devices there are"
                raise InputError(f"the mesh {text!r}: {item} is as many as are left, and {why}: give a number")
            rest = match[1]
        axes[match[1]] = 1 if match[2] == "*" else int(match[2])
    if not axes:
        raise InputError("a mesh has one axis at least, such as dp=2")
    if rest is not None and devices is not None:
        axes[rest] = max(1, devices // prod(axes.values()))
    return Mesh(tuple(axes.items()))
