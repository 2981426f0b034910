"""What stands around a module or around its results, and what an export takes: the module itself, rows and mappings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any

from learncost.ir.errors import InputError

_AROUND: Mapping[str, str] = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""PyTorch's modules around another that compute what it computes, and where they have it."""

_OTHER_FORMS: Mapping[str, str] = {
    "torch.jit": "is compiled by torch.jit",
    "torch.ao.nn.quantized": "is quantized, and its weights are packed",
    "torch.ao.nn.intrinsic.quantized": "is quantized, and its weights are packed",
}
"""Where PyTorch has modules of another form than its own, which no export reads, and what they are."""


def readable(module: Any) -> Any:
    """A module without what spreads it over devices or compiles it. Raises `InputError` for one that is not written in
    Python any more, or that computes nothing."""
    from torch import nn

    while type(module).__module__.startswith("torch.") and type(module).__name__ in _AROUND:
        module = getattr(module, _AROUND[type(module).__name__])
    for path, part in module.named_modules():
        for spec, what in _OTHER_FORMS.items():
            if any(kind.__module__.startswith(spec) for kind in type(part).__mro__):
                raise InputError(
                    f"{path or type(module).__name__} {what}, which no export reads: "
                    "give the module that it was made of"
                )
        if any(nn.parameter.is_lazy(each) for each in part.parameters(recurse=False)):
            raise InputError(
                f"{path or type(module).__name__} is lazy, and has no sizes before a first call: "
                "call the module once before it is given"
            )
    if getattr(module.forward, "__func__", None) is nn.Module.forward:
        raise InputError(f"{type(module).__name__} has no forward, so there is nothing to read")
    return module


def plain(results: Any) -> Any:
    """Results in rows and mappings: of a dataclass or a namespace its fields, of a distribution its parameters."""
    import torch

    def fields(leaf: Any) -> Any:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            return plain({each.name: getattr(leaf, each.name) for each in dataclasses.fields(leaf)})
        if isinstance(leaf, torch.distributions.Distribution):
            values = {name: value for name, value in vars(leaf).items() if name in leaf.arg_constraints}
            if not values:
                raise InputError(f"a {type(leaf).__name__} is returned, which is no tensor: return those it is made of")
            return plain(values)
        return plain(vars(leaf)) if type(leaf) is SimpleNamespace else leaf

    return torch.utils._pytree.tree_map(fields, results)


@contextmanager
def named_inputs(module: Any, by_name: Mapping[str, Any]) -> Iterator[None]:
    """What forward takes by `**` has its names in forward's signature: PyTorch says by these what stays open."""
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
