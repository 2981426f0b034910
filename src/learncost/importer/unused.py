"""Count dead products of a module, which a run computes and an exported graph drops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from learncost.importer.nodes import module_of, operator_name
from learncost.importer.registered import polynomial


@dataclass(frozen=True)
class Unused:
    """Products that no output of a module depends on.

    flops   FLOPs of the forward pass, in the graph's symbols; None if they are not a polynomial in them
    places  the operators, each with the path of its module
    """

    flops: str | None = "0"
    places: Sequence[str] = ()


def unused(program: Any) -> Unused:
    """Return the dead products of a graph that has all operations of a run, as `torch.export` returns it."""
    flops: Any = 0
    places: dict[str, None] = {}
    for part in program.graph_module.modules():
        for node in reversed([*_unread(part.graph)] if isinstance(part, torch.fx.GraphModule) else []):
            of_node = _flops(node)
            if not isinstance(of_node, int) or of_node:
                flops = flops + of_node
                path, operator = module_of(node), operator_name(node.target)
                places[f"{path} {operator}".strip()] = None
    return Unused(polynomial(flops), tuple(places))


def _unread(graph: Any) -> Iterator[Any]:
    """Yield the dead operator calls of a graph, the last first.

    An in-place change is live if its storage is read.
    """
    of_storage: dict[Any, Any] = {}
    for node in graph.nodes:
        returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
        shares = any(each.alias_info is not None for each in returns) and node.args
        first = node.args[0] if shares else None
        of_storage[node] = of_storage.get(first, node) if isinstance(first, torch.fx.Node) else node
    read: set[Any] = {node for node in graph.nodes if node.op == "placeholder"}
    for node in reversed(graph.nodes):
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        changes = is_operator and node.target._schema.is_mutable and of_storage[node] in read
        if is_operator and node not in read and not changes:
            yield node
        else:
            read |= {each for source in node.all_input_nodes for each in (source, of_storage[source])}


def _flops(node: Any) -> Any:
    """Return the FLOPs of one call by PyTorch's formulas, with attention as plain products."""
    if node.target.is_view:  # it computes nothing; removing it would remove the level of a forward derivative, too
        return 0
    values = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
    tensors = [each for each in torch.utils._pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]
    if not tensors or not any(each.is_floating_point() or each.is_complex() for each in tensors):
        return 0
    mode = getattr(tensors[0], "fake_mode", None)
    if mode is None:
        return 0
    counter = FlopCounterMode(display=False)
    guards = mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()
    with mode, guards, torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        node.target(*values[0], **values[1])
    return counter.get_total_flops()
