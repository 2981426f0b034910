"""The subject of `formulas` and `explain`: a layer by name or file, derived as a price book prices it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learncost.autodiff.derive import Derived, derive_once, part
from learncost.autodiff.tangent import along_inputs
from learncost.cost_models import Book
from learncost.cost_models.books import book
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, close_to, shown
from learncost.ir.loop import check_known
from learncost.ir.table import Table
from learncost.layers.layer import Layer, layer, names_of_layers, shipped, shipped_layer
from learncost.models.argument import GENERIC, preset, preset_names
from learncost.models.files import looks_like_path
from learncost.models.files import read_layer as read_file
from learncost.ops import entries, entry, op_called, plain
from learncost.ops.optimizers import Optimizer
from learncost.procedures.feedback import with_feedback
from learncost.procedures.optimizer import Matrix, default_optimizer, optimizer
from learncost.procedures.procedure import ELSEWHERE, LEARNING, MOVES, procedure
from learncost.reports.request import Request
from learncost.reports.run import PreparedRun, prepare

BP = "bp"
"""The default learning procedure of a single layer."""


@dataclass(frozen=True)
class Subject:
    """A layer with the tables of its macro-operations in execution order."""

    layer: Layer
    book: Book
    jacobian: bool
    tables: dict[str, Table]
    derived: Derived | None

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def axes(self) -> frozenset[str]:
        """All axes of the layer."""
        return frozenset(axis.rstrip("'") for axes in self.layer.table.axes.values() for axis in axes)

    @property
    def gradient_names(self) -> frozenset[str]:
        """The names whose gradients are called by a `d` before them."""
        return frozenset(self.derived.step.axes if self.derived else self.layer.table.axes)


def subject(
    name: str | Layer,
    price_book: str | Book = "run",
    jacobian: bool | None = None,
    optimizer_name: str | None = None,
    procedure_name: str | None = None,
) -> Subject:
    """Return a layer, by name, file or itself, with the tables of its macro-operations.

    Raises `InputError` for a procedure that does nothing within a layer.
    """
    chosen = book(price_book)
    through = chosen.jacobian if jacobian is None else jacobian
    learning = procedure(procedure_name or BP)
    stepping = optimizer(optimizer_name or default_optimizer(chosen))
    if name == "optimizer":
        if learning.name != BP:
            raise _of_models(learning.name, name)
        update = _update(stepping)
        return Subject(update, chosen, through, {"optimizer_step": update.table}, None)
    layer = read_layer(name)
    table = layer.table
    check_known(table.lines, "a formula")
    if layer.name in (learns.moves.get(ELSEWHERE) for learns in LEARNING.values()):
        # Nothing learns through the projection: it has one pass and no gradient.
        return Subject(layer, chosen, through, {MOVES[ELSEWHERE]: table}, None)
    if learning.moves.get("tangents along PLACE") == "weights":
        if not table.weights:
            raise InputError(f"{learning.name} changes weights, and {layer.name} has none")
        return Subject(layer, chosen, through, {"forward": along_inputs(table, table.weights)}, None)
    derived = derive_once(table, jacobian=through)
    reading = learning.moves.get("backward reading NAME for weights")
    if reading:
        step = with_feedback(derived.step, reading, learning.lines)
        phases = ("forward", "backward", "weight_update")
        tables = {phase: part(step, phase, step) for phase in phases}
        return Subject(layer, chosen, through, tables, derived)
    if learning.name != BP:
        raise _of_models(learning.name, layer.name)
    tables = {"forward": derived.forward, "backward": derived.backward, "weight_update": derived.update}
    return Subject(layer, chosen, through, tables, derived)


def _of_models(name: str, layer_name: str) -> InputError:
    command = f"`learncost explain MODEL {layer_name} --procedure {name}`"
    return InputError(f"{name} does not change the lines of a layer: use {command}")


def layers() -> tuple[str, ...]:
    """Return the names that `formulas` and `explain` accept."""
    return tuple(sorted((*shipped(), "optimizer")))


def read_layer(name: str | Layer) -> Layer:
    """Return the built-in layer of a name, or the layer of a file; a layer is returned as it is."""
    if isinstance(name, Layer):
        return name
    if layer_name := names_of_layers().get(plain(name)):
        return shipped_layer(layer_name)
    if name.endswith(".table") or os.path.isfile(name):
        return read_file(Path(name))
    everything = (*layers(), *names_of_layers(), *(op.name for op in entries()), *preset_names())
    near = close_to(name.replace("-", "_").lower(), everything)
    hint = f"; the nearest is {names_of_layers().get(near, near)!r}" if near else ""
    raise InputError(
        f"no layer, operator or model is called {shown(name)}{hint} (see learncost list layers, list operators and "
        "list models; a file in the notation ends in .table, a model's is a config.json)"
    )


def name_of(subject: str | Layer) -> str:
    """Return the name of a subject. Raises `InputError` for any other object than a name or layer."""
    if not isinstance(subject, str | Layer):
        given = ", ".join(map(str, subject)) if isinstance(subject, tuple) else subject  # files typed
        raise InputError(f"give the name of a layer, an operator or a model, or a layer, not {shown(given)}")
    return subject if isinstance(subject, str) else subject.name


def is_model(name: str | Layer, flags: Mapping[str, Any] = {}) -> bool:
    """Return whether a name is that of a model, and of no layer, operator or file in the notation.

    flags   the flags given with it: with sizes, a user's layer or a file in the notation is a model
    """
    if is_table(name) and any(value is not None for value in flags.values()):
        return True
    if isinstance(name, Layer) or is_layer(name) or op_called(name) or name.endswith(".table"):
        return False
    if name == "-" or name.lower() in GENERIC or preset(name.lower()):
        return True
    return name.endswith(".json") or os.path.isdir(name) or (looks_like_path(name) and not os.path.isfile(name))


def is_table(name: str | Layer) -> bool:
    """Return whether the subject is a user's table, which is a model as well."""
    return isinstance(name, Layer) or name.endswith(".table")


