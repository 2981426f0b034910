"""Unwrap modules, and convert their results and arguments to the types that an export takes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from learncost.ir.errors import InputError

_AROUND: Mapping[str, str] = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""PyTorch's wrapper modules that compute what the wrapped module computes, and its attribute."""

_OTHER_FORMS: Mapping[str, str] = {
    "torch.jit": "is compiled by torch.jit",
    "torch.ao.nn.quantized": "is quantized, and its weights are packed",
    "torch.ao.nn.intrinsic.quantized": "is quantized, and its weights are packed",
}
"""Packages of PyTorch with module formats that no export reads, and their description."""


def readable(module: Any) -> Any:
    """Return a module without its distributed or compiling wrapper. Raises `InputError` for a module that is not Python
    code any more, or that computes nothing.
    """
    from torch import nn

    while type(module).__module__.startswith("torch.") and type(module).__name__ in _AROUND:
        module = getattr(module, _AROUND[type(module).__name__])
    for path, part in module.named_modules():
        for spec, what in _OTHER_FORMS.items():
            if any(kind.__module__.startswith(spec) for kind in type(part).__mro__):
                raise InputError(
                    f"{path or type(module).__name__} {what}, which torch.export does not support: pass the "
                    f"original module"
                )
        if any(nn.parameter.is_lazy(each) for each in part.parameters(recurse=False)):
            raise InputError(
                f"{path or type(module).__name__} is lazy and has no sizes before its first call: "
                "call the module once before you pass it"
            )
    if getattr(module.forward, "__func__", None) is nn.Module.forward:
        raise InputError(f"{type(module).__name__} has no forward method")
    return module


def plain(results: Any) -> Any:
    """Convert results to tuples and dicts: an object that holds tensors to its attributes, a distribution to its
    parameters, a nested tensor to its rows.
    """
    import torch

    def fields(leaf: Any) -> Any:
        if isinstance(leaf, torch.distributions.Distribution):
            values = {name: value for name, value in vars(leaf).items() if name in leaf.arg_constraints}
            if not values:
                raise InputError(f"the result {type(leaf).__name__} is not a tensor: return its parameter tensors")
            return plain(values)
        if getattr(leaf, "is_nested", False):
            return leaf.values()
        if isinstance(leaf, torch.Tensor | torch.nn.Module | type):
            return leaf
        if dataclasses.is_dataclass(leaf):
            return plain({each.name: getattr(leaf, each.name) for each in dataclasses.fields(leaf)})
        held = dict(getattr(leaf, "__dict__", {}))
        leaves = torch.utils._pytree.tree_leaves(held)
        return plain(held) if any(isinstance(each, torch.Tensor) for each in leaves) else leaf

    return torch.utils._pytree.tree_map(fields, results)


@contextmanager
def named_inputs(module: Any, by_name: Mapping[str, Any]) -> Iterator[None]:
    """Replace `**` in forward's signature by the names of the inputs, which PyTorch needs for dynamic shapes."""
    forward = module.forward
    signature = inspect.signature(forward)
    kinds = inspect.Parameter
    named = [each for each in signature.parameters.values() if each.kind is not kinds.VAR_KEYWORD]
    more = [name for name in by_name if name not in signature.parameters]
    if not more or len(named) == len(signature.parameters) or "forward" in vars(module):
        yield
        return

    @wraps(forward)
    def called(*arguments: Any, **others: Any) -> Any:
        return forward(*arguments, **others)

    row = [*named, *(kinds(name, kinds.KEYWORD_ONLY) for name in more)]
    setattr(called, "__signature__", signature.replace(parameters=row))  # noqa: B010 - for a type checker
    module.forward = called
    try:
        yield
    finally:
        del module.forward
