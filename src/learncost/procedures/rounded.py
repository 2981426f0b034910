"""Train weights as 8-bit codes: the optimizer updates the codes and rounds the result stochastically.

SGD on a matrix W = s c of codes c, with a scale s for each result:

    W.drawn[d] = hashed(W.seed[], places.d[d])
    W.once[d f] = divide(dW.codes[d f], W.scales[f])
    W.aware[d f] = divide(W.once[d f], W.scales[f])
    W.stepped[d f] = sgd(W.codes[d f], W.aware[d f], lr[])
    W.whole[d f] = stochastic_round(W.stepped[d f], W.drawn[d], places.f[f])
    W.least[d f] = maximum(W.whole[d f], -127[])
    W.codes.new[d f] = minimum(W.least[d f], 127[])

The gradient for codes is s times that for the weight, and a step in codes is the weight's step divided by s. Dividing
by the square of s is quantization-aware scaling: Lin et al. 2022, On-device training under 256KB memory, equation (5).
Most steps are smaller than one code, and would be 0 if they were rounded to the nearest. They are therefore rounded up
with a probability equal to their fraction: Gupta et al. 2015, Deep learning with limited numerical precision, section
3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op
from learncost.ir.loop import Statement
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.models.model import Model
from learncost.passes.integers import LARGEST
from learncost.passes.quantized import Quantized
from learncost.procedures.directions import NUMBER, Directions

_META = Meta("optimizer", phase="optimizer_step", local="rounding")


def with_rounded(table: Table, model: Model) -> Table:
    """Return the step whose optimizer updates the codes of trainable quantized matrices. Raises `InputError`."""
    stored = {weight.codes.name: weight for weight in model.quantized if weight.kind.learns}
    learned = {new: stored[name] for name, new in table.renewed.items() if name in stored}
    if not learned:  # no quantized matrix is trainable
        return table
    if NUMBER in table.inputs:
        raise InputError(
            "updates of codes use stochastic rounding, and this procedure already draws random numbers: choose another"
        )
    directions, values = Directions(), dict(table.values)
    lines: list[Statement] = []
    for line in table.lines:
        weight = next((learned[name] for name in line.makes if name in learned), None)
        lines += [line] if weight is None or not isinstance(line, Op) else _rounded(line, weight, directions, values)
    first = next(place for place, line in enumerate(lines) if isinstance(line, Line) and line.meta == _META)
    lines[first:first] = [replace(line, meta=_META) for line in directions.lines]
    values = directions.values | values
    return replace(table, lines=tuple(lines), values=values, inputs=(*table.inputs, NUMBER))


def _rounded(line: Op, weight: Quantized, directions: Directions, values: dict[str, Value]) -> Iterator[Line]:
    """Return the optimizer lines of one matrix."""
    codes, (scale,) = line.right[0], weight.scales
    assert isinstance(codes, Term)
    axes, new = codes.declared, line.left[0]
    scales = Term(scale.name, scale.axes)

    def term(part: str) -> Term:
        made = Term(f"{weight.weight}.{part}", axes)
        values[made.name] = Value(axes)
        return made

    def op(name: str, made: Term, *given: Term | Literal) -> Op:
        return Op((made,), given, (), _META, name, given=_GIVEN[name], gives=("Y",))

    *outer, last = axes
    row = Term(f"{weight.weight}.drawn", tuple(outer))
    seed = Term(directions.seed(weight.weight), ())
    drawing, made = directions.numbers(seed, tuple(outer), row.name, _META)
    values |= made
    yield from drawing
    places = {name: place for place, name in enumerate(line.given)}
    gradient = line.right[places["G"]]
    once, aware, stepped, whole, least = map(term, ("once", "aware", "stepped", "whole", "least"))
    yield op("divide", once, gradient, scales)
    yield op("divide", aware, once, scales)
    right = tuple(aware if place == places["G"] else operand for place, operand in enumerate(line.right))
    yield replace(line, left=(stepped, *line.left[1:]), right=right)
    yield op("stochastic_round", whole, stepped, row, Term(directions.places(base(last)), (last,)))
    yield op("maximum", least, whole, Literal(-LARGEST))
    values[new.name] = replace(values[new.name], dtype="int8")
    yield op("minimum", new, least, Literal(LARGEST))


_GIVEN = {"divide": ("X", "D"), "stochastic_round": ("X", "S", "P"), "maximum": ("X", "Z"), "minimum": ("X", "Z")}
