"""What collectives mean, on NumPy: what a device has of the arrays of all devices along an axis of the mesh."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from learncost.equation.count import cuts
from learncost.equation.errors import InputError
from learncost.equation.table import Term, Word

Array = Any


class Exchange(Protocol):
    """How the devices of a mesh see each other's arrays."""

    def __call__(self, mesh_axis: str, array: Array) -> tuple[list[Array], int]:
        """The arrays that all devices along an axis of the mesh give, in its order, and which of them is this one."""


def collected(line: Word, array: Array, exchange: Exchange | None) -> Array:
    """The result of a collective on one device."""
    if exchange is None:
        raise InputError(f"{line.word} is between devices, and there is one: run the placed table on a mesh")
    (mesh_axis,), (before,), after = line.axes, line.right, line.left[0]
    assert isinstance(before, Term)
    arrays, here = exchange(mesh_axis, array)
    if line.word in _JOINS:
        return _JOINS[line.word].reduce(arrays, axis=0)
    source, target = _cut(before, mesh_axis), _cut(after, mesh_axis)
    if line.word == "reduce_scatter":
        return np.add.reduce([_part(each, target, here, len(arrays)) for each in arrays], axis=0)
    if line.word == "shard":
        return _part(array, target, here, len(arrays))
    if line.word == "all_gather":
        return np.concatenate(arrays, axis=source)
    assert line.word == "all_to_all", line.word
    return np.concatenate([_part(each, target, here, len(arrays)) for each in arrays], axis=source)


_JOINS = {"all_reduce": np.add, "all_reduce_max": np.maximum, "all_reduce_min": np.minimum}


def _cut(term: Term, mesh_axis: str) -> int:
    """The place of the axis that a mesh axis cuts; -1 where it cuts none."""
    return next((place for place, axis in enumerate(term.declared) if mesh_axis in cuts(axis)), -1)


def _part(array: Array, place: int, here: int, parts: int) -> Array:
    """A device's part of an array along one of its axes."""
    size = array.shape[place] // parts
    return array[(*[slice(None)] * place, slice(here * size, (here + 1) * size))]
