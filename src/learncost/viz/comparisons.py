"""The parts of a page that do not depend on its procedure: comparison of procedures, growth, price books."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import lru_cache
from typing import Any

from learncost.ir.dataclass import fields, replace
from learncost.ir.errors import InputError
from learncost.layers.layer import Layer
from learncost.models.configuration import Configuration
from learncost.procedures.procedure import INFERENCE, PROCEDURES
from learncost.reports.compare import compare
from learncost.reports.conventions import REFERENCE_CONVENTION, Conventions, conventions
from learncost.reports.request import Request
from learncost.viz.data.bridge import bridge
from learncost.viz.data.growth import ALONG, growth
from learncost.viz.data.procedures import procedures, table_memories


def comparisons(request: Request, dtype: str, side_by_side: str | None = None) -> dict[str, Any]:
    """Return the comparison of procedures, their growth, and the conventions, for a document of the requested step.

    side_by_side  names with commas between; by default the usual ones, and that of the step
    """
    other = request.procedure if request.procedure not in (*PROCEDURES, *INFERENCE) else ""
    common = replace(request.in_precision(dtype), procedure="bp", on=None, context=None, page_size=None, engine="")
    names = side_by_side, "" if side_by_side else other
    if isinstance(common.model, Configuration | Layer):
        return _compared(common, *names)
    return _remembered(json.dumps({**common.given, "model": common.model}), *names)


@lru_cache(maxsize=16)
def _remembered(arguments: str, side_by_side: str | None, other: str) -> dict[str, Any]:
    given = json.loads(arguments)
    named = {each.name for each in fields(Request)}
    request = Request(**{name: value for name, value in given.items() if name in named})
    sizes = {name: value for name, value in given.items() if name not in named}
    return _compared(replace(request, sizes=sizes), side_by_side, other)


def of_memory(request: Request) -> Request:
    """Return the fields of a request that concern memory."""
    return replace(request, price_book="run", tokens=None, context=None, on=None)


def _compared(request: Request, side_by_side: str | None, other: str) -> dict[str, Any]:
    result: dict[str, Any] = {"growth": {}}
    try:
        counted = replace(request, dropout=0.0, plan=None, precision=None)
        comparison = compare(counted, side_by_side)
        if other:
            comparison = compare(counted, (*comparison.procedures, other))
        memories = table_memories(comparison.procedures, of_memory(request))
        result["compared"] = procedures(comparison, memories).to_dict()
        for along in ALONG:
            with suppress(InputError):
                grown = growth(comparison, along)
                result["growth"][along] = grown.to_dict() | {"finding": grown.finding}
    except InputError as error:
        result["compared"] = {"refused": error.written}
    try:
        asked = Request(request.model, sizes=request.sizes, **request.lengths)
        result["conventions"] = _conventions(conventions(asked))
    except InputError as error:
        result["conventions"] = {"refused": error.written}
    return result


def _conventions(answer: Conventions) -> dict[str, Any]:
    """Return the numbers of all price books, and the differences of each from that of matrix products."""
    names = [
        convention.book.name
        for convention in answer.conventions
        if convention.counts is not None and convention.book.name != REFERENCE_CONVENTION
    ]
    bridges = {name: bridge(answer, REFERENCE_CONVENTION, name) for name in names}
    first = next(iter(bridges.values())).to_dict() if bridges else {}
    parts = ("items", "drawn", "reach")
    shown = {name: {part: bridge.to_dict()[part] for part in parts} for name, bridge in bridges.items()}
    findings = {name: bridge.finding for name, bridge in bridges.items()}
    return {"bars": first.get("bars", []), "refused_books": first.get("refused", {}), "to": shown, "findings": findings}
