"""Display of objects in notebooks: equations of tables, rows of prices and live intervals, fields of others.

Frames have the same by rows: of tables and prices the lines, of lives the arrays, of trainings the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from operator import attrgetter
from typing import Any

from learncost.autodiff.derive import Derived
from learncost.cost_models import Price
from learncost.engines.core import Core
from learncost.ir.dataclass import fields, is_dataclass
from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.liveness import Live
from learncost.procedures.inference import Inference
from learncost.reports.notation import mathml
from learncost.reports.sheet import FACTS, TableColumn, number, significant, size_of, table

LONGEST = 240
"""Characters of a field; what is longer is cut, with three dots."""

LINES = 200
"""Lines of a table that are written as equations; of a larger one the first."""


_UNITS = {"maccs": "MACCs", "flops": "FLOPs"}


def html_of(thing: Any) -> str:
    """Return the HTML of an object."""
    show = next((show for kind, show in _SHOWN.items() if isinstance(thing, kind)), _fields)
    return show(thing)


def rows_of(thing: Any) -> list[dict[str, Any]]:
    """Return the rows of an object, as for a data frame."""
    rows = next((rows for kind, rows in _ROWS.items() if isinstance(thing, kind)), _rows_of_fields)
    return list(rows(thing))


def figure_of(kind: str, answer: Any, columns: int = 1) -> Any:
    """Return an answer as a matplotlib Figure. Raises `InputError` for a kind for which the answer has no data."""
    from learncost.viz.figures import make  # matplotlib is imported for figures alone

    return make.of_answer(kind, answer, columns)


def figure_html(kind: str, answer: Any) -> str:
    """Return a figure of an answer as HTML, empty where matplotlib or its data are missing."""
    from learncost.viz.figures import make  # matplotlib is imported for figures alone

    return make.as_html(kind, answer)


def write_traces(*arguments: Any) -> str:
    """Write the traced steps of a training to its folder, as `learncost.viz.measured.write` does."""
    from learncost.viz import measured  # traces need the account of memory

    return measured.write(*arguments)


def _titled(title: str, *parts: str) -> str:
    return f'<div class="learncost"><div><b>{escape(title)}</b></div>{"".join(parts)}</div>'


def _table(table: Table) -> str:
    inputs, weights = ", ".join(table.inputs), ", ".join(table.weights)
    about = f"from {inputs}; weights {weights or 'none'}; gives {', '.join(table.outputs)}"
    return _titled(table.title or "table", f"<div>{escape(about)}</div>", _equations(table))


def _equations(table: Table) -> str:
    if len(table.lines) > LINES:
        return f"<div>{len(table.lines):,} lines</div>"
    return f'<div style="overflow-x:auto">{mathml(table)}</div>'


def _layer(layer: Layer) -> str:
    source = f"<div>{escape(layer.source)}</div>" if layer.source else ""
    return _titled(layer.name, source, _equations(layer.table))


def _derived(derived: Derived) -> str:
    parts = {"forward": derived.forward, "backward": derived.backward, "weight update": derived.update}
    return "".join(_titled(name, _equations(table)) for name, table in parts.items() if table.lines)


def _inference(inference: Inference) -> str:
    columns = (
        TableColumn("value", attrgetter("name"), words=True),
        TableColumn("elements", lambda array: str(array.elements)),
    )
    cache = table("KV cache per token", columns, inference.cache).html()
    passes = {"prefill": inference.prefill, "decode": inference.decode}
    return cache + "".join(_titled(name, _equations(table)) for name, table in passes.items())


def _of_rows(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows that a data frame has as a table."""
    several = list(rows)

    def column(name: str, value: Any) -> TableColumn:
        heading = _UNITS.get(name, name.replace("_", " "))
        return TableColumn(heading, lambda row: _text_of(row[name]), words=isinstance(value, str))

    columns = (column(name, value) for name, value in (several[0].items() if several else ()))
    return table(title, columns, several).html()


def _price(price: Price) -> str:
    total = f"{_text_of(price.maccs)} MACCs, {_text_of(price.flops)} FLOPs"
    return _of_rows(f"Price book {price.book}: {total}", _rows_of_price(price))


