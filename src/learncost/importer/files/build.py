"""The module that a user's file builds, with parameters without memory and buffers with values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learncost.importer.examples import readable
from learncost.importer.files.user_file import RanFile, Target, UserError, run, user_code
from learncost.importer.inputs import Input, examples
from learncost.importer.nested import by_parts
from learncost.importer.tried import allocate, without_memory
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, shown
from learncost.models.files import read_path

INPUTS = "inputs"
"""The function of a file that says what its module reads, where --input does not."""


@dataclass(frozen=True)
class BuiltModule:
    """A module and its inputs: texts as for --input, or tensors; none if nothing specifies them."""

    module: Any
    inputs: Sequence[Input] | Mapping[str, Any] | None


def built(wanted: Target, real: bool, say: Callable[[str], None], inputs: tuple[Input, ...] = ()) -> BuiltModule:
    """Run a file and build its module. Raises `InputError`.

    real    whether parameters have values, too
    say     receives the notes for the user
    inputs  replace those that the file specifies
    """
    answer = _materialized(wanted, real, say)
    module, given, _ = by_parts(answer.module, inputs or answer.inputs or ())
    return BuiltModule(module, given)


def _materialized(wanted: Target, real: bool, say: Callable[[str], None]) -> BuiltModule:
    """Run a file and build its module, without memory for its parameters if it can be."""
    if not real:
        try:
            with without_memory():
                answer = _built(wanted)
            allocate(answer.module)
            return answer
        except UserError as error:
            first = error
        try:
            answer = _built(wanted)
        except UserError:
            raise first from None
        say(f"{wanted} cannot be built on the meta device: its parameters need values ({first})")
        return answer
    return _built(wanted)


def _built(wanted: Target) -> BuiltModule:
    from torch import nn

    if not wanted.name:
        from learncost.importer.configured import inputs_of, module_of

        module = module_of(read_path(str(wanted.file)))
        return BuiltModule(module, inputs_of(module))
    ran = run(wanted)
    value = ran.named(wanted.name)
    if not isinstance(value, nn.Module):
        if not callable(value):
            raise InputError(f"{wanted} is {shown(value)}: not a module, a class or a function that returns one")
        if needs := _needed(value):
            raise InputError(
                f"{wanted} needs {', '.join(needs)}: write a function without arguments that returns the module"
            )
        with user_code(str(wanted)):
            value = value()
    if not isinstance(value, nn.Module):
        raise InputError(f"{wanted} returns {_kind(value)}, and not a torch.nn.Module")
    value = readable(value)
    return BuiltModule(value, _inputs(ran, value))


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _needed(value: Callable[..., Any]) -> list[str]:
    """Return the required arguments of a function or class."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in parameters if each.default is inspect.Parameter.empty and each.kind not in several]


def _inputs(ran: RanFile, module: Any) -> tuple[Input, ...] | Mapping[str, Any] | None:
    """Return the inputs that a file or a module specifies; None if neither does."""
    specified = getattr(ran.values, INPUTS, None)
    where = f"{ran.target.file}:{INPUTS}"
    if callable(specified):
        with user_code(where):
            specified = specified()
    elif specified is None:
        specified, where = getattr(module, "example_inputs", None), "example_inputs of the module"
    if specified is None:
        return None
    with user_code(where):
        return examples(specified, module, {})
