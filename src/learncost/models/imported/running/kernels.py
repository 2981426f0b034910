"""What kernels for processors take for themselves while they run, by the operator: PyTorch 2.13.

A row is a function of what the operator is given and of what it returns. Buffers of products' libraries are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

FLOAT = 4
"""Bytes of torch.float32."""

Row = Callable[..., int]


def _in_float(x: torch.Tensor, *_: Any, **__: Any) -> int:
    """`ReduceOps.cpp`: the mean of bf16 and fp16 is one of a copy in float."""
    return x.numel() * FLOAT if x.dtype in (torch.bfloat16, torch.float16) else 0


def _added_in_float(x: torch.Tensor, *_: Any, **__: Any) -> int:
    """`ScatterGatherKernel.cpp`: what is scattered into bf16 and fp16 is added in float."""
    return _in_float(x)


KERNELS: Mapping[str, Row] = {
    "aten::mean": _in_float,
    "aten::scatter_add": _added_in_float,
    "aten::scatter_add_": _added_in_float,
}


def _workspace(func: Any, args: Any, result: Any) -> Any:
    """oneDNN's recurrent layers keep a workspace whose size it alone knows: it is asked by running one on zeros."""
    if not result[3].numel():
        with torch.utils._python_dispatch._disable_current_modes():
            zeros = tree_map_only(torch.Tensor, lambda each: torch.zeros(each.shape, dtype=each.dtype), args)
            size = func(*zeros)[3].numel()
        return (*result[:3], result[3].new_empty(size))
    return result


RESULTS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "aten::mkldnn_rnn_layer": _workspace,
}
"""Operators whose results without values are smaller than in a run."""


def _grouped(func: Any, args: Any, kwargs: Any) -> Any:
    """A product of groups, which takes bf16 alone where there are no values, and every type in a run."""
    narrow = [
        each.new_empty(each.shape, dtype=torch.bfloat16).as_strided(each.shape, each.stride()) for each in args[:2]
    ]
    return func(*narrow, *args[2:], **kwargs).to(args[0].dtype)


INSTEAD: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "aten::_grouped_mm": _grouped,
}
"""Operators that refuse tensors without values which they take in a run."""


def results(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What an operator returns, as large as in a run."""
    instead, row = INSTEAD.get(func._schema.name), RESULTS.get(func._schema.name)
    result = instead(func, args, kwargs) if instead else func(*args, **kwargs)
    return row(func, args, result) if row else result


def buffers(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> int:
    """Bytes that an operator takes beside its results, and gives back."""
    row = KERNELS.get(func._schema.name)
    return row(*args, **kwargs) if row else 0
