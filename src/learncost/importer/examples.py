"""Example inputs: by their names, as a module is called with them, and with sizes by which letters are told apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from learncost.ir.errors import InputError


def arguments(module: Any, inputs: Any) -> dict[str, Any]:
    """The example inputs by the names that forward has for them; of `*several` all under that name."""
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
            f"forward takes {', '.join(parameters) or 'nothing'}, and {len(several) + len(given)} inputs were given"
        )
    return given


def as_called(module: Any, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Named inputs as a module is called with them: in a row as far as `*several`, by name from there on.

    What has a `__call__` of its own, whose names are others, takes in a row what it can.
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
    """Inputs by name, those of rows and mappings each by a name of its own."""
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
    """What stays open of an input, as PyTorch takes it."""
    import torch

    letters = ops.replace(",", " ").split()
    if not letters:
        return torch.utils._pytree.tree_map(lambda _: None, value)
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != len(letters):
        count = "no tensor" if shape is None else f"of {len(shape)} dimensions"
        raise InputError(f"{name} is {count}, and `{ops}` names {len(letters)}")
    return {place: torch.export.Dim.AUTO for place, letter in enumerate(letters) if not letter.isdigit()} or None


APART = (2, 5, 7, 11, 13, 17, 19, 23)
"""Sizes of examples, all different: PyTorch takes two equal ones for the same, and one of 1 for nothing."""


def told_apart(given: Mapping[str, Any], symbols: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Examples to try in which no two letters have one size, and none is 1, and the given ones; these alone where that
    is so.

    Of a size that is taken some times as much is tried first, as a side has to be that is halved often, then a few.
    """
    sizes: dict[str, int] = {}
    for name, ops in symbols.items():
        for letter, size in zip(ops.split(), given[name].shape, strict=True):
            if not letter.isdigit() and sizes.setdefault(letter, int(size)) != size:
                raise InputError(f"{letter} is {sizes[letter]} and, in {name}, {int(size)}")
    if len(set(sizes.values())) == len(sizes) and 1 not in sizes.values():
        return [given]
    several = _all_different(sizes, lambda size: (size * times for times in (*range(1, 4), *APART)))
    few = _all_different(sizes, lambda size: (size, *APART))
    return [_of_sizes(given, symbols, several), _of_sizes(given, symbols, few), given]


def _all_different(sizes: Mapping[str, int], choices: Callable[[int], Iterable[int]]) -> dict[str, int]:
    """Of each letter the first choice, of those for its size, that no letter before it has, and that is not 1."""
    fresh: dict[str, int] = {}
    for letter, size in sizes.items():
        fresh[letter] = next(each for each in choices(size) if each > 1 and each not in fresh.values())
    return fresh


def _of_sizes(given: Mapping[str, Any], symbols: Mapping[str, str], sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """Examples whose letters have these sizes."""
    import torch

    examples = dict(given)
    for name, ops in symbols.items():
        value = given[name]
        shape = [sizes.get(letter, int(size)) for letter, size in zip(ops.split(), value.shape, strict=True)]
        if shape != list(value.shape):
            made = torch.zeros(shape, dtype=value.dtype, device=value.device)
            examples[name] = made.requires_grad_(value.requires_grad)
    return examples
