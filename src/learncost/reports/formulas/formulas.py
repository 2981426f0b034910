"""`learncost formulas LAYER`: every macro-operation's MACCs and FLOPs in the paper's symbols."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from learncost.cost_models import Book, counts_of, price
from learncost.ir.dataclass import attributes, dataclass, replace
from learncost.ir.polynomial import Polynomial, total
from learncost.layers.active import OUTSIDE_BLOCKS, part_of
from learncost.layers.layer import Layer
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.ops import OpDef, op_called
from learncost.procedures.procedure import PROCEDURES
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import step
from learncost.reports import notation as write
from learncost.reports.formulas.explanation import SymbolicAnswer
from learncost.reports.formulas.of_model import ModelFormulas, model_formulas
from learncost.reports.formulas.of_op import op_explained
from learncost.reports.formulas.subject import (
    Subject,
    is_layer,
    is_model,
    name_of,
    not_of_a_model,
    of_a_model,
    of_an_op,
    prepared,
    settings_of_a_model,
)
from learncost.reports.formulas.subject import subject as find_subject
from learncost.reports.request import Request, takes_request
from learncost.reports.sheet import WIDTH, Sheet, SheetRow


@dataclass(frozen=True)
class PhaseFormula:
    """The cost of one pass of a macro-operation under `procedures`, or under all if they are empty."""

    macro_operation: str
    maccs: Polynomial
    flops: Polynomial
    passes: int = 1
    procedures: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        ops = self.macro_operation.replace("_", " ")
        return ops if self.passes == 1 else f"{ops} ({self.passes} passes)"

    @property
    def subtitle(self) -> str:
        return f"({', '.join(self.procedures)})" if self.procedures else ""


@dataclass(frozen=True, repr=False)
class Formulas(SymbolicAnswer):
    """The formulas of a layer under a price book; prints as `learncost formulas` does.

    Counts are polynomials in the sizes. What is printed leaves the batch out where it divides all of them, and writes
    h d_k as d_model.

    Attributes
    ----------
    layer
        The layer, by name.
    source
        The publication.
    price_book
        The price book, a `Book`.
    procedure
        The learning procedure whose step is summed.
    jacobian
        True if the backward pass goes through explicit Jacobians.
    rows
        For each macro-operation the `maccs` and `flops` of one pass, and how many `passes` there are.
    total
        One step of the procedure.
    others
        The differences under other procedures.
    axes
        Every axis of the layer.

    Examples
    --------
    >>> found = lc.formulas("norm")
    >>> [(row.title, str(row.flops)) for row in found.rows]
    [('forward', '7 B M d + 4 B M'), ('backward', '8 B M d + 2 B M'), ('weight update', '3 B M d')]
    """

    layer: str
    source: str
    price_book: Book
    procedure: str
    jacobian: bool
    rows: tuple[PhaseFormula, ...]
    total: PhaseFormula
    others: tuple[PhaseFormula, ...] = ()
    axes: frozenset[str] = frozenset()

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the table of formulas."""
        rows = [SheetRow((*names, write.plain(count)), style) for *names, count, style in self._shown()]
        title = f"{self.layer}: {self.source}" if self.source else self.layer
        return (Sheet(title, ("", "", "formula"), tuple(rows), self._notes, frozenset({0, 1, 2})),)

    def _repr_html_(self) -> str:
        return self._mathml()

    def show(self, format: str = "table") -> str:
        """Return the formulas as table, json, csv, md, latex, html or mathml."""
        own = {"latex": self._latex, "mathml": self._mathml}.get(format)
        return own() if own else super().show(format)

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as data; counts are Python expressions, to be multiplied by `times`."""
        return {
            "schema": 1,
            **attributes("layer source")(self),
            "price_book": attributes("name title source")(self.price_book),
            **attributes("procedure jacobian")(self),
            "times": "B" if self._per_sequence else "",
            "one_width": self._one_width,
            "rows": [self._row(formula) for formula in (*self.rows, *self.others)],
            "total": self._row(self.total),
        }

    def _rows(self) -> list[Mapping[str, Any]]:
        return [self._row(formula) for formula in (*self.rows, *self.others)] + [self._row(self.total)]

    def _row(self, formula: PhaseFormula) -> dict[str, Any]:
        return {
            **attributes("macro_operation passes")(formula),
            "procedures": list(formula.procedures),
            "maccs": write.python(self._written(formula.maccs)),
            "flops": write.python(self._written(formula.flops)),
        }

    # How counts are written.

    @property
    def _counts(self) -> tuple[Polynomial, ...]:
        """All MACCs and FLOPs, as polynomials."""
        return tuple(c for row in (*self.rows, *self.others, self.total) for c in (row.maccs, row.flops))

    @property
    def _one_width(self) -> bool:
        """Return whether some count has h d_k written as d_model."""
        return any(write.one_width(count, self.axes).terms != count.terms for count in self._counts)

    @property
    def _notes(self) -> tuple[str, ...]:
        """Return the notes: batch, width, price book and its source."""
        notes = []
        if self._per_sequence:
            notes.append("Per sequence; multiply by B for a batch of B sequences.")
        if self._one_width:
            notes.append("h d_k is written d_model.")
        book = self.price_book
        compares = find_procedure(self.procedure).compares
        if part_of(self.layer) == "embedding" and compares and self.rows[0].passes == 1:
            notes.append("Forward: all passes, the modulated one counted as dense.")
        elif book.rule == "executed" and compares:
            notes.append(f"{self.procedure} also compares values; `learncost cost` includes those lines.")
        return (*notes, *self._book_notes)

    # The formats.

    def _shown(self) -> Iterator[tuple[str, str, Polynomial, str]]:
        """Yield the rows of what is shown: a name, the unit, the count, and the style."""
        for row in (*self.rows, *self.others, self.total) if len(self.rows) > 1 else self.rows:
            style = "bold" if row is self.total else ""
            yield row.title, "MACCs", self._written(row.maccs), style
            yield row.subtitle, "FLOPs", self._written(row.flops), style

    def _latex(self) -> str:
        lines = [f"% {self.layer}: {self.source}" if self.source else f"% {self.layer}", r"\begin{array}{lll}"]
        for name, unit, count, _ in self._shown():
            label = name.replace("×", r"$\times$")
            lines.append(rf"\text{{{label}}} & \text{{{unit}}} & {write.latex(count)} \\")
        return "\n".join([*lines, r"\end{array}", *(f"% {note}" for note in self._notes)])

    def _mathml(self) -> str:
        return write.mathml_grid((row[:3] for row in self._shown()), self._notes)


@takes_request("subject layer / * price_book procedure jacobian optimizer batch_size seq_len target_len")
def formulas(
    request: Request, subject: str | Layer, layer: str | None = None, *, jacobian: bool | None = None
) -> Formulas | ModelFormulas:
    """Return MACCs and FLOPs as formulas: of a layer in the symbols of the paper, or of a model's layers.

    Parameters
    ----------
    subject
        A layer by its name or alias (attention, mha, SwiGLU; learncost list layers), a file in the notation, or a model
        as in learncost cost.
    layer
        A layer of the model. By default all layers of the model are shown.

    Returns
    -------
    Formulas or ModelFormulas
        Polynomials by macro-operation; for a model also by layer, with their values, which are the rows of `lc.cost`.

    Raises
    ------
    InputError
        If the name is unknown, or options cannot be combined.

    Commands
    --------
    learncost formulas attention
        The cost of multi-head attention as formulas.
    learncost formulas gpt2
        The cost of every layer of GPT-2, as formulas and numbers.

    Examples
    --------
    >>> print(lc.formulas("mha").total.maccs)
    6 B M N h k + 6 B M d h k + 6 B N d h k + B M N h
    >>> lc.formulas("gpt2", "attention").rows[0].values
    (48318382080, 97731477504)
    """
    procedure, price_book, optimizer = request.procedure, request.price_book, request.optimizer
    find_procedure(procedure)
    of_models = settings_of_a_model(request)
    name = name_of(subject)
    if layer is not None or is_model(subject, of_models):
        of_a_model(subject, layer, jacobian)
        run = prepared(replace(request, model=subject))
        return model_formulas(run, procedure, layer or "")
    not_of_a_model(name, of_models)
    if not is_layer(subject) and (op := op_called(name)):
        return _of_an_op(op, of_an_op(op.name, price_book, jacobian, optimizer))
    topic = find_subject(subject, price_book, jacobian, optimizer)
    priced = {phase: counts_of(price(table, {}, topic.book).rows) for phase, table in topic.tables.items()}
    rows, others = _rows(topic, priced, procedure)
    maccs, flops = (total(getattr(row, kind) * row.passes for row in rows) for kind in ("maccs", "flops"))
    return Formulas(
        topic.name,
        topic.layer.source,
        topic.book,
        procedure,
        topic.jacobian,
        rows,
        PhaseFormula("total", maccs, flops),
        others,
        topic.axes,
    )


def _of_an_op(op: OpDef, book: Book) -> Formulas:
    """Return the cost of an operator and its gradient as executed."""
    explanation = op_explained(op, book)
    rows = tuple(PhaseFormula(part.macro_operation, part.maccs, part.flops) for part in explanation.parts[:2])
    whole_cost = PhaseFormula("total", *counts_of(rows))
    return Formulas(op.name, explanation.source, book, "bp", False, rows, whole_cost, (), explanation.axes)


Cost = tuple[Polynomial, Polynomial]


def _rows(
    topic: Subject, priced: dict[str, Cost], procedure: str
) -> tuple[tuple[PhaseFormula, ...], tuple[PhaseFormula, ...]]:
    """Return the rows of the procedure, and those of others if they differ."""
    if "forward" not in priced:
        return tuple(PhaseFormula(phase, *cost) for phase, cost in priced.items()), ()
    costs = {**priced, "recomputation": priced["forward"]}
    passes = dict(find_procedure(procedure).passes)
    if part_of(topic.name) in OUTSIDE_BLOCKS:
        passes.pop("recomputation", None)
    mine: tuple[str, ...] = ()
    others: tuple[PhaseFormula, ...] = ()
    if part_of(topic.name) == "embedding":
        groups = {
            kind: tuple(n for n, procedure_of in PROCEDURES.items() if procedure_of.compares == kind)
            for kind in (False, True)
        }
        compares = find_procedure(procedure).compares
        modulated = _modulated_embedding(topic, procedure if compares else groups[True][0])
        updates = priced["weight_update"] if compares else modulated["weight_update"]
        if modulated["weight_update"] != priced["weight_update"]:
            mine = groups[compares]
            others = (PhaseFormula("weight_update", *updates, 1, groups[not compares]),)
        if compares:
            costs["weight_update"] = modulated["weight_update"]
            if modulated["forward"] != tuple(count * passes["forward"] for count in costs["forward"]):
                # The modulated pass costs more than the standard one: all passes together.
                costs["forward"], passes["forward"] = modulated["forward"], 1
    rows = tuple(
        PhaseFormula(phase, *costs[phase], passes[phase], mine if phase == "weight_update" else ())
        for phase in ("forward", "recomputation", "backward", "weight_update")
        if passes.get(phase)
    )
    return rows, others


def _modulated_embedding(topic: Subject, procedure: str) -> dict[str, Cost]:
    """Return the cost of the embedding in a step of a procedure whose modulated input is dense."""
    sizes = dict.fromkeys(("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"), 1)
    model = build(configure("encoder", {"num_hidden_layers": 1, **sizes}))
    rows = price(step(model, procedure), {}, topic.book).rows
    of_layer = [row for row in rows if row.layer == topic.name]
    phases = ("forward", "weight_update")
    return {phase: counts_of(row for row in of_layer if row.macro_operation == phase) for phase in phases}
