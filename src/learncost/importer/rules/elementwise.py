"""Elementwise operators: sums, products, ops and conditions, and tensors that are made with the shape of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.importer.equations import NumberOperand
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.views import GivenTensor, View


@rule("add")
def add(reader: GraphReader, x: Any, z: Any, *, alpha: Any = 1) -> Any:
    result = _sum(reader, x, z, alpha, 1)
    for place, (scores, mask) in enumerate(((x, z), (z, x))):
        if isinstance(scores, View) and alpha == 1:
            reader.hidden(place, mask)
    return result


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


@rule("div")
def div(reader: GraphReader, x: Any, z: Any) -> View:
    if isinstance(z, int | float) and not isinstance(z, bool):
        return reader.view(x) if z == 1 else reader.multiply(x, 1.0 / z)
    if not isinstance(z, GivenTensor) and (number := reader.number(z)) is not None:
        return reader.multiply(x, NumberOperand(1.0 / number.value, number.axes, -number.power))
    return reader.op("divide", x, z)


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
            return reader.op("divide", 1.0, reader.view(x))
    return reader.op("power", x, z)


OPERATORS = {
    **{name: name for name in ("exp", "log", "tanh", "sqrt", "erf", "sin", "cos", "atan", "log1p", "expm1", "abs")},
    **{name: name for name in ("sign", "floor", "relu", "sigmoid", "silu", "log_sigmoid", "softplus", "atan2")},
    **{name: name for name in ("maximum", "minimum")},
    "sgn": "sign",
    "detach": "stop_gradient",
    "fmax": "maximum",
    "max.other": "maximum",
    "fmin": "minimum",
    "min.other": "minimum",
}
"""Operators that are an op of the vocabulary."""

OPERANDS = {"atan2": 2, "maximum": 2, "minimum": 2}
"""The number of operands of an op, where it is not one; the arguments behind them are left out."""


def _opposite(reader: GraphReader, truth: Any) -> View:
    return reader.add(1.0, truth, signs=[1, -1])


def trunc(reader: GraphReader, x: View) -> View:
    return reader.multiply(reader.op("sign", x), reader.op("floor", reader.op("abs", x)))


LINES: Mapping[str, Callable[..., View]] = {
    "lt": lambda reader, x, z: reader.op("less", x, z),
    "gt": lambda reader, x, z: reader.op("less", z, x),
    "ge": lambda reader, x, z: _opposite(reader, reader.op("less", x, z)),
    "le": lambda reader, x, z: _opposite(reader, reader.op("less", z, x)),
    "eq": lambda reader, x, z: reader.op("equal", x, z),
    "signbit": lambda reader, x: reader.op("less", x, 0.0),
    **dict.fromkeys(("logical_not", "bitwise_not"), lambda reader, x: _opposite(reader, x)),
    **dict.fromkeys(("logical_and", "bitwise_and.Tensor"), lambda reader, x, z: reader.multiply(x, z)),
    **dict.fromkeys(("logical_or", "bitwise_or.Tensor"), lambda reader, x, z: reader.op("maximum", x, z)),
    **dict.fromkeys(
        ("ne", "logical_xor", "bitwise_xor.Tensor"), lambda reader, x, z: _opposite(reader, reader.op("equal", x, z))
    ),
    **dict.fromkeys(("neg", "_neg_view"), lambda reader, x: reader.multiply(-1.0, x)),
    "reciprocal": lambda reader, x: reader.op("divide", 1.0, x),
    "rsqrt": lambda reader, x: reader.op("divide", 1.0, reader.op("sqrt", x)),
    "elu": lambda reader, x, alpha=1.0, *_: reader.op("elu", x, alpha),
    "gelu": lambda reader, x, *, approximate="none": reader.op("gelu" if approximate == "none" else "gelu_tanh", x),
    "trunc": trunc,
}
"""Operators that are a few lines; those with a boolean result give 1 or 0."""


def _is_op(name: str, op: str) -> None:
    @rule(name)
    def apply(reader: GraphReader, *operands: Any, **_: Any) -> View:
        return reader.op(op, *operands[: OPERANDS.get(op, 1)])


for _name, _op_name in OPERATORS.items():
    _is_op(_name, _op_name)
for _name, _lines in LINES.items():
    rule(_name)(_lines)


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


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(reader: GraphReader, condition: Any, x: Any, z: Any) -> Any:
    result = reader.op("select", condition, x, z)
    if isinstance(x, View) and _is_very_negative(reader, z):
        reader.hidden(1, condition)
    return result


@rule("masked_fill")
def masked_fill(reader: GraphReader, x: Any, mask: Any, value: Any) -> Any:
    result = reader.op("select", mask, value, x)
    if _is_very_negative(reader, value):
        reader.hidden(2, mask, hides=True)
    return result


def _is_very_negative(reader: GraphReader, value: Any) -> bool:
    number = reader.number(value)
    return number is not None and number.value < -1e4


@rule("div.Tensor_mode")
def div_mode(reader: GraphReader, x: Any, z: Any, *, rounding_mode: str | None = None) -> Any:
    """Record a rounded quotient, which is not a product with 1/z: 49 (1/49) is less than 1."""
    if rounding_mode is None:
        return div(reader, x, z)
    ratio = reader.op("divide", x, float(z) if isinstance(z, int | float) else z)
    return reader.op("floor", ratio) if rounding_mode == "floor" else trunc(reader, ratio)


@rule(
    *("full_like", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "bernoulli", "bernoulli.p"),
)
def made_like(reader: GraphReader, *_: Any, **__: Any) -> Any:
    """Return a tensor with the shape of a value and other numbers."""
    return GivenTensor(reader.node)
