"""The function of a shipped layer in a model, from lines of its file: `part: norm`, and `shown as: norm` for its name
in reports, where that is another layer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias, get_args

from learncost.ir.line import Line

PART = "part:"
SHOWN = "shown as:"

NO_LAYER = "shared_weights"  # the gradients of weights that several iterations share are added outside of any layer

Part: TypeAlias = Literal["", "embedding", "positions", "norm", "residual", "head", "loss", "pooler"]

NORM: Part = "norm"

# These run before or after the blocks: recomputation of blocks does not include them.
OUTSIDE_BLOCKS: frozenset[Part] = frozenset({"embedding", "positions", "head", "loss", "pooler"})


def shown_layer(name: str) -> str:
    """Return the name of a layer of a model's table in reports."""
    return _said(name).get(SHOWN, name) if name else NO_LAYER


def part_of(name: str) -> Part:
    """Return the function of a layer in a model, by its name there or in reports; empty where none is declared."""
    return _PARTS[_said(shown_layer(name)).get(PART, "")]


def is_norm(name: str) -> bool:
    """Return whether a layer is a norm: a shipped one, or a layer or operator of the user that is named so."""
    return part_of(name) == NORM or NORM in name.split("_")


def of_part(line: Line, part: Part) -> bool:
    """Return whether a line belongs to a layer with this function in a model."""
    return part_of(line.meta.layer) == part


_PARTS: Mapping[str, Part] = {part: part for part in get_args(Part)}


@cache
def _said(name: str) -> Mapping[str, str]:
    """Return the declarations in the file of a shipped layer, by their keyword; nothing for another layer."""
    file = files("learncost.layers") / "tables" / f"{name}.table"
    if not name.isidentifier() or not file.is_file():
        return {}
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return {key: line.removeprefix(key).strip() for key in (PART, SHOWN) for line in lines if line.startswith(key)}
