"""Operators that write values at given indices: PyTorch does not define which of several values at one index stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from learncost.importer.nodes import operator_name


def overwriting(program: Any) -> Iterator[Any]:
    """Return the nodes of an exported program that write different values at indices of tensors."""
    for node in program.graph.nodes:
        name = operator_name(node.target) if node.op == "call_function" else ""
        if name.partition(".")[0] in ("index_put", "index_copy", "scatter") and ".value" not in name:
            arguments = dict(enumerate(node.args))
            if name.startswith("index_put") and (arguments.get(3) or node.kwargs.get("accumulate")):
                continue
            if ".reduce" not in name and arguments[2 if name.startswith("index_put") else 3].meta["val"].numel() != 1:
                yield node


def has_repeated_places(program: Any, of_node: Mapping[str, Any]) -> bool:
    """Return whether a run wrote several values at one index, so that the result is undefined."""
    return any(_repeats(node, of_node) for node in overwriting(program))


def _repeats(node: Any, of_node: Mapping[str, Any]) -> bool:
    import torch

    if operator_name(node.target).startswith("index_put"):
        indices = [of_node.get(each.name) for each in node.args[1] if each is not None]
        if any(each is None or each.dtype is torch.bool for each in indices):
            return False
        spread: Any = torch.broadcast_tensors(*indices)  # type: ignore[no-untyped-call]
        places = torch.stack(list(spread)).flatten(1).T.tolist()
        return len({*map(tuple, places)}) < len(places)
    dim, index = node.args[1], of_node.get(node.args[2].name)
    if index is None or not index.dim():
        return False
    ordered = index.sort(dim).values
    return bool((ordered.diff(dim=dim) == 0).any())
