"""Recurrent layers: each layer is a scan over its positions, and packing is an indexed read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decompositions
from torch._higher_order_ops.scan import scan_op
from torch.utils._python_dispatch import _disable_current_modes

from learncost.importer.calls import known_number
from learncost.ir.errors import InputError


def _lstm(gates: Any, hidden: Any, cell: Any, projection: Any = None) -> tuple[Any, Any]:
    one, other, new, out = gates[0].add(gates[1]).chunk(4, -1)
    cell = other.sigmoid() * cell + one.sigmoid() * new.tanh()
    hidden = out.sigmoid() * cell.tanh()
    return hidden if projection is None else hidden @ projection.mT, cell


def _gru(gates: Any, hidden: Any) -> tuple[Any]:
    (of_reset, of_input, of_new), (reset, keep, new) = (each.chunk(3, -1) for each in gates)
    new = (new + of_new * (of_reset + reset).sigmoid()).tanh()
    return ((hidden - new) * (of_input + keep).sigmoid() + new,)


CELLS: Mapping[str, Callable[..., Any]] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": lambda gates, hidden: (gates[0].add(gates[1]).tanh(),),
    "rnn_relu": lambda gates, hidden: (gates[0].add(gates[1]).relu(),),
}
"""The new state of a recurrence, from its products with the state and with the input (torch.nn, its equations)."""


def _layer(cell: Callable[..., Any], x: Any, state: Any, weights: Any, has_biases: bool, reverse: bool = False) -> Any:
    """Return the results and the last state of one direction of a layer. `x` has the positions first.

    The first position is apart: the gradient of an initial state that needs none is not computed.
    """
    linear = torch.nn.functional.linear
    several = isinstance(state, tuple)
    of_input, of_state, *rest = weights
    biases, rest = (rest[:2], rest[2:]) if has_biases else ((None, None), rest)
    step_weights = [each for each in (of_state, biases[1], *rest) if each is not None]
    x = x.flip(0) if reverse else x

    def step(*values: Any) -> list[Any]:
        state, (here, weight, *more) = values[:many], values[many:]
        bias, more = (more[0], more[1:]) if has_biases else (None, more)
        new = cell((linear(state[0], weight, bias), here), *state, *more)
        return [*new, new[0].clone()]

    state = state if several else (state,)
    many = len(state)
    *state, first = step(*state, linear(x[0], of_input, biases[0]), *step_weights)
    results = first.unsqueeze(0)
    is_open = isinstance(x.shape[0], torch.SymInt)
    if not is_open and x.shape[0] == 2:
        *state, last = step(*state, linear(x[1], of_input, biases[0]), *step_weights)
        results = torch.stack([first, last])
    elif is_open or x.shape[0] > 2:
        later = linear(x[1:], of_input, biases[0])
        *state, others = scan_op(step, [*state], [later], tuple(step_weights))
        results = torch.cat([results, others])
    return results.flip(0) if reverse else results, tuple(state) if several else state[0]


def _layers(cell: Callable[..., Any], x: Any, states: Sequence[Any], weights: Sequence[Any], *settings: Any) -> Any:
    """Return the results and the last states of all layers; PyTorch's decomposition leaves out their dropout.

    settings  those of PyTorch's operators of recurrences, in their order
    """
    has_biases, count, dropout, train, bidirectional, batch_first = settings
    x, ends = x.transpose(0, 1) if batch_first else x, list[Any]()
    for layer in range(count):
        results = []
        for reverse in (False, True)[: 1 + bidirectional]:
            result, end = _layer(cell, x, states[len(ends)], weights[len(ends)], has_biases, reverse)
            results.append(result)
            ends.append(end)
        x = torch.cat(results, -1) if bidirectional else results[0]
        if layer < count - 1:
            x = torch.nn.functional.dropout(x, dropout, train)
    return x.transpose(0, 1) if batch_first else x, ends


KERNELS = {
    "lstm": "lstm_data_impl",
    "gru": "gru_impl_data",
    "rnn_tanh": "rnn_tanh_data",
    "rnn_relu": "rnn_relu_data",
}
"""Operators of packed recurrences, and PyTorch's decompositions of them."""


def unpacked(numbers: bool = False) -> dict[Any, Callable[..., Any]]:
    """Return the answers by which packing is an indexed read. Raises `InputError` if lengths are not numbers.

    numbers   whether lengths are numbers, as in a run
    """
    several: Any = torch._C._VariableFunctions
    gathered: Any = decompositions.gather_params
    loop: Any = torch.ops.higher_order.while_loop

    def lengths_of(lengths: Any) -> list[int]:
        with _disable_current_modes():
            return [int(each) for each in lengths]

    def places(rows: Sequence[Any]) -> Any:
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
            if isinstance(arguments[3], list | tuple):  # the weights are here for packed sequences
                data, counts, *rest = arguments
                return parts(data, lengths_of(counts), *rest)
            x, state, weights, *settings = arguments
            if numbers:
                return kernel(*arguments)
            pairs = name == "lstm"
            weights = gathered(weights, settings[0], pairs and state[0].size(2) != state[1].size(2))
            states = [tuple(each[n] for each in state) if pairs else state[n] for n in range(len(weights))]
            result, ends = _layers(CELLS[name], x, states, weights, *settings)
            if pairs:
                return result, *(torch.stack(each) for each in zip(*ends, strict=True))
            return result, torch.stack(ends)

        return run

    def repeated(holds: Any, body: Any, carried: Sequence[Any], others: Sequence[Any] = ()) -> Any:
        def known(again: Any) -> Any:
            return again if numbers or isinstance(again, bool) else known_number(again)

        while again := known(holds(*carried, *others)):
            carried = body(*carried, *others)
        return loop(holds, body, tuple(carried), tuple(others)) if again is None else tuple(carried)

    recurrences = {getattr(several, name): recurrence(name) for name in KERNELS}
    return {several._pack_padded_sequence: pack, several._pad_packed_sequence: pad, **recurrences, loop: repeated}
