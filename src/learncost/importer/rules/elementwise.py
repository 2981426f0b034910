"""Elementwise operators: sums, products, ops, and compositions of them."""

from __future__ import annotations

import math
from typing import Any

from learncost.importer.equations import NumberOperand
from learncost.importer.operands import GivenTensor
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.views import View


@rule("add")
def add(reader: GraphReader, x: Any, z: Any, *, alpha: Any = 1) -> Any:
    for scores, mask in ((x, z), (z, x)):
        added = (
            isinstance(scores, View) and isinstance(mask, GivenTensor) and alpha == 1 and reader.mask(mask) is not None
        )
        if added and (masked := reader.hidden(scores, mask, None)) is not None:
            return masked
    return _sum(reader, x, z, alpha, 1)


@rule("sub")
def sub(reader: GraphReader, x: Any, z: Any, *, alpha: Any = 1) -> View:
    return _sum(reader, x, z, alpha, -1)


def _sum(reader: GraphReader, x: Any, z: Any, alpha: Any, sign: int) -> View:
    if alpha != 1:
        z = z * alpha if isinstance(z, int | float) else reader.multiply(z, alpha)
    if _is(z, 0.0):
        return reader.view(x)
    if _is(x, 0.0) and sign > 0:
        return reader.view(z)
    return reader.add(x, z, signs=[1, sign])


def _is(value: Any, number: float) -> bool:
    return isinstance(value, int | float) and value == number


@rule("mul")
def mul(reader: GraphReader, x: Any, z: Any) -> View:
    if _is(z, 1.0):
        return reader.view(x)
    return reader.multiply(x, z)


@rule("neg", "_neg_view")
def neg(reader: GraphReader, x: View) -> View:
    return reader.multiply(-1.0, x)


@rule("div")
def div(reader: GraphReader, x: Any, z: Any) -> View:
    if isinstance(z, int | float) and not isinstance(z, bool):
        return reader.view(x) if z == 1 else reader.multiply(x, 1.0 / z)
    if not isinstance(z, GivenTensor) and (number := reader.number(z)) is not None:
        return reader.multiply(x, NumberOperand(1.0 / number.value, number.axes, -number.power))
    return reader.op("divide", x, z)


@rule("reciprocal")
def reciprocal(reader: GraphReader, x: View) -> View:
    return reader.op("divide", 1.0, x)


@rule("pow")
def power(reader: GraphReader, x: Any, z: Any) -> View:
    if isinstance(z, int | float):
        if z == 2:
            return reader.multiply(x, x)
        if z == 3:
            return reader.multiply(reader.multiply(x, x), x)
        if z == 1:
            return reader.view(x)
        if z == 0.5:
            return reader.op("sqrt", x)
        if z == -0.5:
            return reader.op("divide", 1.0, reader.op("sqrt", x))
        if z == -1:
            return reciprocal(reader, reader.view(x))
    return reader.op("power", x, z)


@rule("rsqrt")
def rsqrt(reader: GraphReader, x: View) -> View:
    return reader.op("divide", 1.0, reader.op("sqrt", x))


WORDS = {
    "exp": "exp",
    "log": "log",
    "tanh": "tanh",
    "sqrt": "sqrt",
    "erf": "erf",
    "sin": "sin",
    "cos": "cos",
    "atan": "atan",
    "log1p": "log1p",
    "expm1": "expm1",
    "abs": "abs",
    "sign": "sign",
    "sgn": "sign",
    "floor": "floor",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "log_sigmoid": "log_sigmoid",
}
"""Unary operators that are an op of the vocabulary."""


def _registered(name: str, op: str) -> None:
    @rule(name)
    def apply(reader: GraphReader, x: View, *_: Any, **__: Any) -> View:
        return reader.op(op, x)


for _name, _word in WORDS.items():
    _registered(_name, _word)


@rule("detach")
def detach(reader: GraphReader, x: View) -> View:
    return reader.op("stop_gradient", x)


@rule("gelu")
def gelu(reader: GraphReader, x: View, *, approximate: str = "none") -> View:
    return reader.op("gelu" if approximate == "none" else "gelu_tanh", x)


