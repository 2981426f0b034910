"""The floor of a step: what its matrix products cost alone, and moving the optimizer's bytes."""

from __future__ import annotations

from fractions import Fraction

from against_torch_and_jax.subject import Subject
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.ir.line import Line
from learncost.ops.optimizers import OPTIMIZERS
from learncost.procedures.step import step
from learncost.timing.work import MatmulShape, product_axes

OPTIMIZER_BYTES = 4 * (3 + 2 * len(OPTIMIZERS["adamw"].state))
"""A parameter's, of AdamW: weight, gradient and two moments read, all but the gradient written, each of 4 bytes."""


def products(subject: Subject) -> dict[MatmulShape, Fraction]:
    """Every matrix product of a step of backpropagation, and how often it is done; causal ones count as halves.

    They are read off the step's table, line by line as the price book `matmul` counts them.
    """
    table, sizes = step(subject.built, "bp", "adamw"), subject.sizes
    times_of: dict[MatmulShape, Fraction] = {}
    pairs = zip(price(table, sizes, book("matmul")).rows, price(table, sizes, book("causal-half")).rows, strict=True)
    for full, half in pairs:
        if flops := full.flops.at(sizes):
            assert isinstance(full.source, Line)
            product = product_axes(full.source).at(sizes)
            times_of[product] = times_of.get(product, Fraction(0)) + Fraction(half.flops.at(sizes)) / product.flops
            assert flops % product.flops == 0, full.text
    return times_of
