"""Rounding, comparisons and operators without a gradient; inverse functions as logarithms."""

from __future__ import annotations

import math
from typing import Any

from learncost.importer.operands import GivenTensor
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.elementwise import _truth, clamped, div
from learncost.importer.views import View


@rule("ceil")
def ceil(reader: GraphReader, x: View) -> View:
    return reader.multiply(-1.0, reader.op("floor", reader.multiply(-1.0, x)))


@rule("trunc")
def trunc(reader: GraphReader, x: View) -> View:
    return reader.multiply(reader.op("sign", x), reader.op("floor", reader.op("abs", x)))


@rule("round")
def rounded(reader: GraphReader, x: View, *, decimals: int = 0) -> View:
    """Record the nearest integer, ties to even; or the nearest number with this many decimals."""
    if decimals:
        return reader.multiply(rounded(reader, reader.multiply(x, 10.0**decimals)), 10.0**-decimals)
    raised = reader.add(x, 0.5)
    upper = reader.op("floor", raised)
    half = reader.op("floor", reader.multiply(upper, 0.5))
    odd = reader.add(upper, reader.multiply(half, 2.0), signs=[1, -1])
    return reader.add(upper, reader.multiply(odd, reader.op("equal", upper, raised)), signs=[1, -1])


@rule("fmod")
def fmod(reader: GraphReader, x: Any, z: Any) -> View:
    whole = reader.op("stop_gradient", trunc(reader, _exact_ratio(reader, x, z)))
    return reader.add(x, reader.multiply(whole, z), signs=[1, -1])


@rule("remainder")
def remainder(reader: GraphReader, x: Any, z: Any) -> View:
    whole = reader.op("floor", _exact_ratio(reader, x, z))
    return reader.add(x, reader.multiply(whole, z), signs=[1, -1])


def _exact_ratio(reader: GraphReader, x: Any, z: Any) -> View:
    return reader.op("divide", x, float(z) if isinstance(z, int | float) else z)


@rule("div.Tensor_mode")
def div_mode(reader: GraphReader, x: Any, z: Any, *, rounding_mode: str | None = None) -> Any:
    """Record a rounded quotient, which is not a product with 1/z: 49 (1/49) is less than 1."""
    if rounding_mode is None:
        return div(reader, x, z)
    ratio = _exact_ratio(reader, x, z)
    return reader.op("floor", ratio) if rounding_mode == "floor" else trunc(reader, ratio)


@rule("logical_xor", "bitwise_xor.Tensor")
def logical_xor(reader: GraphReader, x: Any, z: Any) -> View:
    return _truth(reader.add(1.0, reader.op("equal", x, z), signs=[1, -1]))


@rule("signbit")
def signbit(reader: GraphReader, x: View) -> View:
    return _truth(reader.op("less", x, 0.0))


@rule("copysign")
def copysign(reader: GraphReader, x: Any, z: Any) -> View:
    size = reader.op("abs", x)
    if isinstance(z, int | float):
        return size if z >= 0 else reader.multiply(-1.0, size)
    return reader.op("select", reader.op("less", z, 0.0), reader.multiply(-1.0, size), size)


@rule("asinh")
def asinh(reader: GraphReader, x: View) -> View:
    size = reader.op("abs", x)
    root = reader.op("sqrt", reader.add(reader.multiply(x, x), 1.0))
    return reader.multiply(reader.op("sign", x), reader.op("log", reader.add(size, root)))


@rule("acosh")
def acosh(reader: GraphReader, x: View) -> View:
    root = reader.op("sqrt", reader.add(reader.multiply(x, x), -1.0))
    return reader.op("log", reader.add(x, root))


@rule("atanh")
def atanh(reader: GraphReader, x: View) -> View:
    above = reader.op("log1p", x)
    below = reader.op("log1p", reader.multiply(-1.0, x))
    return reader.multiply(reader.add(above, below, signs=[1, -1]), 0.5)


@rule("angle")
def angle(reader: GraphReader, x: View) -> View:
    """Record the angle of a real number: 0, or pi below 0."""
    return reader.multiply(reader.op("less", x, 0.0), math.pi)


@rule("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlogy")
def xlogy(reader: GraphReader, x: Any, z: Any) -> View:
    """Record x log z, and 0 where x is 0 and z at most 0: the logarithm of 1 is taken there."""
    return reader.multiply(x, reader.op("log", _of_one(reader, x, z, 0.0, 1.0)))


@rule("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def xlog1py(reader: GraphReader, x: Any, z: Any) -> View:
    """Record x log(1 + z), and 0 where x is 0 and z at most -1: the logarithm of 1 is taken there."""
    return reader.multiply(x, reader.op("log1p", _of_one(reader, x, z, -1.0, 0.0)))


def _of_one(reader: GraphReader, x: Any, z: Any, bound: float, instead: float) -> View:
    """Return z, but another number where x is 0 and z at most a bound; elsewhere the gradient in x is the logarithm."""
    nothing = reader.op("equal", x, 0.0)
    if not isinstance(z, int | float):
        above = reader.op("less", bound, z)
        nothing = reader.multiply(nothing, reader.add(1.0, above, signs=[1, -1]))
    elif z > bound:
        nothing = reader.multiply(nothing, 0.0)
    return reader.op("select", nothing, instead, z)


@rule("fake_quantize_per_tensor_affine", "fake_quantize_per_tensor_affine.tensor_qparams")
def fake_quantized(reader: GraphReader, x: View, scale: Any, zero: Any, low: int, high: int) -> View:
    """Record the nearest of the numbers that codes represent; the gradient passes where a code is in range."""
    code = reader.add(rounded(reader, _exact_ratio(reader, x, scale)), zero)
    code = reader.op("stop_gradient", code)
    kept = clamped(reader, code, float(low), float(high))
    value = reader.multiply(reader.add(kept, zero, signs=[1, -1]), scale)
    passed = reader.multiply(reader.op("equal", kept, code), x)
    rest = reader.op("stop_gradient", reader.add(value, passed, signs=[1, -1]))
    return reader.add(passed, rest)


@rule("fake_quantize_per_channel_affine")
def fake_quantized_by_channel(
    reader: GraphReader, x: View, scale: Any, zero: Any, dim: int, low: int, high: int
) -> View:
    rows = [()] * len(x.dims)

    def along(value: Any) -> View:
        view = reader.view(value)
        return view.with_dims([view.dims[0] if place == dim else row for place, row in enumerate(rows)])

    return fake_quantized(reader, x, along(scale), along(zero), low, high)


@rule("threshold")
def threshold(reader: GraphReader, x: View, bound: float, value: float) -> View:
    return reader.op("select", reader.op("less", float(bound), x), x, float(value))


@rule("logaddexp2")
def logaddexp2(reader: GraphReader, x: View, z: View) -> View:
    high = reader.op("maximum", x, z)
    apart = reader.multiply(reader.op("abs", reader.add(x, z, signs=[1, -1])), -math.log(2))
    return reader.add(high, reader.multiply(reader.op("log1p", reader.op("exp", apart)), 1 / math.log(2)))


@rule(
    "full_like",
    "zeros_like",
    "ones_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "bernoulli",
    "bernoulli.p",
    "randint_like",
)
def made_like(reader: GraphReader, *_: Any, **__: Any) -> Any:
    """Return a tensor with the shape of a value and other numbers."""
    return GivenTensor(reader.node)