@rule("maximum", "fmax", "max.other")
def maximum(reader: GraphReader, x: Any, z: Any) -> View:
    return reader.op("maximum", x, z)


@rule("minimum", "fmin", "min.other")
def minimum(reader: GraphReader, x: Any, z: Any) -> View:
    return reader.op("minimum", x, z)


def clamped(reader: GraphReader, x: Any, low: Any, high: Any) -> View:
    """Record max(low, min(x, high)) with torch.clamp's gradient, which passes at a bound."""
    value = reader.view(x)
    if high is not None:
        value = reader.op("at_most", value, high)
    if low is not None:
        value = reader.op("maximum", low, value)
    return value


@rule("clamp")
def clamp(reader: GraphReader, x: View, low: Any = None, high: Any = None, **named: Any) -> View:
    low, high = named.get("min", low), named.get("max", high)
    if any(isinstance(bound, View | GivenTensor) for bound in (low, high)):
        if low is not None:
            x = reader.op("maximum", low, x)  # at a bound the second has the gradient, as with torch.clamp
        return x if high is None else reader.op("minimum", high, x)
    return clamped(reader, x, low, high)


@rule("hardtanh")
def hardtanh(reader: GraphReader, x: View, low: float = -1.0, high: float = 1.0) -> View:
    if low == 0:
        return reader.op("at_most", reader.op("relu", x), high)
    return clamped(reader, x, low, high)


@rule("hardsigmoid")
def hardsigmoid(reader: GraphReader, x: View) -> View:
    """Record relu6(x + 3) / 6."""
    bounded = reader.op("at_most", reader.op("relu", reader.add(x, 3.0)), 6.0)
    return reader.multiply(bounded, 1 / 6)


@rule("hardswish")
def hardswish(reader: GraphReader, x: View) -> View:
    return reader.multiply(x, hardsigmoid(reader, x))


@rule("leaky_relu")
def leaky_relu(reader: GraphReader, x: View, slope: float = 0.01) -> View:
    """Record max(x, 0) + slope min(x, 0), with min(x, 0) as x - max(x, 0)."""
    above = reader.op("relu", x)
    below = reader.add(x, above, signs=[1, -1])
    return reader.add(above, reader.multiply(below, slope))


