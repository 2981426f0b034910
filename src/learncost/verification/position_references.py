"""Reference implementations of positional layers in plain Python, after the papers and transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.verification.plain import of

Array = Any


def sinusoids(shape: tuple[int, ...]) -> Array:
    """Return sin(p / 10000^(2i/d)) at channel 2i, and the cosine at 2i + 1."""
    result = np.empty(shape)
    for p, c in np.ndindex(shape):
        result[p, c] = (math.sin, math.cos)[c % 2](p / 10000 ** ((c - c % 2) / shape[1]))
    return result


def rotary_halves(width: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the rotation of channel i with channel i + width/2."""
    half, k = float(width) / 2, np.arange(*shape)
    sign = np.where(k < half, -1.0, np.where(k < width, 1.0, 0.0))
    return k % half, sign, np.where(k < half, k + half, np.where(k < width, k - half, k))


def rotary_pairs(width: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the rotation of channel 2i with channel 2i + 1."""
    k = np.arange(*shape)
    sign = np.where(k < width, np.where(k % 2, 1.0, -1.0), 0.0)
    return k // 2, sign, np.where(k < width, k ^ 1, k)


def rotary_angles(f: Array, sign: Array, scale: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the cosine and the sine of each position times each frequency."""
    angles = np.outer(np.arange(shape[0]), f)
    return np.where(sign == 0, 1.0, scale * np.cos(angles)), scale * sign * np.sin(angles)


def dynamic_base(base: Array, factor: Array, length: Array, trained: Array, width: Array) -> Array:
    """Return the base of transformers' _compute_dynamic_ntk_parameters."""
    longest = max(length, trained)
    return base * (factor * longest / trained - (factor - 1)) ** (width / (width - 2))


def llama3_frequencies(f: Array, factor: Array, low: Array, high: Array, trained: Array) -> Array:
    """Return the frequencies of transformers' _compute_llama3_parameters, which may have high below low."""
    result = []
    for frequency in f:
        smooth = (trained / (2 * math.pi / frequency) - low) / (high - low)
        result.append(
            frequency / factor
            if smooth < 0
            else frequency
            if smooth > 1
            else (1 - smooth) * frequency / factor + smooth * frequency
        )
    return np.array(result)


def yarn_rotations(iterations: Array, width: Array, base: Array, trained: Array) -> Array:
    """Return the dimension of transformers' find_correction_dim."""
    return width * np.log(trained / (iterations * 2 * math.pi)) / (2 * np.log(base))


def yarn_frequencies(f: Array, pair: Array, width: Array, base: Array, *scaling: Array) -> Array:
    """Return the frequencies of transformers' _compute_yarn_parameters, a mix of interpolated and original ones."""
    factor, fast, slow, trained, truncates = scaling
    low, high = (yarn_rotations(each, width, base, trained) for each in (fast, slow))
    if truncates > 0:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    uninterpolated = 1 - np.clip((pair - low) / (high - low if high != low else 0.001), 0, 1)
    return f / factor * (1 - uninterpolated) + f * uninterpolated


def yarn_scale(factor: Array, above: Array, below: Array) -> Array:
    """Return the ratio of two values of transformers' get_mscale."""

    def scale(weight: Array) -> Array:
        return 1.0 if factor <= 1 else 0.1 * weight * np.log(factor) + 1

    return np.asarray(scale(above) / scale(below))


def longrope_frequencies(f: Array, pair: Array, short: Array, long: Array, length: Array, trained: Array) -> Array:
    """Return the frequencies of transformers' _compute_longrope_parameters; missing divisors are 1."""
    divisors = long if length > trained else short
    at = {float(number): divisor for number, divisor in enumerate(divisors)}
    return f / np.array([at.get(float(pair_index), 1.0) for pair_index in pair])


def longrope_scale(factor: Array, trained: Array) -> Array:
    """Return the scale of transformers' _compute_longrope_parameters."""
    return np.asarray(1.0 if factor <= 1 else np.sqrt(1 + np.log(factor) / np.log(trained)))


def alibi_slopes(most: Array, shape: tuple[int, ...]) -> Array:
    """Return the slopes of transformers' build_mpt_alibi_tensor: those of the next power of two, every second first."""
    heads = math.prod(shape)
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [2.0 ** (-most * (i + 1) / power) for i in range(power)]
    if power != heads:
        slopes = (slopes[1::2] + slopes[::2])[:heads]
    return np.array(slopes).reshape(shape)


def key_distances(shape: tuple[int, ...]) -> Array:
    """Return the position of each key minus that of each query."""
    return np.arange(shape[1]) - np.arange(shape[0])[:, None]


def distance_buckets(far: Array, buckets: Array, furthest: Array) -> Array:
    """Return transformers' _relative_position_bucket of non-negative distances."""
    exact = buckets // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        large = exact + np.floor(np.log(np.maximum(far, exact) / exact) / np.log(furthest / exact) * (buckets - exact))
        return np.where(far < exact, far, np.minimum(large, buckets - 1))


def causal_relative_buckets(buckets: Array, furthest: Array, shape: tuple[int, ...]) -> Array:
    """Return the buckets with bidirectional=False."""
    return distance_buckets(np.maximum(-key_distances(shape), 0), buckets, furthest)


def relative_buckets(buckets: Array, furthest: Array, shape: tuple[int, ...]) -> Array:
    """Return the buckets with bidirectional=True."""
    far, half = key_distances(shape), buckets // 2
    return (far > 0) * half + distance_buckets(np.abs(far), half, furthest)


def log_buckets(far: Array, buckets: Array, furthest: Array) -> Array:
    """Return the buckets of transformers' make_log_bucket_position."""
    middle = buckets // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(np.maximum(np.abs(far), middle) / middle) / np.log((furthest - 1) / middle)
        return np.where(np.abs(far) <= middle, far, (np.ceil(log * (middle - 1)) + middle) * np.sign(far))


def distance_rows(far: Array, half: Array) -> Array:
    """Return torch.clamp(far + span, 0, 2 * span - 1)."""
    return np.minimum(np.maximum(far + half, 0), 2 * half - 1)


LAYERS: Mapping[str, Callable[..., Any]] = {
    "alibi_slopes": of("0", alibi_slopes, sized=True),
    "causal_relative_buckets": of("00", causal_relative_buckets, sized=True),
    "distance_buckets": of("200", distance_buckets),
    "distance_rows": of("20", lambda far, half: np.clip(far + half, 0, 2 * half - 1)),
    "dynamic_base": of("00000", dynamic_base),
    "key_distances": of("", key_distances, sized=True),
    "llama3_frequencies": of("10000", llama3_frequencies),
    "log_buckets": of("200", log_buckets),
    "longrope_frequencies": of("111100", longrope_frequencies),
    "longrope_scale": of("00", longrope_scale),
    "places": of("", lambda shape: np.arange(*shape), sized=True),
    "relative_buckets": of("00", relative_buckets, sized=True),
    "rotary_angles": of("110", rotary_angles, sized=True),
    "rotary_frequencies": of("100", lambda pair, width, base: 1 / base ** (2 * pair / width)),
    "rotary_halves": of("0", rotary_halves, sized=True),
    "rotary_pairs": of("0", rotary_pairs, sized=True),
    "sinusoids": of("", sinusoids, sized=True),
    "yarn_frequencies": of("110000000", yarn_frequencies),
    "yarn_scale": of("000", yarn_scale),
    "yarn_turns": of("0000", yarn_rotations),
}
