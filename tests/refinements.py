"""Refinements of layers' values by their names, as tests follow them upon one another."""

from learncost.layers.refinement import refined


def with_alibi(layer):
    return refined(layer, "alibi", "S")


def with_relative_bias(layer):
    return refined(layer, "relative_bias", "S")


def with_softcap(layer, cap, name="S"):
    return refined(layer, "softcap", name, {"cap": cap, "inverse": 1 / cap})


def with_visible(layer):
    return refined(layer, "visible", "S")