@rule("rrelu_with_noise_functional")
def rrelu(
    reader: GraphReader,
    x: View,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> list[View | None]:
    """Record rrelu in evaluation mode, with the mean of the slopes that training draws."""
    if training:
        raise reader.refusal("a leaky ReLU with random slopes")
    return [leaky_relu(reader, x, (lower + upper) / 2), None]


@rule("_prelu_kernel")
def prelu(reader: GraphReader, x: Any, slope: Any) -> View:
    x, slope = reader.view(x), reader.view(slope)
    above = reader.op("relu", x)
    below = reader.add(x, above, signs=[1, -1])
    return reader.add(above, reader.multiply(below, slope))


@rule("elu")
def elu(reader: GraphReader, x: View, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> View:
    """Record scale (max(x, 0) + alpha (exp(min(x, 0) input_scale) - 1))."""
    if scale == input_scale == 1:
        return reader.op("elu", x, alpha)
    above = reader.op("relu", x)
    below = reader.add(x, above, signs=[1, -1])
    if input_scale != 1:
        below = reader.multiply(below, input_scale)
    bent = reader.op("expm1", below)
    if alpha != 1:
        bent = reader.multiply(bent, alpha)
    result = reader.add(above, bent)
    return result if scale == 1 else reader.multiply(result, scale)


@rule("celu")
def celu(reader: GraphReader, x: View, alpha: float = 1.0) -> View:
    return elu(reader, x, alpha, 1.0, 1.0 / alpha)


@rule("softplus")
def softplus(reader: GraphReader, x: View, beta: float = 1.0, threshold: float = 20.0) -> View:
    """Record log(1 + exp(beta x)) / beta. Beyond its threshold PyTorch returns x, which differs by 2e-9 from 20 on."""
    bent = reader.op("softplus", x if beta == 1 else reader.multiply(x, beta))
    value = bent if beta == 1 else reader.multiply(bent, 1.0 / beta)
    if threshold >= 20:
        return value
    return reader.op("select", reader.op("less", float(threshold) / beta, x), x, value)


@rule("tan")
def tan(reader: GraphReader, x: View) -> View:
    return reader.op("divide", reader.op("sin", x), reader.op("cos", x))


@rule("sinh")
def sinh(reader: GraphReader, x: View) -> View:
    above, below = reader.op("exp", x), reader.op("exp", reader.multiply(x, -1.0))
    return reader.multiply(reader.add(above, below, signs=[1, -1]), 0.5)


@rule("cosh")
def cosh(reader: GraphReader, x: View) -> View:
    above, below = reader.op("exp", x), reader.op("exp", reader.multiply(x, -1.0))
    return reader.multiply(reader.add(above, below), 0.5)


@rule("log2", "log10")
def log_of_base(reader: GraphReader, x: View) -> View:
    base = 2 if reader.recorder.operator == "log2" else 10
    return reader.multiply(reader.op("log", x), 1 / math.log(base))


@rule("exp2")
def exp2(reader: GraphReader, x: View) -> View:
    return reader.op("exp", reader.multiply(x, math.log(2)))


@rule("erfc")
def erfc(reader: GraphReader, x: View) -> View:
    return reader.add(1.0, reader.op("erf", x), signs=[1, -1])


@rule("logaddexp")
def logaddexp(reader: GraphReader, x: View, z: View) -> View:
    high = reader.op("maximum", x, z)
    apart = reader.op("abs", reader.add(x, z, signs=[1, -1]))
    return reader.add(high, reader.op("log1p", reader.op("exp", reader.multiply(apart, -1.0))))


@rule("lerp")
def lerp(reader: GraphReader, x: Any, end: Any, weight: Any) -> View:
    return reader.add(x, reader.multiply(reader.add(end, x, signs=[1, -1]), weight))


@rule("hypot")
def hypot(reader: GraphReader, x: Any, z: Any) -> View:
    return reader.op("sqrt", reader.add(reader.multiply(x, x), reader.multiply(z, z)))


# Conditions


def _less(reader: GraphReader, x: Any, z: Any) -> View:
    return reader.op("less", x, z)


@rule("gt")
def gt(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(_less(reader, z, x))


@rule("lt")
def lt(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(_less(reader, x, z))


@rule("ge")
def ge(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.add(1.0, _less(reader, x, z), signs=[1, -1]))


@rule("le")
def le(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.add(1.0, _less(reader, z, x), signs=[1, -1]))


@rule("eq")
def eq(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.op("equal", x, z))


@rule("ne")
def ne(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.add(1.0, reader.op("equal", x, z), signs=[1, -1]))


@rule("logical_not", "bitwise_not")
def logical_not(reader: GraphReader, x: Any) -> View:
    return _truth(reader.add(1.0, x, signs=[1, -1]))


@rule("logical_and", "bitwise_and.Tensor")
def logical_and(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.multiply(x, z))


@rule("logical_or", "bitwise_or.Tensor")
def logical_or(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.op("maximum", x, z))


def _truth(view: View) -> View:
    """Return a boolean value, 1 or 0, which remains boolean after type conversions."""
    view.stored.kind = "truth"
    return view


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(reader: GraphReader, condition: Any, x: Any, z: Any) -> Any:
    number = reader.number(z)
    hides = number is not None and number.value < -1e4 and isinstance(condition, GivenTensor) and isinstance(x, View)
    if hides and number is not None and (masked := reader.hidden(x, condition, number.value)) is not None:
        return masked
    return reader.op("select", condition, x, z)


@rule("masked_fill")
def masked_fill(reader: GraphReader, x: Any, mask: Any, value: Any) -> Any:
    number = reader.number(value)
    hides = number is not None and number.value < -1e4 and isinstance(mask, GivenTensor)
    if hides and number is not None and (masked := reader.hidden(x, mask, number.value, hides=True)) is not None:
        return masked
    return reader.op("select", mask, value, x)
