"""Identify the purpose of a model's layers by their lines instead of their names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from learncost.ir.line import Line, Op, is_sum_of_products
from learncost.ir.loop import walk
from learncost.ir.polynomial import base
from learncost.ir.term import Term
from learncost.models.configuration import family_of
from learncost.models.model import Model
from learncost.ops import entry, is_choice, is_softmax
from learncost.passes.rewrite_lora import is_linear


def layers_with(lines: Iterable[Line], does: Callable[[Line], bool]) -> frozenset[str]:
    """Return the layers with a line that satisfies a condition."""
    return frozenset(line.meta.layer for line in lines if does(line))


def activates(line: Line) -> bool:
    """Return whether a line is an elementwise op of one operand, as an activation is."""
    return isinstance(line, Op) and entry(line.op).pointwise and len(line.right) == 1


def is_attention_softmax(line: Line) -> bool:
    """Return whether a line is the softmax of self-attention."""
    if not is_softmax(line):
        return False
    others = {base(axis) for axis in line.left[0].loops if axis not in line.axes}
    return any(base(axis) in others for axis in line.axes)


def attentions(lines: Collection[Line]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the layers with self-attention, and those with cross-attention."""
    made = {line.name for line in lines if is_softmax(line) and not is_attention_softmax(line)}

    def sums_values(line: Line) -> bool:
        return is_sum_of_products(line) and line.sides.are_of_matrices and bool(made & {*line.reads})

    attending = layers_with(lines, is_attention_softmax)
    return attending, layers_with(lines, sums_values) - attending


def linear_layers(model: Model) -> frozenset[str]:
    """Return the weights of peft's all-linear, which excludes output layers, convolutions and routers."""
    lines = [line for line, _ in walk(model.table.lines)]
    chosen_by = _chosen_by(lines)
    left_out = family_of(model.configuration).output_layers
    inputs = {*model.table.inputs}

    def is_module(line: Line, weight: str) -> bool:
        if not is_linear(line, weight) or line.meta.layer in left_out or line.name in chosen_by:
            return False
        return not _convolves(line, inputs)

    return frozenset(weight for line in lines for weight in line.reads if is_module(line, weight))


def _chosen_by(lines: Iterable[Line]) -> set[str]:
    """Return the values that routers choose by, back to the products that compute them."""
    chosen_by: set[str] = set()
    for line in reversed(tuple(lines)):
        chooses = is_choice(line)
        if chooses or (chosen_by & {*line.makes} and not is_sum_of_products(line)):
            chosen_by |= set(line.reads)
    return chosen_by


def _convolves(line: Line, inputs: Collection[str]) -> bool:
    """Return whether a product reads a window at each position, as convolutions and patch embeddings do."""
    terms = [term for term in line.right if isinstance(term, Term)]
    if any(term.indexed for term in terms):
        return True
    summed = {axis for term in terms for axis in term.loops} - set(line.left[0].loops)
    return len(summed) > 1 and any(term.name in inputs for term in terms)
