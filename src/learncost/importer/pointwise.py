"""Decompositions of elementwise operators and losses into operators that a rule or the vocabulary has.

PyTorch's own decompositions of these have other operations: conditions in place of bounds, and checks for infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch


def _relu6(x: Any) -> Any:
    return x.relu().clamp(max=6.0)


def _with_slope(x: Any, slope: Any) -> Any:
    """Return max(x, 0) + slope min(x, 0), with min(x, 0) as x - max(x, 0)."""
    above = x.relu()
    return above + (x - above) * slope


def _random_slopes(x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, *training: Any) -> Any:
    """Return rrelu in evaluation mode, with the mean of the slopes that training draws."""
    return NotImplemented if training[:1] == (True,) else (_with_slope(x, (lower + upper) / 2), noise)


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Return scale (max(x, 0) + alpha (exp(min(x, 0) input_scale) - 1))."""
    if scale == input_scale == 1:
        return NotImplemented
    above = x.relu()
    bent = _times(_times(x - above, input_scale).expm1(), alpha)
    return _times(above + bent, scale)


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * factor


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return log(1 + exp(beta x)) / beta. Beyond its threshold PyTorch returns x, which differs by 2e-9 from 20 on."""
    if beta == 1 and threshold >= 20:
        return NotImplemented
    value = _times(torch.nn.functional.softplus(_times(x, beta)), 1.0 / beta)
    return value if threshold >= 20 else torch.where(x > float(threshold) / beta, x, value)


def _logaddexp(x: Any, z: Any) -> Any:
    return torch.maximum(x, z) + (-(x - z).abs()).exp().log1p()


def _logaddexp2(x: Any, z: Any) -> Any:
    return torch.maximum(x, z) + ((x - z).abs() * -math.log(2)).exp().log1p() * (1 / math.log(2))


def _fmod(x: Any, z: Any) -> Any:
    return x - _detached(torch.div(x, z, rounding_mode="trunc")) * z


def _rounded(x: Any, *, decimals: int = 0) -> Any:
    """Return the nearest integer, ties to even; or the nearest number with this many decimals."""
    if decimals:
        return _rounded(x * 10.0**decimals) * 10.0**-decimals
    raised = x + 0.5
    upper = raised.floor()
    odd = upper - (upper * 0.5).floor() * 2.0
    return upper - odd * (upper == raised)


def _detached(x: Any) -> Any:
    return torch.ops.aten.detach.default(x)


def _copysign(x: Any, z: Any) -> Any:
    size = x.abs()
    if isinstance(z, int | float):
        return size if z >= 0 else -size
    return torch.where(z < 0, -size, size)


def _xlogy(x: Any, z: Any) -> Any:
    """Return x log z, and 0 where x is 0 and z at most 0: the logarithm of 1 is taken there."""
    return _with_logarithm(x, z, 0.0, 1.0, "log")


def _xlog1py(x: Any, z: Any) -> Any:
    """Return x log(1 + z), and 0 where x is 0 and z at most -1: the logarithm of 1 is taken there."""
    return _with_logarithm(x, z, -1.0, 0.0, "log1p")


def _with_logarithm(x: Any, z: Any, bound: float, instead: float, name: str) -> Any:
    """Return x times a logarithm of z, or of another number where x is 0 and z at most a bound."""
    if isinstance(z, int | float) and z > bound:
        return x * getattr(math, name)(z)
    logarithm = getattr(torch, name)
    if isinstance(x, int | float):
        return logarithm(z if x else torch.where(z <= bound, instead, z)) * x
    nothing = x == 0 if isinstance(z, int | float) else (x == 0) & (z <= bound)
    return logarithm(torch.where(nothing, instead, z)) * x


def _fake_quantized(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Return the nearest of the numbers that codes represent; the gradient passes where a code is in range."""
    step = scale if isinstance(scale, torch.Tensor) else torch.full((), scale, dtype=x.dtype, device=x.device)
    code = _detached(_rounded(x / step) + zero)  # no product with 1/scale, which another number may round to
    kept = code.clamp(float(low), float(high))
    passed = (kept == code) * x
    return passed + _detached((kept - zero) * scale - passed)


def _fake_quantized_by_channel(x: Any, scale: Any, zero: Any, dim: int, low: int, high: int) -> Any:
    shape = [-1 if place == dim else 1 for place in range(x.dim())]
    return _fake_quantized(x, scale.reshape(shape), zero.reshape(shape), low, high)


# Special functions


STEPS = 7
"""The argument is shifted this many steps before the series is evaluated: from there on seven terms are exact in
float64.
"""


