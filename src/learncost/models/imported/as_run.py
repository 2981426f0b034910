"""The operations of one run of a module as a module of its own, without the branches that the run did not take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.models.imported.export import as_called


def straight(module: Any, values: Mapping[str, Any]) -> Any:
    """A module that does what this one does with these values, operation by operation. It is run once, with numbers.

    It has the same parameters and buffers under the same paths, and takes the values that are tensors.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    names = [name for name, value in values.items() if isinstance(value, torch.Tensor)]
    others = {name: value for name, value in values.items() if name not in names}

    def run(*tensors: Any) -> Any:
        row, by_name = as_called(module, {**others, **dict(zip(names, tensors, strict=True))})
        return module(*row, **by_name)

    trace: Any = make_fx(run, tracing_mode="real", pre_dispatch=True, _error_on_data_dependent_ops=False)
    traced = trace(*(values[name].detach() for name in names))
    paths = {id(value): path for path, value in (*module.named_parameters(), *module.named_buffers())}
    root = _skeleton(module)
    graph = traced.graph
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and _looks(node.target):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    places = iter(names)
    for node in graph.nodes:
        if node.op == "placeholder":
            node.target = next(places)
        elif node.op == "get_attr":
            value = getattr(traced, node.target)
            if id(value) in paths:
                node.target = paths[id(value)]
            else:
                setattr(root, node.target, value)
    return torch.fx.GraphModule(root, graph, type(module).__name__)


def _looks(target: Any) -> bool:
    """Whether an operation reads a value for Python, or checks one, and gives the graph nothing."""
    return any(word in str(target) for word in ("item", "_assert", "_local_scalar_dense", "is_nonzero"))


def _skeleton(module: Any) -> Any:
    """Modules that hold the same parameters and buffers under the same paths, and do nothing."""
    from torch import nn

    root = nn.Module()
    parts = {"": root}
    for path, part in module.named_modules(remove_duplicate=False):
        if path:
            parts[path] = nn.Module()
            above, _, name = path.rpartition(".")
            parts[above].add_module(name, parts[path])
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            parts[path].register_parameter(name, parameter)
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            parts[path].register_buffer(name, buffer)
    return root
