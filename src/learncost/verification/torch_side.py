"""The translation in PyTorch: values and gradients by autograd, FLOPs by FlopCounterMode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.verification.foreign import Library, Tensor, evaluate, weighted


@lru_cache(maxsize=1)
def library() -> Library:
    """Return PyTorch's operations."""
    import torch
    from torch.nn import functional

    def number(x: Tensor) -> Tensor:
        return x.to(torch.float64)

    def scattered(form: Sequence[int], places: tuple[Tensor | int, ...], x: Tensor) -> Tensor:
        indices = tuple(torch.full((), place) if isinstance(place, int) else place for place in places)
        return x.new_zeros(form).index_put(indices, x, accumulate=True)

    return Library(
        full=lambda form, value: torch.full(tuple(form), value, dtype=torch.float64),
        arange=lambda size: torch.arange(size),
        floats=number,
        integers=lambda x: x.long(),
        permute=lambda x, order: torch.permute(x, tuple(order)),
        expand=lambda x, form: x.expand(tuple(form)),
        einsum=torch.einsum,
        where=torch.where,
        stack=lambda iterations: torch.stack(tuple(iterations)),
        scattered=scattered,
        module=torch,
        order=lambda x: torch.argsort(x.detach(), dim=-1, stable=True),
        reduced=lambda op, x, axes: {"max": torch.amax, "min": torch.amin}[op](x, axes),
        last={
            "softmax": lambda x, _: torch.softmax(x, -1),
            "log_softmax": lambda x, _: torch.log_softmax(x, -1),
            "normalize": lambda x, epsilon: torch.layer_norm(x, x.shape[-1:], eps=epsilon),
            "rms_normalize": lambda x, epsilon: torch.rms_norm(x, x.shape[-1:], eps=epsilon),
        },
        ops={
            "power": torch.pow,
            "stop_gradient": torch.detach,
            "gelu": functional.gelu,
            "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
            "relu": torch.relu,
            "sigmoid": torch.sigmoid,
            "silu": functional.silu,
            "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
            "elu": lambda x, a: functional.relu(x) + a * torch.expm1(x.clamp(max=0)),
        },
    )


def autograd(
    table: Table, arrays: Mapping[str, Any], seeds: Mapping[str, Any], names: Iterable[str], sizes: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return outputs and requested gradients as NumPy arrays."""
    import torch

    names = list(names)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    for name in names:
        tensors[name].requires_grad_()
    values = evaluate(library(), table, tensors, sizes)
    loss = weighted(table, values, {name: torch.tensor(seed) for name, seed in seeds.items()})
    gradients_found = torch.autograd.grad(loss, [tensors[name] for name in names], allow_unused=True) if names else ()
    gradients = {
        name: (torch.zeros_like(tensors[name]) if g is None else g).numpy()
        for name, g in zip(names, gradients_found, strict=True)
    }
    return {name: values[name].detach().numpy() for name in table.outputs}, gradients


def flops(table: Table, names: Iterable[str], sizes: Mapping[str, int], backward: bool) -> int:
    """Return the counts of FlopCounterMode on device `meta`: forward, or forward and backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    names = set(names)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        tensors = {}
        for name in (*table.inputs, *table.weights):
            kind = torch.int64 if name in table.indices else torch.float64
            tensors[name] = torch.zeros(shape_of(table.axes[name], sizes), dtype=kind, requires_grad=name in names)
        values = evaluate(library(), table, tensors, sizes)
        if backward:
            loss: Tensor = sum(values[name].sum() for name in table.outputs)
            if loss.requires_grad:
                loss.backward()
    return int(counter.get_total_flops())
