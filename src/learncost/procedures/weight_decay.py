"""Weight decay as lines before the optimizer's: the gradient of half the squared weights is added to the gradient."""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.procedures.numbers import names_of_numbers, values_of_numbers


def with_weight_decay(table: Table) -> Table:
    """The step with `dW + weight_decay W` in the place of `dW`, as torch.optim.SGD has it; two FLOPs a parameter.

    AdamW is left as it is: its own decay stands in its word.
    """
    numbers = names_of_numbers(table, ("weight_decay",), "optimizer")
    values = dict(table.values) | values_of_numbers(numbers)
    lines: list[Statement] = []
    for line in table.lines:
        changed = (
            isinstance(line, Op)
            and line.meta.phase == "optimizer_step"
            and "G" in line.given
            and "decay" not in line.given
        )
        lines += _decayed(line, values, numbers["weight_decay"]) if changed and not isinstance(line, Loop) else [line]
    if len(lines) == len(table.lines):
        return table
    return replace(table, lines=tuple(lines), values=values, inputs=(*table.inputs, *numbers.values()))


def _decayed(line: Line, values: dict[str, Value], share: str) -> list[Line]:
    weight, gradient = line.right[0], line.right[1]
    if (
        weight.axes != gradient.axes
        or values[gradient.name].axes != values.get(values[gradient.name].of, Value(())).axes
    ):
        raise InputError("weight decay is added to gradients, which are projected here: leave it out, or take AdamW")
    assert isinstance(gradient, Term)
    pull, decayed = (Term(f"{gradient.name}.{part}", gradient.axes) for part in ("decay", "decayed"))
    values |= {pull.name: Value(pull.loops), decayed.name: values[gradient.name]}
    meta = replace(line.meta, local="weight_decay", locals=())
    return [
        Product((pull,), (weight, Term(share, ())), (), meta),
        Sum((decayed,), (gradient, pull), (), meta, (1, 1)),
        replace(line, right=(weight, decayed, *line.right[2:])),
    ]
