"""Constant folding of values that follow from settings alone, such as masks and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from learncost.ir.dataclass import dataclass, field

LONGEST = 6_000
"""The largest side of a mask that is evaluated; masks are tried at the size that their settings name, and twice that.
"""


class NotConstantError(Exception):
    """A value depends on an input, or is not known."""


@dataclass(frozen=True)
class Mask:
    """A causal mask: a query sees itself and earlier keys, of these the last `window` if there is one."""

    window: int = 0


@dataclass
class NodeConstants:
    """Values of nodes that no input determines, evaluated at chosen sizes.

    tensors   parameters, buffers and lifted constants by node
    """

    tensors: Mapping[Any, Any]
    masks: dict[Any, Mask | None] = field(default_factory=dict)

    def at(self, node: Any, sizes: Mapping[Any, int]) -> Any:
        """Return the value of a node with these sizes for the graph's symbols. Raises `NotConstantError`."""
        known: dict[Any, Any] = {}

        def of(value: Any) -> Any:
            return torch.fx.node.map_arg(value, found)

        def found(node: Any) -> Any:
            if node not in known:
                known[node] = self._value(node, sizes, of)
            return known[node]

        return found(node)

    def _value(self, node: Any, sizes: Mapping[Any, int], of: Callable[[Any], Any]) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            expression = value.node.expr
            missing = expression.free_symbols - sizes.keys()
            if missing:
                raise NotConstantError
            kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
            return kinds[type(value)](expression.xreplace(dict(sizes)))
        if node in self.tensors:
            tensor = self.tensors[node]
            if tensor.device.type == "meta" or isinstance(tensor, torch._subclasses.FakeTensor):
                raise NotConstantError
            return tensor.detach()
        if node.op != "call_function":
            raise NotConstantError
        named = {name: of(each) for name, each in node.kwargs.items() if name != "device"}
        return node.target(*map(of, node.args), **named)

    def sizes(self, node: Any) -> list[dict[Any, int]]:
        """Return sizes at which to evaluate a node: small ones, and ones beyond those that its settings name.

        The batch of a mask stays small: its rows are only compared with each other.
        """
        symbols: dict[Any, tuple[int, int]] = {}
        numbers = [1]
        seen = set()
        rest = [node]
        while rest:
            here = rest.pop()
            if here in seen:
                continue
            seen.add(here)
            rest += here.all_input_nodes
            numbers += [n for n in here.args if isinstance(n, int) and 1 < n <= LONGEST // 2]
            for size in (*getattr(here.meta.get("val"), "shape", ()), here.meta.get("val")):
                if isinstance(size, torch.SymInt):
                    for symbol in size.node.expr.free_symbols:
                        bounds = size.node.shape_env.var_to_range.get(symbol)
                        upper = int(bounds.upper) if bounds is not None and bounds.upper.is_Integer else LONGEST
                        symbols[symbol] = (0, min(upper, LONGEST))
        if not symbols:
            return [{}]
        long = 2 * max(numbers) + 5
        sides = [size.node.expr.free_symbols for size in _shape(node)[-2:] if isinstance(size, torch.SymInt)]
        of_sides = set[Any]().union(*sides) if len(_shape(node)) > 1 else symbols.keys()
        return [
            {symbol: min(upper, base if symbol in of_sides else 3) for symbol, (_, upper) in symbols.items()}
            for base in (5, long)
        ]

    def values(self, node: Any) -> list[Any] | None:
        """Return the values of a node at its `sizes`; None if they depend on an input."""
        try:
            return [self.at(node, sizes) for sizes in self.sizes(node)]
        except (NotConstantError, RuntimeError, TypeError, IndexError, AttributeError):
            return None

    def mask(self, node: Any, hides: bool = False) -> Mask | None:
        """Return the causal mask, along its last two dimensions, that a boolean or additive mask is; None if it is not
        causal.
        """
        if (node, hides) not in self.masks:
            self.masks[node, hides] = self._mask(node, hides)
        return self.masks[node, hides]

    def _mask(self, node: Any, hides: bool) -> Mask | None:
        several = self.values(node) if len(node.meta["val"].shape) > 1 else None
        window = 0
        for value in several or ():
            if value.dtype != torch.bool:
                if not value.is_floating_point() or not bool(((value == 0) | (value < -1e4)).all()):
                    return None
                value = value == 0
            value = ~value if hides else value
            flat = value.reshape(-1, *value.shape[-2:])
            rows, columns = flat.shape[-2:]
            if rows != columns or rows < 2 or not bool((flat == flat[:1]).all()):
                return None
            kept = int(flat[0, -1].sum())
            low = torch.ones(rows, rows, dtype=torch.bool).tril()
            seen = low if kept == rows else low & ~torch.ones(rows, rows, dtype=torch.bool).tril(-kept)
            if not bool((flat[0] == seen).all()):
                return None
            window = kept if kept < rows else 0
        return Mask(window) if several else None

    def start(self, node: Any) -> int | None:
        """Return the first of consecutive positions; None if they are not consecutive, or depend on an input."""
        first: int | None = None
        for value in self.values(node) or ():
            if value.is_floating_point() or value.dtype == torch.bool or value.numel() != max(value.shape, default=0):
                return None
            flat = value.reshape(-1)
            first = int(flat[0]) if first is None else first
            if not bool((flat == torch.arange(first, first + len(flat))).all()):
                return None
        return first


def _shape(node: Any) -> Any:
    return getattr(node.meta.get("val"), "shape", ())
