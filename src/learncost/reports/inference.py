"""The cost ledger of inference: a prompt that fills the cache, or new tokens that read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from learncost.cost_models import Price, PricedLine, price
from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial, size_of, total
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.models.configuration import Configuration, adds_paths, configure
from learncost.models.model import build, run_sizes
from learncost.models.sizes import check_size
from learncost.procedures.inference import Inference, inference
from learncost.procedures.procedure import INFERENCE, Procedure
from learncost.reports.record import Cache, Cost
from learncost.reports.request import Request
from learncost.reports.rows import ledger
from learncost.reports.run import PreparedRun, check_probability, lengths_of, prepare
from learncost.reports.timing import Timing, timing
from learncost.timing import Rates


@dataclass(frozen=True)
class Served:
    """A pass of inference: its table, the sizes of its axes and its priced lines, with their time on a device.

    context  tokens in the cache before the step, of decode; of a prompt all of its own
    held     the sizes with those of the cache when the pass is over
    """

    run: PreparedRun
    tables: Inference
    table: Table
    axes: Mapping[str, int]
    held: Mapping[str, int]
    context: int
    rows: tuple[PricedLine, ...]
    timed: Timing | None


def cost_of_inference(priced: Served, procedure: Procedure, by: str) -> Cost:
    """The exact cost of a prompt, or of one step of decoding."""
    run, book, dtype = priced.run, priced.run.book.name, priced.run.dtype
    ledger_of_pass = ledger(run.model, procedure, Price(book, priced.rows, priced.axes, dtype), by, priced.timed)
    cache = _cache(priced.tables, priced.held, priced.context, dtype)
    context = priced.context if procedure.name == "decode" else None
    return replace(ledger_of_pass, context=context, cache=cache, last_only="last" in priced.table.inputs)


def served(request: Request, on: Rates | None = None) -> Served:
    """The pass of a prompt, or of one step of decoding, priced; with its time on a device.

    seq_len (of an encoder-decoder: target_len) is the prompt, or the new tokens of a sequence in a step, by default 1.
    Raises `InputError`.
    """
    procedure = INFERENCE[request.procedure]
    if request.adaptation() is not None:
        raise InputError(f"--train and --lora do not apply to inference ({procedure.name})")
    if request.plan:
        raise InputError(f"--plan does not apply to inference ({procedure.name})")
    training: dict[str, object] = {"tokens": request.tokens, "optimizer": request.optimizer}
    training |= {"dropout": request.dropout if check_probability("dropout", request.dropout) else None}
    for name, value in training.items():
        if value is not None:
            raise InputError(f"--{name} applies to training only, not to {procedure.name}")
    lengths = {"batch_size": request.batch_size, "seq_len": request.seq_len, "target_len": request.target_len}
    run_lengths, model_sizes = lengths_of(lengths, request.sizes)
    decodes = procedure.name == "decode"
    if request.context is not None and not decodes:
        raise InputError(f"--context requires --procedure decode: {procedure.name} starts with an empty KV cache")
    model = request.model
    if isinstance(model, Configuration):
        # What is frozen changes no forward pass; low-rank paths do, and `build` refuses them.
        configuration, left = replace(model, learned=model.learned if adds_paths(model) else None), model_sizes
    else:
        configuration, left = configure(model, model_sizes), {}
    built = build(configuration)
    tokens = "target_len" if built.two_sided else "seq_len"
    if built.configuration.layer and not built.two_sided and "target_len" in run_lengths:  # the letter M of a table
        run_lengths = {"seq_len": run_lengths.pop("target_len")} | run_lengths
    if decodes:
        inference(built.table, configuration.name)  # what cannot decode says so before its lengths are asked about
        run_lengths = {tokens: 1} | run_lengths
    batch_size, seq_len, target_len = (run_lengths.get(name) for name in lengths)
    given = replace(request, batch_size=batch_size, seq_len=seq_len, target_len=target_len)
    run = prepare(replace(given, model=configuration, dropout=0.0, sizes=left), ())
    new = run.axes["M"]
    tables = inference(run.model.table, configuration.name, several=decodes and new > 1)
    sides = _InferenceSizes(run, seq_len)
    if decodes:
        context = _context(sides, request.context, new)
        # What depends on the length, such as a window that is longer than the text, depends on all tokens.
        all_lengths = sides.of(context + new)
        axes = cache_lengths = {**all_lengths, **tables.lengths(all_lengths, context, new)}
    else:
        context, axes, all_lengths = new, dict(run.axes), _with_free_place(sides, new)
        cache_lengths = {**all_lengths, **tables.lengths(all_lengths, context, 1)}
    table = tables.decode if decodes else tables.prefill
    rows = price(table, {}, run.book).rows
    timed = None if on is None else timing(rows, axes, on, run.dtype, run.book)
    return Served(run, tables, table, axes, cache_lengths, context, rows, timed)


@dataclass(frozen=True)
class _InferenceSizes:
    """The sizes of all axes by the number of tokens, beside an encoder's own length where there is one."""

    run: PreparedRun
    seq_len: int | None

    @property
    def name(self) -> str:
        return self.run.model.configuration.name

    def of(self, tokens: int | None) -> dict[str, int]:
        """With that many tokens, or by default as many as there are positions. Raises `InputError`."""
        model = self.run.model
        sides = (self.seq_len, tokens) if model.two_sided else (tokens, None)
        return run_sizes(model, self.run.axes["B"], *sides)


def _context(sides: _InferenceSizes, value: Any, new: int) -> int:
    """The tokens in the cache; by default as many as leave room for the new ones. Refused where these have no room."""
    if value is None:
        try:
            context = sides.of(None)["M"] - new
        except InputError:
            raise InputError(f"{sides.name} has no default length: give --context") from None
        if context < 1:
            raise InputError(f"{new:,} new tokens leave no positions for a context in {sides.name}")
        return context
    context = check_size("context", value)
    try:
        sides.of(context + new)
    except InputError as error:
        raise InputError(f"context {context:,} and {new:,} new token{'s' if new > 1 else ''}: {error}") from None
    return context


def _with_free_place(sides: _InferenceSizes, prompt: int) -> dict[str, int]:
    """The sizes of the prompt and one token more, for which the cache is kept; where there is room for one."""
    try:
        return sides.of(prompt + 1)
    except InputError:
        return sides.of(prompt)


def _cache(tables: Inference, sizes: Mapping[str, int], context: int, dtype: str) -> Cache:
    tokens = [array for array in tables.cache if array.tokens]
    windows: dict[int, int] = {}
    for array in tokens:
        if array.window and sizes[array.positions] < context:
            window = size_of(array.window, sizes)
            windows[window] = windows.get(window, 0) + array.elements.at(sizes)
    elements = total(Polynomial.of(array.axes) for array in tables.cache).at(sizes)
    return Cache(
        elements=sum(array.elements.at(sizes) for array in tokens),
        source=sum(array.elements.at(sizes) for array in tables.cache if not array.tokens),
        windows=tuple(sorted(windows.items())),
        count=elements,
        width=BYTES.get(dtype),
        remade=tables.remade,
    )
