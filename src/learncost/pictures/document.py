"""The document: all that a page shows of one step, as data, from the same calls as the command line.

Numbers are whole where they count and in seconds or joules where they are modelled. Polynomials are exported beside
them, so that a page without Python gives the same numbers for other sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from learncost import __version__
from learncost.books.book import book as find_book
from learncost.books.errata import errata
from learncost.equation.errors import InputError
from learncost.equation.precision import precision_of
from learncost.ledger.compare import compare
from learncost.ledger.conventions import YARDSTICK, Conventions, conventions
from learncost.ledger.cost import cost
from learncost.ledger.memory import Memory, memory
from learncost.ledger.memory_step import Step
from learncost.ledger.question import question
from learncost.ledger.record import Cost
from learncost.ledger.run import adaptation_of, prepare, shown_layer
from learncost.ledger.show import convention, title
from learncost.models.configuration import Configuration
from learncost.models.model import Model
from learncost.models.sizes import CANONICAL, spelled
from learncost.pictures.data.bridge import bridge
from learncost.pictures.data.costs import CostLine, cost_lines, tables
from learncost.pictures.data.curve import curve
from learncost.pictures.data.growth import ALONG, growth
from learncost.pictures.data.peaks import peaks
from learncost.pictures.data.polynomials import Monomials
from learncost.pictures.data.procedures import procedures
from learncost.pictures.data.sizes import Sizes, sizes_of
from learncost.pictures.data.times import times
from learncost.procedures.optimizer import default_optimizer
from learncost.procedures.procedure import INFERENCE, MACRO_OPERATIONS
from learncost.readings import write

SCHEMA = 1

_LEARNING = ("train", "train_layers", "lora", "lora_rank", "lora_alpha")


@question()
def document(
    model: str | Configuration,
    procedure: str = "bp",
    price_book: str = "run",
    batch_size: int | str = 1,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    optimizer: str | None = None,
    dropout: float | str = 0.0,
    dtype: str | None = None,
    context: int | str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    plan: str | None = None,
    on: str | None = None,
    precision: str | None = None,
    **sizes: Any,
) -> dict[str, Any]:
    """All that the page shows of one step: its cost line by line with formulas, its memory, its time, as data.

    Parameters
    ----------
    procedure
        What the step is: learning by {choices}, or inference as prefill or decode.
    seq_len
        How many tokens are in a sequence. The default is the number of positions that the model has.
    context
        With decode, how many tokens the cache holds before the step.
    on
        The device whose time is told (`learncost list devices`), or here.
    precision
        Which type each role has: {choices}. The default is fp32; with `on` what one trains in on it.

    Raises
    ------
    InputError
        As for `lc.cost`.
    """
    given = {name: value for name, value in locals().items() if name not in ("sizes", "given")}
    if procedure not in INFERENCE:
        given["optimizer"] = optimizer or default_optimizer(find_book(price_book))
    found = cost(**given, **sizes, by="equation")
    lines, monomials = cost_lines(found), Monomials()
    formulas: dict[str, int] = {}
    controls = sizes_of(found, _lengths(given, sizes), _builder(given, sizes))
    rows = [_pooled(line.to_dict(monomials), formulas) for line in lines]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "asked": _asked(given, sizes),
        "said": _said(found),
        "totals": _totals(found),
        **controls.to_dict(),
        "time": times(found, lines) if found.timing else None,
        "memory": _memory(given, sizes, found),
        **_others(given, sizes, found.dtype),
        "macros": [name for name in MACRO_OPERATIONS if any(line.macro == name for line in lines)],
        "lines": rows,
        "tables": tables(lines),
        "errata": _errata(lines),
        "legend": _legend(found, controls),
        "monomials": monomials.to_list(),
        "mathml": list(formulas),
        **_calls(given, sizes, found),
    }


def _memory(given: Mapping[str, Any], sizes: Mapping[str, Any], found: Cost) -> dict[str, Any]:
    """The step's memory as the table says it, with the arrays at every line; why it is not known where it is not."""
    names = ("model", "procedure", "batch_size", "seq_len", "target_len", "optimizer", "dropout", "plan", *_LEARNING)
    own = {name: given[name] for name in names if given[name] is not None} | {"precision": found.dtype}
    try:
        if found.cache is not None:
            raise InputError("the memory of inference is told by learncost fit --inference")
        held = memory(**own, **sizes, engine="table")
        assert isinstance(held, Memory)
        shown = curve(held)
        usual = memory(**own, **sizes)
        assert isinstance(usual, Memory)
        result = {
            "usual": {"engine": usual.engine, "peak": usual.peak, "module": usual.module},
            "peak": held.peak,
            "split": dict(held.split),
            "convention": held.convention,
            "engine": held.engine,
        }
        return result | {"finding": shown.finding, "curve": shown.to_dict(), **_peaks(own, sizes)}
    except InputError as error:
        return {"refused": str(error)}


