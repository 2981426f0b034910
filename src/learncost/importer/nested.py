"""Inputs with parts: wrap a module so that each tensor of a dict, tuple or object is a named input."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets

from learncost.importer.examples import as_called
from learncost.importer.inputs import Input
from learncost.importer.refusals import NESTED, GradientInForwardError
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError

Inputs = Sequence[Input] | Mapping[str, Any]
Filled = Callable[[Mapping[str, Any]], Any]
"""A function of tensors by name, which returns the input that they are parts of."""


def by_parts(module: Any, given: Inputs, symbols: Mapping[str, str] = {}) -> tuple[Any, Inputs, dict[str, str]]:
    """Return a module that takes the parts of its inputs by name, with its inputs and symbolic dimensions.

    A part is named by its path: `batch.image` is `batch_image`. Without such inputs the module is returned as it is.
    """
    inputs: Inputs
    if isinstance(given, Mapping):
        inputs, fills = _of_examples(given, {name.partition(".")[0] for name in symbols if "." in name})
    else:
        inputs, fills = _of_descriptions(module, given)
    named = {name.replace(".", "_"): sizes for name, sizes in symbols.items()}
    return (_taking(module, inputs, fills), inputs, named) if fills else (module, given, named)


def _of_examples(given: Mapping[str, Any], opens: set[str]) -> tuple[dict[str, Any], dict[str, Filled]]:
    """Return the tensors of inputs that have objects in them or are in `opens`, and functions that fill the inputs."""
    inputs, fills = dict[str, Any](), dict[str, Filled]()
    for name, value in given.items():
        found = dict[str, Any]()
        filled = _filled(value, name, found)
        if name in opens or (found and _has_object(value)):
            fills[name] = filled
            inputs |= found
        else:
            inputs[name] = value
    return inputs, fills


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a value that may have tensors in it, by key; None for a value without parts."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    is_object = hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | torch.nn.Module | Callable)
    return vars(value) if is_object else None


def _has_object(value: Any) -> bool:
    """Return whether a tensor is nested, or inside an object other than a dict, a list or a tuple."""
    parts = _parts(value)
    if parts is None:
        return bool(getattr(value, "is_nested", False))
    return not isinstance(value, Mapping | list | tuple) or any(map(_has_object, parts.values()))


def _filled(value: Any, name: str, found: dict[str, Any]) -> Filled:
    """Add the tensors of a value to `found`, by name, and return the function that fills a copy of it."""
    if isinstance(value, torch.Tensor):
        found[name] = value.values() if value.is_nested else value
        return _jagged(value, name) if value.is_nested else lambda tensors: tensors[name]
    parts = _parts(value)
    if parts is None:
        return lambda _: value
    inner = {key: _filled(part, f"{name}_{key}", found) for key, part in parts.items()}

    def fill(tensors: Mapping[str, Any]) -> Any:
        new = {key: each(tensors) for key, each in inner.items()}
        if isinstance(value, tuple):
            return type(value)(*new.values()) if hasattr(value, "_fields") else tuple(new.values())
        made = copy.copy(value)
        for key, each in new.items():
            if isinstance(value, Mapping | MutableSequence):
                made[key] = each
            else:
                object.__setattr__(made, key, each)
        return made

    return fill


def _jagged(value: Any, name: str) -> Filled:
    """Return the function that makes a nested tensor of all its rows, which has the lengths of this one."""
    offsets, lengths = value.offsets().detach().clone(), value.offsets().diff()
    ends = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())}

    def fill(tensors: Mapping[str, Any]) -> Any:
        if getattr(get_proxy_mode(), "pre_dispatch", False):  # of which an export has no operators above autograd
            raise GradientInForwardError(NESTED)
        made: Any = nested_view_from_values_offsets
        return made(tensors[name], offsets, **ends)

    return fill


def _to_padded(values: Any, offsets: Any, longest: Any, padding: float = 0.0) -> Any:
    """Return the rows of each sequence, (batch, longest, ...), with a number behind its last one."""
    places = offsets[0][:-1, None] + torch.arange(*longest, device=values.device)
    inside = (places < offsets[0][1:, None]).reshape(*places.shape, *[1] * (values.dim() - 1))
    return torch.where(inside, values[places.clamp_max(values.shape[0] - 1)], padding)


def _to_rows(padded: Any, offsets: Any, _: Any = None) -> Any:
    """Return the rows of all sequences, one behind the other."""
    lengths = offsets[0].diff()
    of_row = torch.repeat_interleave(lengths)
    return padded[of_row, torch.arange(of_row.shape[0], device=padded.device) - offsets[0][of_row]]


_ATEN = torch.ops.aten
PADDED = {
    _ATEN._jagged_to_padded_dense_forward.default: _to_padded,
    _ATEN._padded_dense_to_jagged_forward.default: _to_rows,
}
"""The operators between the rows of nested tensors and padded ones, which have no gradient below autograd."""


def _of_descriptions(module: Any, given: Sequence[Input]) -> tuple[list[Input], dict[str, Filled]]:
    """Return descriptions without paths, and functions that fill the inputs whose parts they describe.

    The type of such an input is that of forward's annotation, a dataclass or a named tuple, else a tuple where its
    parts are numbered, else a dict.
    """
    paths = {each.name: each.name.split(".") for each in given}
    known = inspect.signature(module.forward).parameters
    outer = dict.fromkeys(path[0] for name, path in paths.items() if len(path) > 1 and name not in known)
    try:
        hints = typing.get_type_hints(module.forward)
    except (NameError, TypeError, AttributeError):
        hints = {}
    fills = {}
    for name in outer:
        if name in paths:
            raise InputError(f"the input {name} is given whole and by its parts: remove one of them")
        inner = {tuple(path[1:]): each.replace(".", "_") for each, path in paths.items() if path[0] == name}
        fills[name] = _made(inner, hints.get(name))
    inputs = [
        replace(each, name=each.name.replace(".", "_")) if paths[each.name][0] in fills else each for each in given
    ]
    return inputs, fills


def _made(inner: Mapping[tuple[str, ...], str], kind: Any) -> Filled:
    """Return the function that makes a value of this type from its parts, by their paths in it."""
    if () in inner:
        return lambda tensors: tensors[inner[()]]
    keys = list(dict.fromkeys(path[0] for path in inner))
    of_fields = typing.get_type_hints(kind) if isinstance(kind, type) and not issubclass(kind, dict) else {}
    parts = {
        key: _made({path[1:]: name for path, name in inner.items() if path[0] == key}, of_fields.get(key))
        for key in keys
    }
    if all(key.isdigit() for key in keys):
        return lambda tensors: tuple(parts[key](tensors) for key in sorted(keys, key=int))
    of_kind = kind if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") else dict
    return lambda tensors: of_kind(**{key: each(tensors) for key, each in parts.items()})


def _taking(module: Any, inputs: Inputs, fills: Mapping[str, Filled]) -> Any:
    """Return a module with the same parameters and submodules under the same paths that takes these inputs."""
    names = [*inputs] if isinstance(inputs, Mapping) else [each.name for each in inputs]
    before = inspect.signature(module.forward).parameters
    kinds = inspect.Parameter
    several = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    known = {
        name: each.replace(kind=kinds.KEYWORD_ONLY)
        for name, each in before.items()
        if name not in fills and each.kind not in several
    }
    row = [known.get(name, kinds(name, kinds.KEYWORD_ONLY)) for name in names]
    row += [each for name, each in known.items() if name not in names]
    parts = tuple(f"{name}_" for name in fills)

    def forward(self: Any, **tensors: Any) -> Any:
        self.inside[0].training = self.training
        others = {name: each for name, each in tensors.items() if name in before or not name.startswith(parts)}
        given, by_name = as_called(self.inside[0], others | {name: fill(tensors) for name, fill in fills.items()})
        return self.inside[0].forward(*given, **by_name)

    setattr(forward, "__signature__", inspect.Signature([kinds("self", kinds.POSITIONAL_ONLY), *row]))  # noqa: B010 - for a type checker
    whole = type(type(module).__name__, (torch.nn.Module,), {"forward": forward})()
    whole._modules, whole._parameters, whole._buffers = module._modules, module._parameters, module._buffers
    whole.training, whole.inside = module.training, [module]
    return whole
