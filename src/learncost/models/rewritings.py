"""The rewritings that a family's file can name, each with what its argument is. They are those of the layers floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.layers.layer import Layer
from learncost.layers.rewrite import with_biases, with_epsilon, with_transposed, with_word
from learncost.layers.rewrite_attention import (
    with_alibi,
    with_bias,
    with_norms,
    with_rotary,
    with_scale,
    with_sinks,
    with_softcap,
    without_scale,
)
from learncost.layers.rewrite_disentangled import with_content_to_position, with_position_to_content
from learncost.layers.rewrite_experts import with_factor, without_word


def _words(layer: Layer, words: Mapping[str, str]) -> Layer:
    for old, new in words.items():
        layer = with_word(layer, old, new)
    return layer


def _transposed(layer: Layer, weights: str | list[str]) -> Layer:
    for weight in [weights] if isinstance(weights, str) else weights:
        layer = with_transposed(layer, weight)
    return layer


def _norms(layer: Layer, given: Mapping[str, Any]) -> Layer:
    along, shifts = tuple(given.get("along", "k")), given.get("shifts", {})
    return with_norms(layer, given["gains"], along, given["epsilon"], shifts, given.get("from_one", False))


def _scale(layer: Layer, given: float | Mapping[str, Any]) -> Layer:
    return with_scale(layer, given["by"], given["of"]) if isinstance(given, Mapping) else with_scale(layer, given)


def _softcap(layer: Layer, given: Mapping[str, Any]) -> Layer:
    return with_softcap(layer, given["cap"], given["of"])


REWRITINGS: Mapping[str, Callable[[Layer, Any], Layer]] = {
    "word": _words,  # {old = new}: another word of the vocabulary
    "epsilon": with_epsilon,  # a number
    "biases": with_biases,  # {weight = bias}
    "transposed": _transposed,  # a weight that is stored the other way round, or several
    "norms": _norms,  # {gains = {value = gain}, along = [axes], epsilon = number, shifts = {value = shift}, from_one}
    "rotary": lambda layer, names: with_rotary(layer, *names),  # [queries, keys]
    "softcap": _softcap,  # {of = value, cap = number}
    "scale": _scale,  # another factor: a number for the scores, or {of = value, by = number}
    "factor": lambda layer, given: with_factor(layer, given["by"], given["of"]),  # {of = value, by = number}
    "without": without_word,  # a word
    "sinks": with_sinks,  # the weight
    "no_scale": lambda layer, _: without_scale(layer),
    "alibi": lambda layer, _: with_alibi(layer),
    "bias": lambda layer, _: with_bias(layer),
    "content_to_position": lambda layer, given: with_content_to_position(layer, **given),  # {weight, scale}
    "position_to_content": lambda layer, given: with_position_to_content(layer, **given),
}
"""By name: from a layer and an argument to a layer."""
