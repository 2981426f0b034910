"""The document: the data of a page about one step, from the same calls as the command line.

Numbers are whole where they count and in seconds or joules where they are modelled. Polynomials are exported with
them, so that a page without Python gives the same numbers for other sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from learncost import __version__
from learncost.cost_models.books import book as find_book
from learncost.cost_models.errata import errata
from learncost.devices.device import device as find_device
from learncost.ir.dataclass import attributes, fields, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import check_known
from learncost.layers.active import shown_layer
from learncost.models.argument import layer_given
from learncost.models.configuration import family_of, size_meant
from learncost.models.model import Model
from learncost.models.tables import RUN
from learncost.procedures.optimizer import DEFAULT, default_optimizer
from learncost.procedures.procedure import INFERENCE, MACRO_OPERATIONS
from learncost.reports import notation as write
from learncost.reports.cost import cost
from learncost.reports.memory.engines import DEFAULT_ENGINE, GRAPH, memory_engines
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.memory.step import MemoryStep
from learncost.reports.question import flags_of
from learncost.reports.record import Cost
from learncost.reports.request import GPU, OF_MEMORY, ON_DEVICE, Request, takes_request
from learncost.reports.run import prepare
from learncost.reports.show import convention, title
from learncost.viz.comparisons import comparisons, of_memory
from learncost.viz.data.costs import CostLine, Monomials, cost_lines, symbols_of, tables, times
from learncost.viz.data.curve import curve, stretches
from learncost.viz.data.sizes import sizes_of
from learncost.viz.views import VIEWS

SCHEMA = 1


@takes_request(
    "model procedure price_book batch_size seq_len target_len optimizer dropout dtype context page_size train "
    "train_layers lora lora_rank lora_alpha dora plan on precision engine accumulate offload checkpoint_every "
    f"{ON_DEVICE} side_by_side"
)
def document(request: Request, side_by_side: str | None = None) -> dict[str, Any]:
    """Return all data of the page of one step: cost line by line with formulas, memory and time.

    Parameters
    ----------
    procedure
        The learning procedure of the step: {choices}, or inference: prefill or decode.
    side_by_side
        The learning procedures to compare, comma-separated: {choices}. The default is bp, recompute, pepita and
        mempepita if the model supports them, and the procedure of the step.

    Raises
    ------
    InputError
        As for `lc.cost`.
    """
    request.kind()  # a page tells memory and time too
    if request.procedure not in INFERENCE:
        optimizer = request.optimizer or default_optimizer(find_book(request.price_book))
        request = replace(request, optimizer=optimizer)
    step = cost(request, by="equation")
    assert step._built is not None
    check_known(step._built.table.lines, "a report")
    family = family_of(step._built.configuration)
    sizes = {size_meant(family, name): value for name, value in request.sizes.items()}  # as controls call them
    lengths_given = {name: sizes.pop(name) for name in RUN if name in sizes}
    request = replace(request, sizes=sizes, **lengths_given)
    if size_meant(family, "target_len") == "seq_len" and request.seq_len is None:  # its one length, called M
        request = replace(request, seq_len=request.target_len, target_len=None)
    lines, monomials = cost_lines(step), Monomials()
    formulas: dict[str, int] = {}
    lengths = {name for name in (*RUN, "context") if getattr(request, name) is not None}
    controls = sizes_of(step, lengths, _builder(request))
    rows = [_pooled(line.to_dict(monomials, symbols_of(step._built)), formulas) for line in lines]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "asked": _settings(request, side_by_side),
        "summary": _summary(step),
        "totals": _totals(step),
        **controls.to_dict(),
        "time": times(step, lines) if step.timing else None,
        "memory": _memory(request, step),
        **comparisons(request, step.dtype, side_by_side),
        "views": [name for name, view in VIEWS.items() if view.there(step)],
        "macros": [name for name in MACRO_OPERATIONS if any(line.phase == name for line in lines)],
        "lines": rows,
        "tables": tables(lines),
        "errata": _errata(lines),
        "legend": _legend(step),
        "monomials": monomials.to_list(),
        "mathml": list(formulas),
        **_calls(request),
    }


def _memory(request: Request, step: Cost) -> dict[str, Any]:
    """Return the step's memory under an engine, with the arrays at every line; or why it is unknown.

    Raises `InputError` where an engine was asked for that has no answer.
    """
    available = step.memory.available if step.memory else None
    device = None if available is None else find_device(request.on)
    on = request.on if device and device.core else GPU if device and device.torch == GPU else None
    request = replace(of_memory(request.in_precision(step.dtype)), on=on, context=request.context)
    try:
        answer = memory(request)
        assert isinstance(answer, Memory)
        by_eager = not request.engine and answer.engine == DEFAULT_ENGINE
        # the microbatches of a step, the norm of all gradients and inference are in no polynomials of other sizes
        is_of_table = request.is_training and answer.accumulate == 1 and request.clip is None
        result = {**attributes("peak split convention engine")(answer), "available": available}
        if is_of_table and (answer.engine == GRAPH or by_eager):
            run = prepare(replace(request, optimizer=None))
            memory_step = MemoryStep(run, request.procedure, request.kind(), request.optimizer or DEFAULT)
            result["stretches"] = stretches(memory_step.under(memory_engines()[GRAPH]))
        if by_eager and result.get("stretches"):  # a page computes the peak at other sizes by the table's polynomials
            result["other_sizes"] = {"engine": GRAPH, "convention": memory_engines()[GRAPH].convention}
        if answer.curve and (by_eager or not result.get("stretches")):
            result["curve"] = curve(answer).to_dict()
        return result
    except InputError as error:
        if request.engine:
            raise
        return {"refused": error.written}


def _pooled(line: dict[str, Any], formulas: dict[str, int]) -> dict[str, Any]:
    """Return a line with indices into the distinct `formulas` in place of its MathML."""
    places = {
        name: formula | {"mathml": formulas.setdefault(formula["mathml"], len(formulas))}
        for name, formula in line["formulas"].items()
    }
    written = {"mathml": formulas.setdefault(line["mathml"], len(formulas))} if "mathml" in line else {}
    return line | {"formulas": places} | written


def _builder(request: Request) -> Callable[[Mapping[str, int]], Model]:
    """Return a function that builds the model with other sizes. Raises `InputError` if there is none."""
    of_training = request.procedure not in INFERENCE
    is_table = layer_given(request.model) is not None  # which says no lengths itself
    plain = replace(request, price_book="run", optimizer=None, tokens=None, plan=None).in_precision("fp32")
    plain = plain if is_table else replace(plain, batch_size=None, seq_len=None, target_len=None)
    plain = plain if of_training else replace(plain, dropout=0.0)

    def built_with(others: Mapping[str, int]) -> Model:
        return prepare(replace(plain, sizes={**request.sizes, **others}), None if of_training else ()).model

    return built_with


_STEP = attributes("model procedure price_book optimizer dtype plan counted source trained")
_ERRATUM = attributes("id document where printed right effect")


def _summary(step: Cost) -> dict[str, Any]:
    """Return the names and descriptions of the step."""
    assert step._built is not None
    return {
        "title": title(step),
        **_STEP(step),
        "convention": convention(step.price_book),
        "two_sided": step.target_len is not None,
        "learns": step.cache is None,
        "device": step.timing.rates.name if step.timing else None,
        "device_source": step.timing.sources if step.timing else None,
    }


def _totals(step: Cost) -> dict[str, Any]:
    """Return the totals of the step."""
    totals: dict[str, Any] = {
        **attributes("maccs flops")(step.total),
        "bytes": sum(row.bytes for row in step.rows),
        **attributes("parameters active_parameters trained_parameters")(step),
    }
    if step.timing:
        time = step.recorded or step.timing.time  # of kernels, where they are known
        totals |= {"seconds": step.time, "low": time.low, "high": time.high}
        if joules := step.recorded.joules if step.recorded else step.timing.joules:
            low, usual, high = joules
            totals |= {"joules": usual, "joules_low": low, "joules_high": high}
    return totals


def _errata(lines: tuple[CostLine, ...]) -> list[dict[str, str]]:
    """Return the errata of the lines' layers."""
    identifiers = {name for line in lines for name in line.errata}
    return [
        _ERRATUM(erratum) | {"layer": shown_layer(erratum.layer or "")}
        for erratum in errata()
        if erratum.id in identifiers
    ]


