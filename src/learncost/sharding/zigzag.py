"""Zigzag sharding: balance causal attention by giving each device an early and a late part of the sequence.

The whole table uses this order, so that it needs no communication: inputs are permuted, outputs are permuted back, and
conditions compare original positions. Under a causal condition all devices have the same number of pairs, where with
contiguous shards the last device has the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from learncost.interpreter.operation import position
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, Statement, map_lines, visit, walk
from learncost.ir.polynomial import base, sharded_over, size_of, whole
from learncost.ir.table import Table
from learncost.sharding.line_sharding import whole_axes
from learncost.sharding.mesh import Mesh

Zigzag = Mapping[str, tuple[str, ...]]
"""Axes in zigzag order, and the mesh axes that shard them."""


def causal_axes(table: Table) -> frozenset[str]:
    """Return the sizes of the axes that the conditions of a table order, which are in zigzag order where sharded."""
    conditions = [condition for line, _ in walk(table.lines) for condition in line.where if condition.ordered]
    return frozenset(base(whole(axis)) for condition in conditions for axis in condition.axes)


def in_zigzag(table: Table, mesh: Mesh, sizes: Mapping[str, int]) -> tuple[Table, Zigzag]:
    """Return a sharded table in which the sharded axes of causal conditions have zigzag order, and these axes.

    Raises `InputError` if the axis is not divisible into two ranges per device, or if a line depends on the order of
    positions.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for line, _ in walk(table.lines):
        for condition in line.where:
            for axis in condition.axes if condition.ordered else ():
                if sharded_over(axis):
                    axes[base(whole(axis))] = sharded_over(axis)
    for axis, over in axes.items():
        stretches = 2 * prod(mesh.sizes[name] for name in over)
        if (rest := sizes[axis] % stretches) and stretches > 2:
            raise InputError(
                f"{axis} is {sizes[axis]:,} and cannot be sharded in zigzag over {' and '.join(over)}, two ranges for "
                f"each of {stretches // 2:,} devices: the next possible size is {sizes[axis] + stretches - rest:,}"
            )
    for statement, _ in visit(table.lines):
        if ordered := {base(whole(axis)) for axis in _ordered_axes(statement)} & axes.keys():
            text = str(statement).partition("\n")[0]
            raise InputError(
                f"the plan zigzag reorders {sorted(ordered)[0]}, and this line depends on the order: {text}"
            )

    def mesh_axes(side: str) -> tuple[str, ...]:
        return axes.get(base(whole(side)), ())

    def reordered(line: Line) -> tuple[Line]:
        where = tuple(replace(each, zigzag=(mesh_axes(each.lower), mesh_axes(each.upper))) for each in line.where)
        return (line.with_changed(where=where),)

    return replace(table, lines=map_lines(table.lines, reordered)), axes


def _ordered_axes(line: Statement) -> Iterator[str]:
    """Yield the axes whose order a line depends on, by an index, an iteration, or an op along them."""
    if isinstance(line, Loop):
        yield line.count
        return
    assert isinstance(line, Line)
    yield from whole_axes(line)
    yield from (axis.axis for axis in line.indexed_axes)


def ordered(array: Any, axes: Iterable[str], zigzag: Zigzag, sizes: Mapping[str, int], back: bool = False) -> Any:
    """Return a global array permuted to the order of a sharded table, or `back` to the original order."""
    for place, axis in enumerate(axes):
        if over := zigzag.get(base(whole(axis))):
            size = size_of(whole(axis), sizes)
            positions = position(np.arange(size), size, prod(sizes[name] for name in over))
            array = np.take(array, np.argsort(positions) if back else positions, axis=place)
    return array
