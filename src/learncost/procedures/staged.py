"""Build the table of each pipeline stage: its forward pass, backward pass and update.

A received activation is an input and its gradient is an output, so that a stage's step is derived like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learncost.autodiff.derive import derive
from learncost.ir.dataclass import replace
from learncost.ir.line import Line, Meta, Sum
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.models.model import Model
from learncost.passes.stages import StageStep, StageValue, cut
from learncost.procedures.optimizer import clipped, with_optimizer, without_gradients
from learncost.procedures.optimizer import optimizer as find_optimizer


def staged(model: Model, sizes: Mapping[str, int], layers: Sequence[int], optimizer: str) -> tuple[StageStep, ...]:
    """Return the backpropagation steps of a model's stages; `layers` has the number of blocks of each stage.

    Raises `InputError` if these do not sum to all blocks, and for an optimizer without a step.
    """
    parts, chosen = cut(model.table, sizes, layers), find_optimizer(optimizer)
    learning, active = {*model.learning}, set[tuple[int, str]]()
    for stage in parts.stages:  # find the sent values that depend on trainable weights
        reached = learning | {name for number, name in active if number == stage.number}
        for line in stage.table.lines:
            if reached & {*line.reads}:
                reached |= {*line.makes} - stage.table.indices
        sent_on = [sent for sent in parts.sent if sent.source == stage.number]
        active |= {(sent.target, sent.read) for sent in sent_on if sent.made in reached}
    back = tuple(sent for sent in parts.sent if (sent.target, sent.read) in active)
    steps = []
    for stage in parts.stages:
        number = stage.number
        wanted = [sent.read for sent in back if sent.target == number]
        wanted += [name for name in stage.table.weights if name in learning]
        names = {sent.made for sent in parts.sent if sent.source == number}
        given = [name for name in stage.table.outputs if name not in names]
        given += dict.fromkeys(sent.made for sent in back if sent.source == number)
        derived = derive(_receiving(stage.table, parts.sent, number), wanted=wanted, given=given)
        table, gradients = derived.step, derived.gradients
        returned = tuple(
            StageValue(gradients[sent.read], f"d{sent.made}.{sent.target}", number, sent.source)
            for sent in back
            if sent.target == number
        )
        table = _summed(table, [sent for sent in back if sent.source == number])
        weights = {name: gradient for name, gradient in gradients.items() if name in stage.table.weights}
        steps.append(
            StageStep(
                stage,
                without_gradients(with_optimizer(table, weights, chosen)),
                (*(sent for sent in parts.sent if sent.source == number), *returned),
                tuple(sent for sent in parts.sent if sent.target == number),
                {weights[name]: numbers for name, numbers in parts.tied.items() if name in weights},
            )
        )
    gradients_sent = [sent for step in steps for sent in step.sends if sent not in parts.sent]
    return tuple(
        replace(step, receives=(*step.receives, *(sent for sent in gradients_sent if sent.target == step.stage.number)))
        for step in steps
    )


def clipped_together(steps: Sequence[StageStep]) -> tuple[StageStep, ...]:
    """Return the steps with gradients clipped by the norm over all stages, which add up their sums of squares."""
    changed = []
    for step in steps:
        table, squares = clipped(step.table, {name: len(stages) for name, stages in step.tied.items()})
        changed.append((replace(step, table=table), squares))
    having = tuple(step.stage.number for step, squares in changed if squares)
    return tuple(
        replace(step, tied={**step.tied, squares: having}) if squares and len(having) > 1 else step
        for step, squares in changed
    )


def staged_forward(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> tuple[StageStep, ...]:
    """Return the forward passes of the stages."""
    parts = cut(table, sizes, layers)
    return tuple(
        StageStep(
            stage,
            _receiving(stage.table, parts.sent, stage.number),
            tuple(sent for sent in parts.sent if sent.source == stage.number),
            tuple(sent for sent in parts.sent if sent.target == stage.number),
            {},
        )
        for stage in parts.stages
    )


def _receiving(table: Table, sent: Iterable[StageValue], number: int) -> Table:
    """Return a stage's table in which received values are declared as such, not as inputs of the batch."""
    values = dict(table.values)
    for each in sent:
        if each.target == number and values[each.read].role == "value":
            values[each.read] = replace(values[each.read], role="received")
    return replace(table, values=values)


def _summed(table: Table, sent: Iterable[StageValue]) -> Table:
    """Return the step in which a sent value's gradient is the sum of the gradients that its receivers return."""
    back: dict[str, list[str]] = {}
    for each in sent:
        back.setdefault(f"d{each.made}", []).append(f"d{each.made}.{each.target}")
    lines: list[Line] = []
    values, inputs = dict(table.values), [name for name in table.inputs if name not in back]
    for name, terms in back.items():
        value = values[name]
        values |= {term: Value(value.axes, "part", value.of) for term in terms}
        inputs += terms
        right = tuple(Term(term, value.axes) for term in terms)
        meta = Meta("pipeline", phase="backward", local=name)
        lines.append(Sum((Term(name, value.axes),), right, (), meta, (1,) * len(terms)))
    if not lines:
        return table
    first = next(place for place, line in enumerate(table.lines) if {*back} & {*line.reads})
    return replace(
        table, lines=(*table.lines[:first], *lines, *table.lines[first:]), values=values, inputs=tuple(inputs)
    )
