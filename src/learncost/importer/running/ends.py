"""What the backward pass of a module's own step begins from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learncost.importer.wrappers import plain
from learncost.ir.errors import InputError


def ends(result: Any) -> list[Any]:
    """Of what a module returns, all floats that have a gradient; the loss alone, a number to which all others lead."""
    import torch
    from torch.utils._pytree import tree_leaves

    floats = [each for each in tree_leaves(plain(result)) if isinstance(each, torch.Tensor) and each.requires_grad]
    for loss in floats:
        ways = set() if loss.dim() else _ways(loss)
        if ways and all(each is loss or _node(each) in ways or _node(each._base) in ways for each in floats):
            return [loss]
    return floats


def backward(floats: Sequence[Any], seeds: Sequence[Any]) -> None:
    """Autograd's own backward pass. Raises `InputError` where PyTorch has no gradient of an operator."""
    import torch

    try:
        torch.autograd.backward(floats, seeds)
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        if not said.startswith("derivative for"):
            raise
        raise InputError(
            f"PyTorch has no backward pass of it ({said}): what it is given there has to be detached, as a table has it"
        ) from None


def _node(tensor: Any) -> Any:
    """The node of autograd that made a tensor, or a leaf itself."""
    return None if tensor is None else tensor if tensor.grad_fn is None else tensor.grad_fn


def _ways(loss: Any) -> set[Any]:
    """Every node through which a gradient comes from the loss."""
    ways: set[Any] = set()
    rest = [_node(loss)]
    while rest:
        node = rest.pop()
        if node not in ways:
            ways.add(node)
            rest += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
            ways.update(each for each in (getattr(node, "variable", None),) if each is not None)
    return ways
