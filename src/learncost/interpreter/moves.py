"""Move data in NumPy: broadcast operands over the axes of a line, read at indices, and run collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from learncost.ir.affine import Affine
from learncost.ir.errors import InputError
from learncost.ir.line import Op
from learncost.ir.polynomial import first_of, place_cut, sharded_over, size_of
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ops.collectives import place_changed

Array = Any
Sizes = Mapping[str, int]
Reader = Callable[[Mapping[str, Array], Sizes], Array]


def spread(array: Array, have: tuple[str, ...], want: tuple[str, ...]) -> Array:
    """Return the array with its axes in the wanted order; an axis that it lacks gets length 1."""
    move = move_of(have, want)
    return array if move is None else move(array)


@lru_cache(maxsize=4096)
def move_of(have: tuple[str, ...], want: tuple[str, ...]) -> Callable[[Array], Array] | None:
    """Return the function that transposes and broadcasts an array; None where it is already in the wanted order."""
    if have == want:
        return None
    order = tuple(have.index(axis) for axis in want if axis in have)
    places = tuple(slice(None) if axis in have else None for axis in want)
    if len(order) == len(want):
        return lambda array: array.transpose(order)
    if order == tuple(range(len(order))):
        return lambda array: array[places]
    return lambda array: array.transpose(order)[places]


def reader(term: Operand, want: tuple[str, ...]) -> Reader:
    """Return the function that reads an operand, broadcast to the wanted axes."""
    if isinstance(term, Literal):
        if term.sizes:
            return lambda values, sizes: term.number(sizes)
        number = term.number({})
        return lambda values, sizes: number
    name, move = term.name, move_of(term.loops, want)
    if move is None:
        return lambda values, sizes: values[name]
    return lambda values, sizes: move(values[name])


def index_of(
    term: Term, values: Mapping[str, Array], sizes: Sizes, want: tuple[str, ...], declared: tuple[str, ...]
) -> Any:
    """Return the NumPy index for reading or writing an array at the term's indices; its result has the wanted axes."""
    reads = [i for i, axis in enumerate(term.axes) if isinstance(axis, Read)]
    index: list[Any] = []
    places: Any = None
    for i, axis in enumerate(term.axes):
        if isinstance(axis, Read):
            places = _positions(axis, values, sizes, size_of(declared[i], sizes))
            index.append(spread(places, axis.at.loops, want))
        else:
            shape = [1] * len(want)
            shape[want.index(axis)] = -1
            index.append(np.arange(size_of(axis, sizes)).reshape(shape))
    plain = [axis for axis in term.axes if isinstance(axis, str)]
    (first, *_) = reads
    at = term.axes[first]
    if len(reads) == 1 and isinstance(at, Read) and not set(at.at.loops) & set(plain) and want == term.loops:
        return (*[slice(None)] * first, places)
    return tuple(index)


def _positions(axis: Read, values: Mapping[str, Array], sizes: Sizes, size: int) -> Any:
    """Return the positions on an axis that an index gives; a position out of bounds becomes the axis's size."""
    at = axis.at
    if isinstance(at, Affine) and not at.fixed:
        places = at.over(sizes, np.arange)
        return np.where((places >= 0) & (places < size), places, size)
    if sharded_over(axis.axis):
        places = np.asarray(values[at.name]) - first_of(axis.axis, sizes)
        return np.where((places >= 0) & (places < size), places, size)
    positions = np.asarray(values[at.name] if isinstance(at, Term) else at.number(sizes))
    _check_index(positions, axis, size)
    return positions


def fill_values(term: Term) -> list[tuple[int, float]]:
    """Return the axes that may be read out of bounds, each with its fill value; 0 for a sharded axis."""
    parts = [(place, 0.0) for place, axis in enumerate(term.axes) if isinstance(axis, Read) and sharded_over(axis.axis)]
    return [*((place, at.outside) for place, at in term.beyond), *parts]


def _check_index(positions: Any, axis: Read, size: int) -> None:
    if positions.dtype.kind not in "iu":
        raise InputError(f"the index of {axis} has the type {positions.dtype}: give integers")
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise InputError(
            f"{axis} reads at {int(positions.max())} or {int(positions.min())}, but axis {axis.axis} has {size}"
        )


class Exchange(Protocol):
    """The communication of the devices of a mesh."""

    def __call__(self, mesh_axis: str, array: Array, among: tuple[int, ...] = ()) -> tuple[list[Array], int]:
        """Return the arrays of all devices along a mesh axis, in order, and the index of this device.

        among  the coordinates on the axis that take part; empty for all
        """

    def send(self, mesh_axis: str, place: int, array: Array) -> None:
        """Send an array to a coordinate on a mesh axis."""

    def receive(self, mesh_axis: str, place: int) -> Array:
        """Return the next array that the device at a coordinate on a mesh axis sends."""