def _peaks(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The peak as the largest of polynomials."""
    kind = precision_of(given["precision"])
    wanted = adaptation_of(*(given.get(name) for name in _LEARNING), kind=kind)
    run = prepare(
        given["model"],
        "run",
        given["batch_size"],
        given.get("seq_len"),
        given.get("target_len"),
        None,
        None,
        given["dropout"],
        kind.name,
        sizes,
        (given["procedure"],),
        wanted,
        given.get("plan"),
    )
    return peaks(Step(run, given["procedure"], kind, given["optimizer"]))


def _others(given: Mapping[str, Any], sizes: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """What is the same whatever procedure is looked at: all of them side by side, growth, conventions."""
    same = {name: value for name, value in given.items() if name not in ("procedure", "on", "context", "dtype")}
    same |= {"precision": dtype}
    if isinstance(given["model"], Configuration):
        return _beside(same, sizes)
    return _remembered(json.dumps(same), json.dumps(sizes))


@lru_cache(maxsize=16)
def _remembered(given: str, sizes: str) -> dict[str, Any]:
    return _beside(json.loads(given), json.loads(sizes))


def _beside(asked: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    lengths = {name: asked[name] for name in ("batch_size", "seq_len", "target_len")}
    learning = {name: asked[name] for name in _LEARNING}
    book, optimizer = asked["price_book"], asked["optimizer"]
    result: dict[str, Any] = {"growth": {}}
    try:
        found = compare(asked["model"], None, book, **lengths, **learning, optimizer=optimizer, **sizes)
        result["compared"] = procedures(found, dict(_memories(found.procedures, asked, sizes))).to_dict()
        for along in ALONG:
            with suppress(InputError):
                own = growth(found, along, price_book=book)
                result["growth"][along] = replace(own, polynomials={}).to_dict() | {"finding": own.finding}
    except InputError as error:
        result["compared"] = {"refused": str(error)}
    try:
        result["conventions"] = _conventions(conventions(asked["model"], **lengths, **sizes))
    except InputError as error:
        result["conventions"] = {"refused": str(error)}
    return result


def _memories(names: Iterable[str], asked: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[tuple[str, Memory]]:
    """The memory of each procedure as the table says it, where that is known."""
    own = {name: value for name, value in asked.items() if name != "price_book" and value is not None}
    for name in names:
        with suppress(InputError):
            held = memory(**own, procedure=name, **sizes, engine="table")
            assert isinstance(held, Memory)
            yield name, held


def _conventions(found: Conventions) -> dict[str, Any]:
    """The numbers of all books, and the way to each of them from that of matrix products."""
    names = [one.book.name for one in found.conventions if one.counts is not None and one.book.name != YARDSTICK]
    bridges = {name: bridge(found, YARDSTICK, name) for name in names}
    first = next(iter(bridges.values())).to_dict() if bridges else {}
    parts = ("items", "drawn", "reach")
    own = {name: {part: one.to_dict()[part] for part in parts} for name, one in bridges.items()}
    findings = {name: one.finding for name, one in bridges.items()}
    return {"bars": first.get("bars", []), "refused_books": first.get("refused", {}), "to": own, "findings": findings}


def _pooled(line: dict[str, Any], formulas: dict[str, int]) -> dict[str, Any]:
    """A line with places in place of its MathML, each of which stands once among `formulas`."""
    places = {
        name: own | {"mathml": formulas.setdefault(own["mathml"], len(formulas))}
        for name, own in line["formulas"].items()
    }
    written = {"mathml": formulas.setdefault(line["mathml"], len(formulas))} if "mathml" in line else {}
    return line | {"formulas": places} | written


def _lengths(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> set[str]:
    """The sizes of the run that are given, in whatever spelling."""
    spelled_out = {CANONICAL.get(spelled(name), name) for name in sizes}
    return {
        name for name in ("batch_size", "seq_len", "target_len", "context") if given[name] is not None
    } | spelled_out


def _builder(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> Callable[[Mapping[str, int]], Model]:
    """The same model with other sizes. Raises `InputError` where there is none."""
    learning = (given[name] for name in _LEARNING)
    wanted = adaptation_of(*learning)
    names = () if given["procedure"] in INFERENCE else (given["procedure"],)

    def built_with(others: Mapping[str, int]) -> Model:
        dropout = 0.0 if not names else given["dropout"]
        own = {**sizes, **others}
        return prepare(
            given["model"], "run", 1, None, None, None, None, dropout, "fp32", own, names, wanted if names else None
        ).model

    return built_with


def _said(found: Cost) -> dict[str, Any]:
    """The step in words and names."""
    assert found.built is not None
    return {
        "title": title(found),
        "model": found.model,
        "procedure": found.procedure,
        "price_book": found.price_book,
        "convention": convention(found.price_book),
        "optimizer": found.optimizer,
        "dtype": found.dtype,
        "plan": found.plan,
        "counted": found.counted,
        "source": found.source,
        "trained": found.trained,
        "two_sided": found.target_len is not None,
        "learns": found.cache is None,
        "device": found.timing.rates.name if found.timing else None,
        "device_source": found.timing.rates.source if found.timing else None,
    }


def _totals(found: Cost) -> dict[str, Any]:
    """What the step takes in all."""
    totals: dict[str, Any] = {
        "maccs": found.total.maccs,
        "flops": found.total.flops,
        "bytes": sum(row.bytes for row in found.rows),
        "parameters": found.parameters,
        "active_parameters": found.active_parameters,
        "trained_parameters": found.trained_parameters,
    }
    if found.timing:
        totals |= {"seconds": found.timing.time.total, "low": found.timing.time.low, "high": found.timing.time.high}
        if found.timing.joules:
            low, usual, high = found.timing.joules
            totals |= {"joules": usual, "joules_low": low, "joules_high": high}
    return totals


def _errata(lines: tuple[CostLine, ...]) -> list[dict[str, str]]:
    """The errata of the layers that lines are from."""
    named = {name for line in lines for name in line.errata}
    return [
        {
            "id": one.id,
            "document": one.document,
            "where": one.where,
            "printed": one.printed,
            "right": one.right,
            "effect": one.effect,
            "layer": shown_layer(one.layer or ""),
        }
        for one in errata()
        if one.id in named
    ]


def _legend(found: Cost, controls: Sizes) -> list[dict[str, Any]]:
    """What the letters of formulas stand for: the symbol, the size, its value."""
    assert found.priced is not None
    return [
        {"axis": axis, "mathml": write.mathml(write.size(axis), display=False), "value": value}
        for axis, value in found.priced.sizes.items()
    ]


def _asked(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, by the names of the parameters; what was left to its default is left out."""
    usual = {"procedure": "bp", "price_book": "run", "batch_size": 1, "dropout": 0.0}
    named = {name: value for name, value in given.items() if value is not None and value != usual.get(name)}
    model = named["model"]
    if isinstance(model, Mapping):
        model = "config.json"  # which came as data
    return {**named, "model": model.name if isinstance(model, Configuration) else str(model), **sizes}


def _calls(given: Mapping[str, Any], sizes: Mapping[str, Any], found: Cost) -> dict[str, str]:
    """The same as a command and as a call of Python."""
    asked = _asked(given, sizes)
    if asked.get("optimizer") == default_optimizer(find_book(given["price_book"])):
        asked.pop("optimizer")
    model = asked.pop("model")
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in asked.items())
    keywords = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    return {
        "command": f"learncost cost {model} {flags}".strip(),
        "python": f"lc.cost({', '.join(filter(None, (repr(model), keywords)))})",
    }


LARGEST = 2**53
"""From here on a program that keeps numbers as 64-bit floats, as JavaScript does, rounds: they are texts then."""


def as_json(found: Any) -> str:
    """A document as JSON, whole numbers that JavaScript would round as texts of their digits."""
    return json.dumps(_safe(found), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _safe(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(own) for own in value]
    if isinstance(value, Fraction):
        return _safe(int(value)) if value.denominator == 1 else float(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST else value


__all__ = ["InputError", "as_json", "document"]
