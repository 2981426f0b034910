"""The document: all that a page shows of one step, as data, from the same calls as the command line.

Numbers are whole where they count and in seconds or joules where they are modelled. Polynomials are exported beside
them, so that a page without Python gives the same numbers for other sizes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from typing import Any

from learncost import __version__
from learncost.cost_models.books import book as find_book
from learncost.cost_models.errata import errata
from learncost.ir.errors import InputError
from learncost.ir.loop import check_known
from learncost.ir.precision import either, precision_of
from learncost.layers.active import shown_layer
from learncost.layers.layer import Layer
from learncost.models.argument import layer_given
from learncost.models.configuration import Configuration, family_of, size_meant
from learncost.models.model import Model
from learncost.models.tables import RUN
from learncost.procedures.optimizer import default_optimizer
from learncost.procedures.procedure import INFERENCE, MACRO_OPERATIONS
from learncost.reports import notation as write
from learncost.reports.cost import cost
from learncost.reports.memory.engines import GRAPH, USUAL
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.memory.step import MemoryStep
from learncost.reports.question import flags_of, flags_typed, question
from learncost.reports.record import Cost
from learncost.reports.run import adaptation_of, prepare
from learncost.reports.show import convention, title
from learncost.viz.comparisons import LEARNING, comparisons
from learncost.viz.data.costs import CostLine, cost_lines, symbols_of, tables
from learncost.viz.data.curve import curve
from learncost.viz.data.intervals import stretches
from learncost.viz.data.polynomials import Monomials
from learncost.viz.data.sizes import sizes_of
from learncost.viz.data.times import times
from learncost.viz.views import VIEWS

SCHEMA = 1


@question()
def document(
    model: str | Configuration | Layer,
    procedure: str = "bp",
    price_book: str = "run",
    batch_size: int | str | None = None,
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
    engine: str | None = None,
    side_by_side: str | None = None,
    **sizes: Any,
) -> dict[str, Any]:
    """Return all data of the page of one step: cost line by line with formulas, memory and time.

    Parameters
    ----------
    procedure
        The learning procedure of the step: {choices}, or inference: prefill or decode.
    seq_len
        Tokens in a sequence. The default is the model's number of positions.
    context
        For decode: tokens in the KV cache before the step.
    on
        The device for predicted times (`learncost list devices`), or here.
    precision
        Data type of weights, activations, gradients and optimizer states: {choices}. The default is fp32, and the
        device's training precision with `on`.
    engine
        The engine that executes the step: {choices}. The default is graph.
    side_by_side
        The learning procedures to compare, comma-separated: {choices}. The default is bp, recompute, pepita and
        mempepita if the model supports them, and the procedure of the step.

    Raises
    ------
    InputError
        As for `lc.cost`.
    """
    arguments = {name: value for name, value in locals().items() if name != "sizes"}
    if procedure not in INFERENCE:
        arguments["optimizer"] = optimizer or default_optimizer(find_book(price_book))
    chosen_engine, beside = arguments.pop("engine"), arguments.pop("side_by_side")
    either(dtype, precision)  # a page tells memory and time too
    step = cost(**arguments, **sizes, by="equation")
    assert step.built is not None
    check_known(step.built.table.lines, "a report")
    family = family_of(step.built.configuration)
    sizes = {size_meant(family, name): value for name, value in sizes.items()}  # as controls call them
    arguments |= {name: sizes.pop(name) for name in RUN if name in sizes}
    if size_meant(family, "target_len") == "seq_len" and arguments["seq_len"] is None:  # its one length, called M
        arguments |= {"seq_len": arguments["target_len"], "target_len": None}
    lines, monomials = cost_lines(step), Monomials()
    formulas: dict[str, int] = {}
    lengths = {name for name in (*RUN, "context") if arguments[name] is not None}
    controls = sizes_of(step, lengths, _builder(arguments, sizes))
    rows = [_pooled(line.to_dict(monomials, symbols_of(step.built)), formulas) for line in lines]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "asked": _settings({**arguments, "engine": chosen_engine, "side_by_side": beside}, sizes),
        "said": _facts(step),
        "totals": _totals(step),
        **controls.to_dict(),
        "time": times(step, lines) if step.timing else None,
        "memory": _memory(arguments, sizes, step, chosen_engine),
        **comparisons(arguments, sizes, step.dtype, beside),
        "views": [name for name, view in VIEWS.items() if view.there(step)],
        "macros": [name for name in MACRO_OPERATIONS if any(line.phase == name for line in lines)],
        "lines": rows,
        "tables": tables(lines),
        "errata": _errata(lines),
        "legend": _legend(step),
        "monomials": monomials.to_list(),
        "mathml": list(formulas),
        **_calls(arguments, sizes),
    }


def _memory(
    arguments: Mapping[str, Any], sizes: Mapping[str, Any], step: Cost, chosen_engine: str | None
) -> dict[str, Any]:
    """The step's memory as a runner takes it, with the arrays at every line; why it is not known where it is not.

    Raises `InputError` where a runner was asked for that has no answer.
    """
    names = ("model", "procedure", "batch_size", "seq_len", "target_len", "optimizer", "dropout", "plan", *LEARNING)
    memory_arguments = {name: arguments[name] for name in names if arguments[name] is not None} | {
        "precision": step.dtype
    }
    try:
        if step.cache is not None:
            raise InputError("use learncost fit --procedure inference for the memory of inference")
        answer = memory(**memory_arguments, **sizes, engine=chosen_engine or GRAPH)
        assert isinstance(answer, Memory)
        result = {
            "peak": answer.peak,
            "split": dict(answer.split),
            "convention": answer.convention,
            "engine": answer.engine,
        }
        if answer.engine == GRAPH:
            # What it takes is long to count: a report adds it, where not too many lines run.
            runs = sum(prod(iterations for *_, iterations in moment.loops) for moment in answer.curve)
            result["usual"] = {"engine": USUAL, "runs": runs}
            result["stretches"] = _stretches(memory_arguments, sizes)
        if answer.curve and not result.get("stretches"):
            result["curve"] = curve(answer).to_dict()
        return result
    except InputError as error:
        if chosen_engine:
            raise
        return {"refused": str(error)}


def _stretches(arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arrays over the step at any sizes."""
    kind = precision_of(arguments["precision"])
    adaptation = adaptation_of(*(arguments.get(name) for name in LEARNING), kind=kind)
    run = prepare(
        arguments["model"],
        "run",
        arguments.get("batch_size"),
        arguments.get("seq_len"),
        arguments.get("target_len"),
        None,
        None,
        arguments["dropout"],
        kind.name,
        sizes,
        (arguments["procedure"],),
        adaptation,
        arguments.get("plan"),
    )
    return stretches(MemoryStep(run, arguments["procedure"], kind, arguments["optimizer"]))


