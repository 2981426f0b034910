"""Example inputs: by name, as a call passes them, at sizes that distinguish letters; modules without wrappers."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import wraps
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


DISTINCT_SIZES = (2, 5, 7, 11, 13, 17, 19, 23)
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
    several = all_different(
        sizes, every, lambda letter: (sizes[letter] * times for times in (1, 2, 3, *DISTINCT_SIZES))
    )
    few = all_different(sizes, every, lambda letter: (sizes[letter], *DISTINCT_SIZES))
    return [at_sizes(given, several, symbols), at_sizes(given, few, symbols), given]


def all_different(
    letters: Iterable[str], every: Iterable[str], choices: Callable[[str], Iterable[int]], fixed: Set[int] = {1}
) -> dict[str, int]:
    """Return for each letter the first candidate with which its sizes are none of the fixed or of an earlier letter."""
    sizes, taken = dict[str, int](), {*fixed}
    for letter in letters:
        sizes[letter] = next(each for each in choices(letter) if taken.isdisjoint(_sizes_of(letter, each, every)))
        taken |= _sizes_of(letter, sizes[letter], every)
    return sizes


def _sizes_of(letter: str, value: int, every: Iterable[str]) -> set[int]:
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


# Modules without wrappers, and results of types that an export takes


_WRAPPERS: Mapping[str, str] = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""PyTorch's wrapper modules that compute what the wrapped module computes, and its attribute."""

_OTHER_FORMS: Mapping[str, str] = {
    "torch.jit": "is compiled by torch.jit",
    "torch.ao.nn.quantized": "is quantized, and its weights are packed",
    "torch.ao.nn.intrinsic.quantized": "is quantized, and its weights are packed",
}
"""Packages of PyTorch with module formats that no export reads, and their description."""


def readable(module: Any) -> Any:
    """Return a module without its distributed or compiling wrapper. Raises `InputError` for a module that is not Python
    code any more, or that computes nothing.
    """
    from torch import nn

    while type(module).__module__.startswith("torch.") and type(module).__name__ in _WRAPPERS:
        module = getattr(module, _WRAPPERS[type(module).__name__])
    for path, part in module.named_modules():
        for spec, what in _OTHER_FORMS.items():
            if any(kind.__module__.startswith(spec) for kind in type(part).__mro__):
                raise InputError(
                    f"{path or type(module).__name__} {what}, which torch.export does not support: pass the "
                    f"original module"
                )
        if any(nn.parameter.is_lazy(each) for each in part.parameters(recurse=False)):
            raise InputError(
                f"{path or type(module).__name__} is lazy and has no sizes before its first call: "
                "call the module once before you pass it"
            )
    if getattr(module.forward, "__func__", None) is nn.Module.forward:
        raise InputError(f"{type(module).__name__} has no forward method")
    return module


def plain(results: Any) -> Any:
    """Convert results to tuples and dicts: an object that holds tensors to its attributes, a distribution to its
    parameters, a nested tensor to its rows.
    """
    import torch

    def fields(leaf: Any) -> Any:
        if isinstance(leaf, torch.distributions.Distribution):
            values = {name: value for name, value in vars(leaf).items() if name in leaf.arg_constraints}
            if not values:
                raise InputError(f"the result {type(leaf).__name__} is not a tensor: return its parameter tensors")
            return plain(values)
        if getattr(leaf, "is_nested", False):
            return leaf.values()
        if isinstance(leaf, torch.Tensor | torch.nn.Module | type):
            return leaf
        if dataclasses.is_dataclass(leaf):
            return plain({each.name: getattr(leaf, each.name) for each in dataclasses.fields(leaf)})
        held = dict(getattr(leaf, "__dict__", {}))
        leaves = torch.utils._pytree.tree_leaves(held)
        return plain(held) if any(isinstance(each, torch.Tensor) for each in leaves) else leaf

    return torch.utils._pytree.tree_map(fields, results)


@contextmanager
def named_inputs(module: Any, by_name: Mapping[str, Any]) -> Iterator[None]:
    """Replace `**` in forward's signature by the names of the inputs, which PyTorch needs for dynamic shapes."""
    forward = module.forward
    signature = inspect.signature(forward)
    kinds = inspect.Parameter
    named = [each for each in signature.parameters.values() if each.kind is not kinds.VAR_KEYWORD]
    more = [name for name in by_name if name not in signature.parameters]
    if not more or len(named) == len(signature.parameters) or "forward" in vars(module):
        yield
        return

    @wraps(forward)
    def called(*arguments: Any, **others: Any) -> Any:
        return forward(*arguments, **others)

    row = [*named, *(kinds(name, kinds.KEYWORD_ONLY) for name in more)]
    setattr(called, "__signature__", signature.replace(parameters=row))  # noqa: B010 - for a type checker
    module.forward = called
    try:
        yield
    finally:
        del module.forward
