"""Zigzag sharding: balance causal attention by giving each device an early and a late part of the sequence.

The whole table uses this order, so that it needs no communication: inputs are permuted, outputs are permuted back, and
conditions compare original positions (`ir/zigzag.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from learncost.ir.affine import Affine
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, Statement, map_lines, visit, walk
from learncost.ir.polynomial import base, sharded_over, size_of, whole
from learncost.ir.table import Table
from learncost.ir.term import Read
from learncost.ir.zigzag import devices_of, position
from learncost.ops import entry
from learncost.sharding.mesh import Mesh

Zigzag = Mapping[str, tuple[str, ...]]
"""Axes in zigzag order, and the mesh axes that shard them."""


def in_zigzag(table: Table, mesh: Mesh, sizes: Mapping[str, int]) -> Table:
    """Return a sharded table with zigzag order for the sharded axes of a causal condition.

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
    return replace(table, zigzag=axes, lines=map_lines(table.lines, lambda line: (_balanced(line, axes),)))


def _balanced(line: Line, axes: Collection[str]) -> Line:
    kernel = line.meta.kernel
    if kernel is None or kernel.blocks is None or base(whole(kernel.blocks[0])) not in axes:
        return line
    return replace(line, meta=replace(line.meta, kernel=replace(kernel, zigzag=True)))


def _ordered_axes(line: Statement) -> Iterator[str]:
    """Yield the axes whose order a line depends on: by index, iteration, or an op along them."""
    if isinstance(line, Loop):
        yield line.count
        return
    assert isinstance(line, Line)
    for operand in (*line.left, *line.right):
        for axis in getattr(operand, "axes", ()):
            if isinstance(axis, Read):
                yield axis.axis
                yield from axis.at.loops if isinstance(axis.at, Affine) else ()
    if isinstance(line, Op):
        op = entry(line.op)
        if op.kind in ("choice", "scan") or op.name in ("append", "join"):
            yield from (*line.axes, *line.chosen)
        if line.opaque or op.name == "eye":
            yield from line.loops


def ordered(array: Any, axes: Iterable[str], zigzag: Zigzag | None, sizes: Mapping[str, int]) -> Any:
    """Permute a global array to the order of a sharded table."""
    return _taken(array, axes, zigzag, sizes, back=False)


def put_back(array: Any, axes: Iterable[str], zigzag: Zigzag | None, sizes: Mapping[str, int]) -> Any:
    """Permute a global array of a sharded table back to the original order."""
    return _taken(array, axes, zigzag, sizes, back=True)


def _taken(array: Any, axes: Iterable[str], zigzag: Zigzag | None, sizes: Mapping[str, int], back: bool) -> Any:
    for place, axis in enumerate(axes):
        if devices := devices_of(axis, zigzag, sizes):
            size = size_of(whole(axis), sizes)
            positions = position(np.arange(size), size, devices)
            array = np.take(array, np.argsort(positions) if back else positions, axis=place)
    return array
