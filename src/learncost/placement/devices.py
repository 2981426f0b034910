"""Devices as threads: a placed table run on NumPy, one thread a device. It is what a placed table means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learncost.equation.count import cuts, first_of, size_of
from learncost.equation.table import Line
from learncost.layers.lower import lower
from learncost.placement.layout import Layout
from learncost.placement.mesh import Mesh
from learncost.placement.place import Placed
from learncost.readings.run import execute

Array = Any
Values = dict[str, Array]

WAIT = 300.0
"""Seconds after which a device that waits for others gives up."""


@dataclass
class Meeting:
    """Where the devices along one line of the mesh exchange arrays."""

    number: int
    arrays: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.number)

    def exchange(self, place: int, array: Array) -> list[Array]:
        """The arrays of all, in order."""
        self.arrays[place] = array
        self.barrier.wait(WAIT)
        arrays = [self.arrays[number] for number in range(self.number)]
        self.barrier.wait(WAIT)
        return arrays


def run_placed(
    placed: Placed,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    watch: Callable[[Line, MutableMapping[str, Array]], None] | None = None,
) -> list[Values]:
    """The values of every device, in the order of the ranks; `arrays` are those of the whole table.

    Every device gets its own part of what it is given; `watch` is told of every line that ran on one of them.
    """
    mesh, lowered = placed.mesh, lower(placed.table)
    meetings = {group: Meeting(len(group)) for group in _groups(mesh)}
    results: list[Values] = [{} for _ in range(mesh.devices)]
    errors: list[BaseException] = []

    def device(rank: int, place: Mapping[str, int]) -> None:
        own_sizes = {**sizes, **mesh.sizes_at(place)}

        def exchange(mesh_axis: str, array: Array) -> tuple[list[Array], int]:
            return meetings[mesh.group(place, mesh_axis)].exchange(place[mesh_axis], array), place[mesh_axis]

        try:
            given = (*placed.table.inputs, *placed.table.weights)
            values = {name: part(arrays[name], placed.table.axes[name], own_sizes) for name in given}
            execute(lowered, values, own_sizes, watch, exchange)
            results[rank] = values
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            for meeting in meetings.values():
                meeting.barrier.abort()

    _all(device, mesh)
    if errors:
        raise errors[0]
    return results


def _groups(mesh: Mesh) -> set[tuple[int, ...]]:
    return {mesh.group(place, name) for place in mesh.places() for name in mesh.names}


def _all(device: Callable[[int, Mapping[str, int]], None], mesh: Mesh) -> None:
    threads = [threading.Thread(target=device, args=pair) for pair in enumerate(mesh.places())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def part(array: Array, axes: tuple[str, ...], sizes: Mapping[str, int]) -> Array:
    """A device's part of an array, by its axes: `f/tp` has one of tp parts of f."""
    index = []
    for axis in axes:
        first = first_of(axis, sizes)
        index.append(slice(first, first + size_of(axis, sizes)) if cuts(axis) else slice(None))
    return np.asarray(array)[tuple(index)] if index else np.asarray(array)


def together(parts: list[Array], layout: Layout, mesh: Mesh) -> Array:
    """The whole of a value of which every device has a part; what is partial is joined.

    Raises `AssertionError` where devices that have the same do not agree.
    """
    names = layout.over
    joins = dict(layout.partial)
    ranks: dict[tuple[int, ...], list[Array]] = {}
    for place, array in zip(mesh.places(), parts, strict=True):
        key = tuple(place[name] for name in mesh.names if name in names)
        other = tuple(place[name] for name in mesh.names if name not in names and name not in joins)
        ranks.setdefault((*key, -1, *other), []).append(array)
    functions = {"sum": np.add, "max": np.maximum, "min": np.minimum}
    joined: dict[tuple[int, ...], Array] = {}
    for key, arrays in ranks.items():
        how = functions[next(iter(joins.values()))] if joins else None
        whole = how.reduce(arrays, axis=0) if how is not None else arrays[0]
        cut_key = key[: key.index(-1)]
        if cut_key in joined and not np.array_equal(joined[cut_key], whole, equal_nan=True):
            raise AssertionError("devices that have the same array do not agree")
        joined.setdefault(cut_key, whole)
    return _assembled(joined, [name for name in mesh.names if name in names], layout, mesh)


def _assembled(parts: Mapping[tuple[int, ...], Array], names: list[str], layout: Layout, mesh: Mesh) -> Array:
    if not names:
        return parts[()]
    any_part = next(iter(parts.values()))
    shape = list(any_part.shape)
    for number, over in enumerate(layout.split):
        for name in over:
            shape[number] *= mesh.sizes[name]
    result = np.empty(shape, any_part.dtype)
    for key, array in parts.items():
        place = dict(zip(names, key, strict=True))
        index = []
        for number, over in enumerate(layout.split):
            position = 0
            for name in over:
                position = position * mesh.sizes[name] + place[name]
            size = array.shape[number]
            index.append(slice(position * size, (position + 1) * size))
        result[tuple(index)] = array
    return result
