"""The meaning of collectives, in NumPy: a device's result from the arrays of all devices along a mesh axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from learncost.ir.errors import InputError
from learncost.ir.line import Op
from learncost.ir.polynomial import first_of, place_cut, size_of
from learncost.ir.term import Term
from learncost.ops.collectives import place_changed

Array = Any


class Exchange(Protocol):
    """The communication of the devices of a mesh."""

    def __call__(self, mesh_axis: str, array: Array, among: tuple[int, ...] = ()) -> tuple[list[Array], int]:
        """Return the arrays of all devices along a mesh axis, in order, and the index of this device.

        among  the coordinates on the axis that take part, where not all do
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
    arrays, here = exchange(mesh_axis, np.asarray(array), places)  # a stack is a list of its slices
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
    """Return the rows that were dispatched to this device, or those combined on their original device.

    Dispatched rows are concatenated along the first of their axes, in the order of the devices that they come from; the
    other axes of rows have length 1.
    """
    (mesh_axis, read), (before, index), after = line.axes, line.right, line.left[0]
    array, chosen = (np.asarray(operand) for operand in operands)
    rows, rest = index.loops, tuple(axis for axis in after.loops if axis not in index.loops)
    owner = (chosen % size_of(read.rpartition("/")[0], sizes) // size_of(read, sizes)).reshape(-1)
    lying = [axis for axis in (*rows, *rest) if axis in before.loops]
    array = array.transpose([before.loops.index(axis) for axis in lying])
    if line.op == "dispatch":
        array = array[tuple(slice(None) if axis in lying else None for axis in (*rows, *rest))]
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
        raise InputError(f"an axis of size {array.shape[place]} cannot be sharded over {parts} devices")
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
