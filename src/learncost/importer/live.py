"""The module behind an imported table, which `verify` runs to check the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from learncost.importer.inputs import Input
from learncost.importer.pipeline import UNOBSERVED, ImportObserver, ImportOptions, table_of
from learncost.importer.walk import ImportedModule
from learncost.ir.dataclass import dataclass, replace


@dataclass
class LiveModule:
    """A module with parameter values, and the options with which its table was imported.

    build    returns the module
    inputs   its inputs: descriptions, or example values by name
    """

    build: Callable[[], Any]
    inputs: Sequence[Input] | Mapping[str, Any]
    called: str
    options: ImportOptions

    @cached_property
    def module(self) -> Any:
        """Return the module."""
        return self.build()

    def read(self) -> tuple[str, tuple[ImportedModule, Any] | None]:
        """Import the module again; return the text of its table, and the imported module with its source: the module or
        one traced run of it.

        The second is None for a module that is imported in parts. Raises `InputError`.
        """
        found: list[tuple[ImportedModule, Any]] = []
        text, _ = table_of(
            self.module,
            self.inputs,
            self.called,
            self.options,
            ImportObserver(keep=lambda imported, whole: found.append((imported, whole))),
        )
        return text, found[-1] if found else None


def evaluation_of(
    module: Any,
    given: Sequence[Input] | Mapping[str, Any],
    called: str,
    training: str,
    options: ImportOptions,
    observer: ImportObserver = UNOBSERVED,
    real: Callable[[], Any] | None = None,
) -> str:
    """Return the text of the table in evaluation mode; "" if its lines are those of training mode. Raises `InputError`.

    training  the text of the table in training
    """
    if not any(part.training for part in module.modules()):
        return ""
    is_folded = any(line.strip().startswith("repeat ") for line in training.splitlines())
    with in_evaluation(module):
        text, _ = table_of(module, given, called, replace(options, fold=is_folded, companion=training), observer, real)
    return text


@contextmanager
def in_evaluation(module: Any) -> Iterator[None]:
    """Put the module in evaluation mode inside, and restore every submodule's mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def values_of(module: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a module as arrays, by their paths; empty where some have no values."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return _arrays({**parameters, **dict(module.named_buffers(remove_duplicate=False))})


def saved_of(module: Any) -> dict[str, Any]:
    """Return the tensors of a module's state_dict as arrays; empty where some have no values."""
    return _arrays({path: each for path, each in module.state_dict().items() if hasattr(each, "detach")})


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors as arrays, bf16 and fp16 as fp32."""
    if any(tensor.device.type == "meta" for tensor in tensors.values()):
        return {}
    halves = (torch.bfloat16, torch.float16)
    there = {path: tensor.detach().cpu() for path, tensor in tensors.items()}
    return {path: (each.float() if each.dtype in halves else each).clone().numpy() for path, each in there.items()}
