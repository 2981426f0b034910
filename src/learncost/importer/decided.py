"""Decide branches on values that follow from sizes and settings alone, such as a comparison of two causal masks."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes

from learncost.importer.constants import GivenError, NodeConstants
from learncost.importer.nodes import operator_name
from learncost.importer.unseen import changed_by, memory_of


def decided() -> dict[Any, Callable[..., Any]]:
    """Return the answers to Python's questions for the number of a traced tensor, where every size gives the same one.

    An export has no values and refuses them. Other tensors are left to it.
    """
    of_tensor = torch.Tensor
    kinds: dict[Any, Any] = {
        of_tensor.__bool__: bool,
        of_tensor.__int__: int,
        of_tensor.__float__: float,
        of_tensor.item: lambda number: number,
    }

    def answer(function: Any) -> Callable[[Any], Any]:
        def number(tensor: Any) -> Any:
            if (known := _number(tensor)) is not None:
                return kinds[function](known)
            if function is of_tensor.__bool__ and _asks_for_a_mask():
                return False
            if function is of_tensor.__bool__ and (known := _if_finite(_node(tensor))) is not None:
                return known
            return function(tensor)

        return number

    def equal(one: Any, other: Any) -> bool:
        identical = one.shape == other.shape and (one == other).all()
        if identical is False or (known := _number(identical)) is not None:
            return bool(identical is not False and known)
        return torch.equal(one, other)

    return {**{each: answer(each) for each in kinds}, torch.equal: equal, of_tensor.equal: equal}


def _asks_for_a_mask() -> bool:
    """Return whether PyTorch inspects a mask for a faster kernel, where a caller did not declare it as causal."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_name in ("_answer", "__torch_function__"):
        frame = frame.f_back
    return bool(frame.f_code is _DETECTS.__code__)


_DETECTS = torch.nn.modules.transformer._detect_is_causal_mask


def _node(tensor: Any) -> Any:
    """Return the node of a traced tensor; None for another."""
    mode: Any = get_proxy_mode()
    proxy: Any = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return None if proxy is None else proxy.proxy.node


def _if_finite(node: Any) -> bool | None:
    """Return the truth of a check for infinities and nan if all numbers are finite; None for another condition."""
    name = "" if node is None else operator_name(node.target).partition(".")[0]
    first, *others = (None,) if node is None else node.args or (None,)
    if name in ("isfinite", "isnan", "isinf", "isposinf", "isneginf"):
        return name == "isfinite"
    if name in ("eq", "ne") and others[0] in (first, math.inf):  # how PyTorch writes isfinite and isnan
        return (name == "eq") == (others[0] is first)
    if name in ("all", "any", "abs", "alias", "_to_copy"):
        return _if_finite(first)
    if name == "logical_not":
        return None if (known := _if_finite(first)) is None else not known
    pair = [_if_finite(each) for each in (first, *others) if hasattr(each, "target")]
    if len(pair) < 2 or None in pair:
        return None
    joins = {"mul": all, "logical_and": all, "bitwise_and": all, "logical_or": any, "bitwise_or": any}
    return joins[name](map(bool, pair)) if name in joins else None


def _number(tensor: Any) -> Any:
    """Return the number of a traced tensor; None if it depends on inputs or on sizes."""
    mode: Any = get_proxy_mode()
    node = _node(tensor)
    if node is None or tensor.numel() != 1:
        return None
    held = ((each, getattr(mode.tracer.root, each.target, None)) for each in node.graph.nodes if each.op == "get_attr")
    constants = _ConstantsInOrder({each: value for each, value in held if hasattr(value, "dtype")})
    with _disable_current_modes():
        try:
            found = [constants.at(node, sizes).item() for sizes in constants.sizes(node)]
        except (GivenError, RuntimeError, TypeError, IndexError, AttributeError):
            return None
    return found[0] if all(each == found[0] for each in found) else None


class _ConstantsInOrder(NodeConstants):
    """Values of nodes of a graph that is being traced, whose operators may write into earlier values."""

    def at(self, node: Any, sizes: Any) -> Any:
        known: dict[Any, Any] = {}

        def of(value: Any) -> Any:
            return torch.fx.node.map_arg(value, known.__getitem__)

        for each in _in_order(node):
            known[each] = self._value(each, sizes, of)
        return known[node]


def _in_order(node: Any) -> Iterator[Any]:
    """Yield the nodes that a node follows from in their order, with those that write into the memory of others."""
    wanted, written = {node}, {memory_of(node)}
    for each in reversed(node.graph.nodes):
        if each in wanted or any(memory_of(other) in written for other in changed_by(each)):
            wanted.add(each)
            if not isinstance(each.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
                wanted |= {*each.all_input_nodes}
                written |= {memory_of(other) for other in each.all_input_nodes} - {None}
    yield from (each for each in node.graph.nodes if each in wanted)