def _legend(step: Cost) -> list[dict[str, Any]]:
    """Return the legend of formulas: symbols, sizes and values."""
    assert step._priced is not None
    assert step._built is not None
    symbols = symbols_of(step._built)
    return [
        {"axis": axis, "mathml": write.size_mathml(axis, symbols), "value": value}
        for axis, value in step._priced.sizes.items()
    ]


def _settings(request: Request, side_by_side: str | None) -> dict[str, Any]:
    """Return the parameters of the request by name, without defaults."""
    view = {} if side_by_side is None else {"side_by_side": side_by_side}
    return {"model": request.model_name, **request.given, **view}


def _calls(request: Request) -> dict[str, str]:
    """Return the equivalent command and Python call."""
    usual = request.optimizer == default_optimizer(find_book(request.price_book))
    optimizer = None if usual else request.optimizer
    unused = getattr(cost, "device_alone", ()) if request.on is None else ()  # what counts do not depend on
    taken = {flag.name for flag in flags_of(cost)} - {*unused}
    others: dict[str, Any] = {each.name: each.default for each in fields(Request) if each.name in {*OF_MEMORY} - taken}
    request = replace(request, optimizer=optimizer, **others)
    return {"command": request.command("cost"), "python": request.call("cost")}


LARGEST = 2**53
"""From here on a program that keeps numbers as 64-bit floats, as JavaScript does, rounds: they are texts then."""


def as_json(value: Any) -> str:
    """Return a document as JSON, with integers that JavaScript would round as strings."""
    return json.dumps(_safe(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _safe(value: Any) -> Any:
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return str(value) if abs(value) >= LARGEST else value
    if isinstance(value, dict):
        return {name: _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if isinstance(value, Fraction):
        return _safe(int(value)) if value.denominator == 1 else float(value)
    return value