def _live(live: Live) -> str:
    if not isinstance(live.peak, int):
        return _fields(live)
    title = f"Live arrays: peak {number(live.peak)} bytes ({size_of(live.peak)}) at {live.peak_line}"
    return _of_rows(f"{title}, saved tensors {number(live.saved_bytes)} bytes", _rows_of_live(live))


def _training(training: Core) -> str:
    settings = training.settings
    count = sum(array.size for array in training.weights.values())
    facts = {
        "procedure": settings.procedure,
        "optimizer": settings.optimizer,
        "learning rate": training.learning_rate,
        "steps": training.steps,
        "weights": f"{count:,} numbers in {len(training.weights):,} arrays of {training.dtype}",
    }
    return table(type(training).__name__, FACTS, ((name, _text_of(value)) for name, value in facts.items())).html()


def _fields(thing: Any) -> str:
    """Return the non-empty fields as rows."""
    values: dict[str, Any] = {}
    if is_dataclass(thing):
        values = {field.name: getattr(thing, field.name) for field in fields(thing) if not field.name.startswith("_")}
    name = str(values.pop("name", "")) or type(thing).__name__
    texts = {field: _text_of(value) for field, value in values.items()}
    return table(name, FACTS, ((field.replace("_", " "), text) for field, text in texts.items() if text)).html()


def _text_of(value: Any) -> str:
    if value is None or value in ("", (), {}, []):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return number(value)
    if isinstance(value, float):
        return significant(value) if value == 0 or 1e-3 <= abs(value) < 1e15 else f"{value:.3g}"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name} {_text_of(inner)}" for name, inner in value.items())
    elif isinstance(value, tuple | list | set | frozenset):
        text = ", ".join(map(_text_of, value))
    else:
        text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


_SHOWN: Mapping[type, Callable[[Any], str]] = {
    Layer: _layer,
    Table: _table,
    Derived: _derived,
    Inference: _inference,
    Price: _price,
    Live: _live,
    Core: _training,
}


def _rows_of_table(table: Table) -> Iterator[dict[str, Any]]:
    for line, nest in walk(table.lines):
        meta = line.meta
        cells = {"line": line.name, "layer": meta.layer, "macro_operation": meta.phase, "equation": meta.equation}
        yield cells | {"repeats": " ".join(nest.counts), "text": str(line)}


def _rows_of_passes(thing: Derived | Inference) -> Iterator[dict[str, Any]]:
    names = ("forward", "reverse") if isinstance(thing, Derived) else ("prefill", "decode")
    for name in names:
        for row in _rows_of_table(getattr(thing, name)):
            yield {"table": name, **row}


def _rows_of_price(price: Price) -> Iterator[dict[str, Any]]:
    for (*names,), part in price.by("layer", "line", "macro_operation", "equation").items():
        cells = dict(zip(("layer", "line", "macro_operation", "equation"), names, strict=True))
        yield cells | {"maccs": part.maccs, "flops": part.flops, "bytes": part.bytes}


def _rows_of_live(live: Live) -> Iterator[dict[str, Any]]:
    for when, arrays in (("peak", live.live_at_peak), ("saved", live.saved)):
        for array in arrays:
            cells = {"alive": when, "array": array.name, "shape": array.shape, "bytes": array.bytes}
            yield cells | {"layer": array.layer, "block": array.block, "role": array.role}


def _rows_of_training(training: Core) -> Iterator[dict[str, Any]]:
    for name, array in training.weights.items():
        yield {"weight": name, "shape": tuple(array.shape), "numbers": int(array.size), "dtype": str(array.dtype)}


def _rows_of_fields(thing: Any) -> Iterator[dict[str, Any]]:
    if is_dataclass(thing):
        for field in fields(thing):
            if not field.name.startswith("_"):
                yield {"field": field.name, "value": _text_of(getattr(thing, field.name))}


_ROWS: Mapping[type, Callable[[Any], Iterator[dict[str, Any]]]] = {
    Layer: lambda layer: _rows_of_table(layer.table),
    Table: _rows_of_table,
    Derived: _rows_of_passes,
    Inference: _rows_of_passes,
    Price: _rows_of_price,
    Live: _rows_of_live,
    Core: _rows_of_training,
}
