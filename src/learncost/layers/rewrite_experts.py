"""Rewrites of mixtures of experts: changes of the gates."""

from __future__ import annotations

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product
from learncost.layers.layer import Layer
from learncost.layers.refinement import refined
from learncost.layers.rewrite import rewritten


def with_factor(layer: Layer, factor: float, name: str) -> Layer:
    """Multiply a value by a number, such as the gates by DeepSeek-V2's routed_scaling_factor."""
    return refined(layer, "factor", name, {"by": factor})


def with_groups(layer: Layer, scores: str, by: str) -> Layer:
    """Restrict routing to experts of q groups, by the named refinement: axis e is split in i groups of j."""
    return refined(layer, by, scores)


def without_op(layer: Layer, op: str) -> Layer:
    """Replace an operator's result by its operand: without `proportion` gates are not normalized."""
    is_removed = False

    def change(line: Line) -> tuple[Line]:
        nonlocal is_removed
        if not isinstance(line, Op) or line.op != op:
            return (line,)
        is_removed = True
        return (Product(line.left, line.right[:1], line.where, line.meta),)

    changed = rewritten(layer, change)
    if not is_removed:
        raise InputError(f"{layer.name} has no operator {op}")
    return changed
