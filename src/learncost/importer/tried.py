"""Run computations at random numbers, compare their gradients and restore state; build modules whose parameters use no
memory: an export reads their shapes and no numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import nn


def drawn(value: Any, below: int = 1) -> Any:
    """Return a random tensor of float64, complex128 or integers like the given one; other values are returned
    unchanged.

    A symbolic size takes its example. Integers are less than `below`: all 0, or a random mix of 0 and 1.
    """
    if not isinstance(value, torch.Tensor):
        return value
    shape = [size_of_example(size) for size in value.shape]
    if has_fraction(value):
        return torch.randn(shape, dtype=torch.complex128 if value.dtype.is_complex else torch.float64)
    return torch.randint(0, below, shape).to(value.dtype)


def size_of_example(size: Any) -> int:
    """Return a size; the example of a symbolic one."""
    return int(size if isinstance(size, int) else size.node.hint)


def has_fraction(value: Any) -> bool:
    """Return whether a value is a tensor that may have a gradient: of real or complex numbers, not of integers or
    booleans.
    """
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


def gradients(results: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Return the gradients of leaves, for one random draw of the results' gradients; zeros for leaves without one."""
    torch.manual_seed(1)
    seeds = [torch.randn(each.shape, dtype=torch.float64).to(each) for each in results]
    learned = [place for place, each in enumerate(results) if each.requires_grad]
    taken: Sequence[Any] = [None for _ in leaves]
    if learned and leaves:
        taken = torch.autograd.grad(
            [results[place] for place in learned], leaves, [seeds[place] for place in learned], allow_unused=True
        )
    return [torch.zeros_like(leaf) if each is None else each.detach() for leaf, each in zip(leaves, taken, strict=True)]


def identical(one: Sequence[Any], other: Sequence[Any], tolerance: float) -> bool:
    """Return whether gradients are equal within a tolerance relative to the largest number."""
    largest = max((float(each.abs().max()) for each in one if each.numel()), default=0.0)
    return all(
        bool((first - second).abs().le(tolerance * max(largest, 1e-30)).all())
        for first, second in zip(one, other, strict=True)
    )


@contextmanager
def restored(module: Any) -> Iterator[None]:
    """Restore the contents of every buffer of a module, in the same tensors."""
    before = [
        (part, name, buffer, buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for part, name, buffer, numbers in before:
            with suppress(RuntimeError):  # a view of another tensor remains a view
                buffer.detach_()
            with torch.no_grad():
                buffer.copy_(numbers)
            part._buffers[name] = buffer


def copied(values: Any) -> Any:
    """Return a copy of inputs that shares no tensors with them."""

    def copy(tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return torch.utils._pytree.tree_map_only(torch.Tensor, copy, values)


# Modules whose parameters use no memory


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
            if has_fraction(parameter):
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
                setattr(there, UNKNOWN_VALUES, True)
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


UNKNOWN_VALUES = "_is_invented"
"""The attribute that marks a buffer whose values were not given."""


def has_numbers(buffer: Any) -> bool:
    """Return whether the values of a buffer are the module's."""
    return buffer.device.type != "meta" and not hasattr(buffer, UNKNOWN_VALUES)


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
