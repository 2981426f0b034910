"""The rewritings that a family's file can name, each with what its argument is. They are those of the layers floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.layers.layer import Layer
from learncost.layers.rewrite import with_biases, with_epsilon, with_op, with_transposed


def _refinement() -> Any:
    """The module of refinements, which not every family needs."""
    from learncost.layers import refinement

    return refinement


def _words(layer: Layer, ops: Mapping[str, str]) -> Layer:
    for old, new in ops.items():
        layer = with_op(layer, old, new)
    return layer


def _transposed(layer: Layer, weights: str | list[str]) -> Layer:
    for weight in [weights] if isinstance(weights, str) else weights:
        layer = with_transposed(layer, weight)
    return layer


def _norms(layer: Layer, settings: Mapping[str, Any]) -> Layer:
    along, shifts, from_one = (
        tuple(settings.get("along", "k")),
        settings.get("shifts", {}),
        settings.get("from_one", False),
    )
    normed: Layer = _refinement().with_norms(layer, settings["gains"], along, settings["epsilon"], shifts, from_one)
    return normed


def _scale(layer: Layer, factor: float | Mapping[str, Any]) -> Layer:
    factors = (factor["by"], factor["of"]) if isinstance(factor, Mapping) else (factor,)
    scaled: Layer = _refinement().with_scale(layer, *factors)
    return scaled


def _softcap(layer: Layer, settings: Mapping[str, Any]) -> Layer:
    capped: Layer = _refinement().with_softcap(layer, settings["cap"], settings["of"])
    return capped


def _gaussian_topk(layer: Layer, of: str, along: list[str], deviations: float) -> Layer:
    refined: Layer = _refinement().refined(layer, "gaussian_topk", of, {"deviations": deviations}, along=tuple(along))
    return refined


REWRITINGS: Mapping[str, Callable[[Layer, Any], Layer]] = {
    "word": _words,  # {old = new}: another word of the vocabulary
    "epsilon": with_epsilon,  # a number
    "biases": with_biases,  # {weight = bias}
    "transposed": _transposed,  # a weight that is stored the other way round, or several
    "norms": _norms,  # {gains = {value = gain}, along = [axes], epsilon = number, shifts = {value = shift}, from_one}
    "rotary": lambda layer, names: _refinement().with_rotary(
        layer, *names, *[None] * (len(names) == 1)
    ),  # [queries, keys], or one of them
    "softcap": _softcap,  # {of = value, cap = number}
    "scale": _scale,  # another factor: a number for the scores, or {of = value, by = number}
    "factor": lambda layer, settings: _refinement().with_factor(
        layer, settings["by"], settings["of"]
    ),  # {of = value, by = number}
    "groups": lambda layer, settings: _refinement().with_groups(
        layer, settings["of"], settings["by"]
    ),  # {of = value, by = refinement}
    "without": lambda layer, op: _refinement().without_op(layer, op),  # a word
    "sinks": lambda layer, weight: _refinement().with_sinks(layer, weight),  # the weight
    "no_scale": lambda layer, _: _refinement().without_scale(layer),
    "alibi": lambda layer, _: _refinement().with_alibi(layer),
    "bias": lambda layer, _: _refinement().with_bias(layer),
    "visible": lambda layer, scores: _refinement().with_visible(layer, scores),  # the scores
    "unit_rms": lambda layer, settings: _refinement().with_unit_rms(
        layer, settings["of"], settings["epsilon"]
    ),  # {of = [values], epsilon = number}
    "gaussian_topk": lambda layer, settings: _gaussian_topk(layer, **settings),  # {of, along = [axes], deviations}
    "temperature": lambda layer, queries: _refinement().with_temperature(layer, queries),  # the queries
    "content_to_position": lambda layer, settings: _refinement().with_content_to_position(
        layer, **settings
    ),  # {weight, scale}
    "position_to_content": lambda layer, settings: _refinement().with_position_to_content(layer, **settings),
}
"""By name: from a layer and an argument to a layer."""
