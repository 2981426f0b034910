"""Update weights that are stored as 8-bit codes, by stochastically rounded steps; integer-only weights of 32 bits too.

SGD on a matrix W = s c of codes c, with a scale s for each result:

    W.drawn[d] = hashed(W.seed[], places.d[d])
    W.once[d f] = divide(dW.codes[d f], W.scales[f])
    W.aware[d f] = divide(W.once[d f], W.scales[f])
    W.stepped[d f] = sgd(W.codes[d f], W.aware[d f], lr[])
    W.whole[d f] = stochastic_round(W.stepped[d f], W.drawn[d], places.f[f])
    W.least[d f] = maximum(W.whole[d f], -127[])
    W.codes.new[d f] = minimum(W.least[d f], 127[])

In integers, of codes with unit 2^w, gradient for codes G 2^g, and learning rate r 2^k:

    W.part[d f] = G[d f] r[]
    W.step[d f] = W.part / 2^(2 w - g - k), rounded up with a probability equal to its fraction
    W.codes.new[d f] = W.codes[d f] - W.step[d f], from -127 to 127

The gradient for codes is s times that for the weight, and a step in codes is the weight's step divided by s. Dividing
by the square of s is quantization-aware scaling: Lin et al. 2022, On-device training under 256KB memory, equation (5).
Most steps are smaller than one code, and would be 0 if they were rounded to the nearest. They are therefore rounded up
with a probability equal to their fraction: Gupta et al. 2015, Deep learning with limited numerical precision, section
3.
"""

from __future__ import annotations

from collections.abc import Iterator

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Statement
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.models.model import Model
from learncost.ops import applied
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.integers import CODE, HALF, LARGEST, TOTAL, Power, ScaledInteger
from learncost.passes.quantized import Quantized
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
    drawing, made = directions.drawn(Term(directions.seed(name), ()), tuple(outer), row.name, _META, "hashed")
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
        return applied(name, made, given, _META)

    *outer, last = axes
    row = Term(f"{weight.weight}.drawn", tuple(outer))
    seed = Term(directions.seed(weight.weight), ())
    drawing, made = directions.drawn(seed, tuple(outer), row.name, _META, "hashed")
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
