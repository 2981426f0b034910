"""A layer of one's own as a model whose sizes its arrays say, so that every learning procedure trains it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from learncost.layers.layer import Layer
from learncost.models.configuration import of_layer
from learncost.models.model import Model, build
from learncost.models.tables import family_of_layer


def from_layer(layer: Layer, projected: Iterable[str] = ()) -> Model:
    """The model that a layer is, to be trained: no gradient of an input is made. From `loss` alone it can learn.

    projected   inputs, or embeddings, to which PEPITA adds the output's error through a fixed random matrix: the
                training's input `X.F` for X
    """
    sizes = {name: size for name, size in family_of_layer(layer).sizes.items() if isinstance(size, int)}
    return replace(build(of_layer(layer, sizes, projected=projected)), differentiated=())