def _pooled(line: dict[str, Any], formulas: dict[str, int]) -> dict[str, Any]:
    """A line with places in place of its MathML, each of which stands once among `formulas`."""
    places = {
        name: formula | {"mathml": formulas.setdefault(formula["mathml"], len(formulas))}
        for name, formula in line["formulas"].items()
    }
    written = {"mathml": formulas.setdefault(line["mathml"], len(formulas))} if "mathml" in line else {}
    return line | {"formulas": places} | written


def _builder(arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> Callable[[Mapping[str, int]], Model]:
    """The same model with other sizes. Raises `InputError` where there is none."""
    learning = (arguments[name] for name in LEARNING)
    adaptation = adaptation_of(*learning)
    names = () if arguments["procedure"] in INFERENCE else (arguments["procedure"],)
    is_table = layer_given(arguments["model"]) is not None  # which says no lengths itself
    lengths = [arguments.get(name) if is_table else None for name in RUN]

    def built_with(others: Mapping[str, int]) -> Model:
        dropout = 0.0 if not names else arguments["dropout"]
        all_sizes = {**sizes, **others}
        return prepare(
            arguments["model"],
            "run",
            lengths[0],
            lengths[1],
            lengths[2],
            None,
            None,
            dropout,
            "fp32",
            all_sizes,
            names,
            adaptation if names else None,
        ).model

    return built_with


def _facts(step: Cost) -> dict[str, Any]:
    """The step in words and names."""
    assert step.built is not None
    return {
        "title": title(step),
        "model": step.model,
        "procedure": step.procedure,
        "price_book": step.price_book,
        "convention": convention(step.price_book),
        "optimizer": step.optimizer,
        "dtype": step.dtype,
        "plan": step.plan,
        "counted": step.counted,
        "source": step.source,
        "trained": step.trained,
        "two_sided": step.target_len is not None,
        "learns": step.cache is None,
        "device": step.timing.rates.name if step.timing else None,
        "device_source": step.timing.rates.source if step.timing else None,
    }


def _totals(step: Cost) -> dict[str, Any]:
    """What the step takes in all."""
    totals: dict[str, Any] = {
        "maccs": step.total.maccs,
        "flops": step.total.flops,
        "bytes": sum(row.bytes for row in step.rows),
        "parameters": step.parameters,
        "active_parameters": step.active_parameters,
        "trained_parameters": step.trained_parameters,
    }
    if step.timing:
        totals |= {"seconds": step.timing.time.total, "low": step.timing.time.low, "high": step.timing.time.high}
        if step.timing.joules:
            low, usual, high = step.timing.joules
            totals |= {"joules": usual, "joules_low": low, "joules_high": high}
    return totals


def _errata(lines: tuple[CostLine, ...]) -> list[dict[str, str]]:
    """The errata of the layers that lines are from."""
    identifiers = {name for line in lines for name in line.errata}
    return [
        {
            "id": erratum.id,
            "document": erratum.document,
            "where": erratum.where,
            "printed": erratum.printed,
            "right": erratum.right,
            "effect": erratum.effect,
            "layer": shown_layer(erratum.layer or ""),
        }
        for erratum in errata()
        if erratum.id in identifiers
    ]


def _legend(step: Cost) -> list[dict[str, Any]]:
    """What the letters of formulas stand for: the symbol, the size, its value."""
    assert step.priced is not None
    assert step.built is not None
    symbols = symbols_of(step.built)
    return [
        {"axis": axis, "mathml": write.size_mathml(axis, symbols), "value": value}
        for axis, value in step.priced.sizes.items()
    ]


def _settings(arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, by the names of the parameters; what was left to its default is left out."""
    usual = {flag.name: flag.default for flag in flags_of(document)}
    settings = {name: value for name, value in arguments.items() if value is not None and value != usual.get(name)}
    model = settings["model"]
    if isinstance(model, Mapping):
        model = "config.json"  # which came as data
    if isinstance(model, Layer):
        model = f"{model.name}.table"  # who has it knows where
    return {**settings, "model": model.name if isinstance(model, Configuration) else str(model), **sizes}


def _calls(arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, str]:
    """The same as a command and as a call of Python."""
    settings = _settings(arguments, sizes)
    if settings.get("optimizer") == default_optimizer(find_book(arguments["price_book"])):
        settings.pop("optimizer")
    model = settings.pop("model")
    keywords = (f"{name.replace('-', '_')}={_literal(value)}" for name, value in settings.items())
    read_by = getattr(arguments["model"], "read_by", ())
    layer = layer_given(arguments["model"])
    in_python = "lc.from_module(module, inputs)" if layer is not None and layer.steps is not None else repr(model)
    return {
        "command": shlex.join(["learncost", "cost", model, *read_by, *flags_typed(settings)]),
        "python": f"lc.cost({', '.join((in_python, *keywords))})",
    }


def _literal(value: object) -> str:
    """A value in Python: what was typed as digits is a number."""
    return value if isinstance(value, str) and value.isascii() and value.isdecimal() else repr(value)


LARGEST = 2**53
"""From here on a program that keeps numbers as 64-bit floats, as JavaScript does, rounds: they are texts then."""


def as_json(value: Any) -> str:
    """A document as JSON, whole numbers that JavaScript would round as texts of their digits."""
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
