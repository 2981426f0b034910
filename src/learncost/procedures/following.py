"""Feedback that follows the weights: what is read for a weight takes the weight's steps, and both decay."""

from __future__ import annotations

from dataclasses import replace

from learncost.equation.table import Line, Literal, Product, Statement, Sum, Table, Tag, Term
from learncost.equation.value import Value


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
        stepped, lost, step, moved, lost_there, result = (
            Term(f"{weight}.{part}", axes)
            for part in ("stepped", "lost", "step", f"{name}.moved", f"{name}.lost", name)
        )
        at = next(place for place, line in enumerate(lines) if isinstance(line, Line) and new in line.makes)
        lines[at] = lines[at].renamed({new: stepped.name})
        plain, last = Term(weight, axes), Term(f"{other}.new", axes)
        tag = Tag("optimizer", macro="optimizer_step", local=f"{name} follows")
        lines[at + 1 : at + 1] = [
            Product((lost,), (plain, Literal(decay)), (), tag),
            Sum((Term(new, axes),), (stepped, lost), (), tag, (1, -1)),
            Sum((step,), (stepped, plain), (), tag, (1, -1)),
            Sum((moved,), (result, step), (), tag, (1, 1)),
            Product((lost_there,), (result, Literal(decay)), (), tag),
            Sum((last,), (moved, lost_there), (), tag, (1, -1)),
        ]
        values |= {term.name: Value(axes) for term in (stepped, lost, step, moved, lost_there)}
        values[last.name] = Value(axes, "new", other)
        outputs.append(last.name)
    return replace(table, lines=tuple(lines), values=values, outputs=tuple(outputs))
