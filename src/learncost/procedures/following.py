"""Feedback that follows the weights: what is read for a weight takes the weight's steps, and both decay."""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.line import Line, Meta, Product, Sum
from learncost.ir.loop import Statement
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value


def with_following(table: Table, name: str, decay: float) -> Table:
    """The step in which every `W.name` takes the step that the optimizer takes with W, and both lose a share of theirs.

    So their difference shrinks by that share in every step, whatever the gradients are: Kolen & Pollack 1994,
    Backpropagation without weight transport. The optimizer has one state for both.
    """
    values, lines, outputs = dict(table.values), list[Statement](table.lines), list(table.outputs)
    followed = {
        other: value.of
        for other in table.inputs
        if (value := values[other]).role == "projection" and other == f"{value.of}.{name}"
    }
    for other, weight in followed.items():
        new = table.renewed.get(weight)
        if new is None:  # no optimizer steps here, or the weight does not learn
            continue
        axes = values[weight].axes
        left, left_there, step = (Term(f"{weight}.{part}", axes) for part in ("left", f"{name}.left", "step"))
        at = next(place for place, line in enumerate(lines) if isinstance(line, Line) and new in line.makes)
        optimizing = lines[at]
        assert isinstance(optimizing, Line)
        right = tuple(left if term.name == weight else term for term in optimizing.right)
        meta = Meta("optimizer", phase="optimizer_step", local=f"{name} follows")
        last, share = Term(f"{other}.new", axes), Literal(1 - decay)
        lines[at : at + 1] = [
            Product((left,), (Term(weight, axes), share), (), meta),
            Product((left_there,), (Term(other, axes), share), (), meta),
            replace(optimizing, right=right),
            Sum((step,), (Term(new, axes), left), (), meta, (1, -1)),
            Sum((last,), (left_there, step), (), meta, (1, 1)),
        ]
        values |= {term.name: Value(axes) for term in (left, left_there, step)}
        values[last.name] = Value(axes, "new", other)
        outputs.append(last.name)
    return replace(table, lines=tuple(lines), values=values, outputs=tuple(outputs))
