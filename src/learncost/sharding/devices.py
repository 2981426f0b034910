"""Run a sharded table on NumPy with one thread per device, which defines the meaning of sharded tables."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from math import prod
from typing import Any

import numpy as np

from learncost.interpreter import execute, program
from learncost.interpreter.moves import filled_up
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Line
from learncost.ir.polynomial import held, here, sharded_over, size_of
from learncost.passes.lower import lower
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import Mesh
from learncost.sharding.place import Placed
from learncost.sharding.zigzag import ordered

Array = Any
Values = dict[str, Array]

TIMEOUT = 300.0
"""Seconds after which a waiting device gives up."""


class PeerFailedError(Exception):
    """The error of a device if another device failed, or if an expected message does not arrive."""


class Communicator:
    """The exchange of arrays in a group of devices along a mesh axis; messages of each pair arrive in order."""

    def __init__(self, number: int) -> None:
        self.number, self.ended = number, False
        self._exchanged, self._sent = _Queues(), _Queues()

    def exchange(self, place: int, array: Array) -> list[Array]:
        """Return the arrays of all devices of the group, in order."""
        others = [other for other in range(self.number) if other != place]
        for other in others:
            self._exchanged[place, other].put(array)
        came = {other: self._next(self._exchanged[other, place]) for other in others}
        return [came.get(number, array) for number in range(self.number)]

    def send(self, source: int, target: int, array: Array) -> None:
        """Send an array to another position without waiting."""
        self._sent[source, target].put(array)

    def receive(self, source: int, target: int) -> Array:
        """Return the next array that one position sends to another."""
        return self._next(self._sent[source, target])

    def _next(self, arrays: queue.SimpleQueue[Array]) -> Array:
        """Return the next array of a queue. Raises `PeerFailedError` if a device failed."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and not self.ended:
            try:
                return arrays.get(timeout=0.2)
            except queue.Empty:
                continue
        raise PeerFailedError


class _Queues(dict[tuple[int, int], "queue.SimpleQueue[Array]"]):
    """The queues of messages, by sender and receiver."""

    def __missing__(self, pair: tuple[int, int]) -> queue.SimpleQueue[Array]:
        return self.setdefault(pair, queue.SimpleQueue())  # atomic, as several threads may call it


class MeshCommunicators:
    """The exchanges of all groups of a mesh, by the ranks of their devices."""

    def __init__(self) -> None:
        self.lock, self.by_ranks, self.ended = threading.Lock(), dict[tuple[int, ...], Communicator](), False

    def of(self, ranks: tuple[int, ...]) -> Communicator:
        """Return the exchange of a group of devices."""
        with self.lock:
            if ranks not in self.by_ranks:
                self.by_ranks[ranks] = Communicator(len(ranks))
                self.by_ranks[ranks].ended = self.ended
            return self.by_ranks[ranks]

    def end(self) -> None:
        """Record that a device failed, so that no device waits any longer."""
        with self.lock:
            self.ended = True
            for communicator in self.by_ranks.values():
                communicator.ended = True


@dataclass(frozen=True)
class MeshDevice:
    """A device of a mesh, which exchanges arrays with the other devices."""

    mesh: Mesh
    place: Mapping[str, int]
    communicators: MeshCommunicators

    def _with(self, mesh_axis: str) -> Communicator:
        return self.communicators.of(self.mesh.group(self.place, mesh_axis))

    def __call__(self, mesh_axis: str, array: Array, among: tuple[int, ...] = ()) -> tuple[list[Array], int]:
        ranks, here = self.mesh.group(self.place, mesh_axis), self.place[mesh_axis]
        places = among or tuple(range(len(ranks)))
        communicator = self.communicators.of(tuple(ranks[place] for place in places))
        return communicator.exchange(places.index(here), array), places.index(here)

    def send(self, mesh_axis: str, place: int, array: Array) -> None:
        self._with(mesh_axis).send(self.place[mesh_axis], place, array)

    def receive(self, mesh_axis: str, place: int) -> Array:
        return self._with(mesh_axis).receive(place, self.place[mesh_axis])