def is_layer(name: str | Layer) -> bool:
    """Return whether the subject is a layer, the name of a built-in layer, or the optimizer."""
    return isinstance(name, Layer) or plain(name) in names_of_layers() or name == "optimizer"


def _update(chosen: Optimizer) -> Layer:
    """Return one optimizer step of a parameter tensor, or of a matrix, as a table."""
    if chosen.tables:
        from learncost.procedures.matrix_steps import step_layer  # imported when used, for a fast start

        return step_layer(chosen.tables, Matrix(("d", "f"), (), ("d",), True))
    op = entry(chosen.op)

    def term(name: str) -> str:
        return f"{name}[]" if name in chosen.scalars else f"{name}[n_parameters]"

    left = " ".join(map(term, op.outputs))
    others = " ".join(operand for operand in op.inputs if operand != "W")
    head = f"optimizer({others}; W) -> {' '.join(op.outputs)}"
    body = f"{left} = {op.name}({', '.join(map(term, op.inputs))})"
    return layer(f"% One step of {chosen.name} on all parameters: {op.source}\n{head}\n  {body}")


def of_a_model(subject: str | Layer, layer: str | None, jacobian: bool | None) -> None:
    """Refuse settings that do not apply to a model."""
    if not (is_model(subject) or is_table(subject)):
        text = f"{shown(subject)} has no layers"
        raise InputError(f"{text}; remove the second argument {shown(layer)}")
    if jacobian is not None:
        raise InputError("--jacobian applies to layers only: a model's step follows its price book")


def of_an_op(name: str, price_book: str | Book, jacobian: bool | None, optimizer: str | None) -> Book:
    """Return the price book of an operator's lines; refuse settings that do not apply to an operator."""
    if book(price_book).name != "run":
        raise InputError(f"operators are priced by run: remove --price-book, or give a layer with {name}")
    if jacobian is not None or optimizer is not None:
        flag = "optimizer" if jacobian is None else "jacobian"
        raise InputError(f"--{flag} applies to layers; {shown(name)} is an operator")
    return book(price_book)


def not_of_a_model(subject: str, flags: Mapping[str, Any]) -> None:
    """Refuse settings that apply only to a model."""
    if extra := next((name for name, value in flags.items() if value is not None), None):
        if not (is_layer(subject) or op_called(subject)):
            read_layer(subject)  # an unknown name is what is wrong
        raise InputError(f"--{extra.replace('_', '-')} applies to models; {shown(subject)} is not a model")


def settings_of_a_model(request: Request) -> dict[str, Any]:
    """Return the given lengths and sizes, which only a model has."""
    return {**request.lengths, **request.sizes}


def prepared(request: Request) -> PreparedRun:
    """Return the requested model, ready to be priced. Raises `InputError`."""
    run = prepare(request)
    check_known(run.model.table.lines, "a formula")
    return run
