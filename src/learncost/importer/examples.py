"""Example inputs: by name, as a call passes them, and at sizes that distinguish letters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from learncost.ir.errors import InputError, shown


def arguments(module: Any, inputs: Any) -> dict[str, Any]:
    """Return the example inputs by the parameter names of forward; those of `*several` are all under that name."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    several = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    given: dict[str, Any] = {}
    parameters = inspect.signature(module.forward).parameters
    for name, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            if several:
                given[name], several = tuple(several), []
        elif several and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            given[name] = several.pop(0)
    if several:
        raise InputError(
            f"forward takes {', '.join(parameters) or 'nothing'}, but {len(several) + len(given)} inputs are given"
        )
    return given


def as_called(module: Any, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return named inputs as positional and keyword arguments: positional as far as `*several` or `/`, keywords from
    there on.

    A module that overrides `__call__` with other parameter names gets as many positional arguments as possible.
    """
    from torch import nn

    kinds = {name: parameter.kind for name, parameter in inspect.signature(module.forward).parameters.items()}
    row = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), "")
    by_place_alone = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
    before = list(kinds)[: list(kinds).index(row)] if row in given else by_place_alone
    if not before and type(module).__call__ is not nn.Module.__call__:
        by_place = (name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY)
        before = list(takewhile(given.__contains__, by_place))
    by_name = {name: value for name, value in given.items() if name not in (*before, row)}
    return (*(given[name] for name in before if name in given), *(given.get(row, ()))), by_name


def flattened(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs by name, with an entry for each nested tensor of tuples, lists and dicts."""
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, list | tuple):
            flat |= flattened({f"{name}_{place}": each for place, each in enumerate(value)})
        elif isinstance(value, Mapping):
            flat |= flattened({f"{name}_{key}": each for key, each in value.items()})
        else:
            flat[name] = value
    return flat


def dynamic(name: str, value: Any, ops: str) -> Any:
    """Return the open dimensions of an input as `torch.export` expects them."""
    import torch

    letters = ops.replace(",", " ").split()
    if not letters:
        return torch.utils._pytree.tree_map(lambda _: None, value)
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != len(letters):
        count = "not a tensor" if shape is None else f"a tensor of {len(shape)} dimensions"
        raise InputError(f"{name} is {count}, but `{ops}` names {len(letters)}")
    return {place: torch.export.Dim.AUTO for place, letter in enumerate(letters) if not letter.isdigit()} or None


_SIZE = re.compile(r"(?:(\d+)\*)?([^\W\d]\w*)([+-]\d+)?")


def parts_of(size: str) -> tuple[int, str, int]:
    """Return the factor, the letter and the addend of a size: 1, M and -1 of `M-1`. Raises `InputError`."""
    if (found := _SIZE.fullmatch(size)) is None:
        raise InputError(f"{shown(size)} is not a size: use a number, or a letter as in M, M-1 or 2*M")
    return int(found[1] or 1), found[2], int(found[3] or 0)


def size_at(size: str, sizes: Mapping[str, int]) -> int:
    """Return a size, a number or a letter with arithmetic, for these values of letters."""
    if size.isdigit():
        return int(size)
    times, letter, more = parts_of(size)
    return times * sizes[letter] + more


APART = (2, 5, 7, 11, 13, 17, 19, 23)
"""Sizes of examples, all different: PyTorch treats two equal ones as the same, and a size of 1 as broadcasting."""


def distinct_examples(given: Mapping[str, Any], symbols: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return examples to try in which no two letters have the same size and none is 1, followed by the given ones; only
    the given ones if they meet this already.

    If a size is already used, its multiples are tried first, as a side that is halved often needs, then small primes.
    """
    sizes: dict[str, int] = {}
    every = {op for ops in symbols.values() for op in ops.split() if not op.isdigit()}
    for name, ops in symbols.items():
        for op, size in zip(ops.split(), given[name].shape, strict=True):
            if op.isdigit():
                continue
            times, letter, more = parts_of(op)
            if (int(size) - more) % times:
                raise InputError(f"no {letter} makes {op} the size {int(size)} of {name}")
            if sizes.setdefault(letter, (int(size) - more) // times) != (int(size) - more) // times:
                raise InputError(
                    f"{letter} has two sizes: {sizes[letter]}, and {(int(size) - more) // times} in {name}"
                )
    values = {size_at(op, sizes) for op in every}
    if len(values) == len(every) and 1 not in values:
        return [given]
    several = _all_different(sizes, every, lambda size: (size * times for times in (*range(1, 4), *APART)))
    few = _all_different(sizes, every, lambda size: (size, *APART))
    return [at_sizes(given, several, symbols), at_sizes(given, few, symbols), given]


def _all_different(
    sizes: Mapping[str, int], every: Iterable[str], choices: Callable[[int], Iterable[int]]
) -> dict[str, int]:
    """Return for each letter the first candidate with which its sizes are not 1 and none that an earlier letter has."""
    fresh, taken = dict[str, int](), {1}
    for letter, size in sizes.items():
        fresh[letter] = next(each for each in choices(size) if taken.isdisjoint(sizes_of(letter, each, every)))
        taken |= sizes_of(letter, fresh[letter], every)
    return fresh


def sizes_of(letter: str, value: int, every: Iterable[str]) -> set[int]:
    """Return the sizes that follow from one letter at a value, the letter's among them."""
    return {value, *(size_at(op, {letter: value}) for op in every if parts_of(op)[1] == letter)}


def at_sizes(given: Mapping[str, Any], sizes: Mapping[str, int], symbols: Mapping[str, str]) -> dict[str, Any]:
    """Return example values at sizes by letter, repeated cyclically."""
    values = dict(given)
    for name, ops in symbols.items():
        value = values[name]
        for dim, op in enumerate(ops.split()):
            if op.isdigit() or parts_of(op)[1] not in sizes or value.shape[dim] == size_at(op, sizes):
                continue
            size = size_at(op, sizes)
            value = value.detach().repeat_interleave(-(-size // value.shape[dim]), dim).narrow(dim, 0, size)
        values[name] = value if value is given[name] else value.contiguous().requires_grad_(given[name].requires_grad)
    return values
