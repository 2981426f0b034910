"""A buffer of one whole number, as a stride, is that number while a module is exported: code may ask which it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def known() -> Iterator[None]:
    """Inside, an export computes with such buffers, as EnCodec of transformers does to see how much it pads.

    One that a forward pass changes, as a count of batches, is unknown from there on.
    """
    import torch
    import torch.export._trace

    from learncost.importer.materialize import has_numbers

    traces: Any = torch.export._trace
    shapes_alone = traces._fakify_params_buffers

    def with_numbers(mode: Any, module: Any) -> Any:
        made = shapes_alone(mode, module)
        for path, buffer in module.named_buffers(remove_duplicate=False):
            is_number = buffer.dim() == 0 and not (buffer.is_floating_point() or buffer.is_complex())
            if is_number and type(buffer) is torch.Tensor and has_numbers(buffer):
                made[path].constant = buffer.clone()
        return made

    traces._fakify_params_buffers = with_numbers
    try:
        yield
    finally:
        traces._fakify_params_buffers = shapes_alone
