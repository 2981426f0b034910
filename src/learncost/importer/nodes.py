"""Accessors of an exported graph's nodes: operator, sizes, type, module, source line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from learncost.importer.axes import Size, simple
from learncost.importer.refusals import is_local

SAME_SIZES: ContextVar[Mapping[Any, Any]] = ContextVar("SAME_SIZES", default={})  # noqa: B039 - it is never written
"""The symbols of the current graph that have one letter, with the first of them."""


def size_of(value: Any) -> Size:
    """Return a size of a graph as an int, or as an expression in the symbols of the inputs."""
    if isinstance(value, int):
        return value
    expression = value.node.expr if hasattr(value, "node") else value
    same = SAME_SIZES.get()
    return simple(expression.xreplace(same) if same else expression)


def shape_of(node: Any) -> tuple[Size, ...]:
    """Return the sizes of a node's dimensions."""
    return tuple(map(size_of, node.meta["val"].shape))


def arguments_of(node: Any) -> dict[str, Any]:
    """Return the arguments of a node by name, in the order of its schema, with the defaults of others."""
    schema = node.target._schema.arguments if hasattr(node.target, "_schema") else ()
    given = {each.name: value for each, value in zip(schema, node.args, strict=False)} | dict(node.kwargs)
    return {each.name: each.default_value for each in schema} | given


def operator_name(target: Any) -> str:
    """Return the name of an operator: `aten.add.Tensor` as `add.Tensor`, `aten.linear.default` as `linear`,
    `my.op.default` as `my.op`.
    """
    return str(target).removeprefix("aten.").removesuffix(".default")


SHAPE_OPERATORS = ("detach", "alias", "clone", "_to_copy", "view", "unsqueeze", "squeeze", "expand")
"""Operators that only change the shape or type of their argument."""


def name_of(node: Any) -> str:
    """Return the name of an outside value: that of the node that makes it, before views and scaling."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        name = operator_name(node.target).partition(".")[0]
        if name not in (*SHAPE_OPERATORS, "mul", "div"):
            break
        node = node.all_input_nodes[0]
    return str(node.name)


def is_float(node: Any) -> bool:
    """Return whether a node gives a tensor of real numbers."""
    return bool(getattr(getattr(node.meta.get("val"), "dtype", None), "is_floating_point", False))


def is_real(node: Any) -> bool:
    """Return whether a node gives a tensor of real numbers or booleans."""
    import torch

    return is_float(node) or getattr(node.meta.get("val"), "dtype", None) is torch.bool


def is_empty(value: Any) -> bool:
    """Return whether a tensor has no elements: it needs no computation and passes no gradient."""
    return any(isinstance(size, int) and size == 0 for size in getattr(value, "shape", ()))


def module_of(node: Any) -> str:
    """Return the path of the module that a node is from."""
    stack = node.meta.get("nn_module_stack") or {}
    path = ""
    for entry in stack.values():
        path = entry[0] if isinstance(entry, tuple) else path
    return re.sub(r"\.slice\([^)]*\)", "", str(path))  # layers[:2].0 is layers.0


CHECKPOINT_KEY = "again"
"""The metadata key for the checkpoints around a node, outermost first, as in `Meta.again`."""


LEAF = "leaf"
"""The metadata key of a computed value for which the forward pass sets requires_grad."""


OPERATOR = "operator"
"""The metadata key of the operator that a node of a decomposition is counted as."""


def is_leaf(node: Any) -> bool:
    """Return whether the forward pass sets requires_grad for the result of a node: the last of a decomposition."""
    marked = [each for each in (node, *node.users) if mark_of(each, LEAF) and each.meta.get("val") is not None]
    return marked == [node]


def mark(node: Any, key: str, value: str) -> None:
    """Set metadata of a node that decompositions keep."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), key: value}


def mark_of(node: Any, key: str = CHECKPOINT_KEY) -> str:
    """Return the checkpoints around a node, or other metadata that decompositions keep."""
    return str((node.meta.get("custom") or {}).get(key, ""))


def place_of(node: Any) -> str:
    """Return the source of a node for a message: module, and the user's file and line, or a package's if there is
    none.
    """
    if node is None:
        return ""
    path = module_of(node)
    text = f" in {path}" if path else ""
    trace = node.meta.get("stack_trace") or ""
    places = re.findall(r'File "(.+)", line (\d+)', trace)
    if places:
        file, line = ([each for each in places if is_local(each[0])] or places)[-1]
        text += f" ({file}:{line})"
    return text
