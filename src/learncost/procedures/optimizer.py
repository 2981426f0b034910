"""The optimizer's step as lines: one word a weight, which reads the weight, its gradient, state and scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Meta, Op
from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.ops import entry
from learncost.ops.optimizers import OPTIMIZERS, Optimizer
from learncost.procedures.numbers import names_of_numbers, values_of_numbers

if TYPE_CHECKING:
    from learncost.cost_models import Book
    from learncost.procedures.optimizer_state import OptimizerState

DEFAULT = "adamw"
"""Of a model, where no optimizer is named; a layer has none."""


def default_optimizer(book: Book | None = None) -> str:
    """The optimizer of a model where none is named: that of who wrote the price book, where the book says it."""
    return (book.optimizer if book else "") or DEFAULT


def optimizer(name: str) -> Optimizer:
    """An optimizer by its name; an unknown one is refused with those that exist."""
    if name not in OPTIMIZERS:
        name = state_of(name).name
        others = ", ".join(OPTIMIZERS)
        raise InputError(f"of {name} only the state is known, to memory and fit; its step is not (there are {others})")
    return OPTIMIZERS[name]


def state_of(name: str) -> OptimizerState:
    """What an optimizer remembers; an unknown one is refused with all that exist."""
    from learncost.procedures.optimizer_state import STATES  # only where memory is asked for, or a name is refused

    return named_one("optimizer", name, STATES)


def with_optimizer(table: Table, gradients: Mapping[str, str], chosen: Optimizer) -> Table:
    """The step with the optimizer's lines at its end: `W.new` and the new state, from `W` and its gradient."""
    op = entry(chosen.op)
    state_names = [f"{weight}.{name}" for weight in gradients for name in chosen.state]
    if clashes := [name for name in state_names if name in table.known]:
        raise InputError(f"{clashes[0]} is a value of the table and one of {chosen.op}: call the value otherwise")
    numbers = names_of_numbers(table, chosen.scalars, chosen.op)
    values = dict(table.values) | values_of_numbers(numbers)
    lines, states, results = [], [], []
    modules = {name: line.meta.module for line, _ in reversed([*walk(table.lines)]) for name in line.reads}
    for weight, gradient in gradients.items():
        shape = table.axes[weight]
        operands = {"W": Term(weight, shape), "G": Term(gradient, shape)}
        operands |= {name: Term(f"{weight}.{name}", shape) for name in chosen.state}
        operands |= {number: Term(name, ()) for number, name in numbers.items()}
        own_states = [operands[name].name for name in chosen.state]
        left = [Term(f"{name}.new", shape) for name in (weight, *own_states)]
        values |= {name: Value(shape, "state", weight) for name in own_states}
        values |= {term.name: Value(shape, "new", old) for term, old in zip(left, (weight, *own_states), strict=True)}
        states += own_states
        results += [term.name for term in left]
        right = tuple(operands[name] for name in op.inputs)
        meta = Meta("optimizer", phase="optimizer_step", local=chosen.op, locals=op.inputs)
        meta = replace(meta, module=modules.get(weight, ""))
        lines.append(Op(tuple(left), right, (), meta, chosen.op, (), "body", op.inputs, op.outputs))
    return replace(
        table,
        lines=(*table.lines, *lines),
        values=values,
        inputs=(*table.inputs, *states, *numbers.values()),
        outputs=(*table.outputs, *results),
    )


def stepped(table: Table) -> Mapping[str, Axes]:
    """What the optimizer makes a step of, by weight: its axes, which are the weight's where nothing is projected."""
    lines = (line for line, _ in walk(table.lines) if isinstance(line, Op) and line.op in OPTIMIZERS)
    seen = (term for line in lines for name, term in zip(line.given, line.right, strict=True) if name == "G")
    return {table.values[term.name].of: table.values[term.name].axes for term in seen if isinstance(term, Term)}


def without_gradients(table: Table) -> Table:
    """The step whose results are what a training goes on with: a gradient that only the optimizer reads is none.

    So it need not be kept.
    """
    values = table.values
    outputs = (
        name for name in table.outputs if values[name].role != "gradient" or values[name].of not in table.renewed
    )
    return replace(table, outputs=tuple(outputs))
