"""Build modules whose parameters use no memory: an export reads their shapes and no numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn


def allocated(module: Any) -> Any:
    """Return the module, or a copy with unwritten parameters on the CPU if they are on the meta device."""
    if all(parameter.device.type != "meta" for parameter in module.parameters()):
        return module
    there = copy.deepcopy(module)
    allocate(there)
    return there


def with_values(module: Any, there: Any) -> Any:
    """Return the module, or if its parameters are on the meta device a copy of `there` with random parameters."""
    if there is module:
        return module
    filled = copy.deepcopy(there)
    with torch.no_grad():
        for parameter in filled.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.normal_(std=0.3)
    return filled


def allocate(module: Any) -> None:
    """Replace parameters on the meta device by unwritten ones on the CPU, which use no memory; buffers become zeros."""
    swap: Callable[..., None] = torch.utils.swap_tensors
    instead: dict[int, nn.Parameter] = {}  # a parameter with weak references, as in nn.LSTM, is replaced
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.device.type == "meta":
                there = torch.zeros_like(buffer, device="cpu")
                setattr(there, INVENTED, True)
                setattr(part, name, there)
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if type(parameter) is not nn.Parameter or parameter.device.type != "meta":
                continue
            if (empty := instead.get(id(parameter))) is None:
                empty = nn.Parameter(torch.empty_like(parameter, device="cpu"), requires_grad=parameter.requires_grad)
                try:
                    swap(parameter, empty)
                    continue
                except RuntimeError:
                    instead[id(parameter)] = empty
            setattr(part, name, empty)


INVENTED = "_is_invented"
"""The attribute that marks a buffer whose values were not given."""


def has_numbers(buffer: Any) -> bool:
    """Return whether the values of a buffer are the module's."""
    return buffer.device.type != "meta" and not hasattr(buffer, INVENTED)


@contextmanager
def without_memory() -> Iterator[None]:
    """Register parameters without values inside; buffers keep theirs.

    Each parameter is replaced by one on the meta device once, so that tied parameters stay tied.
    """
    swap = cast("Callable[..., None]", torch.utils.swap_tensors)

    def empty(_: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if type(parameter) is nn.Parameter and parameter.device.type != "meta":
            made = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
            swap(parameter, made)

    hook = nn.modules.module.register_module_parameter_registration_hook(empty)
    try:
        yield
    finally:
        hook.remove()
