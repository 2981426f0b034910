"""Upsampling to repeated positions, which is a view; PyTorch decomposes the other kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learncost.importer.axes import AxisClass, equal, quotient
from learncost.importer.nodes import shape_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.views import View, ViewAxis

NEAREST = tuple(f"{name}{count}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for count in (1, 2, 3))
"""Operators that copy the nearest position."""


def is_uneven(node: Any) -> bool:
    """Return whether some position is not repeated as often as the others."""
    before, after = shape_of(node.args[0])[2:], shape_of(node)[2:]
    factors = node.args[2:]
    scales = [*(factors[0] if factors and isinstance(factors[0], list | tuple) else factors), *(None for _ in after)]
    times = [quotient(new, old) for new, old in zip(after, before, strict=True)]
    return not all(isinstance(n, int) and scale in (None, n) for n, scale in zip(times, scales, strict=False))


@rule(*NEAREST)
def nearest(reader: GraphReader, x: View, *_: Any) -> View:
    x = x.fresh()  # once: another call would make other slots
    rows, spread = list(x.dims), set(x.spread)
    for dim, (new, old) in enumerate(zip(shape_of(reader.node), x.shape, strict=True)):
        if not equal(new, old):
            slot = ViewAxis(AxisClass(quotient(new, old)))
            spread.add(slot)
            rows[dim] = (*rows[dim], slot)
    return replace(x, dims=tuple(rows), spread=frozenset(spread))
