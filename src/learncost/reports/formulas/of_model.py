"""A model's layers for `formulas` and `explain`: the priced lines of its step, with the model's sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from learncost.cost_models import PricedLine, counts_of
from learncost.engines.computed_inputs import written
from learncost.ir.dataclass import HIDDEN, Key, dataclass, field
from learncost.ir.errors import InputError, nearest
from learncost.ir.line import Line
from learncost.ir.polynomial import Polynomial
from learncost.layers.active import shown_layer
from learncost.layers.layer import names_of_layers
from learncost.ops import plain
from learncost.passes.normal_forms import shape
from learncost.procedures.procedure import MACRO_OPERATIONS
from learncost.reports import notation as write
from learncost.reports.formulas.explanation import ExplainedLine, ExplainedPhase, Explanation, explained
from learncost.reports.run import PreparedRun
from learncost.reports.sheet import WIDTH, Sheet, TabularAnswer, number
from learncost.reports.sheet import SheetRow as Cells
from learncost.reports.show import convention


@dataclass(frozen=True)
class LayerFormula:
    """The cost of a model's layer in a macro-operation: polynomials in the model's sizes, and their values."""

    layer: str
    block: str | None
    repeat: int
    macro_operation: str
    maccs: Polynomial = field(metadata=HIDDEN)
    flops: Polynomial = field(metadata=HIDDEN)
    values: tuple[int, int] = field(metadata=HIDDEN)

    @property
    @Key(inline=True)
    def counts(self) -> dict[str, dict[str, str | int]]:
        """Return the formulas as expressions of Python, and their values."""
        counts = {"maccs": (self.maccs, self.values[0]), "flops": (self.flops, self.values[1])}
        return {name: {"formula": write.python(count, {}), "value": value} for name, (count, value) in counts.items()}

    @property
    def place(self) -> str:
        """The layer as `cost` shows it, with its number of copies."""
        return f"{self.layer} × {self.repeat}" if self.repeat > 1 else self.layer


@dataclass(frozen=True, repr=False)
class ModelFormulas(TabularAnswer):
    """The formulas of a model's layers in one step, and their values at the model's sizes.

    Attributes
    ----------
    model
        The model's name.
    procedure
        The learning procedure of the step.
    price_book
        The name of the price book.
    rows
        One for each layer and macro-operation: the rows of `lc.cost`, as formulas.
    sizes
        The sizes of the formulas' letters.
    names
        The names of these sizes in the model's configuration.
    layer
        The layer that was asked for; "" where all are here.

    Examples
    --------
    >>> found = lc.formulas("gpt2", "attention")
    >>> row = found.rows[0]
    >>> row.macro_operation, row.values
    ('forward', (48318382080, 97731477504))
    >>> str(row.maccs)
    '2 B M^2 h k n_layer + 4 B M d h k n_layer'
    """

    _schema = 1

    model: str
    procedure: str
    price_book: str
    rows: tuple[LayerFormula, ...] = field(metadata=Key(after="names").field)
    sizes: Mapping[str, int] = field(metadata=HIDDEN)
    names: Mapping[str, str]
    layer: str = field(default="", metadata=Key(form=lambda layer: layer or None, after="model").field)
    _two_sided: bool = field(default=False, metadata=HIDDEN)

    @property
    @Key("sizes", after="price_book")
    def _sizes_used(self) -> dict[str, int]:
        """Return the sizes of the letters of the formulas."""
        return {name: self.sizes[name] for name in used(self.total, self.sizes)}

    @property
    def total(self) -> tuple[Polynomial, Polynomial]:
        """The MACCs and FLOPs of all rows."""
        return counts_of(self.rows)

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the table of formulas, grouped by macro-operation."""
        rows = []
        for phase in dict.fromkeys(row.macro_operation for row in self.rows):
            rows.append(Cells((phase.replace("_", " "), "", ""), "bold"))
            for row in (row for row in self.rows if row.macro_operation == phase):
                place = f"{row.block or ''} {row.place}" if self._two_sided else row.place
                rows.append(Cells((place.strip(), "MACCs", _with_value(row.maccs, row.values[0])), depth=1))
                rows.append(Cells(("", "FLOPs", _with_value(row.flops, row.values[1])), depth=1))
        if self.layer:
            for kind, count in zip(("MACCs", "FLOPs"), self.total, strict=True):
                label = "total" if kind == "MACCs" else ""
                rows.append(Cells((label, kind, _with_value(count, int(count.at(self.sizes)))), "bold"))
        heading = f"{self.model}, formulas of one step of {self.procedure}" + (f": {self.layer}" if self.layer else "")
        letters = legend(self.total, self.sizes, self.names)
        notes = (*([f"{letters}."] if letters else []), f"{convention(self.price_book)}.")
        return (Sheet(heading, ("", "", "formula = value"), tuple(rows), notes, frozenset({0, 1, 2})),)

    def show(self, format: str = "table") -> str:
        """Return the formulas as table, json, csv, md, latex, html or mathml."""
        if format != "mathml":
            return super().show(format)
        rows = []
        for row in self.rows:
            name = " ".join(filter(None, (row.macro_operation.replace("_", " "), row.block, row.place)))
            rows += [(name, "MACCs", row.maccs), ("", "FLOPs", row.flops)]
        return write.mathml_grid(rows, self.sheets()[0].notes)


