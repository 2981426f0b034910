"""Update integer weights: 8-bit codes change by stochastically rounded steps; other weights have 32 bits.

SGD on a matrix W of codes with unit 2^w, gradient for codes G 2^g, and learning rate r 2^k:

    W.part[d f] = G[d f] r[]
    W.step[d f] = W.part / 2^(2 w - g - k), rounded up with a probability equal to its fraction
    W.codes.new[d f] = W.codes[d f] - W.step[d f], from -127 to 127

The gradient for codes is 2^w times that for the weight, and a step in codes is the weight's step divided by 2^w. The
shift divides by the square of 2^w, which is quantization-aware scaling: Lin et al. 2022, On-device training under 256KB
memory, equation (5). Rounded as Gupta et al. 2015, Deep learning with limited numerical precision, section 3.
"""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Meta, Op, Product, Sum
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.models.model import Model
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.integers import CODE, HALF, LARGEST, TOTAL, Power, ScaledInteger
from learncost.passes.rewrite_integers import Integers, with_integers
from learncost.procedures.directions import NUMBER, Directions
from learncost.procedures.inference import scored

_META = Meta("optimizer", phase="optimizer_step", local="rounding")

MOST_SHIFT = 30
"""The largest shift of a step in bits; larger shifts would leave only random bits."""

DRAWN = 24
"""The number of random bits for rounding."""


def forward_in_integers(model: Model) -> Model:
    """Return the model with a forward table of integers."""
    table = model.table
    if table.outputs == ("loss",):
        table = replace(table, outputs=("loss", scored(table)))
    return replace(model, table=with_integers(table, _powers(model))[0])


def in_integers(table: Table, model: Model) -> Table:
    """Return an integer-only step. Raises `InputError` for a line without an integer form."""
    updates = [line for line in table.lines if isinstance(line, Op) and line.op in OPTIMIZERS]
    if any(line.op != "sgd" for line in updates):
        raise InputError(f"{updates[0].op} has no integer form: use --optimizer sgd with integer-only")
    if NUMBER in table.inputs:
        raise InputError(
            "updates of codes use stochastic rounding, and this procedure already draws random numbers: choose another"
        )
    others = tuple(line for line in table.lines if line not in updates)
    renewed = {term.name for line in updates for term in line.left}
    outputs = tuple(name for name in table.outputs if name not in renewed)
    changed, work = with_integers(replace(table, lines=others, outputs=outputs), _powers(model))
    if not updates:
        return replace(changed, outputs=table.outputs)
    stored = {weight.codes.name: weight.scales[0].name for weight in model.quantized}
    directions, first = Directions(), len(work.out)
    for line in updates:
        weight, gradient, rate = (term for term in line.right if isinstance(term, Term))
        if weight.name in stored:
            _codes(work, line, gradient, rate, Power.of(stored[weight.name]), directions)
        else:
            _fixed(work, line, gradient, rate)
    drawing = [replace(line, meta=_META) for line in directions.lines]
    lines = (*work.out[:first], *drawing, *work.out[first:])
    values = directions.values | work.values
    return replace(table, lines=lines, values=values, inputs=(*table.inputs, NUMBER))


def _powers(model: Model) -> list[str]:
    return [weight.scales[0].name for weight in model.quantized]


def _codes(work: Integers, line: Op, gradient: Term, rate: Term, scale: Power, directions: Directions) -> None:
    """Return the update lines of one matrix of codes."""
    codes, new = line.right[0], line.left[0]
    assert isinstance(codes, Term)
    axes, name = codes.declared, codes.name.removesuffix(".codes")
    found, rated = work.read(gradient), _rate(work, rate)
    amount = work.scalar(scale.times(2) - found.power - rated.power, _META)
    # The shift is at most ROOM; any excess reduces the rate.
    away = work.op(f"{name}.away", "minimum", (), (amount, Literal(float(MOST_SHIFT))), _META)
    many = Term(f"{name}.many", ())
    work.emit(Sum((many,), (amount, away), (), _META, (1, -1)))
    factor = work.op(f"{name}.rate", "shift", (), (Term(rated.name, ()), many), _META)
    behind = Term(f"{name}.behind", ())
    work.emit(Sum((behind,), (Literal(float(DRAWN)), away), (), _META, (1, -1)))
    *outer, last = axes
    row = Term(f"{name}.drawn", tuple(outer))
    drawing, made = directions.numbers(Term(directions.seed(name), ()), tuple(outer), row.name, _META)
    work.values |= made
    work.out += drawing
    at = Term(directions.places(base(last)), (last,))
    part, sum_, drawn, middle = (Term(f"{name}.{of}", axes) for of in ("part", "sum", "chance", "middle"))
    work.emit(Product((part,), (Term(found.name, axes), factor), (), _META))
    work.op(drawn.name, "hashed", axes, (row, at), _META)
    work.emit(Sum((middle,), (drawn, Literal(2.0 ** (DRAWN - 1))), (), _META, (1, -1)))
    chance = work.op(f"{name}.rest", "shift", axes, (middle, behind), _META)
    work.emit(Sum((sum_,), (part, chance), (), _META, (1, 1)))
    step = work.op(f"{name}.step", "shift", axes, (sum_, away), _META)
    stepped = Term(f"{name}.stepped", axes)
    work.emit(Sum((stepped,), (codes, step), (), _META, (1, -1)))
    least = work.op(f"{name}.least", "maximum", axes, (stepped, Literal(-LARGEST)), _META)
    work.values[new.name] = replace(work.values[new.name], dtype="int8")
    work.op(new.name, "minimum", axes, (least, Literal(LARGEST)), _META)


def _fixed(work: Integers, line: Op, gradient: Term, rate: Term) -> None:
    """Return the update lines of a 32-bit weight, which is rounded to the nearest integer and clamped below 2^29."""
    weight, new = line.right[0], line.left[0]
    assert isinstance(weight, Term)
    axes, number = weight.declared, work.read(weight)
    found, rated = work.narrow(work.read(gradient), axes, HALF, _META.phase), _rate(work, rate)
    part = Term(f"{weight.name}.rated", axes)  # `narrow` uses the name .part for the multiplied weight
    work.emit(Product((part,), (Term(found.name, axes), Term(rated.name, ())), (), _META))
    step = work.shifted(ScaledInteger(part.name, found.power + rated.power, CODE + HALF), number.power, axes, _META)
    stepped = Term(f"{weight.name}.stepped", axes)
    work.emit(Sum((stepped,), (weight, Term(step.name, axes)), (), _META, (1, -1)))
    most = 2.0**TOTAL - 1
    least = work.op(f"{weight.name}.least", "maximum", axes, (stepped, Literal(-most)), _META)
    work.values[new.name] = replace(work.values[new.name], power=number.power.number)
    work.op(new.name, "minimum", axes, (least, Literal(most)), _META)


def _rate(work: Integers, rate: Term) -> ScaledInteger:
    return work.narrow(work.read(rate), (), CODE, _META.phase)