def _lgamma(x: Any) -> Any:
    """Return log |Gamma(x)|: Stirling's series, Abramowitz & Stegun 6.1.41; below 1/2 by reflection, 6.1.17."""
    below, z, turned = _reflected(x)
    near, first, far = _stepped(z)
    middle, pairs = _factors(first)
    steps = torch.where(near, reduce(torch.mul, pairs, middle).log(), 0.0)
    share = far.reciprocal()
    series = share * _series(share, (12, -360, 1260, -1680, 1188, -360360 / 691, 156))
    there = (far - 0.5) * far.log() - far + series - steps + 0.5 * math.log(2 * math.pi)
    mirrored = math.log(math.pi) - (turned * math.pi).sin().log() - there
    return torch.where(below, mirrored, there)


def _digamma(x: Any) -> Any:
    """Return the derivative of log Gamma(x): Abramowitz & Stegun 6.3.18; below 1/2 by reflection, 6.3.7."""
    below, z, turned = _reflected(x)
    near, first, far = _stepped(z)
    middle, pairs = _factors(first)
    ones = [each.reciprocal() for each in (middle, *pairs)]
    steps = torch.where(near, ones[0] + reduce(torch.add, ones[1:]) * middle * 2.0, 0.0)
    share = far.reciprocal()
    series = share * share * _series(share, (12, -120, 252, -240, 132, -32760 / 691, 12))
    there = far.log() - share * 0.5 - series - steps
    angle = turned * math.pi
    return torch.where(below, there - angle.cos() / angle.sin() * math.pi, there)


def _reflected(x: Any) -> tuple[Any, Any, Any]:
    """Return whether x is below 1/2; 1 - x there, otherwise x; and the fraction of x there, otherwise 1/2."""
    below = x < 0.5
    return below, torch.where(below, 1 - x, x), torch.where(below, x - x.floor(), 0.5)


def _stepped(z: Any) -> tuple[Any, Any, Any]:
    """Return whether z is below the start of the series; z there, otherwise 1; and z, or the shifted z."""
    near = z < float(STEPS)
    return near, torch.where(near, z, 1.0), torch.where(near, z + float(STEPS), z)


def _factors(z: Any) -> tuple[Any, list[Any]]:
    """Return z + 3, and the products of pairs of z to z + 6 with equal distance from it."""
    pair = z * (z + 6.0)
    return z + 3.0, [pair, pair + 5.0, pair + 8.0]


def _series(share: Any, divisors: tuple[float, ...]) -> Any:
    """Return the sum of even powers from 0 on, each over its divisor."""
    square = share * share
    *rest, last = divisors
    total = square * (1 / last) + 1 / rest.pop()
    for divisor in reversed(rest):
        total = square * total + 1 / divisor
    return total


def _erfinv(x: Any) -> Any:
    """Return Winitzki's approximation, two steps of Halley's method, and one of Newton's, whose gradient is that of the
    result.
    """
    given, share = _detached(x), 0.147
    height = (-(given * given)).log1p()
    half = height * 0.5 + 2 / (math.pi * share)
    root = (half * half - height * (1 / share)).sqrt()
    near = given.sign() * (root - half).sqrt()
    for _ in range(2):
        step = _newton(near, given)
        near = near - step / (near * step + 1.0)
    return near - _newton(near, x)


def _newton(y: Any, x: Any) -> Any:
    """Return the distance of y from the root of erf(y) = x, along the tangent."""
    return (y.erf() - x) * ((y * y).exp() * (math.sqrt(math.pi) / 2))


def _across(x: Any) -> Any:
    """Return the root of 1 - x^2, by factors, without loss of digits."""
    return ((1 - x) * (x + 1.0)).sqrt()


# Losses

_LEAST_SPREAD = 9.999999960041972e-13
"""1e-12 in fp32, which it is in PyTorch's kernel for processors, whatever the type (EPSILON, ATen/native/Loss.cpp)."""


def reduced(each: Any, reduction: int) -> Any:
    """Return the terms of a loss, their mean or their sum, by PyTorch's number of a reduction."""
    return each.mean() if reduction == 1 else each.sum() if reduction else each


def _squares(x: Any, z: Any, reduction: int = 1) -> Any:
    apart = x - z
    return reduced(apart * apart, reduction)


