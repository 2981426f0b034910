"""Rewritings of mixtures of experts: what becomes of the gates."""

from __future__ import annotations

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product
from learncost.layers.layer import Layer
from learncost.layers.refinement import refined
from learncost.layers.rewrite import rewritten


def with_factor(layer: Layer, factor: float, name: str) -> Layer:
    """A value times a number, such as the gates times DeepSeek-V2's routed_scaling_factor."""
    return refined(layer, "factor", name, {"by": factor})


def with_groups(layer: Layer, scores: str, by: str) -> Layer:
    """Experts of some groups alone, by the refinement that says which: axis e in i groups of j, of which q remain."""
    return refined(layer, by, scores)


def without_op(layer: Layer, op: str) -> Layer:
    """What a word was applied to in the place of its result: without `proportion` gates are not normalised."""
    is_removed = False

    def change(line: Line) -> tuple[Line]:
        nonlocal is_removed
        if not isinstance(line, Op) or line.op != op:
            return (line,)
        is_removed = True
        return (Product(line.left, line.right[:1], line.where, line.meta),)

    changed = rewritten(layer, change)
    if not is_removed:
        raise InputError(f"{layer.name} has no word {op}")
    return changed
