"""The module that a user's file builds: its parameters take no memory, its buffers have their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from learncost.equation.errors import InputError
from learncost.faces.importing.user_file import Ran, Target, UserError, run, user_code
from learncost.models.imported.inputs import Input, parse_inputs
from learncost.models.wording import shown

INPUTS = "inputs"
"""The function of a file that says what its module reads, where --input does not."""


@dataclass(frozen=True)
class Built:
    """A module, and what its file says of its inputs: texts as --input has them, or tensors; None: nothing."""

    module: Any
    inputs: tuple[Input, ...] | Mapping[str, Any] | None


def built(wanted: Target, real: bool, say: Callable[[str], None]) -> Built:
    """Run a file and build its module. Raises `InputError`.

    real  its parameters have values, too
    say   is told what somebody should know
    """
    if not real:
        try:
            with without_memory():
                answer = _built(wanted)
            give_room(answer.module)
            return answer
        except UserError as error:
            first = error
        try:
            answer = _built(wanted)
        except UserError:
            raise first from None
        say(f"{wanted} is built in memory: its parameters cannot be left without values ({first})")
        return answer
    return _built(wanted)


def _built(wanted: Target) -> Built:
    from torch import nn

    ran = run(wanted)
    value = ran.named(wanted.name)
    if not isinstance(value, nn.Module):
        if not callable(value):
            raise InputError(f"{wanted} is {shown(value)}: neither a module nor what builds one")
        if needs := _needed(value):
            raise InputError(
                f"{wanted} needs {', '.join(needs)}: write a function without arguments that returns the module"
            )
        with user_code(str(wanted)):
            value = value()
    if not isinstance(value, nn.Module):
        raise InputError(f"{wanted} returns {_kind(value)}, and not a torch.nn.Module")
    return Built(value, _inputs(ran, value))


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _needed(value: Callable[..., Any]) -> list[str]:
    """The arguments that a function or a class has to be given."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in parameters if each.default is inspect.Parameter.empty and each.kind not in several]


def _inputs(ran: Ran, module: Any) -> tuple[Input, ...] | Mapping[str, Any] | None:
    """What a file, or a module itself, says of the inputs."""
    said = getattr(ran.values, INPUTS, None)
    where = f"{ran.target.file}:{INPUTS}"
    if callable(said):
        with user_code(where):
            said = said()
    elif said is None:
        said, where = getattr(module, "example_inputs", None), "example_inputs of the module"
    if said is None:
        return None
    return example_inputs(said, module, where)


def example_inputs(said: Any, module: Any, where: str) -> tuple[Input, ...] | Mapping[str, Any]:
    """Texts as --input has them, a mapping of names to them, or tensors in the order of forward or by name."""
    import torch

    if isinstance(said, torch.Tensor):
        said = (said,)
    if isinstance(said, Mapping):
        texts = [isinstance(value, str) for value in said.values()]
        return parse_inputs(said) if all(texts) and texts else dict(said)
    if isinstance(said, list | tuple):
        if said and all(isinstance(each, str) for each in said):
            return parse_inputs(said)
        names = [*inspect.signature(module.forward).parameters]
        if len(said) <= len(names):
            return dict(zip(names, said, strict=False))
        raise InputError(f"{where} has {len(said)} values, and forward takes {len(names)}: {', '.join(names)}")
    raise InputError(f"{where} is {_kind(said)}: it has to be texts such as 'idx: int B M', or example tensors")


def give_room(module: Any) -> None:
    """Parameters on the device meta become such as have room on the CPU that nobody writes to: it takes no memory."""
    import torch
    from torch import nn

    swap: Callable[..., None] = torch.utils.swap_tensors
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter and parameter.device.type == "meta":
            there = nn.Parameter(torch.empty_like(parameter, device="cpu"), requires_grad=parameter.requires_grad)
            swap(parameter, there)


@contextmanager
def without_memory() -> Iterator[None]:
    """Parameters that are registered inside have a shape and no values; buffers keep theirs.

    The place of each parameter is taken by one on the device meta, so that ties between parameters stay.
    """
    import torch
    from torch import nn

    before, swap = nn.Module.register_parameter, cast("Callable[..., None]", torch.utils.swap_tensors)

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if type(parameter) is nn.Parameter and parameter.device.type != "meta":
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
            swap(parameter, empty)
        before(module, name, parameter)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = before  # type: ignore[method-assign]
