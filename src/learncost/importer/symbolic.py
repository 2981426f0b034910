"""Adjust PyTorch's reasoning with symbolic sizes during export: faster, and with simpler expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch._dynamo.config
from torch import SymInt, _refs
from torch._prims_common import is_contiguous_or_false, make_contiguous_strides_for
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from learncost.importer.replaced import attributes_replaced
from learncost.ir.stated import LARGEST, Limit


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Keep, inside, the requested sizes of a view with symbolic sizes, and disable the cache of shapes.

    PyTorch changes a shape dimension by dimension, so that the size 64 of `x.view(B, -1, 64)` becomes `M // (M // 64)`,
    which nothing simplifies, and it tests divisibility at every step. This also affects the strides of contiguous
    results. It recomputes cached shapes to validate them, which takes longer than the cache saves.
    """
    by_dimension = _refs._reshape_view_helper_core_alg

    def fused_update(a: Any, shape: Sequence[Any], allow_copy: bool) -> Any:
        """Return the tensor with another shape; the number of elements was checked before."""
        if any(isinstance(size, SymInt) for size in shape) and is_contiguous_or_false(a):
            return a.as_strided(shape, make_contiguous_strides_for(tuple(shape)), a.storage_offset())
        return by_dimension(a, shape, allow_copy)

    with (
        attributes_replaced({(_refs, "_reshape_view_helper_core_alg"): fused_update}),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
    ):
        yield


def interval(guards: Iterable[Any], symbol: Any, example: int) -> Limit:
    """Return the range of sizes around an example in which all floor divisions keep the values that guards assume, as
    for an unrolled loop.
    """
    asked = [
        guard.expr
        for guard in guards
        if isinstance(guard.expr, sympy.Eq)
        and any(side.is_Integer for side in guard.expr.args)
        and any(isinstance(side, FloorDiv) for side in guard.expr.args)
        and guard.expr.free_symbols == {symbol}
    ]
    within = Limit()
    for equation in dict.fromkeys(asked):

        def holds(size: int, equation: Any = equation) -> bool:
            return bool(equation.xreplace({symbol: sympy.Integer(size)}) == sympy.true)

        within &= Limit(_last(holds, example, -1), _last(holds, example, 1))
    return within


def _last(holds: Callable[[int], bool], first: int, step: int) -> int:
    """Return the last size, from a first one on, for which a monotone condition is true."""
    there = reach = 1
    while reach < LARGEST and first + step * reach > 0 and holds(first + step * reach):
        there = reach = 2 * reach
    if reach >= LARGEST:
        return LARGEST
    below = there // 2
    while reach - below > 1:
        middle = (below + reach) // 2
        if first + step * middle > 0 and holds(first + step * middle):
            below = middle
        else:
            reach = middle
    return first + step * below


def open_sizes(nodes: Iterable[Any]) -> set[Any]:
    """Return the symbolic sizes of a graph's values."""
    return {
        size.node.expr for node in nodes for size in getattr(node.meta.get("val"), "shape", ()) if hasattr(size, "node")
    }


def constants(sizes: Iterable[Any], within: Mapping[Any, Limit]) -> dict[Any, int]:
    """Return the sizes, or parts of sizes, that are constant over the range of a symbol, if that range is small."""
    parts = {
        part
        for size in set(sizes)
        for part in sympy.preorder_traversal(size)
        if len(part.free_symbols) == 1 and part.has(FloorDiv, Mod, PythonMod, Max, Min)
    }
    found: dict[Any, int] = {}
    for part in parts:
        (symbol,) = part.free_symbols
        limit = within.get(symbol, Limit())
        if limit.most - limit.least > MOST_TRIED:
            continue
        values = {part.xreplace({symbol: sympy.Integer(n)}) for n in range(limit.least, limit.most + 1)}
        if len(values) == 1 and (value := values.pop()).is_Integer:
            found[part] = value
    return found


MOST_TRIED = 4096
"""The most sizes that are tried one by one."""
