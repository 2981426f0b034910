"""Packed sequences, whose number of elements depends on the values of their lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from learncost.importer.replaced import attributes_replaced
from learncost.ir.errors import InputError

KERNELS = {
    "lstm": "lstm_data_impl",
    "gru": "gru_impl_data",
    "rnn_tanh": "rnn_tanh_data",
    "rnn_relu": "rnn_relu_data",
}
"""Operators of packed recurrences, and PyTorch's decompositions of them."""


def unpacked(numbers: bool = False) -> AbstractContextManager[None]:
    """Make packing an indexed read inside. Raises `InputError` if lengths are not numbers.

    numbers   whether lengths are numbers, as in a run
    """
    import torch
    from torch._decomp import decompositions

    several: Any = torch._VF

    def lengths_of(lengths: Any) -> list[int]:
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            return [int(each) for each in lengths]

    def places(rows: Sequence[Any]) -> Any:
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            return torch.tensor(rows)

    def pack(padded: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
        if not numbers:
            raise InputError(
                "pack_padded_sequence depends on the values of lengths: give the recurrence the "
                "padded sequences, of which it computes all positions, or trace one run with --as-run (in Python "
                "as_run=True)"
            )
        padded = padded.transpose(0, 1) if batch_first else padded
        many = lengths_of(lengths)
        counts = [sum(length > time for length in many) for time in range(max(many))]
        at = places([time * len(many) + row for time, count in enumerate(counts) for row in range(count)])
        return padded.flatten(0, 1)[at], places(counts)

    def pad(data: Any, counts: Any, batch_first: bool, value: float, total_length: int) -> tuple[Any, Any]:
        many = lengths_of(counts)
        starts = [sum(many[:time]) for time in range(len(many))]
        longest = max(len(many), total_length)
        beyond = torch.full((1, *data.shape[1:]), value, dtype=data.dtype, device=data.device)
        at = [
            [starts[time] + row if time < len(many) and row < many[time] else sum(many) for row in range(many[0])]
            for time in range(longest)
        ]
        padded = torch.cat([data, beyond])[places(at)]
        lengths = places([sum(count > row for count in many) for row in range(many[0])])
        return padded.transpose(0, 1) if batch_first else padded, lengths

    def recurrence(name: str) -> Callable[..., Any]:
        kernel, parts = getattr(several, name), getattr(decompositions, KERNELS[name])

        def run(*arguments: Any) -> Any:
            if not isinstance(arguments[3], list | tuple):  # the weights are here for packed sequences
                return kernel(*arguments)
            data, counts, *rest = arguments
            return parts(data, lengths_of(counts), *rest)

        return run

    recurrences = {(several, name): recurrence(name) for name in KERNELS}
    return attributes_replaced(
        {(several, "_pack_padded_sequence"): pack, (several, "_pad_packed_sequence"): pad, **recurrences}
    )
