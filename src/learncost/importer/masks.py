"""Read the scores of a causal softmax before their mask: its lines then have a condition, and no masked scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learncost.importer.equations import DimensionCondition, Equation, NamedView
from learncost.importer.text import through
from learncost.importer.views import StoredValue
from learncost.ir.dataclass import replace


def before_masks(equations: Sequence[Equation]) -> list[Equation]:
    """Return the lines with softmaxes of scores under a causal mask as those of all scores, under a condition."""
    makers = {each.stored: each for each in equations if each.hides is not None}
    return [_before_mask(each, makers) for each in equations]


def _before_mask(equation: Equation, makers: Mapping[StoredValue, Equation]) -> Equation:
    first = equation.operands[0] if equation.op == "softmax" else None
    line = makers.get(first.view.stored) if isinstance(first, NamedView) else None
    if line is None or line.hides is None or not isinstance(first, NamedView) or len(first.letters) < 2:
        return equation
    (place, mask), view, made = line.hides, first.view.fresh(), line.left[0].view.fresh()
    source, (row, column) = line.operands[place], first.letters[-2:]
    at = [[n for n, each in enumerate(of.index) if each in of.dims[dim]] for of in (view, made) for dim in (-2, -1)]
    if not view.is_plain or at[:2] != at[2:] or any(len(each) != 1 for each in at) or equation.acts != (column,):
        return equation
    assert isinstance(source, NamedView)
    scores = through(view, line, source)
    if any(slot in scores.spread for slots in scores.dims[-2:] for slot in slots):
        return equation
    where = DimensionCondition(column, "<=", row, mask.window)
    return replace(equation, operands=(NamedView(scores, first.letters), *equation.operands[1:]), where=(where,))
