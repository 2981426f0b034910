"""Special functions in lines: inverse trigonometric functions, the gamma function, the error function."""

from __future__ import annotations

import math
from typing import Any

from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.views import View


@rule("atan2")
def atan2(reader: GraphReader, x: Any, z: Any) -> View:
    return reader.op("atan2", x, z)


@rule("asin")
def asin(reader: GraphReader, x: View) -> View:
    return reader.op("atan2", x, _across(reader, x))


@rule("acos")
def acos(reader: GraphReader, x: View) -> View:
    return reader.op("atan2", _across(reader, x), x)


def _across(reader: GraphReader, x: View) -> View:
    """Record the root of 1 - x^2, by factors, without loss of digits."""
    factors = reader.multiply(reader.add(1.0, x, signs=[1, -1]), reader.add(x, 1.0))
    return reader.op("sqrt", factors)


STEPS = 7
"""The argument is shifted this many steps before the series is evaluated: from there on seven terms are exact in
float64.
"""


@rule("lgamma")
def lgamma(reader: GraphReader, x: View) -> View:
    """Record log |Gamma(x)|: Stirling's series, Abramowitz & Stegun 6.1.41; below 1/2 by reflection, 6.1.17."""
    below, z, turned = _reflected(reader, x)
    near, first, far = _stepped(reader, z)
    middle, pairs = _factors(reader, first)
    for pair in pairs:
        middle = reader.multiply(middle, pair)
    steps = reader.op("select", near, reader.op("log", middle), 0.0)
    share = reader.op("divide", 1.0, far)
    series = reader.multiply(share, _series(reader, share, (12, -360, 1260, -1680, 1188, -360360 / 691, 156)))
    growth = reader.multiply(reader.add(far, -0.5), reader.op("log", far))
    there = reader.add(growth, far, signs=[1, -1])
    there = reader.add(reader.add(there, series), steps, signs=[1, -1])
    there = reader.add(there, 0.5 * math.log(2 * math.pi))
    height = reader.op("log", reader.op("sin", reader.multiply(turned, math.pi)))
    mirrored = reader.add(reader.add(math.log(math.pi), height, signs=[1, -1]), there, signs=[1, -1])
    return reader.op("select", below, mirrored, there)


@rule("digamma")
def digamma(reader: GraphReader, x: View) -> View:
    """Record the derivative of log Gamma(x): Abramowitz & Stegun 6.3.18; below 1/2 by reflection, 6.3.7."""
    below, z, turned = _reflected(reader, x)
    near, first, far = _stepped(reader, z)
    middle, pairs = _factors(reader, first)
    shares = [reader.op("divide", 1.0, each) for each in (middle, *pairs)]
    of_pairs = reader.multiply(reader.multiply(reader.add(*shares[1:]), middle), 2.0)
    steps = reader.op("select", near, reader.add(shares[0], of_pairs), 0.0)
    share = reader.op("divide", 1.0, far)
    square = reader.multiply(share, share)
    series = reader.multiply(square, _series(reader, share, (12, -120, 252, -240, 132, -32760 / 691, 12)))
    there = reader.add(reader.op("log", far), reader.multiply(share, 0.5), signs=[1, -1])
    there = reader.add(reader.add(there, series, signs=[1, -1]), steps, signs=[1, -1])
    angle = reader.multiply(turned, math.pi)
    cotangent = reader.op("divide", reader.op("cos", angle), reader.op("sin", angle))
    mirrored = reader.add(there, reader.multiply(cotangent, math.pi), signs=[1, -1])
    return reader.op("select", below, mirrored, there)


def _reflected(reader: GraphReader, x: View) -> tuple[View, View, View]:
    """Return whether x is below 1/2; 1 - x there, otherwise x; and the fraction of x there, otherwise 1/2."""
    below = reader.op("less", x, 0.5)
    beyond = reader.add(x, reader.op("floor", x), signs=[1, -1])
    turned = reader.op("select", below, beyond, 0.5)
    return below, reader.op("select", below, reader.add(1.0, x, signs=[1, -1]), x), turned


def _stepped(reader: GraphReader, z: View) -> tuple[View, View, View]:
    """Return whether z is below the start of the series; z there, otherwise 1; and z, or the shifted z."""
    near = reader.op("less", z, float(STEPS))
    far = reader.op("select", near, reader.add(z, float(STEPS)), z)
    return near, reader.op("select", near, z, 1.0), far


def _factors(reader: GraphReader, z: View) -> tuple[View, list[View]]:
    """Return z + 3, and the products of pairs of z to z + 6 with equal distance from it."""
    pair = reader.multiply(z, reader.add(z, 6.0))
    return reader.add(z, 3.0), [pair, reader.add(pair, 5.0), reader.add(pair, 8.0)]


def _series(reader: GraphReader, share: View, divisors: tuple[float, ...]) -> View:
    """Record the sum of even powers from 0 on, each over its divisor."""
    square = reader.multiply(share, share)
    *rest, last = divisors
    total = reader.add(reader.multiply(square, 1 / last), 1 / rest.pop())
    for divisor in reversed(rest):
        total = reader.add(reader.multiply(square, total), 1 / divisor)
    return total


@rule("erfinv")
def erfinv(reader: GraphReader, x: View) -> View:
    """Record Winitzki's approximation, two steps of Halley's method, and one of Newton's, whose gradient is that of the
    result.
    """
    given = reader.op("stop_gradient", x)
    share = 0.147
    height = reader.op("log1p", reader.multiply(reader.multiply(given, given), -1.0))
    half = reader.add(reader.multiply(height, 0.5), 2 / (math.pi * share))
    root = reader.op("sqrt", reader.add(reader.multiply(half, half), reader.multiply(height, 1 / share), signs=[1, -1]))
    near = reader.multiply(reader.op("sign", given), reader.op("sqrt", reader.add(root, half, signs=[1, -1])))
    for _ in range(2):
        step = _newton(reader, near, given)
        bend = reader.add(reader.multiply(near, step), 1.0)
        near = reader.add(near, reader.op("divide", step, bend), signs=[1, -1])
    return reader.add(near, _newton(reader, near, x), signs=[1, -1])


def _newton(reader: GraphReader, y: View, x: View) -> View:
    """Record the distance of y from the root of erf(y) = x, along the tangent."""
    slope = reader.multiply(reader.op("exp", reader.multiply(y, y)), math.sqrt(math.pi) / 2)
    return reader.multiply(reader.add(reader.op("erf", y), x, signs=[1, -1]), slope)
