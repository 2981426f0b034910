"""Rewritings of mixtures of experts: what becomes of the gates."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.equation.errors import InputError
from learncost.equation.table import Line, Literal, Product, Term, Word
from learncost.layers.layer import Layer
from learncost.layers.rewrite import rewritten
from learncost.layers.rewrite_attention import Step, refined


def with_factor(layer: Layer, factor: float, name: str) -> Layer:
    """A value times a number, such as the gates times DeepSeek-V2's routed_scaling_factor."""

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        yield step.product(left, raw, Literal(factor))

    return refined(layer, name, "unscaled", refine)


def without_word(layer: Layer, word: str) -> Layer:
    """What a word was applied to in the place of its result: without `proportion` gates are not normalised."""
    found = False

    def change(line: Line) -> tuple[Line]:
        nonlocal found
        if not isinstance(line, Word) or line.word != word:
            return (line,)
        found = True
        return (Product(line.left, line.right[:1], line.where, line.tag),)

    changed = rewritten(layer, change)
    if not found:
        raise InputError(f"{layer.name} has no word {word}")
    return changed