def run_placed(
    placed: Placed | Sequence[Placed],
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    watch: Callable[[Line, MutableMapping[str, Array]], None] | None = None,
) -> list[Values]:
    """Run a sharded step; return the values of every device, in rank order. `arrays` are global.

    placed  the table of every device, or one per pipeline stage, in order
    Every device gets its shard of the inputs; `watch` is called for every line that a device has run.
    """
    stages = (placed,) if isinstance(placed, Placed) else tuple(placed)
    axis = "" if isinstance(placed, Placed) else stages[0].clauses[0].mesh
    mesh, lowered, communicators = stages[0].mesh, [lower(stage.table) for stage in stages], MeshCommunicators()
    results: list[Values] = [{} for _ in range(mesh.devices)]
    errors: list[BaseException] = []

    for table in lowered:
        program(table)  # cached for all threads

    def device(rank: int, place: Mapping[str, int]) -> None:
        stage = place.get(axis, 0)
        table = stages[stage].table
        own_sizes = {**sizes, **stages[stage].sizes, **mesh.sizes_at(place)}
        try:
            given = (*table.inputs, *table.weights)
            values = {}
            for name in given:
                array, axes = of_stage(arrays[name], stages[stage], name), table.axes[name]
                values[name] = part(ordered(array, axes, stages[stage].zigzag, own_sizes), axes, own_sizes)
            execute(lowered[stage], values, own_sizes, watch, MeshDevice(mesh, place, communicators))
            results[rank] = values
        except PeerFailedError:
            pass
        except BaseException as error:
            errors.append(error)
            communicators.end()

    _all(device, mesh)
    if errors:
        raise errors[0]
    if not all(results):
        raise RuntimeError("deadlock: the collectives of the devices are in different orders")
    return results


def of_stage(array: Array, stage: Placed, name: str) -> Array:
    """Return the part of a global array for a pipeline stage: of a stack, the slices for the stage's iterations."""
    count = counted(stage, name)
    return array[stage.first[count] : stage.first[count] + stage.iterations[count]] if count else array


def counted(stage: Placed, name: str) -> str:
    """Return the loop count of a stack that is split between stages; "" for other arrays."""
    count = next(iter(stage.whole.axes[name]), "")
    return count if count in stage.first else ""


def _all(device: Callable[[int, Mapping[str, int]], None], mesh: Mesh) -> None:
    threads = [threading.Thread(target=device, args=pair) for pair in enumerate(mesh.places())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def part(array: Array, axes: tuple[str, ...], sizes: Mapping[str, int]) -> Array:
    """Return a device's shard of an array: `f/tp` is one of tp shards of f, padded with zeros."""
    array = np.asarray(array)
    for place, axis in enumerate(axes):
        if sharded_over(axis):
            first, many = held(axis, sizes)
            array = array[(*[slice(None)] * place, slice(first, first + many))]
            array = filled_up(array, place, size_of(axis, sizes))
    return array


def own_shard(array: Array, axes: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[Array, tuple[int, ...]]:
    """Return a device's shard without padding, and its offset in the global array along every axis."""
    places = [
        held(axis, sizes) if sharded_over(axis) else (0, length) for axis, length in zip(axes, array.shape, strict=True)
    ]
    return array[tuple(slice(many) for _, many in places)], tuple(first for first, _ in places)


def padded_shard(array: Array, axes: tuple[str, ...], sizes: Mapping[str, int]) -> Array:
    """Return a device's shard with padding."""
    for place, axis in enumerate(axes):
        if sharded_over(axis):
            array = filled_up(array, place, size_of(axis, sizes))
    return array


def together(parts: list[Array], layout: ShardLayout, mesh: Mesh, shape: Sequence[int] = ()) -> Array:
    """Return the global array from the shards of all devices; partial sums are reduced.

    shape  the global shape, if shards may be padded
    Raises `AssertionError` if replicas differ.
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
            raise AssertionError("replicas of an array differ")
        joined.setdefault(cut_key, whole)
    return _assembled(joined, [name for name in mesh.names if name in names], layout, mesh, shape)


def _assembled(
    parts: Mapping[tuple[int, ...], Array], names: list[str], layout: ShardLayout, mesh: Mesh, shape: Sequence[int]
) -> Array:
    if not names:
        return parts[()]
    any_part = next(iter(parts.values()))
    numbers = [prod(mesh.sizes[name] for name in over) for over in layout.split]
    shape = shape or [length * number for length, number in zip(any_part.shape, numbers, strict=True)]
    sizes, axes = dict(mesh.sizes), layout.cut(tuple(f"axis{number}" for number in range(len(shape))))
    for axis, length in zip(axes, shape, strict=True):
        text, *over = axis.split("/")
        sizes[text] = length
        for name in over:
            text, length = f"{text}/{name}", -(-length // mesh.sizes[name])
            sizes[text] = length
    result = np.empty(shape, any_part.dtype)
    for key, array in parts.items():
        real, first = own_shard(array, axes, {**sizes, **{here(n): at for n, at in zip(names, key, strict=True)}})
        result[tuple(slice(at, at + length) for at, length in zip(first, real.shape, strict=True))] = real
    return result
