"""Modules whose parameters take no memory: an export reads their shapes, and no number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast


def with_room(module: Any) -> Any:
    """The module, or where it has parameters on the device meta a copy of it for which there is room on the CPU."""
    if all(parameter.device.type != "meta" for parameter in module.parameters()):
        return module
    there = copy.deepcopy(module)
    give_room(there)
    return there


def with_values(module: Any, there: Any) -> Any:
    """The module, or where its parameters are on the device meta a copy of `there` with random numbers in them."""
    import torch

    if there is module:
        return module
    filled = copy.deepcopy(there)
    with torch.no_grad():
        for parameter in filled.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.normal_(std=0.3)
    return filled


def give_room(module: Any) -> None:
    """Parameters on the device meta get room on the CPU that nobody writes to, which takes no memory; buffers zeros."""
    import torch
    from torch import nn

    swap: Callable[..., None] = torch.utils.swap_tensors
    instead: dict[int, nn.Parameter] = {}  # of one that others refer to weakly, as nn.LSTM does: another in its place
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
"""What marks a buffer whose numbers nobody gave."""


def has_numbers(buffer: Any) -> bool:
    """Whether the numbers of a buffer are the module's own."""
    return buffer.device.type != "meta" and not hasattr(buffer, INVENTED)


@contextmanager
def without_memory() -> Iterator[None]:
    """Parameters that are registered inside have a shape and no values; buffers keep theirs.

    The place of each parameter is taken by one on the device meta, so that ties between parameters stay.
    """
    import torch
    from torch import nn

    before, swap = nn.Module.register_parameter, cast("Callable[..., None]", torch.utils.swap_tensors)

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if type(parameter) is nn.Parameter and parameter.device.type != "meta":
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
            swap(parameter, empty)
        before(module, name, parameter)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = before  # type: ignore[method-assign]
