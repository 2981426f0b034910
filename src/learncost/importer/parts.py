"""Export the largest submodules that PyTorch can export, if it cannot export the module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from learncost.importer.examples import as_called
from learncost.importer.refusals import exports
from learncost.importer.walk import read_module
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.loop import walk
from learncost.layers.layer import layer


@dataclass(frozen=True)
class PartCall:
    """A call of a submodule in one run: its path and its arguments, by position or name."""

    path: str
    row: tuple[Any, ...]
    by_name: Mapping[str, Any]


@dataclass(frozen=True)
class InParts:
    """The table of a module's parts; `read` and `left` have their paths, `.` for the module itself."""

    text: str
    read: tuple[str, ...]
    left: tuple[str, ...]

    def notice(self, called: str) -> str:
        """Return a line that says which parts were read."""
        parts, rest = ", ".join(self.read), ", ".join(self.left)
        return f"parts of {called} that are read, at fixed sizes: {parts}; not read: all other operations of {rest}"


def in_parts(module: Any, values: Mapping[str, Any], called: str, fold: bool = True) -> InParts:
    """Return the table of the largest submodules that can be read, from one run with these values.

    Every other module between them is a line of unknown cost. Raises `InputError` if there is none.
    """
    calls = _calls(module, values)
    read, left = list[PartCall](), list[str]()
    readable = dict[str, bool]()
    every = dict(module.named_modules())

    def choose(path: str) -> None:
        """Choose the submodule at a path, or the largest ones inside it."""
        here = calls.get(path, [])
        if path not in readable:
            readable[path] = bool(path and here) and all(_reads(every[path], call) for call in here)
        if readable[path]:
            read.extend(here)
            return
        if here:
            left.append(path or ".")
        for name, _ in every[path].named_children():
            choose(f"{path}.{name}" if path else name)

    choose("")
    if not read:
        raise InputError(f"no submodule of {called} can be exported")
    whole, given = _together(module, read)
    with exports(called):
        text = read_module(whole, given, {}, name=type(module).__name__, unknown="zero", fold=fold).text
    return InParts(_with_rest(text, left), tuple(dict.fromkeys(call.path for call in read)), tuple(left))


def _calls(module: Any, values: Mapping[str, Any]) -> dict[str, list[PartCall]]:
    """Return the arguments of every submodule in one run, by path."""
    calls: dict[str, list[PartCall]] = {}
    handles = []

    def kept(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    def hook(path: str) -> Callable[..., None]:
        def note(part: Any, row: Any, by_name: Any) -> None:
            calls.setdefault(path, []).append(PartCall(path, tree_map(kept, tuple(row)), tree_map(kept, dict(by_name))))

        return note

    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(hook(path), with_kwargs=True))
    try:
        row, by_name = as_called(module, values)
        module(*row, **by_name)
    except InputError:
        raise
    except Exception as error:  # any error that a user's module raises
        raise InputError(f"it cannot be run either: {type(error).__name__}: {error}") from None
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _reads(part: Any, call: PartCall) -> bool:
    """Return whether a submodule can be read with the arguments of this call."""
    whole, given = _together(part, [PartCall("", call.row, call.by_name)])
    try:
        with exports(""):
            read_module(whole, given, {}, unknown="zero", fold=False)
    except InputError:
        return False
    return True


def _together(module: Any, calls: list[PartCall]) -> tuple[Any, dict[str, Any]]:
    """Return a module that makes these calls independently, and its inputs."""
    given: dict[str, Any] = {}
    plans = []
    for number, call in enumerate(calls):
        leaves, shape = tree_flatten((call.row, dict(call.by_name)))
        names: list[str | None] = []
        for place, leaf in enumerate(leaves):
            is_tensor = isinstance(leaf, torch.Tensor)
            stem = re.sub(r"\W", "_", call.path) or "input"
            name = f"{stem}_{number}_{place}" if is_tensor else None
            if name is not None:
                given[name] = leaf
            names.append(name)
        plans.append((call.path, leaves, names, shape))

    class JoinedParts(nn.Module):
        inside: Any  # the only called module, if it is not a part

        def forward(self, **tensors: Any) -> tuple[Any, ...]:
            results: list[Any] = []
            for path, leaves, names, shape in plans:
                filled = [leaf if name is None else tensors[name] for leaf, name in zip(leaves, names, strict=True)]
                row, by_name = tree_unflatten(filled, shape)
                returned = self.get_submodule(path)(*row, **by_name) if path else self.inside(*row, **by_name)
                results += (value for value in tree_flatten(returned)[0] if isinstance(value, torch.Tensor))
            return tuple(value.reshape(1) if not value.dim() else value for value in results)

    whole: Any = JoinedParts()
    if [call.path for call in calls] == [""]:
        whole.inside = module
    else:  # the parts keep their paths
        whole._modules, whole._parameters, whole._buffers = module._modules, module._parameters, module._buffers
    return whole, given


def _with_rest(text: str, left: list[str]) -> str:
    """Return the text of a table with a line of unknown cost for each module that is not fully read."""
    lines = text.rstrip("\n").splitlines()
    place = next(number for number, line in enumerate(lines) if not line.startswith("%"))
    outputs = layer(text).table.outputs
    terms = dict[str, str]()
    for line, _ in walk(layer(text).table.lines):
        terms |= {term.name: str(term) for term in line.left}
    known = next(terms[name] for name in outputs if name in terms)
    names = [f"rest_{number}" for number, _ in enumerate(left, 1)]
    added = [f"  {name}[] = opaque({known}) @ {path} rest" for name, path in zip(names, left, strict=True)]
    lines[place] = f"{lines[place]} {' '.join(names)}"
    last = max(number for number, line in enumerate(lines) if line.startswith("  "))
    return "\n".join([*lines[: last + 1], *added, *lines[last + 1 :]]) + "\n"
