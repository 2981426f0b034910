"""What the peers' models do not have, refused in one line; the engine may have more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration

Function = TypeVar("Function")

# Settings that change what is computed, with the one value that the peers' models have.
_ONLY = {"attention_bias": False, "mlp_bias": False, "rope_type": "default"}


def refuse(configuration: Configuration) -> None:
    """Raises InputError for a setting that the peers' models do not know."""
    for name, only in _ONLY.items():
        if (value := configuration.settings.get(name, only)) != only:
            raise InputError(f"the peers' models have no {name} = {value!r}, only {only!r}")


def activation(word: str, functions: Mapping[str, Function]) -> Function:
    """The function of an activation. Raises InputError."""
    if word not in functions:
        raise InputError(f"the peers' models have no activation {word!r}, only {', '.join(functions)}")
    return functions[word]
