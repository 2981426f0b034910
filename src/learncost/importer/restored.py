"""Restore a module's buffers, and other state that it changes in place, after a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def restored(module: Any) -> Iterator[None]:
    """Restore the contents of every buffer of a module, in the same tensors."""
    import torch

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
    import torch

    def copy(tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return torch.utils._pytree.tree_map_only(torch.Tensor, copy, values)