def collected(line: Op, operands: list[Array], sizes: Mapping[str, int], exchange: Exchange | None) -> Array:
    """Return the result of a collective on one device."""
    if exchange is None:
        raise InputError(f"{line.op} needs several devices: run the sharded table on a mesh")
    if line.op in ("dispatch", "combine"):
        return _rows(line, operands, sizes, exchange)
    if line.op == "part":
        place = place_changed(line)
        (whole,) = line.right
        assert isinstance(whole, Term)
        start, end = whole.declared[place], line.left[0].declared[place]
        first, size = first_of(end, sizes) - first_of(start, sizes), size_of(end, sizes)
        return np.asarray(operands[0])[(*[slice(None)] * place, slice(first, first + size))]
    mesh_axis, places = line.axes[0], tuple(map(int, line.axes[1:]))
    if line.op == "receive":
        return exchange.receive(mesh_axis, places[0])
    (before,), (array,), after = line.right, operands, line.left[0]
    if line.op == "send":
        exchange.send(mesh_axis, places[0], array)
        return array
    assert isinstance(before, Term)
    arrays, here = exchange(mesh_axis, np.asarray(array), places)  # a stack may be a list of slices
    if line.op == "pass_on":
        return arrays[here - 1]
    if line.op in _JOINS:
        return _JOINS[line.op].reduce(arrays, axis=0)
    source, target = (place_cut(term.declared, mesh_axis) for term in (before, after))
    if line.op == "all_gather":
        assert source is not None
        return _whole(arrays, source, size_of(after.declared[source], sizes))
    assert target is not None
    own = [_part(each, target, here, size_of(after.declared[target], sizes), len(arrays)) for each in arrays]
    if line.op == "reduce_scatter":
        return np.add.reduce(own, axis=0)
    if line.op == "shard":
        return own[here]
    assert line.op == "all_to_all", line.op
    assert source is not None
    return _whole(own, source, size_of(after.declared[source], sizes))


_JOINS = {"all_reduce": np.add, "all_reduce_max": np.maximum, "all_reduce_min": np.minimum}


def _rows(line: Op, operands: list[Array], sizes: Mapping[str, int], exchange: Exchange) -> Array:
    """Return the rows that a dispatch sent to this device, or that a combine returned to it.

    Dispatched rows are concatenated along their first row axis, in the order of the sending devices; their other row
    axes have length 1.
    """
    (mesh_axis, read), (before, index), after = line.axes, line.right, line.left[0]
    array, chosen = (np.asarray(operand) for operand in operands)
    rows, rest = index.loops, tuple(axis for axis in after.loops if axis not in index.loops)
    owner = (chosen % size_of(read.rpartition("/")[0], sizes) // size_of(read, sizes)).reshape(-1)
    present = [axis for axis in (*rows, *rest) if axis in before.loops]
    array = array.transpose([before.loops.index(axis) for axis in present])
    if line.op == "dispatch":
        array = array[tuple(slice(None) if axis in present else None for axis in (*rows, *rest))]
        form = array.shape[len(rows) :]
        array = np.broadcast_to(array, (*chosen.shape, *form)).reshape(-1, *form)
        several, here = exchange(mesh_axis, (array, owner))
        result = np.concatenate([part[of == here] for part, of in several])
        result = result.reshape(len(result), *[1] * (len(rows) - 1), *form)
    else:
        form = array.shape[len(rows) :]
        several, here = exchange(mesh_axis, (array.reshape(-1, *form), owner))
        flat = np.empty((owner.size, *form), array.dtype)
        for device, (part, _) in enumerate(several):
            before_here = sum(int((of == device).sum()) for _, of in several[:here])
            mine = owner == device
            flat[mine] = part[before_here : before_here + int(mine.sum())]
        result = flat.reshape(*chosen.shape, *form)
    return result.transpose([(*rows, *rest).index(axis) for axis in after.loops])


def _part(array: Array, place: int, here: int, size: int, parts: int) -> Array:
    """Return a device's shard of an array along one of its axes, padded with zeros to the shard's size."""
    if size != -(-array.shape[place] // parts):
        raise InputError(f"an axis of size {array.shape[place]} is not divisible by {parts} devices")
    return filled_up(array[(*[slice(None)] * place, slice(here * size, (here + 1) * size))], place, size)


def filled_up(array: Array, place: int, size: int) -> Array:
    """Return an array padded with zeros at the end of one of its axes, up to a size."""
    if array.shape[place] == size:
        return array
    wider = [(0, size - length if at == place else 0) for at, length in enumerate(array.shape)]
    return np.pad(array, wider)


def _whole(parts: list[Array], place: int, size: int) -> Array:
    """Return the concatenation of shards without their padding."""
    whole = np.concatenate(parts, axis=place)
    return whole if whole.shape[place] == size else whole[(*[slice(None)] * place, slice(size))]
