"""Who runs steps: every module here has its `RUNNERS`, and whoever adds a module adds them everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from learncost.reports.memory.engine import Engine

TABLE = "table"
"""The runner that answers for every step."""
USUAL = "autograd"
"""Who runs a step where nobody is named and it can."""


@cache
def runners() -> Mapping[str, Engine]:
    """All of them by name, the table first."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    by_name = {runner.name: runner for module in modules for runner in module.RUNNERS}
    return {TABLE: by_name[TABLE], **by_name}
