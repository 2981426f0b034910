"""Clipping as lines before the optimizer's: all gradients scaled so that their common norm is at most a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Statement, defined
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.procedures.numbers import names_of_numbers, values_of_numbers

EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_: clip_coef = max_norm / (total_norm + 1e-6), at most 1


def with_clipping(table: Table) -> Table:
    """The step with clipped gradients, as `clipped` has it."""
    return clipped(table)[0]


def clipped(table: Table, shared: Mapping[str, int] = {}) -> tuple[Table, str]:
    """The step with `factor dW` in the place of every `dW` that the optimizer reads, as torch clips by the norm.

    factor = min(1, clip / (norm + 1e-6)), with the norm over the gradients of all weights together and the bound
    `clip`, a scalar input; written as 1 / max(1, (norm + 1e-6) / clip). It costs a MACC and a FLOP a parameter. The
    table's own gradients stay as they are. A table without an optimizer has nothing to clip.
    shared  of a table that is one of several: how many have the same gradient, each of which counts its share of it
    Beside the step it gives the name of the sum of all squares, which several tables have to add up; "" without one.
    """
    updates = [line for line in table.lines if isinstance(line, Line) and line.meta.phase == "optimizer_step"]
    gradients = defined(line for line in table.lines if line not in updates)
    read = {t.name: t for line in updates for t in line.right if isinstance(t, Term) and t.name in gradients}
    if not read:
        return table, ""
    names = {name: f"{name}.clipped" for name in read}
    first = table.lines.index(updates[0])
    numbers = names_of_numbers(table, ("clip",), "optimizer")
    scaling, squares = _scaling(tuple(read.values()), numbers["clip"], shared)
    lines: list[Statement] = [*table.lines[:first], *scaling]
    lines += [line.renamed(names) if line in updates else line for line in table.lines[first:]]
    result = replace(
        table,
        lines=tuple(lines),
        values={
            **table.values,
            **values_of_numbers(numbers),
            **{line.name: Value(line.left[0].declared) for line in scaling},
            **{new: table.values[gradient] for gradient, new in names.items()},
        },
        inputs=(*table.inputs, *numbers.values()),
    )
    return result, squares


def _scaling(gradients: tuple[Term, ...], bound: str, shared: Mapping[str, int]) -> tuple[list[Line], str]:
    """From the gradients to the clipped gradients, whose norm is at most the bound; the name of the sum of squares."""

    def scalar(name: str) -> Term:
        return Term(f"{bound}.{name}", ())

    def quotient(name: str, above: Term | Literal, below: Term) -> Op:
        return Op((scalar(name),), (above, below), (), meta, "divide", (), "body", ("X", "D"), ("Y",))

    meta = Meta("optimizer", phase="optimizer_step", local="clip")
    squares, lines = list[Term](), list[Line]()
    for gradient in gradients:
        squares.append(Term(f"{gradient.name}.square", ()))
        lines.append(Product((squares[-1],), (gradient, gradient), (), meta))
        if number := shared.get(gradient.name):
            whole, share = squares.pop(), Term(f"{gradient.name}.share", ())
            squares.append(share)
            lines.append(Product((share,), (whole, Literal(1 / number)), (), meta))
    lines += [
        Sum((scalar("squares"),), tuple(squares), (), meta, (1,) * len(squares)),
        Op((scalar("norm"),), (scalar("squares"),), (), meta, "sqrt", (), "body", ("X",), ("Y",)),
        Sum((scalar("above"),), (scalar("norm"), Literal(EPSILON)), (), meta, (1, 1)),
        quotient("excess", scalar("above"), Term(bound, ())),
        Op((scalar("divisor"),), (scalar("excess"), Literal(1.0)), (), meta, "maximum", (), "body", ("X", "Z"), ("Y",)),
        quotient("factor", Literal(1.0), scalar("divisor")),
    ]
    lines += [
        Product((Term(f"{gradient.name}.clipped", gradient.axes),), (gradient, scalar("factor")), (), meta)
        for gradient in gradients
    ]
    return lines, scalar("squares").name
