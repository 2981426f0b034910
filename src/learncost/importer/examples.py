"""Example inputs: by name, as a call passes them, and at sizes that distinguish letters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from learncost.ir.errors import InputError


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
    """Return named inputs as positional and keyword arguments: positional as far as `*several`, keywords from there on.

    A module that overrides `__call__` with other parameter names gets as many positional arguments as possible.
    """
    from torch import nn

    kinds = {name: parameter.kind for name, parameter in inspect.signature(module.forward).parameters.items()}
    row = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), "")
    before = list(kinds)[: list(kinds).index(row)] if row in given else []
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


APART = (2, 5, 7, 11, 13, 17, 19, 23)
"""Sizes of examples, all different: PyTorch treats two equal ones as the same, and a size of 1 as broadcasting."""


def distinct_examples(given: Mapping[str, Any], symbols: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return examples to try in which no two letters have the same size and none is 1, followed by the given ones; only
    the given ones if they meet this already.

    If a size is already used, its multiples are tried first, as a side that is halved often needs, then small primes.
    """
    sizes: dict[str, int] = {}
    for name, ops in symbols.items():
        for letter, size in zip(ops.split(), given[name].shape, strict=True):
            if not letter.isdigit() and sizes.setdefault(letter, int(size)) != size:
                raise InputError(f"{letter} has two sizes: {sizes[letter]}, and {int(size)} in {name}")
    if len(set(sizes.values())) == len(sizes) and 1 not in sizes.values():
        return [given]
    several = _all_different(sizes, lambda size: (size * times for times in (*range(1, 4), *APART)))
    few = _all_different(sizes, lambda size: (size, *APART))
    return [_of_sizes(given, symbols, several), _of_sizes(given, symbols, few), given]


def _all_different(sizes: Mapping[str, int], choices: Callable[[int], Iterable[int]]) -> dict[str, int]:
    """Return for each letter the first candidate size that no earlier letter has and that is not 1."""
    fresh: dict[str, int] = {}
    for letter, size in sizes.items():
        fresh[letter] = next(each for each in choices(size) if each > 1 and each not in fresh.values())
    return fresh


def _of_sizes(given: Mapping[str, Any], symbols: Mapping[str, str], sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """Return examples whose letters have these sizes."""
    import torch

    examples = dict(given)
    for name, ops in symbols.items():
        value = given[name]
        shape = [sizes.get(letter, int(size)) for letter, size in zip(ops.split(), value.shape, strict=True)]
        if shape != list(value.shape):
            made = torch.zeros(shape, dtype=value.dtype, device=value.device)
            examples[name] = made.requires_grad_(value.requires_grad)
    return examples
