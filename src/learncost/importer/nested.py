"""Inputs with parts: wrap a module so that each tensor of a dict, tuple or object is a named input."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import replace
from typing import Any

from learncost.importer.examples import as_called
from learncost.importer.inputs import Input
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
    import torch

    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    is_object = hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | torch.nn.Module | Callable)
    return vars(value) if is_object else None


def _has_object(value: Any) -> bool:
    """Return whether a tensor is inside an object other than a dict, a list or a tuple."""
    parts = _parts(value)
    if parts is None:
        return False
    return not isinstance(value, Mapping | list | tuple) or any(map(_has_object, parts.values()))


def _filled(value: Any, name: str, found: dict[str, Any]) -> Filled:
    """Add the tensors of a value to `found`, by name, and return the function that fills a copy of it."""
    import torch

    if isinstance(value, torch.Tensor):
        found[name] = value
        return lambda tensors: tensors[name]
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
    from torch import nn

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
    whole = type(type(module).__name__, (nn.Module,), {"forward": forward})()
    whole._modules, whole._parameters, whole._buffers = module._modules, module._parameters, module._buffers
    whole.training, whole.inside = module.training, [module]
    return whole
