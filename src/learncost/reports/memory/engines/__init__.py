"""The engines of memory: each module here has its `ENGINES`, which every command and page then offers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from learncost.reports.memory.engine import Engine

GRAPH = "graph"
"""The engine that answers for every step: the lines of its table."""
DEFAULT_ENGINE = "eager"
"""The engine by default, for every step that it can run."""


@cache
def memory_engines() -> Mapping[str, Engine]:
    """Return every engine by its name, `graph` first."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    by_name = {chosen_engine.name: chosen_engine for module in modules for chosen_engine in module.ENGINES}
    return {GRAPH: by_name[GRAPH], **by_name}
