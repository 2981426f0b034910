"""What collectives mean, on NumPy: what a device has of the arrays of all devices along an axis of the mesh."""

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
    """How the devices of a mesh see each other's arrays."""

    def __call__(self, mesh_axis: str, array: Array, among: tuple[int, ...] = ()) -> tuple[list[Array], int]:
        """The arrays that all devices along an axis of the mesh give, in its order, and which of them is this one.

        among  the places on the axis that meet, where not all do
        """

    def send(self, mesh_axis: str, place: int, array: Array) -> None:
        """Send an array to a place on an axis of the mesh."""

    def receive(self, mesh_axis: str, place: int) -> Array:
        """The next array that a place on an axis of the mesh sends."""


def collected(line: Op, operands: list[Array], sizes: Mapping[str, int], exchange: Exchange | None) -> Array:
    """The result of a collective on one device."""
    if exchange is None:
        raise InputError(f"{line.op} is between devices, and there is one: run the placed table on a mesh")
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
    """Rows where they are sent to, or where they came from.

    There rows stand one behind another along the first of their axes, as many as there are; the other ones have one
    place each. They are in the order of the devices that they come from.
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
    """A device's part of an array along one of its axes, filled up with zeros where parts are larger than the whole."""
    if size != -(-array.shape[place] // parts):
        raise InputError(f"an axis of {array.shape[place]} places cannot be cut over {parts} devices")
    return filled_up(array[(*[slice(None)] * place, slice(here * size, (here + 1) * size))], place, size)


def filled_up(array: Array, place: int, size: int) -> Array:
    """An array with zeros at the end of one of its axes, up to a size."""
    if array.shape[place] == size:
        return array
    wider = [(0, size - length if at == place else 0) for at, length in enumerate(array.shape)]
    return np.pad(array, wider)


def _whole(parts: list[Array], place: int, size: int) -> Array:
    """Parts one behind another, without what fills them up."""
    whole = np.concatenate(parts, axis=place)
    return whole if whole.shape[place] == size else whole[(*[slice(None)] * place, slice(size))]
