"""What a shipped layer is in a model, as its file says: in a line `part: norm`, and in a line `shown as: norm` what
ledgers call it, where that is another layer's name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias, get_args

from learncost.ir.line import Line

PART = "part:"
SHOWN = "shown as:"

NO_LAYER = "shared_weights"  # the gradients of weights that several turns of a repeat share are added in no layer

Part: TypeAlias = Literal["", "embedding", "positions", "norm", "residual", "head", "loss", "pooler"]

NORM: Part = "norm"

# These stand before the blocks or after them: block by block nothing of them is made again.
OUTSIDE_BLOCKS: frozenset[Part] = frozenset({"embedding", "positions", "head", "loss", "pooler"})


def shown_layer(name: str) -> str:
    """What a layer of a model's table is called in the ledger."""
    return _said(name).get(SHOWN, name) if name else NO_LAYER


def part_of(name: str) -> Part:
    """What a layer is in a model, by what it is called there or in the ledger; empty where its file does not say."""
    return _PARTS[_said(shown_layer(name)).get(PART, "")]


def is_norm(name: str) -> bool:
    """Whether it is a norm: one that ships, or a layer or an operator of one's own that is called so."""
    return part_of(name) == NORM or NORM in name.split("_")


def of_part(line: Line, part: Part) -> bool:
    """Whether it is a line of a layer that is this part of a model."""
    return part_of(line.meta.layer) == part


_PARTS: Mapping[str, Part] = {part: part for part in get_args(Part)}


@cache
def _said(name: str) -> Mapping[str, str]:
    """What the file of a shipped layer says of it, by the line's first words; of another layer nothing."""
    file = files("learncost.layers") / "tables" / f"{name}.table"
    if not name.isidentifier() or not file.is_file():
        return {}
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return {key: line.removeprefix(key).strip() for key in (PART, SHOWN) for line in lines if line.startswith(key)}
