"""PyTorch's way of reasoning with sizes that stay open: shorter while a module is exported, and in plainer sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from learncost.ir.stated import LARGEST, Limit


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Inside, a view of open sizes has the sizes that it was asked for, and no shape is remembered.

    PyTorch goes from a shape to another dimension by dimension, so that 64 places of `x.view(B, -1, 64)` are
    `M // (M // 64)`, which nothing simplifies, and asks at every step whether something divides something. Of what lies
    in memory in its order the result does, too. What it remembers of shapes it calculates anew to be sure of it, which
    takes longer than it saves.
    """
    import torch._dynamo.config
    from torch import SymInt, _refs
    from torch._prims_common import is_contiguous_or_false, make_contiguous_strides_for

    by_dimension = _refs._reshape_view_helper_core_alg

    def fused_update(a: Any, shape: Sequence[Any], allow_copy: bool) -> Any:
        """The same places with another shape; that there are as many was asked before."""
        if any(isinstance(size, SymInt) for size in shape) and is_contiguous_or_false(a):
            return a.as_strided(shape, make_contiguous_strides_for(tuple(shape)), a.storage_offset())
        return by_dimension(a, shape, allow_copy)

    _refs._reshape_view_helper_core_alg = fused_update
    try:
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
            yield
    finally:
        _refs._reshape_view_helper_core_alg = by_dimension


def interval(guards: Iterable[Any], symbol: Any, example: int) -> Limit:
    """The sizes about an example at which all whole parts are as large as guards say, as of a loop over them."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv

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
    """The last size from a first one on of which something holds, where it holds of no later one again."""
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
    """The sizes of a graph's values that are no numbers."""
    return {
        size.node.expr for node in nodes for size in getattr(node.meta.get("val"), "shape", ()) if hasattr(size, "node")
    }


def constants(sizes: Iterable[Any], within: Mapping[Any, Limit]) -> dict[Any, int]:
    """Sizes, or parts of them, that are one number at all sizes that a symbol may have, where these are few."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

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
"""Sizes that are tried one by one."""
