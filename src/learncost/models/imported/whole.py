"""A module with what it reads as the text of a table: sizes are tried for letters, refusals are told in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learncost.equation.errors import InputError
from learncost.models.imported.inputs import Input, attempts, checked, examples_of, symbols_of, tensors
from learncost.models.imported.refusals import NotExportedError, exports


def table_of(
    module: Any,
    given: Sequence[Input] | Mapping[str, Any],
    called: str,
    *,
    symbols: Mapping[str, str] = {},
    unknown: str = "refuse",
    as_run: bool = False,
    fold: bool = True,
    stage: Callable[[str], None] = lambda text: None,
) -> tuple[str, list[str]]:
    """The text of a module's table, and what its inputs are in words. Raises `InputError`.

    given    what it reads, in words, or example values by name, of which `symbols` says what stays open
    called   what messages call it
    unknown  what becomes of an operator of which nobody knows the cost: refuse or zero
    as_run   take down the operations of one run
    fold     equal blocks become a repeat
    stage    is told what is being done
    """
    from learncost.models.imported.as_run import straight
    from learncost.models.imported.walk import read_module

    name = type(module).__name__

    def read(values: Mapping[str, Any], letters: Mapping[str, str]) -> str:
        with exports(called):
            whole = straight(module, values) if as_run else module
            taken = {key: value for key, value in values.items() if not as_run or hasattr(value, "shape")}
            return read_module(whole, taken, letters, name=name, unknown=unknown, fold=fold).text

    stage(f"reading {name}")
    if isinstance(given, Mapping):
        return read(given, {} if as_run else symbols), [f"{key}: {_described(value)}" for key, value in given.items()]
    given = checked(given, module, called)
    described = [str(each) for each in given]
    if as_run:
        if (letter := _without_example(given)) is not None:
            raise InputError(
                f"one run has one size for {letter}: write a number, or {letter}=8, in the inputs of {called}"
            )
        return read(tensors(given, examples_of(given)), {}), described
    first: Exception | None = None
    for sizes in attempts(given):
        if first:
            stage(f"reading {name}, tried with {', '.join(f'{letter} = {size}' for letter, size in sizes.items())}")
        try:
            return read(tensors(given, sizes), symbols_of(given)), described
        except NotExportedError as error:
            first = first or error
    assert first is not None
    raise first


def _without_example(inputs: Sequence[Input]) -> str | None:
    """The first letter of inputs that has no example."""
    return next((letter for each in inputs for letter in each.letters if letter not in examples_of(inputs)), None)


def _described(value: Any) -> str:
    """A value in words: a tensor by its type and its sizes."""
    shape = getattr(value, "shape", None)
    return " ".join(map(str, (str(value.dtype).removeprefix("torch."), *shape))) if shape is not None else repr(value)
