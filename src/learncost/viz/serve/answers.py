"""The responses to requests: documents and exports; an invalid request gets a one-line error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from learncost.ir.errors import InputError, shown
from learncost.reports.cost import cost
from learncost.reports.memory.memory import memory
from learncost.reports.question import flags_of
from learncost.viz.document import as_json, document
from learncost.viz.page import page
from learncost.viz.serve.query import arguments, chosen_by, fields
from learncost.viz.serve.replies import API, JSON, NONCE, Answer, Pairs, refusal
from learncost.viz.trace import trace
from learncost.viz.views import VIEWS

_TAKEN = {flag.name for flag in flags_of(document)}
_OF_DOCUMENT = _TAKEN - {flag.name for flag in flags_of(cost)}

FIRST: Mapping[str, str] = {"model": "gpt2", "on": "NVIDIA A100 SXM 40GB"}
"""The defaults of the first view."""


def _page(watches: bool) -> bytes:
    """Return the page, with the fields that it may request."""
    more = {"api": API, "fields": fields(document), "watches": watches}
    return page([document(**FIRST)], more, NONCE).encode()


def answer(route: str, pairs: Pairs, config: str = "") -> Answer:
    """Return the response to a request.

    route   document; view, whose name is `view`; export, whose form is `as`; files, a trainer's; fields, what may be
            asked for; page, or page that watches runs
    pairs   of the address
    config  the text of a config.json that came along, or those of a trainer's files by name
    """
    try:
        if route.startswith("page"):
            return Answer(200, "text/html; charset=utf-8", _page(route != "page"))
        if route == "fields":
            return Answer(200, JSON, json.dumps(fields(document)).encode())
        if route == "files":
            return Answer(200, JSON, json.dumps(chosen_by(config, _TAKEN)).encode())
        if route == "document":
            return Answer(200, JSON, as_json(document(**_arguments(pairs, config))).encode())
        if route == "view":
            name, rest = _named("view", VIEWS, pairs)
            view, keywords = VIEWS[name], arguments(rest, config)
            taken = {flag.name for flag in flags_of(view.question)}
            keywords = {key: given for key, given in keywords.items() if key in taken or key not in _OF_DOCUMENT}
            return Answer(200, JSON, as_json(view.question(**view.taken(keywords)).to_dict()).encode())
        form, rest = _named("as", EXPORTS, pairs)
        keywords = {name: value for name, value in _arguments(rest, config).items() if name not in _OF_DOCUMENT}
        kind, make = EXPORTS[form]
        return Answer(200, kind, make(keywords), f"learncost.{form}")
    except InputError as error:
        return refusal(400, error.written)
    except MemoryError:
        return refusal(422, "these sizes need more memory than is available: use smaller ones")
    except RecursionError:
        return refusal(400, "this configuration is nested too deeply")


def _named(key: str, known: Mapping[str, Any], pairs: Pairs) -> tuple[str, Pairs]:
    """Return the value of a key that must be a known name, and the other pairs. Raises `InputError`."""
    names = [value for name, value in pairs if name == key]
    if len(names) != 1 or names[0] not in known:
        raise InputError(f"{key} must be one of {', '.join(known)}, not {shown(', '.join(names))}")
    return names[0], [pair for pair in pairs if pair[0] != key]


def _arguments(pairs: Pairs, config: str) -> dict[str, Any]:
    """Return the arguments of the question. Raises `InputError` for those of other questions that are no sizes."""
    keywords = arguments(pairs, config)
    for command, question in (("cost", cost), ("memory", memory)):
        if strange := [each.name for each in flags_of(question) if each.name in keywords and each.name not in _TAKEN]:
            flag = strange[0].replace("_", "-")
            raise InputError(f"the explorer does not support {strange[0]}: use learncost {command} --{flag}")
    return keywords


def _cost(format: str) -> Callable[[Mapping[str, Any]], bytes]:
    return lambda keywords: (cost(**keywords).show(format).rstrip("\n") + "\n").encode()


def _trace(ending: str) -> Callable[[Mapping[str, Any]], bytes]:
    def make(keywords: Mapping[str, Any]) -> bytes:
        if keywords.get("price_book", "run") != "run":
            raise InputError("price_book does not apply to a trace")
        return trace(**{name: value for name, value in keywords.items() if name != "price_book"}).to_bytes(ending)

    return make


EXPORTS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], bytes]]] = {
    "json": (JSON, _cost("json")),
    "csv": ("text/csv; charset=utf-8", _cost("csv")),
    "md": ("text/markdown; charset=utf-8", _cost("md")),
    "tex": ("text/x-tex; charset=utf-8", _cost("latex")),
    "trace.json": (JSON, _trace(".json")),
    "pftrace": ("application/octet-stream", _trace(".pftrace")),
}
"""The export formats of a step: file endings with content types."""
