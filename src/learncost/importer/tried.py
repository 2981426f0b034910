"""Whether two ways to compute the same have the same gradients: both are tried at numbers by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def drawn(value: Any, below: int = 1) -> Any:
    """A tensor of float64 by chance in the place of one, of complex128, or of whole numbers; another value as it is.

    An open size is that of the example.

    below   what whole numbers are less than: they are 0, or 0 and 1 by chance
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    shape = [size_of_example(size) for size in value.shape]
    if has_fraction(value):
        return torch.randn(shape, dtype=torch.complex128 if value.dtype.is_complex else torch.float64)
    return torch.randint(0, below, shape).to(value.dtype)


def size_of_example(size: Any) -> int:
    """A size, of an open one that of the example."""
    return int(size if isinstance(size, int) else size.node.hint)


def has_fraction(value: Any) -> bool:
    """Whether it is a tensor that may have a gradient: of real or complex numbers, not of whole ones or truths."""
    import torch

    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


def gradients(results: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """The gradients of leaves, for one draw of those of the results; zeros where none comes from these."""
    import torch

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
    """Whether gradients are the same but for a part of the largest number of them."""
    largest = max((float(each.abs().max()) for each in one if each.numel()), default=0.0)
    return all(
        bool((first - second).abs().le(tolerance * max(largest, 1e-30)).all())
        for first, second in zip(one, other, strict=True)
    )
