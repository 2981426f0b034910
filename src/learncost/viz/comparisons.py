"""What is the same whatever procedure a page looks at: all of them side by side, growth, price books."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from learncost.ir.errors import InputError
from learncost.layers.layer import Layer
from learncost.models.configuration import Configuration
from learncost.procedures.procedure import INFERENCE, PROCEDURES
from learncost.reports.compare import compare
from learncost.reports.conventions import YARDSTICK, Conventions, conventions
from learncost.viz.data.bridge import bridge
from learncost.viz.data.growth import ALONG, growth
from learncost.viz.data.procedures import procedures, table_memories

LEARNING = ("train", "train_layers", "lora", "lora_rank", "lora_alpha")
"""The arguments that say what learns."""


def comparisons(
    arguments: Mapping[str, Any], sizes: Mapping[str, Any], dtype: str, side_by_side: str | None = None
) -> dict[str, Any]:
    """Procedures side by side, their growth, and the conventions, for a document of the step that is asked for.

    side_by_side  names with commas between; by default the usual ones, and that of the step
    """
    procedure = arguments["procedure"]
    other = procedure if procedure not in (*PROCEDURES, *INFERENCE) else ""
    same = {name: value for name, value in arguments.items() if name not in ("procedure", "on", "context", "dtype")}
    same |= {"precision": dtype, "procedures": side_by_side, "other": "" if side_by_side else other}
    if isinstance(arguments["model"], Configuration | Layer):
        return _compared(same, sizes)
    return _remembered(json.dumps(same), json.dumps(sizes))


@lru_cache(maxsize=16)
def _remembered(arguments: str, sizes: str) -> dict[str, Any]:
    return _compared(json.loads(arguments), json.loads(sizes))


def _compared(arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    lengths = {name: arguments[name] for name in ("batch_size", "seq_len", "target_len")}
    learning = {name: arguments[name] for name in LEARNING}
    book, optimizer = arguments["price_book"], arguments["optimizer"]
    result: dict[str, Any] = {"growth": {}}
    try:
        settings = {**lengths, **learning, "optimizer": optimizer, **sizes}
        comparison = compare(arguments["model"], arguments["procedures"], book, **settings)
        if other := arguments["other"]:
            comparison = compare(arguments["model"], (*comparison.procedures, other), book, **settings)
        aside = ("price_book", "procedures", "other")
        of_memory = {name: value for name, value in arguments.items() if name not in aside and value is not None}
        memories = table_memories(comparison.procedures, {**of_memory, **sizes})
        result["compared"] = procedures(comparison, memories).to_dict()
        for along in ALONG:
            with suppress(InputError):
                grown = growth(comparison, along, price_book=book)
                result["growth"][along] = replace(grown, polynomials={}).to_dict() | {"finding": grown.finding}
    except InputError as error:
        result["compared"] = {"refused": str(error)}
    try:
        result["conventions"] = _conventions(conventions(arguments["model"], **lengths, **sizes))
    except InputError as error:
        result["conventions"] = {"refused": str(error)}
    return result


def _conventions(answer: Conventions) -> dict[str, Any]:
    """The numbers of all books, and the way to each of them from that of matrix products."""
    names = [
        convention.book.name
        for convention in answer.conventions
        if convention.counts is not None and convention.book.name != YARDSTICK
    ]
    bridges = {name: bridge(answer, YARDSTICK, name) for name in names}
    first = next(iter(bridges.values())).to_dict() if bridges else {}
    parts = ("items", "drawn", "reach")
    ways = {name: {part: way.to_dict()[part] for part in parts} for name, way in bridges.items()}
    findings = {name: way.finding for name, way in bridges.items()}
    return {"bars": first.get("bars", []), "refused_books": first.get("refused", {}), "to": ways, "findings": findings}
