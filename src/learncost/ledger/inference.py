"""The cost ledger of inference: a prompt that fills the cache, or new tokens that read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from learncost.equation.arrays import BYTES
from learncost.equation.count import Count, total
from learncost.equation.errors import InputError
from learncost.ledger.cost import Run, check_probability, ledger, lengths_of, prepare
from learncost.ledger.record import Cache, Cost
from learncost.models.configuration import Configuration, configure
from learncost.models.model import build, run_sizes
from learncost.models.sizes import check_size
from learncost.models.wording import shown
from learncost.procedures.inference import Inference, inference
from learncost.procedures.procedure import Procedure
from learncost.readings.price import Book, price


def cost_of_inference(
    model: str | Configuration,
    procedure: Procedure,
    price_book: str | Book,
    lengths: Mapping[str, Any],
    training: Mapping[str, Any],
    dtype: str,
    by: str,
    sizes: Mapping[str, Any],
) -> Cost:
    """The exact cost of a prompt, or of one step of decoding.

    lengths   batch_size, seq_len, target_len and context as given; seq_len (of an encoder-decoder: target_len) is the
              prompt, or the new tokens of a sequence in a step, which is 1 where it is not given
    training  what only learning has, which is refused
    Raises `InputError`.
    """
    silent = {"tokens": None, "optimizer": "sgd", "dropout": training["dropout"]}
    if check_probability("dropout", training["dropout"]):
        silent["dropout"] = None
    for name, value in training.items():
        if value != silent[name]:
            raise InputError(f"{name} = {shown(value)} is of training: {procedure.name} does not learn")
    given, own = lengths_of({name: value for name, value in lengths.items() if name != "context"}, sizes)
    decodes = procedure.name == "decode"
    if lengths["context"] is not None and not decodes:
        raise InputError(f"context goes with the procedure decode: {procedure.name} begins with an empty cache")
    if isinstance(model, Configuration):
        configuration, left = model, own
    else:
        configuration, left = configure(model, own), {}
    tokens = "target_len" if build(configuration).two_sided else "seq_len"
    if decodes:
        given = {tokens: 1} | given
    batch_size, seq_len, target_len = (given.get(name) for name in ("batch_size", "seq_len", "target_len"))
    run = prepare(configuration, price_book, batch_size, seq_len, target_len, None, "sgd", 0, dtype, left, ())
    new = run.axes["M"]
    tables = inference(run.model.table, configuration.name, several=decodes and new > 1)
    context = _context(run, lengths["context"], seq_len) if decodes else None
    axes = {**run.axes, **(tables.lengths(run.axes, context, new) if context is not None else {})}
    table = tables.prefill if context is None else tables.decode
    rows = price(table, {}, run.book).rows
    found = ledger(run.model, procedure, rows, axes, by, dtype, None, "", run.book.name)
    held = {**axes, **tables.lengths(axes, new if context is None else context, new)}
    last_only = "last" in table.inputs
    return replace(found, context=context, cache=_cache(tables, held, dtype), last_only=last_only)


def _context(run: Run, given: Any, seq_len: int | None) -> int:
    """The tokens in the cache; by default as many as leave room for the new ones. Refused where these have no room."""
    model, new = run.model, run.axes["M"]

    def longest(length: int | None) -> int:
        sides = (seq_len, length) if model.two_sided else (length, None)
        return run_sizes(model, run.axes["B"], *sides)["M"]

    if given is None:
        try:
            context = longest(None) - new
        except InputError:
            raise InputError(f"{model.configuration.name} has no default length: give --context") from None
        if context < 1:
            raise InputError(f"{new:,} new tokens leave no room for a context in {model.configuration.name}")
        return context
    context = check_size("context", given)
    try:
        longest(context + new)
    except InputError as error:
        raise InputError(f"context {context:,} and {new:,} new token{'s' if new > 1 else ''}: {error}") from None
    return context


def _cache(tables: Inference, sizes: Mapping[str, int], dtype: str) -> Cache:
    tokens = [kept for kept in tables.cache if kept.tokens]
    windows: dict[int, int] = {}
    for kept in tokens:
        if kept.window:
            window = int(kept.window) if kept.window.isdigit() else sizes[kept.window]
            windows[window] = windows.get(window, 0) + kept.elements.at(sizes)
    held = total(Count.of(kept.axes) for kept in tables.cache).at(sizes)
    return Cache(
        elements=sum(kept.elements.at(sizes) for kept in tokens),
        source=sum(kept.elements.at(sizes) for kept in tables.cache if not kept.tokens),
        windows=tuple(sorted(windows.items())),
        bytes=held * BYTES[dtype],
        width=BYTES[dtype],
        remade=tables.remade,
    )