def _with_value(count: Polynomial, value: int) -> str:
    return f"{write.plain(count, {})} = {number(value)}" if count.terms else "0"


def model_formulas(run: PreparedRun, procedure: str, layer: str = "") -> ModelFormulas:
    """Return the formulas of a model's layers, or of one of them. Raises `InputError` for an unknown layer."""
    rows = _rows(run, procedure, layer)
    groups: dict[tuple[str, str | None, str], list[PricedLine]] = {}
    for row in rows:
        groups.setdefault((shown_layer(row.layer), row.block, row.macro_operation), []).append(row)
    formulas = []
    ledger = run.cost(procedure, run.book)
    repeats = {(row.layer, row.block, row.macro_operation): row.repeat for row in ledger.rows}
    for (name, block, phase), group in groups.items():
        counts = counts_of(group)
        maccs, flops = (int(count.at(run.axes)) for count in counts)
        formulas.append(LayerFormula(name, block, repeats[name, block, phase], phase, *counts, (maccs, flops)))
    formulas.sort(key=lambda row: list(MACRO_OPERATIONS).index(row.macro_operation))
    name = run.model.configuration.name
    layers_asked = ", ".join(dict.fromkeys(row.layer for row in formulas)) if layer else ""
    return ModelFormulas(
        name, procedure, run.book.name, tuple(formulas), run.axes, run.model.rules, layers_asked, run.model.two_sided
    )


def model_explained(run: PreparedRun, procedure: str, layer: str = "") -> Explanation:
    """Return a model's step, or one of its layers, line by line as in the model's table."""
    rows = _rows(run, procedure, layer)
    name = run.model.configuration.name
    layers_shown = ", ".join(dict.fromkeys(shown_layer(row.layer) for row in rows)) if layer else "all layers"
    by_phase = {phase: [row for row in rows if row.macro_operation == phase] for phase in MACRO_OPERATIONS}
    parts = [ExplainedPhase(phase, tuple(_steps(run, group))) for phase, group in by_phase.items() if group]
    counts = [count for row in rows for count in (row.maccs, row.flops)]
    letters = legend(counts, run.axes, run.model.rules)
    return Explanation(
        name,
        f"{layers_shown} in one step of {procedure}.",
        run.book,
        run.book.jacobian,
        tuple(parts),
        (),
        sizes=run.axes,
        letters=letters,
        part=layers_shown if layer else "",
        made=() if layer else written(run.model.configuration, run.axes),
    )


def _rows(run: PreparedRun, procedure: str, layer: str) -> list[PricedLine]:
    """Return the priced lines of the requested layer."""
    rows = run.rows(procedure, run.book)
    if not layer:
        return list(rows)
    names_known = dict.fromkeys(shown_layer(row.layer) for row in rows)
    layer_name = plain(names_of_layers().get(plain(layer), layer))
    tests: tuple[Callable[[str], bool], ...] = (
        lambda name: plain(name) == plain(layer),
        lambda name: plain(name) == layer_name,
        lambda name: plain(name).endswith(layer_name),
    )
    for test in tests:
        if names := {name for name in names_known if test(name)}:
            return [row for row in rows if shown_layer(row.layer) in names]
    hint = nearest(layer, names_known) or f"; it has {', '.join(names_known)}"
    raise InputError(f"{run.model.configuration.name} has no layer {layer!r}{hint}")


def _steps(run: PreparedRun, rows: list[PricedLine]) -> Iterator[ExplainedLine]:
    """Return the lines with equal blocks merged: the first one, with the counts of all."""
    groups: dict[Hashable, list[PricedLine]] = {}
    for row in rows:
        line = row.source
        key = shape(line) if isinstance(line, Line) else line
        groups.setdefault((row.layer, row.line, row.equation, key), []).append(row)
    names_known = frozenset(run.model.table.axes)
    for group in groups.values():
        line, first = group[0].source, group[0]
        counts = counts_of(group)
        times = f" ({len(group)} equal lines)" if len(group) > 1 else ""
        outside = any(row.outside_paper for row in group)
        if isinstance(line, Line):
            yield explained(line, names_known, counts, times, outside_paper=outside)
        else:
            yield ExplainedLine(first.equation or first.line, line + times, "", "", *counts, 0, outside)


def used(counts: Any, sizes: Mapping[str, int]) -> list[str]:
    """Return the sizes in counts, including the operands of sums and minima."""
    names = {name for count in counts for monomial in count.terms for name in monomial}
    words = {word for name in names for word in name.replace("min(", "").replace(")", "").replace(",", " ").split()}
    return [name for name in sizes if name in {word.partition("/")[0] for word in words}]


def legend(counts: Any, sizes: Mapping[str, int], names: Mapping[str, str]) -> str:
    """Return the meanings of the letters, such as d = hidden_size = 768."""
    parts = []
    for name in used(counts, sizes):
        rule = names.get(name, "")
        parts.append(" = ".join(part for part in (name, rule if rule != name else "", number(sizes[name])) if part))
    return ", ".join(parts)
