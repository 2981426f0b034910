"""A module beside its table: what `verify` runs to hold the table to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from learncost.importer.inputs import Input
from learncost.importer.pipeline import table_of
from learncost.importer.walk import ImportedModule


@dataclass
class LiveModule:
    """A module with values in its parameters, and how its table was read of it.

    build    gives the module
    inputs   what it reads, in words, or example values by name, of which `symbols` says what stays open
    as_run, unknown, fold   as `table_of` takes them
    """

    build: Callable[[], Any]
    inputs: Sequence[Input] | Mapping[str, Any]
    called: str
    symbols: Mapping[str, str]
    as_run: bool
    unknown: str
    fold: bool

    @cached_property
    def module(self) -> Any:
        """The module itself."""
        return self.build()

    def read(self) -> tuple[str, tuple[ImportedModule, Any] | None]:
        """Read the module once more: the text of its table, and what was read of what, the module or one run of it.

        There is none of a module that is read in parts. Raises `InputError`.
        """
        found: list[tuple[ImportedModule, Any]] = []
        text, _ = table_of(
            self.module,
            self.inputs,
            self.called,
            symbols=self.symbols,
            unknown=self.unknown,
            as_run=self.as_run,
            fold=self.fold,
            keep=lambda imported, whole: found.append((imported, whole)),
        )
        return text, found[-1] if found else None
