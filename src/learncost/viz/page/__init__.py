"""The page of a report and of the explorer: one file, with all that it needs inside of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from learncost import __version__
from learncost.procedures.procedure import INFERENCE, LEARNING, procedure
from learncost.viz.document import as_json
from learncost.viz.views import VIEWS

SCRIPTS = (
    "numbers",
    "polynomials",
    "stretches",
    "time",
    "view",
    "icicle",
    "inspector",
    "state",
    "sentence",
    "more",
    "page",
    "charts",
    "procedures",
    "memory",
    "roofline",
    "bridge",
    "growth",
    "formulas",
    "drawings",
    "blocks",
    "views",
    "export",
    "start",
)
"""The parts of the program, in the order in which they are read; none imports another."""


@cache  # by shipped file
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def script() -> str:
    """Return the program of the page."""
    return "\n".join(_part(f"{name}.js") for name in SCRIPTS)


def page(documents: Sequence[Mapping[str, Any]], more: Mapping[str, Any] | None = None, nonce: str = "") -> str:
    """Return the page as HTML, which loads nothing from elsewhere.

    documents  what it shows first, and what can be chosen without a server (`learncost.viz.document.document`)
    more       what the explorer adds: `api`, the path that answers; `fields`, all that may be asked for
    nonce      of the content security policy, where a server has one
    """
    procedures = dict(_titles())
    procedures |= {name: procedure_title(name) for name in (document["summary"]["procedure"] for document in documents)}
    views = [
        {"name": name, "word": view.word, "title": view.title, "after": view.after} for name, view in VIEWS.items()
    ]
    formulas: dict[str, int] = {}  # which documents of one model mostly share
    slim = [
        {**document, "mathml": [formulas.setdefault(formula, len(formulas)) for formula in document["mathml"]]}
        for document in _once(documents)
    ]
    data_of_page = {"documents": slim, "procedures": procedures, "views": views, "mathml": [*formulas], **(more or {})}
    data = as_json(data_of_page).replace("<", "\\u003c")  # no text of the data can end its element
    parts = {
        "version": __version__,
        "title": escape(" and ".join(dict.fromkeys(document["summary"]["model"] for document in documents)))
        + " · learncost",
        "nonce": f' nonce="{escape(nonce)}"' if nonce else "",
        "style": _part("style.css"),
        "data": data,
        "script": script(),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _part("index.html"))


_INFERENCE = {"prefill": "reading a prompt", "decode": "decoding"}
"""The names of inference in a sentence."""

_SHARED = ("conventions", "growth", "compared", "tables", "rates")


def _once(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the documents, with {"same": 0} for what an earlier one has too: its place there."""
    slim: list[dict[str, Any]] = []
    for document in documents:
        fields = {**document, "rates": document["time"]["rates"] if document.get("time") else None}
        if fields["rates"]:
            fields["time"] = {name: value for name, value in document["time"].items() if name != "rates"}
        for name in _SHARED:
            place = next((at for at, earlier in enumerate(slim) if earlier[name] == fields[name]), None)
            fields[name] = fields[name] if place is None or not fields[name] else {"same": place}
        slim.append(fields)
    return slim


@cache
def _titles() -> Mapping[str, str]:
    return {name: procedure_title(name) for name in (*LEARNING, *INFERENCE)}


def procedure_title(name: str) -> str:
    """Return the name of a procedure in a sentence."""
    return _INFERENCE.get(name) or procedure(name, INFERENCE).title.partition(":")[0]