def _smooth(x: Any, z: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    """Return q^2 / (2 beta) + |a| - q of the difference a, with q = min(|a|, beta)."""
    apart = (x - z).abs()
    inner = apart.clamp(max=float(beta))
    return reduced(inner * inner * (0.5 / beta) + apart - inner if beta else apart, reduction)


def _huber(x: Any, z: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    return reduced(_times(_smooth(x, z, 0, delta), float(delta)), reduction)


def _binary_of_logits(x: Any, z: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    """Return -(z log s(x) + (1 - z) log s(-x)) = -(log s(-x) + z x), with log s(x) = x + log s(-x).

    With weights p of positives, p z replaces z: -((p z + 1 - z) log s(-x) + p z x).
    """
    below = torch.nn.functional.logsigmoid(-x)
    holds = z if pos_weight is None else pos_weight * z
    each = -((below if pos_weight is None else (holds + 1.0 - z) * below) + holds * x)
    return reduced(each if weight is None else each * weight, reduction)


def _binary(x: Any, z: Any, weight: Any = None, reduction: int = 1) -> Any:
    """Return -(z log x + (1 - z) log(1 - x)) with logarithms >= -100, and the gradient (x - z) / max(x (1 - x), 1e-12).

    Both bounds are PyTorch's (torch.nn.BCELoss, and binary_cross_entropy_backward in ATen/native/Loss.cpp). The second
    bounds only the gradient, so a separate term provides it: slope x minus its detached value is 0 and has this
    gradient.
    """
    other = 1 - x
    yes, no = (_detached(each.log().clamp(min=-100.0)) for each in (x, other))
    along = _detached((x - z) / (x * other).clamp(min=_LEAST_SPREAD)) * x
    each = along - _detached(along) - (z * yes + (1 - z) * no)
    return reduced(each if weight is None else each * weight, reduction)


def _divergence(x: Any, z: Any, reduction: int = 1, *, log_target: bool = False) -> Any:
    """Return `kl_div`. Where a weight is 0 nothing is added: the logarithm of 1 is taken there."""
    shares, logarithms = (z.exp(), z) if log_target else (z, (z + (z == 0)).log())
    return reduced(shares * (logarithms - x), reduction)


def _hinge(x: Any, target: Any, margin: float = 1.0, reduction: int = 1) -> Any:
    each = torch.where(target != 1, (margin - x).clamp_min(0), 0.0) + torch.where(target != -1, x, 0.0)
    return reduced(each, reduction)


def _cosine(x: Any, z: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return the sum of the products of x and z over their norms, which are at least eps."""
    one, other = (each / torch.linalg.vector_norm(each, 2, dim, True).clamp(min=eps) for each in (x, z))
    return (one * other).sum(dim)


POINTWISE: Mapping[str, Callable[..., Any]] = {
    "tan": lambda x: x.sin() / x.cos(),
    "sinh": lambda x: (x.exp() - (-x).exp()) * 0.5,
    "cosh": lambda x: (x.exp() + (-x).exp()) * 0.5,
    "asinh": lambda x: x.sign() * (x.abs() + (x * x + 1.0).sqrt()).log(),
    "acosh": lambda x: (x + (x * x - 1.0).sqrt()).log(),
    "atanh": lambda x: (x.log1p() - (-x).log1p()) * 0.5,
    "asin": lambda x: torch.atan2(x, _across(x)),
    "acos": lambda x: torch.atan2(_across(x), x),
    "log2": lambda x: x.log() * (1 / math.log(2)),
    "log10": lambda x: x.log() * (1 / math.log(10)),
    "exp2": lambda x: (x * math.log(2)).exp(),
    "erfc": lambda x: 1 - x.erf(),
    "erfinv": _erfinv,
    "lgamma": _lgamma,
    "digamma": _digamma,
    "logaddexp": _logaddexp,
    "logaddexp2": _logaddexp2,
    "xlogy": _xlogy,
    "special_xlogy": _xlogy,
    "special_xlog1py": _xlog1py,
    "lerp": lambda x, end, weight: x + (end - x) * weight,
    "hypot": lambda x, z: (x * x + z * z).sqrt(),
    "copysign": _copysign,
    "angle": lambda x: (x < 0) * math.pi,
    "ceil": lambda x: -(-x).floor(),
    "round": _rounded,
    "fmod": _fmod,
    "remainder": lambda x, z: x - torch.div(x, z, rounding_mode="floor") * z,
    "hardsigmoid": lambda x: _relu6(x + 3.0) * (1 / 6),
    "hardswish": lambda x: x * (_relu6(x + 3.0) * (1 / 6)),
    "hardtanh": lambda x, low=-1.0, high=1.0: x.clamp(low, high) if low else x.relu().clamp(max=high),
    "leaky_relu": lambda x, slope=0.01: _with_slope(x, slope),
    "rrelu_with_noise_functional": _random_slopes,
    "_prelu_kernel": _with_slope,
    "elu": _elu,
    "celu": lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1.0 / alpha) if alpha != 1 else torch.nn.functional.elu(x),
    "softplus": _softplus,
    "threshold": lambda x, bound, value: torch.where(x > float(bound), x, float(value)),
    "fake_quantize_per_tensor_affine": _fake_quantized,
    "fake_quantize_per_channel_affine": _fake_quantized_by_channel,
    "mse_loss": _squares,
    "l1_loss": lambda x, z, reduction=1: reduced((x - z).abs(), reduction),
    "smooth_l1_loss": _smooth,
    "huber_loss": _huber,
    "soft_margin_loss": lambda x, z, reduction=1: reduced(-torch.nn.functional.logsigmoid(x * z), reduction),
    "binary_cross_entropy_with_logits": _binary_of_logits,
    "binary_cross_entropy": _binary,
    "kl_div": _divergence,
    "hinge_embedding_loss": _hinge,
    "cosine_similarity": _cosine,
}
"""The decomposition of an operator, or of one of its overloads; `NotImplemented` keeps a call as it is."""
